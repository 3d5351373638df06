"""One coalescer without a door: what it asks of the node, who hears of it, and that all room is free again after it.

The test answers the requests. Rows that are added with `TINY` as their size are put together whatever their real size.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from xxhash import xxh3_64_intdigest

from m4cast.overlay.door.node_handle import NodeRequest
from m4cast.overlay.door.publish.acks import AckStream, AckThreads
from m4cast.overlay.door.publish.coalescing import Coalescer, Encoder, SmallBatches
from m4cast.overlay.door.quotas import ByteQuota
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.rows import payload
from m4cast.overlay.door.rows.summaries import FilteredColumns, Summaries
from m4cast.overlay.protocol.effects import Publish, Published, Range, Refused
from tests.overlay.protocol.stream_parts import stream_id

WAIT_S = 30
TINY = 1
BATCH_BYTES_MAX = 10_000
SCHEMA = pa.schema([("b", pa.binary())])


class Request(NamedTuple):
    publish: Publish
    asked: NodeRequest
    first: int

    @property
    def rows(self) -> int:
        return self.publish.payloads[0].row_count

    def answer(self) -> None:
        ranges = (Range(stream_id(), self.first, self.first + self.rows),)
        self.asked.answer.set_result(Published(self.publish.request, ranges))


class NodeHandle:
    """Replaces the door's: keeps what it is asked for."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def request(self, make: Callable[[int], Publish], holders: int = 1) -> NodeRequest:
        asked = NodeRequest(lambda function: None, holders)
        first = 1 + sum(request.rows for request in self.requests)
        self.requests.append(Request(make(len(self.requests)), asked, first))
        return asked

    def answer_all(self) -> None:
        for request in self.requests:
            if not request.asked.answer.done():
                request.answer()


class Scene:
    def __init__(self) -> None:
        self.node = NodeHandle()
        self.room = ByteQuota(1 << 20)
        self.threads = AckThreads()
        written = payload.schema_bytes(SCHEMA)
        encode = Encoder(
            topic="t",
            topic_hash=xxh3_64_intdigest(b"t"),
            schema=SCHEMA,
            written=written,
            schema_id=payload.fingerprint(written),
            batch_bytes_max=BATCH_BYTES_MAX,
            expands=False,
            summaries=Summaries({}, FilteredColumns()),
        )
        node: Any = self.node
        self.coalescer = Coalescer(encode, 0, node, self.room, 3_600, lambda *_: None)
        self.calls: list[SmallBatches] = []

    def call(self, client: str = "client", timeout_s: float = WAIT_S) -> SmallBatches:
        acks = AckStream(Writer(), WAIT_S, lambda: False, self.threads)
        self.calls.append(SmallBatches(acks, client, timeout_s, lambda: False))
        return self.calls[-1]

    def linger(self, *added: tuple[SmallBatches, pa.RecordBatch]) -> None:
        """Give these just after a batch was sent."""
        self.coalescer._next_at = float("inf")
        for call, rows in added:
            self.coalescer.add(call, rows, TINY)

    def flush_after(self, *added: tuple[SmallBatches, pa.RecordBatch]) -> None:
        """Give all of these at once, as if they had waited for the same moment."""
        self.linger(*added)
        self.coalescer.flush()

    def nothing_is_held(self) -> bool:
        return not self.room._taken and not self.coalescer._in_flight


class Writer:
    def __init__(self) -> None:
        self.told: list[bytes] = []

    def write(self, message: bytes) -> None:
        self.told.append(message)


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    try:
        yield scene
    finally:
        for call in scene.calls:
            scene.coalescer.leave(call)
            stream_of(call).finish()
        scene.threads.close()


def rows_of(size: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array([bytes(size)])], schema=SCHEMA)


def stream_of(call: SmallBatches) -> AckStream:
    assert isinstance(call.acks, AckStream)
    return call.acks


def code_of(call: SmallBatches) -> str | None:
    return None if call.acks.failure is None else call.acks.failure.code


def raising(error: Exception) -> Callable[..., Any]:
    def function(*_: object, **__: object) -> Any:
        raise error

    return function


