"""Fresh batches: followers get new rows from memory, early ones before they are on this node's disk, and nothing too
soon."""

import asyncio
import json
import threading
import time
import uuid
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from m4cast.overlay.door.rows import payload
from m4cast.overlay.door.web.following import fresh
from m4cast.overlay.door.web.following.follower import RowFollower
from m4cast.overlay.door.web.following.fresh import FollowedRows, FreshRows, SeenRows
from m4cast.overlay.door.web.live.messages import row_frames
from m4cast.overlay.door.web.texts import dicts_of
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.wire.batch import Batch
from tests.overlay.door.web.doors import WebServed, web_serving
from tests.overlay.door.web.events import Event, EventSource
from tests.overlay.door.web.live.test_connection import Talk, run, talking
from tests.overlay.door.web.test_loop import NODES
from tests.overlay.net.running import TIMEOUT_S


@contextmanager
def held_disk(web: WebServed, at: int) -> Iterator[None]:
    """The node's store writes nothing meanwhile."""
    begun, go_on = threading.Event(), threading.Event()

    def wait(*_: Any) -> None:
        begun.set()
        assert go_on.wait(30)

    done = web.served.nodes[at].store._writer.ask(wait)
    try:
        assert begun.wait(30)
        yield
    finally:
        go_on.set()
        done.result(30)


async def subscribed(talk: Talk, topic: str, **more: Any) -> None:
    await talk.say(type="subscribe", id="s", topic=topic, credit=1_000, **more)
    assert (await talk.hear())["type"] == "subscribed"


async def ids(talk: Talk, count: int) -> list[int]:
    seen: list[int] = []
    while len(seen) < count:
        seen += [row["id"] for row in (await talk.hear())["rows"]]
    return seen


async def post(web: WebServed, topic: str, *numbers: int, at: int = 0) -> None:
    rows = json.dumps([{"id": number} for number in numbers])
    headers = {"Content-Type": "application/json"}
    answer = await asyncio.to_thread(web.ask, "POST", f"/topics/{topic}", rows, headers, at=at)
    assert answer.status == 200, answer.body


def test_early_rows_arrive_before_they_are_on_the_disk_of_their_node(pair: WebServed) -> None:
    """Others wait for it. Both get every row once, and the positions are the same."""

    async def work() -> None:
        await post(pair, "early", 0)
        async with talking(pair, at=1) as early, talking(pair, at=1) as late:
            await subscribed(early, "early", early=True, **{"from": "earliest"})
            await subscribed(late, "early", **{"from": "earliest"})
            assert await ids(early, 1) == await ids(late, 1) == [0]
            with held_disk(pair, 1):
                await post(pair, "early", 1, 2)
                assert await ids(early, 2) == [1, 2]
                await late.say(type="subscribe", id="other", topic="early", format="none")
                await late.refused("bad-request")  # and no rows before it
                await post(pair, "early", 3)
                assert await ids(early, 1) == [3]
            assert await ids(late, 3) == [1, 2, 3]
            await post(pair, "early", 4)
            assert await ids(early, 1) == await ids(late, 1) == [4]

    run(work)


def test_what_a_node_publishes_itself_is_never_early(pair: WebServed) -> None:
    """It would be on no disk."""

    def has_queued() -> bool:
        return pair.served.nodes[0].store._writer.queued_bytes > 0

    async def work() -> None:
        await post(pair, "own", 0)
        async with talking(pair) as talk:
            await subscribed(talk, "own", early=True)
            with held_disk(pair, 0):
                posting = asyncio.create_task(post(pair, "own", 1))
                await asyncio.to_thread(pair.served.run, pair.served.nodes[0].until(has_queued))
                await talk.say(type="subscribe", id="other", topic="own", format="none")
                await talk.refused("bad-request")  # and no rows before it
                await post(pair, "own", 2, at=1)
                assert await ids(talk, 1) == [2]
            await posting
            assert await ids(talk, 1) == [1]

    run(work)


def test_who_is_not_early_gets_nothing_too_soon_with_what_is_due(pair: WebServed) -> None:
    """Rows that are on disk wait for credit, and others that are not have arrived after them."""

    async def work() -> None:
        await post(pair, "due", 0)
        node = pair.served.nodes[1]
        frontiers = pair.served.doors[1].services.frontiers

        async def on_disk(rows: int) -> None:
            there = node.until(lambda: list(frontiers.positions(("due",)).values()) == [rows + 1])
            await asyncio.to_thread(pair.served.run, there)

        await on_disk(1)
        async with talking(pair, at=1) as talk, talking(pair, at=1) as early:
            await subscribed(early, "due", early=True)
            await talk.say(type="subscribe", id="s", topic="due")
            assert (await talk.hear())["type"] == "subscribed"
            await post(pair, "due", 1)
            await on_disk(2)
            with held_disk(pair, 1):
                await post(pair, "due", 2)
                assert await ids(early, 2) == [1, 2]
                await talk.say(type="credit", id="s", frames=2)
                assert [row["id"] for row in (await talk.hear())["rows"]] == [1]
            assert await ids(talk, 1) == [2]

    run(work)


