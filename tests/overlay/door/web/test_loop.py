"""What may take long runs on the door's threads, whatever a client sends: the node's loop stays free."""

import io
import json
import threading
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from m4cast.overlay.door.publish.puts import PutService
from m4cast.overlay.door.read.filtering import FilteredReading
from m4cast.overlay.door.web import bodies, door, posts
from m4cast.overlay.door.web.reads import RangeText
from m4cast.overlay.door.web.routes import PARQUET
from tests.overlay.door.web.doors import WebServed

NODES = "nodes"
"""The thread of the loop, in tests."""


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """By what was done, the names of the threads that did it."""
    seen: dict[str, set[str]] = {}

    def watch(owner: Any, name: str) -> None:
        was = getattr(owner, name)

        def noted(*given: Any, **named: Any) -> Any:
            thread = threading.current_thread().name
            seen.setdefault(name, set()).add(thread if thread == NODES else thread.rpartition("_")[0])
            return was(*given, **named)

        monkeypatch.setattr(owner, name, noted)

    watch(door, "json_of_answer")
    watch(posts, "rows_of")
    watch(posts, "plain_rows")
    watch(PutService, "put")
    watch(FilteredReading, "read")
    watch(RangeText, "next")
    return seen


def test_large_bodies_and_filtered_reads_never_run_on_the_loop(pair: WebServed, ran: dict[str, set[str]]) -> None:
    table = pa.table({"id": range(50_000), "text": [f"{number:090}" for number in range(50_000)]})
    sink = io.BytesIO()
    pyarrow.parquet.write_table(table, sink)
    assert pair.post("/topics/loop", sink.getvalue(), PARQUET).status == 200
    rows = pair.get("/topics/loop/rows?where=id%20%3C%203").lines
    assert [row["id"] for row in rows] == [0, 1, 2]
    assert ran == {"rows_of": {"web"}, "put": {"web"}, "read": {"web"}, "next": {"web"}}


def test_answers_of_actions_become_json_on_their_threads(pair: WebServed, ran: dict[str, set[str]]) -> None:
    for path in ("/topics", "/topology", "/status", "/metrics.json"):
        assert pair.get(path).status == 200
    assert pair.post("/actions/delivery-range", {}).status == 200
    assert ran == {"json_of_answer": {"web-action"}}


def test_only_small_bodies_are_parsed_on_the_loop(pair: WebServed, ran: dict[str, set[str]]) -> None:
    publishing = pair.served.doors[0].services.publishing
    assert pair.post("/topics/loop-json", {"id": 0, "text": ""}).status == 200
    node = pair.served.nodes[0]
    pair.served.run(node.until(lambda: publishing.gathering.find("loop-json", 0) is not None))
    ran.clear()
    row = {"id": 1, "text": "x" * (bodies.INLINE_BYTES - 100)}
    assert len(json.dumps(row)) < bodies.INLINE_BYTES
    assert pair.post("/topics/loop-json", row).status == 200
    assert ran == {"plain_rows": {NODES}}
    ran.clear()
    row["text"] = "x" * bodies.INLINE_BYTES
    assert pair.post("/topics/loop-json", row).status == 200
    assert ran == {"rows_of": {"web"}}
