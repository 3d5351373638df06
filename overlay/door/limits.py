"""The limits of a client door. Each number is a guess unless it says otherwise."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DoorLimits:
    batch_bytes_max: int = 16 << 20
    """Payload of one batch. The channel's own limit must not be lower."""
    commit_bytes_max: int = 32 << 20
    """Payload of one keyed publish. It stays in memory until it is on disk, for one call at a time on top of
    `queue_bytes_max`: raising it costs that memory."""
    queue_bytes_max: int = 32 << 20
    """Unanswered payload of all calls. Beyond it publishers wait. Keyed calls have a separate half of this, since they
    wait for their clients. It costs about twice as much memory, with what the allocator retains: a node that staged as
    fast as it could took 267 MB at 64 MiB and 132 MB at 32 MiB. Measured."""
    chunk_bytes: int = 1 << 20
    """The number of bytes that one reader reads from the store at a time. Higher: more memory per reader; lower: more
    transactions. With 40 stalled readers of 1 MB batches a publishing node took 376 MB at 4 MiB and 256 MB at this.
    Measured."""
    read_bytes_max: int = 32 << 20
    """Payload that was read for all readers and not taken by them yet. Many readers each read less at a time, down to
    one batch. Higher: more memory; lower: more transactions with many readers."""
    linger_ms: int = 5
    """The time for which small record batches wait to be coalesced while others are in flight. 0 disables
    coalescing."""
    acks: int = 0
    """Acknowledging nodes for publishes that do not request a number."""
    calls_max: int = 256
    """Open publishes and reads of one client, and as many open actions. Each costs a thread, even an idle tail."""
    timeout_ms: int = 30_000
    """The time for which a call waits for an answer or for rows unless it sets a time-out. It is also the time for
    which a keyed publish may hold its bytes while others wait for them."""