def test_an_early_tail_by_events_resumes_anywhere(pair: WebServed) -> None:
    run(lambda: post(pair, "early-sse", 1, 2))
    tail = EventSource(pair.doors[1].address, "/topics/early-sse/tail?from=earliest&early=true")
    with closing(cast("Generator[Event, None, None]", tail.events())) as events:
        assert [json.loads(next(events).data)["id"] for _ in range(2)] == [1, 2]
        with held_disk(pair, 1):
            run(lambda: post(pair, "early-sse", 3))
            assert json.loads(next(events).data)["id"] == 3
    run(lambda: post(pair, "early-sse", 4))
    for door in pair.doors:
        tail.address, last_id = door.address, tail.last_id
        assert json.loads(next(tail.events()).data)["id"] == 4
        tail.last_id = last_id


@pytest.mark.parametrize("limit", ["BATCH_BYTES_MAX", "BYTES_MAX", "FOLLOWERS_MAX", "ROWS_MAX"])
def test_what_is_not_in_memory_is_read_from_the_store(
    pair: WebServed, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large batches, old ones, and those of topics with many followers: the same rows, early or not."""
    monkeypatch.setattr(fresh, limit, 0)
    topic = f"limit-{limit}"

    async def work() -> None:
        await post(pair, topic, 0)
        async with talking(pair, at=1) as early, talking(pair, at=1) as late:
            await subscribed(early, topic, early=True, **{"from": "earliest"})
            await subscribed(late, topic, **{"from": "earliest"})
            for number in range(1, 6):
                await post(pair, topic, number)
            assert await ids(early, 6) == await ids(late, 6) == [0, 1, 2, 3, 4, 5]

    run(work)


@pytest.mark.parametrize("early", [False, True])
def test_many_rows_are_written_by_threads(pair: WebServed, early: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop writes few rows at a time, and the fewer the more followers there are: all are woken together."""
    wrote: list[tuple[int, bool]] = []
    was = dicts_of

    def noted(rows: pa.RecordBatch) -> Any:
        wrote.append((rows.num_rows, threading.current_thread().name == NODES))
        return was(rows)

    monkeypatch.setattr(fresh, "dicts_of", noted)
    monkeypatch.setattr(fresh, "ROWS_MAX", 8)
    topic = f"many-{early}"

    async def work() -> None:
        await post(pair, topic, 0)
        async with talking(pair, at=1) as one, talking(pair, at=1) as other:
            for talk in (one, other):
                await subscribed(talk, topic, early=early, **{"from": "earliest"})
                assert await ids(talk, 1) == [0]
            wrote.clear()
            for numbers in ([1, 2, 3, 4], [5, 6, 7, 8, 9], [10]):
                await post(pair, topic, *numbers)
                assert await ids(one, len(numbers)) == await ids(other, len(numbers)) == numbers

    run(work)
    assert wrote == [(4, True), (5, False), (5, False), (1, True)], "on the loop, once for all followers"


@pytest.mark.parametrize(
    ("row", "is_fresh"),
    [
        ({"id": 1, **{f"c{at}": True for at in range(300)}}, True),
        ({"id": 1, **{f"c{at}": True for at in range(700)}}, False),
        ({"id": 1, "list": [[0] * 1_500] * 2}, False),
        ({"id": 1, "struct": {"list": [0] * 3_000}}, False),
    ],
    ids=["300", "700", "lists", "struct"],
)
@pytest.mark.parametrize("early", [False, True])
def test_a_row_of_many_values_counts_as_several(
    pair: WebServed, row: dict[str, Any], is_fresh: bool, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tail alone is given some 600 values on the loop, each of two half as many."""
    on_loop: list[bool] = []
    was = dicts_of

    def noted(rows: pa.RecordBatch) -> Any:
        on_loop.append(threading.current_thread().name == NODES)
        return was(rows)

    monkeypatch.setattr(fresh, "dicts_of", noted)
    monkeypatch.setattr(fresh, "ROWS_MAX", 600 // fresh.ROW_VALUES)
    topic = f"wide-{uuid.uuid4()}"

    async def arrive(one: dict[str, Any], *talks: Talk) -> list[bool]:
        on_loop.clear()
        assert (await asyncio.to_thread(pair.post, f"/topics/{topic}", one)).status == 200
        for talk in talks:
            assert await ids(talk, 1) == [one["id"]]
        return on_loop

    async def work() -> None:
        await post(pair, topic, 0)
        async with talking(pair, at=1) as talk, talking(pair, at=1) as other:
            await subscribed(talk, topic, early=early, **{"from": "earliest"})
            assert await ids(talk, 1) == [0]
            assert await arrive(row, talk) == [is_fresh]
            assert await arrive({"id": 2}, talk) == [True]
            await subscribed(other, topic, early=early, **{"from": "earliest"})
            assert await ids(other, 3) == [0, 1, 2]
            assert await arrive(row, talk, other) == [False, False]

    run(work)


@pytest.mark.parametrize("form", ["json", "arrow"])
def test_rows_are_written_while_the_store_syncs_them(pair: WebServed, form: str) -> None:
    """Nobody has to wait for that once they are on disk. Those that come too late for it are written as before."""
    batches, store = pair.doors[1]._bell.fresh, pair.served.nodes[1].store
    topic = f"syncs-{form}"
    written: list[bool] = []

    def committing() -> None:
        """The store goes on when the rows are written, or after a long time."""
        fresh_ones = [each for (stream, _), each in batches._batches.items() if stream.topic == topic]
        batches.committing()
        if fresh_ones:
            until = time.monotonic() + TIMEOUT_S
            while (rows := fresh_ones[-1]._rows) is None or form not in vars(rows):
                if time.monotonic() > until:
                    return
            written.append(True)

    async def work() -> None:
        await post(pair, topic, 0)
        async with talking(pair, at=1) as talk:
            await subscribed(talk, topic, format=form, **{"from": "earliest"})
            assert await ids(talk, 1) == [0]
            store.before_commits(committing)
            await post(pair, topic, 1)
            assert await ids(talk, 1) == [1]
            store.before_commits(batches.committing)
            await post(pair, topic, 2)
            assert await ids(talk, 1) == [2]

    try:
        run(work)
    finally:
        store.before_commits(batches.committing)
    assert written


def test_batches_that_wait_together_share_a_frame(pair: WebServed) -> None:
    async def work() -> None:
        await post(pair, "frames", 0)
        async with talking(pair) as talk:
            await talk.say(type="subscribe", id="s", topic="frames")
            assert (await talk.hear())["type"] == "subscribed"
            for number in range(1, 6):
                await post(pair, "frames", number)
            await talk.say(type="credit", id="s", frames=1)
            said = await talk.hear()
            assert ([row["id"] for row in said["rows"]], said["next"]) == ([1, 2, 3, 4, 5], 7)

    run(work)


def test_memory_is_for_topics_that_are_followed(tmp_path: Path) -> None:
    """A batch costs nothing if nobody follows its topic, and nothing is left when the last follower has gone."""
    with web_serving(tmp_path, 1) as web:
        batches = web.doors[0]._bell.fresh

        async def work() -> None:
            await post(web, "followed", 0)
            assert not batches._batches
            async with talking(web) as talk:
                await subscribed(talk, "followed")
                await post(web, "followed", 1)
                assert await ids(talk, 1) == [1] and batches._batches
            async with talking(web) as talk:  # the first one has ended by then
                await subscribed(talk, "other")
                while batches._batches:
                    await asyncio.sleep(0.001)
            assert not batches._bytes

        run(work)


def test_a_filter_reads_the_store(pair: WebServed, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds for an early follower, too: memory has rows that a filter would leave out."""

    async def work() -> None:
        await post(pair, "filtered-fresh", 0)
        async with talking(pair) as talk:
            await subscribed(talk, "filtered-fresh", early=True, where="id > 2")
            for number in range(1, 5):
                await post(pair, "filtered-fresh", number)
            assert await ids(talk, 2) == [3, 4]

    taken: list[object] = []
    was = RowFollower.__init__

    def noted(self: RowFollower, *given: Any, **named: Any) -> None:
        was(self, *given, **named)
        taken.append(self._fresh)

    monkeypatch.setattr(RowFollower, "__init__", noted)
    run(work)
    assert taken == [None]


@pytest.mark.parametrize("published_at_ms", [0, 1_774_785_600_000, 1_774_785_600_007])
def test_rows_from_memory_are_written_as_those_from_the_store(published_at_ms: int) -> None:
    rows = pa.record_batch(
        {"n": pa.array([1, None, 3]), "t": pa.array(["a", "ż", None]), "b": pa.array([b"", b"1", b"2"])}
    )
    stream = StreamId(NodeId(bytes(range(16))), "same")
    batch = Batch(stream, 1, 7, rows.num_rows, 1, 0, published_at_ms, "", "", 0, 1, 0, b"")
    fresh = FreshRows(batch, rows)
    stored = SeenRows(payload.seen_rows(batch, rows, 7, payload.seen_schema(rows.schema)))
    assert fresh.arrow.equals(stored.arrow) and (fresh.count, fresh.json) == (stored.count, stored.json)
    followed = [FollowedRows(each, stream, 10) for each in (fresh, stored)]
    assert row_frames("s", "json", followed[:1], {}) == row_frames("s", "json", followed[1:], {})
    (frame,) = row_frames("s", "json", followed[:1] * 2, {})
    said = json.loads(frame)
    assert (said["id"], said["origin"], said["next"]) == ("s", stream.origin.hex(), 10)
    assert said["rows"] == 2 * json.loads(f"[{stored.json}]") and len(said["rows"]) == 6
