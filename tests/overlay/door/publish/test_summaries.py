"""Batches that are published at a real door carry a summary when somebody wants it, and every node keeps it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight
from xxhash import xxh3_64_intdigest

from m4cast.overlay.door.limits import DoorLimits
from m4cast.overlay.door.publish.coalescing import FEW_BATCHES_MAX, Encoder
from m4cast.overlay.door.rows import payload
from m4cast.overlay.door.rows.summaries import ROWS_MIN, UNUSED_S_MAX, FilteredColumns, Summaries, known_summary
from m4cast.overlay.ids import StreamId
from m4cast.overlay.profiles import summarise
from m4cast.overlay.protocol.wire.batch import SUMMARY_EXTENSION
from m4cast.overlay.store.store import SummarisedBatch
from tests.overlay.door.http.watched import until
from tests.overlay.door.plain import act, code_of, command, connect, frontier, get, path, put
from tests.overlay.door.served import Served, serving

ROWS = pa.record_batch({"n": list(range(1_000)), "text": ["same"] * 1_000, "st": [{"x": 1.5}] * 1_000})
A_ROW = pa.record_batch({"n": [1], "text": ["same"], "st": [{"x": 1.5}]})
MIB = 1 << 20


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("summaries"), 2) as served:
        yield served


def filtered(served: Served) -> FilteredColumns:
    return served.doors[0].services.filtered_columns


def own(served: Served, topic: str) -> StreamId:
    return StreamId(served.nodes[0].driver.node.me.node_id, topic)


def listed(served: Served, topic: str, at: int = 0) -> list[SummarisedBatch]:
    return served.nodes[at].store.summaries(own(served, topic), 1, 1 << 40, 1_000)


def summarised(served: Served, topic: str) -> list[bool]:
    """True for each batch of the topic that has a summary, in order."""
    return [batch.summary is not None for batch in listed(served, topic)]


def test_a_summary_reaches_every_store_unchanged(pair: Served) -> None:
    here, there = connect(pair, 0), connect(pair, 1)
    filtered(pair).filtered("t", [("n",), ("st", "x"), ("absent",)])
    put(here, path("t"), ROWS)
    assert get(there, topic="t", start={}, end=frontier(here, "t")).num_rows == 1_000
    (batch,) = listed(pair, "t")
    assert batch[:2] == (1, 1_001) and listed(pair, "t", at=1) == [batch]
    assert known_summary(batch.summary, 1_000) == summarise(ROWS, [("n",), ("st", "x"), ("absent",)])
    stores = [node.store.read_range(own(pair, "t"), 1, 1_001, MIB) for node in pair.nodes]
    assert stores[0] == stores[1]
    assert stores[1][0].extensions == ((SUMMARY_EXTENSION, False, batch.summary),)


@pytest.mark.parametrize("how", ["unkeyed", "keyed", "staged"])
def test_every_way_to_publish_makes_summaries(pair: Served, how: str) -> None:
    here = connect(pair, 0)
    filtered(pair).filtered(how, [("n",)])
    match how:
        case "unkeyed":
            put(here, path(how), ROWS)
        case "keyed":
            put(here, command(topic=how, key="k", next="1", rows=1_000), ROWS)
        case _:
            put(here, command(topic=how, stage="s"), ROWS)
            act(here, "commit", stage_ids=["s/0"])
    assert summarised(pair, how) == [True]


def test_small_publishes_are_summarised_once_they_are_coalesced(tmp_path: Path) -> None:
    """The first row is sent at once; then as many gather as may wait, which is much sooner than they would linger."""
    with serving(tmp_path, 1, DoorLimits(linger_ms=20_000)) as served:
        filtered(served).filtered("small", [("n",)])
        put(connect(served, 0), path("small"), pa.Table.from_batches([A_ROW] * (1 + FEW_BATCHES_MAX)))
        batches = listed(served, "small")
    rows = [batch.next_sequence - batch.first_sequence for batch in batches]
    assert rows == [1, FEW_BATCHES_MAX] and [batch.summary is not None for batch in batches] == [False, True]


def test_summaries_begin_with_the_first_filter_and_end_an_hour_after_the_last(
    pair: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = connect(pair, 0)
    now_s = 5_000.0
    monkeypatch.setattr(filtered(pair), "_now_s", lambda: now_s)
    put(here, path("aging"), ROWS)
    filtered(pair).filtered("aging", [("n",)])
    put(here, path("aging"), ROWS)
    now_s += UNUSED_S_MAX - 1
    put(here, path("aging"), ROWS)
    now_s += 1
    put(here, path("aging"), ROWS)
    assert summarised(pair, "aging") == [False, True, True, False]
    filtered(pair).filtered("aging", [("text",)])
    put(here, path("aging"), ROWS)
    last = known_summary(listed(pair, "aging")[-1].summary, 1_000)
    assert last is not None and list(last.columns) == [("text",)]


def test_filters_that_are_registered_at_other_nodes_make_summaries_here(pair: Served) -> None:
    """Also of a topic that nobody has published under yet."""
    here, there = connect(pair, 0), connect(pair, 1)
    registered = pair.doors[0].services.publishing._summaries.registered
    where = "n > 5 AND `text` = 'same'"
    act(there, "subscribe", topic="wanted", where=where)
    until(lambda: bool(registered.topics), "known here")
    put(here, path("wanted"), ROWS)
    act(there, "unsubscribe", topic="wanted", where=where)
    until(lambda: not registered.topics, "withdrawn")
    put(here, path("wanted"), ROWS)
    assert summarised(pair, "wanted") == [True, False]
    first = known_summary(listed(pair, "wanted")[0].summary, 1_000)
    assert first is not None and set(first.columns) == {("n",), ("text",)}


def summarising(summaries: Summaries) -> tuple[Encoder, pa.RecordBatch]:
    """A publisher of topic `t`, and rows for it."""
    schema = payload.canonical_schema(ROWS.schema)
    encode = Encoder(
        topic="t",
        topic_hash=xxh3_64_intdigest(b"t"),
        schema=schema,
        written=payload.schema_bytes(schema),
        schema_id=1,
        batch_bytes_max=MIB,
        expands=False,
        summaries=summaries,
    )
    return encode, payload.canonical_rows(ROWS, schema)


def test_few_rows_have_no_summary() -> None:
    filtered = FilteredColumns()
    filtered.filtered("t", [("n",)])
    encode, rows = summarising(Summaries({}, filtered))
    assert encode(rows.slice(0, ROWS_MIN - 1)).extensions == ()
    assert len(encode(rows.slice(0, ROWS_MIN)).extensions) == 1


def test_few_rows_that_are_routed_have_a_summary_of_the_columns_that_decide() -> None:
    filtered = FilteredColumns()
    filtered.filtered("t", [("text",)])
    summaries = Summaries({}, filtered)
    encode, rows = summarising(summaries)
    assert encode(rows.slice(0, 1)).extensions == ()
    summaries.selective["t"] = (("n",),)
    (extension,) = encode(rows.slice(0, 1)).extensions
    found = known_summary(extension.value, 1)
    assert found is not None and list(found.columns) == [("n",)]


# ---- the setting


def test_the_setting_is_kept_and_obeyed(pair: Served) -> None:
    here = connect(pair, 0)
    filtered(pair).filtered("chosen", [("n",)])
    auto = {"summarise": "auto", "columns": ["n"]}
    put(here, path("chosen"), ROWS)
    assert act(here, "topic", topic="chosen")["summaries"] == auto
    columns = ["text", ["st", "x"]]
    chosen = {"summarise": columns, "columns": columns}
    assert act(here, "topic-summaries", topic="chosen", summarise=columns) == chosen
    assert act(here, "topic", topic="chosen")["summaries"] == chosen
    put(here, path("chosen"), ROWS)
    assert act(here, "topic-summaries", topic="chosen", summarise="off") == {"summarise": "off", "columns": []}
    put(here, path("chosen"), ROWS)
    assert act(here, "topic-summaries", topic="chosen") == auto
    put(here, path("chosen"), ROWS)
    found = [known_summary(batch.summary, 1_000) for batch in listed(pair, "chosen")]
    assert [None if each is None else list(each.columns) for each in found] == [
        [("n",)],
        [("text",), ("st", "x")],
        None,
        [("n",)],
    ]
    assert connect(pair, 1) and act(connect(pair, 1), "topic", topic="chosen")["summaries"]["columns"] == []


def test_the_setting_survives_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path, 1) as served:
        act(connect(served, 0), "topic-summaries", topic="t", summarise=["n"])
        act(connect(served, 0), "topic-summaries", topic="silent", summarise="off")
        act(connect(served, 0), "topic-summaries", topic="reset", summarise=["n"])
        act(connect(served, 0), "topic-summaries", topic="reset", summarise="auto")
    with serving(tmp_path, 1) as served:
        put(connect(served, 0), path("t"), ROWS)
        assert summarised(served, "t") == [True]
        assert served.nodes[0].store.summarised() == {"t": (("n",),), "silent": ()}


@pytest.mark.parametrize(
    ("summarise", "problem"),
    [
        ("sometimes", 'must be "auto", "off", or a list of 1 to 64 columns, not \'sometimes\''),
        ([], "a list of 1 to 64 columns"),
        (["a"] * 65, "a list of 1 to 64 columns"),
        ({"a": 1}, "a list of 1 to 64 columns"),
        ([1], "names the column 1: write its name"),
        ([""], "names the column '': write its name"),
        ([[]], r"names the column \[\]: write its name"),
        ([["a", 2]], r"names the column \['a', 2\]: write its name"),
        ([["a"] * 33], "by 33 names: at most 32"),
        (["a", ["a"]], "names a column twice: remove one"),
        (["_sequence"], "'_sequence', which the channel adds to rows: remove it"),
    ],
)
def test_a_setting_that_cannot_be_meant_is_refused(pair: Served, summarise: Any, problem: str) -> None:
    with pytest.raises(flight.FlightServerError, match=problem) as error:
        act(connect(pair, 0), "topic-summaries", topic="t", summarise=summarise)
    assert code_of(error) == "bad-request"
