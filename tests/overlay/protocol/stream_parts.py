"""Small values for tests of the machines: nodes called by a word, runs of batches chained as an origin chains them.

`a` is a node whose id begins with "a" and whose address is `a:7400`; ids sort as the words do.
"""

from collections.abc import Sequence
from random import Random
from typing import TypeVar

from m4cast.overlay.config import ClusterConfig, NodeConfig
from m4cast.overlay.ids import Contact, NodeId, StreamId
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import Output, Send
from m4cast.overlay.protocol.wire.batch import Batch, BatchFrame, How
from m4cast.overlay.protocol.wire.frame import seal
from m4cast.overlay.protocol.wire.messages import RosterEntry

T = TypeVar("T")


def node_id(name: str) -> NodeId:
    """An id with the number in both halves: nodes of different names are of different lineage."""
    return NodeId(2 * name.encode().ljust(8, b"\0")[:8])


def contact(name: str) -> Contact:
    return Contact(node_id(name), f"{name}:7400")


def context_of_m(
    config: NodeConfig | None = None, cluster: ClusterConfig | None = None, *, incarnation: int = 1, seed: int = 1
) -> Context:
    """The context of node m."""
    config = config or NodeConfig(listen="m:7400")
    return Context(contact("m"), incarnation, cluster or ClusterConfig(), config, Random(seed))


def stream_id(origin: str = "o", topic: str = "t") -> StreamId:
    return StreamId(node_id(origin), topic)


def chain(
    count: int,
    *,
    stream: StreamId | None = None,
    size: int = 10,
    rows: int = 1,
    after: Batch | None = None,
    mark: bytes = b".",
) -> list[Batch]:
    """The next `count` batches of a stream, each of `rows` rows and `size` bytes, after the given one."""
    stream = stream or (after.stream if after else stream_id())
    batches: list[Batch] = []
    for _ in range(count):
        batch = Batch(
            stream=stream,
            incarnation=1,
            first_sequence=after.next_sequence if after else 1,
            row_count=rows,
            origin_batch=after.origin_batch + 1 if after else 1,
            schema_id=1,
            published_at_ms=7,
            publisher="",
            position="",
            part=0,
            parts=1,
            previous_checksum=after.checksum if after else 0,
            payload=mark * size,
        )
        after = seal(batch)
        batches.append(after)
    return batches


def pushed(batch: Batch, hops: int = 1) -> BatchFrame:
    return BatchFrame(batch, hops, How.PUSHED)


def entry(
    name: str,
    incarnation: int = 1,
    counter: int = 1,
    *,
    origin_batch: int = 0,
    leaving: bool = False,
    beacon_interval_ms: int = 5_000,
) -> RosterEntry:
    """A node's word about itself."""
    return RosterEntry(
        node_id=node_id(name),
        incarnation=incarnation,
        counter=counter,
        address=contact(name).address,
        door="",
        name=name,
        site="",
        origin_batch=origin_batch,
        leaving=leaving,
        beacon_interval_ms=beacon_interval_ms,
        neighbours=(),
    )


def take(out: list[Output]) -> list[Output]:
    """The outputs since the last call."""
    taken = list(out)
    out.clear()
    return taken


def of(outputs: Sequence[Output], kind: type[T]) -> list[T]:
    """The outputs of one kind."""
    return [output for output in outputs if isinstance(output, kind)]


def sends(outputs: Sequence[Output], kind: type[T]) -> list[tuple[int, T]]:
    """The messages of one kind that are sent: (connection, message)."""
    return [
        (output.conn, output.message)
        for output in outputs
        if isinstance(output, Send) and isinstance(output.message, kind)
    ]
