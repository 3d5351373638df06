"""Slow work runs on the door's threads, whatever a client sends: the node's loop stays free."""

import io
import json
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from m4cast.overlay.client import Channel
from m4cast.overlay.config.settings import TopicFilter
from m4cast.overlay.door.publish.puts import PutService
from m4cast.overlay.door.read.filtering import FilteredReading
from m4cast.overlay.door.web import bodies, door, posts
from m4cast.overlay.door.web.reads import RangeText
from m4cast.overlay.door.web.routes import PARQUET
from m4cast.overlay.profiles.condition import Condition
from m4cast.overlay.profiles.languages import canonical
from m4cast.overlay.profiles.profile import LANGUAGES, SQL, SQL_VERSION
from tests.overlay.door.web.doors import WebServed, web_serving

NODES = "nodes"
"""The thread of the loop, in tests."""


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """The names of the threads that did the work, by kind of work."""
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


def test_filters_are_parsed_on_threads_and_read_on_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over registrations, their announcement, selective topics, the web door, and a restart."""
    parse, read = LANGUAGES[SQL, SQL_VERSION], canonical.parse
    parsed: dict[str, None] = {}
    reads: dict[str, None] = {}

    def noted(into: dict[str, None], work: Callable[[str], Condition], text: str) -> Condition:
        into[threading.current_thread().name] = None
        return work(text)

    monkeypatch.setitem(LANGUAGES, (SQL, SQL_VERSION), partial(noted, parsed, parse))
    monkeypatch.setattr(canonical, "parse", partial(noted, reads, read))
    wanted = TopicFilter("loop", "country = 'DE' AND id < 9")
    with web_serving(tmp_path, 2, settings=lambda name: {"subscribe": (wanted,)}) as web:
        channel = Channel(web.served.addresses[1:])
        channel.register("loop", where="country = 'PL' OR id IN (1, 2)")
        channel.create_topic("chosen", keepers=0)
        channel.publish("chosen", pa.table({"id": [1, 2], "country": ["PL", "DE"]}))
        assert channel.read("chosen", where="country = 'DE'")["id"].to_pylist() == [2]
        assert [row["id"] for row in web.get("/topics/chosen/rows?where=id%20%3C%202").lines] == [1]
        web.served.run(web.restart_node(1, tmp_path))
        channel = Channel(web.served.addresses[1:])
        channel.register("loop", where="country = 'PL'")  # is compared with what the store had
    assert parsed and NODES not in parsed
    assert NODES in reads


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
