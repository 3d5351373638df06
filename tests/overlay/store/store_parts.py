"""A store in a folder of its own, and a witness that keeps what the writer says."""

import queue
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from m4cast.overlay.protocol.effects import Append
from m4cast.overlay.protocol.wire.batch import Batch, Delivery, How, StoredPayload
from m4cast.overlay.protocol.wire.frame import payload_checksum
from m4cast.overlay.store.retention import Retention
from m4cast.overlay.store.store import Callbacks, ChannelName, Store, StoreLimits
from m4cast.overlay.store.tables.topics import Keep
from tests.overlay.protocol.append_parts import append_of
from tests.overlay.protocol.stream_parts import node_id

CHANNEL = ChannelName("m4cast", "test")
MIB = 1 << 20
WAIT_S = 30
"""Never waited for, unless the test fails."""
KEEP_ALL = Retention(Keep(None, None))


def from_stage(batch: Batch) -> Batch:
    """The batch as a commit gives it to the store: its payload was staged before."""
    return replace(batch, payload=StoredPayload(len(batch.payload), payload_checksum(batch.payload)))


class Witness:
    """The reports to a store's owner, in order: ("durable", token), ("failed", token, reason), ("broken", reason)."""

    def __init__(self) -> None:
        self._heard: queue.SimpleQueue[tuple[str, int, str]] = queue.SimpleQueue()
        self.callbacks = Callbacks(
            on_durable=lambda token: self._heard.put(("durable", token, "")),
            on_failed=lambda token, reason: self._heard.put(("failed", token, reason)),
            on_broken=lambda reason: self._heard.put(("broken", 0, reason)),
        )

    def next(self) -> tuple[str, int, str]:
        return self._heard.get(timeout=WAIT_S)

    def all(self) -> list[tuple[str, int]]:
        """Everything heard so far, without the reasons."""
        heard = []
        while not self._heard.empty():
            heard.append(self._heard.get()[:2])
        return heard


@contextmanager
def opened(
    path: Path,
    witness: Witness | None = None,
    *,
    channel: ChannelName = CHANNEL,
    limits: StoreLimits | None = None,
    retention: Retention = KEEP_ALL,
    node_id_file: Path | None = None,
) -> Iterator[Store]:
    store = Store.open(
        path,
        channel,
        (witness or Witness()).callbacks,
        limits=limits or StoreLimits(map_bytes=256 * MIB),
        retention=retention,
        node_id_file=node_id_file,
    )
    try:
        yield store
    finally:
        store.close()


def synced(store: Store, *appends: Append) -> None:
    """Append, and wait until they are on disk or have failed."""
    for append in appends:
        store.append(append)
    store.sync().result(WAIT_S)


def received(token: int, *batches: Batch, at_ms: int | None = None, unstage: tuple[str, ...] = ()) -> Append:
    """An append as a node makes it of batches that came over a link; at once, unless it is said when."""

    def delivery(b: Batch) -> Delivery:
        came_ms = b.published_at_ms if at_ms is None else at_ms
        rows = b.first_sequence, b.last_sequence
        return Delivery(b.stream, *rows, b.published_at_ms, came_ms, 2, How.PUSHED, node_id("n"))

    deliveries = tuple(delivery(batch) for batch in batches)
    return append_of(token, batches=batches, deliveries=deliveries, unstage=unstage)