@contextmanager
def broken(scene: Scene, what: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        match what:
            case "check":
                patch.setattr(payload, "canonical_rows_together", raising(pa.ArrowMemoryError("no memory")))
            case "encode":
                patch.setattr(payload, "encode", raising(MemoryError()))
            case "request":
                patch.setattr(scene.node, "request", raising(RuntimeError("of the loop's own")))
        yield


@pytest.mark.parametrize("what", ["check", "encode", "request"])
def test_whatever_fails_each_call_hears_of_it_and_nothing_stays_taken(scene: Scene, what: str) -> None:
    calls = [scene.call(), scene.call()]
    with broken(scene, what):
        scene.flush_after(*((call, rows_of(10)) for call in calls))
    scene.node.answer_all()
    assert [code_of(call) for call in calls] == ["internal", "internal"]
    for call in calls:
        with pytest.raises(Refusal, match="internal"):
            scene.coalescer.drain(call)
        assert stream_of(call).rows == 0
    assert scene.nothing_is_held()
    later = scene.call()
    scene.flush_after((later, rows_of(10)))
    scene.node.answer_all()
    stream_of(later).finish()
    assert (code_of(later), stream_of(later).rows) == (None, 1)
    assert scene.nothing_is_held()


def test_a_client_that_may_not_create_the_topic_does_not_keep_others_from_it(scene: Scene) -> None:
    greedy, modest = scene.call("greedy"), scene.call("modest")
    scene.flush_after((greedy, rows_of(10)), (modest, rows_of(10)))
    first, second = scene.node.requests
    assert (first.publish.owner, second.publish.owner) == ("greedy", "modest")
    first.asked.answer.set_result(Refused(0, "too-many", "of its topics"))
    scene.flush_after((scene.call("greedy"), rows_of(10)), (modest, rows_of(10)))
    assert len(scene.node.requests) == 4, "nothing is published yet"
    second.answer()
    scene.flush_after((scene.call("greedy"), rows_of(10)), (modest, rows_of(10)))
    assert len(scene.node.requests) == 5, "the topic is there"
    scene.node.answer_all()
    stream_of(modest).finish()
    assert (code_of(modest), stream_of(modest).rows) == (None, 3)
    assert scene.nothing_is_held()


def test_calls_that_are_too_large_together_are_sent_apart_and_one_that_is_alone_fails_alone(scene: Scene) -> None:
    size = BATCH_BYTES_MAX * 6 // 10
    one, other, huge, small = (scene.call() for _ in range(4))
    scene.flush_after(
        (one, rows_of(size)), (other, rows_of(size)), (huge, rows_of(BATCH_BYTES_MAX)), (small, rows_of(1))
    )
    assert [code_of(call) for call in (one, other, huge, small)] == [None, None, "too-large", None]
    assert [len(request.publish.payloads[0].payload) <= BATCH_BYTES_MAX for request in scene.node.requests] == [
        True
    ] * len(scene.node.requests)
    scene.node.answer_all()
    for call in (one, other, small):
        stream_of(call).finish()
        assert stream_of(call).rows == 1
    assert sum(request.rows for request in scene.node.requests) == 3
    assert scene.nothing_is_held()


def test_batches_of_one_call_that_are_too_large_together_are_sent_apart_and_in_order(scene: Scene) -> None:
    call = scene.call()
    scene.flush_after(*((call, rows_of(BATCH_BYTES_MAX * 6 // 10)) for _ in range(3)))
    assert [request.rows for request in scene.node.requests] == [1, 1, 1]
    scene.node.answer_all()
    stream_of(call).finish()
    assert (code_of(call), stream_of(call).rows) == (None, 3)
    assert scene.nothing_is_held()


def test_who_has_nothing_to_send_holds_no_room(scene: Scene) -> None:
    call = scene.call()
    for _ in range(3):
        scene.flush_after(*((call, rows_of(1)) for _ in range(100)))
        assert call.credit == 0
        scene.node.answer_all()
        assert scene.nothing_is_held()


def test_rows_of_a_call_that_has_ended_linger_only_while_a_batch_is_unanswered(scene: Scene) -> None:
    writing, brief, *ended = scene.call(), scene.call(timeout_s=0.01), scene.call(), scene.call()
    scene.linger((writing, rows_of(1)))
    assert not scene.node.requests, "it may write more"
    scene.coalescer.drain(writing)
    assert [request.rows for request in scene.node.requests] == [1]
    scene.linger(*((call, rows_of(1)) for call in (brief, *ended)))
    with pytest.raises(Refusal, match="no answer within"):
        scene.coalescer.drain(brief)
    assert len(scene.node.requests) == 1
    with ThreadPoolExecutor(len(ended)) as threads:
        drained = [threads.submit(scene.coalescer.drain, call) for call in ended]
        scene.node.answer_all()
        for each in drained:
            each.result(WAIT_S)
    assert [request.rows for request in scene.node.requests] == [1, 3], (
        "those that arrived meanwhile share the next one"
    )
    scene.node.answer_all()
    assert scene.nothing_is_held()


def test_credit_saves_most_looks_for_room_and_is_all_accounted_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    takes: list[int] = []
    take = scene.room.take

    def counted(client: str, size: int, timeout_s: float, is_cancelled: Callable[[], bool]) -> None:
        takes.append(size)
        take(client, size, timeout_s, is_cancelled)

    monkeypatch.setattr(scene.room, "take", counted)
    call = scene.call()
    scene.coalescer._next_at = float("inf")
    for _ in range(1_000):
        scene.coalescer.add(call, rows_of(1), TINY)
    assert len(takes) < 20
    assert scene.room._taken == 1_000 + call.credit
    scene.coalescer.leave(call)
    assert scene.nothing_is_held()
