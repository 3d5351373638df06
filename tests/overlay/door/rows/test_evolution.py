"""Columns that come with time, at two origins: merged where they agree, refused by name where they do not."""

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyarrow import flight

from m4cast.overlay.ids import NodeId, short_id
from tests.overlay.door.plain import act, code_of, command, connect, frontier, get, path, put
from tests.overlay.door.served import Served, serving


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("evolution"), 2) as served:
        yield served


def whole(pair: Served, topic: str) -> dict[str, dict[str, int]]:
    """The frontier of both origins' rows, each as far as its own node has them."""
    ends: dict[str, int] = {}
    for at in (0, 1):
        own = pair.nodes[at].driver.node.me.node_id.hex()
        ends[own] = frontier(connect(pair, at), topic)[topic][own]
    return {topic: ends}


def test_a_topic_gains_columns_up_to_the_limit_of_a_batch(pair: Served) -> None:
    here = connect(pair, 0)
    put(here, path("widened"), pa.table({f"a{number}": [1] for number in range(1_500)}))
    with pytest.raises(
        flight.FlightServerError, match="a topic, with the columns of all its batches, has 2100 columns"
    ) as error:
        put(here, path("widened"), pa.table({f"b{number}": [1] for number in range(600)}))
    assert code_of(error) == "bad-schema"
    put(here, path("widened"), pa.table({f"b{number}": [1] for number in range(500)}))
    put(here, path("widened"), pa.table({"a0": [2], "b499": [2]}))
    assert get(here, topic="widened", end="latest").num_columns == 2_000 + 4


def test_columns_that_two_origins_gained_are_merged_at_read(pair: Served) -> None:
    here, there = connect(pair, 0), connect(pair, 1)
    put(here, path("grown"), pa.table({"a": [1]}))
    put(there, path("grown"), pa.table({"a": [2]}))
    put(here, path("grown"), pa.table({"a": [3], "b": ["x"]}))
    put(there, path("grown"), pa.table({"c": [1.5], "a": [4]}))
    end = whole(pair, "grown")
    tables = [get(client, topic="grown", start={}, end=end) for client in (here, there)]
    assert tables[0].equals(tables[1]), "the same rows, columns and order on both"
    rows = tables[0].select(["a", "b", "c"]).to_pylist()
    assert sorted(rows, key=lambda row: row["a"]) == [
        {"a": 1, "b": None, "c": None},
        {"a": 2, "b": None, "c": None},
        {"a": 3, "b": "x", "c": None},
        {"a": 4, "b": None, "c": 1.5},
    ]


def test_origins_that_contradict_each_other_are_named_with_the_column(pair: Served) -> None:
    clients = [connect(pair, 0), connect(pair, 1)]
    for client, value in zip(clients, (1, "one"), strict=True):  # neither knows of the other yet
        put(client, command(topic="torn", stage="s"), pa.table({"same": [True], "odd": [value]}))
    for client in clients:
        act(client, "commit", stage_ids=["s/0"], key="k", next="1")
    origins = [node.driver.node.me.node_id for node in pair.nodes]
    end = whole(pair, "torn")
    for client in clients:
        with pytest.raises(flight.FlightServerError, match="column 'odd' is") as error:
            get(client, topic="torn", start={}, end=end)
        assert code_of(error) == "schema-conflict"
        said = str(error.value)
        assert "int64" in said and "string" in said
        assert all(origin.hex() in said and short_id(NodeId(origin)) in said for origin in origins)
    described = act(clients[0], "topic", topic="torn")
    assert described["columns"] is None
    assert "column 'odd' is" in described["conflict"]
    one_origin = {"torn": {origins[0].hex(): 2}}
    assert get(clients[1], topic="torn", start={}, end=one_origin)["odd"].to_pylist() == [1]
