"""A client's notifications as a stream, by the methods that Spark calls, with real nodes."""

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from m4cast.overlay.client import Channel, Client
from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.options import parse, read_options
from m4cast.spark_connector.provider import M4castDataSource
from tests.overlay.door.served import Served, serving, told_doors

SECRET = "a-secret-of-this-test"
Offset = dict[str, Any]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("clients"), 3, settings=told_doors(3)) as served:
        yield served


def created(served: Served, key: str, at: int = 0) -> Client:
    client = Client([served.addresses[at]], key=key, credential=SECRET, timeout_s=20)
    client.connect(create=True)
    return client


def publish(served: Served, topic: str, first: int, count: int) -> None:
    Channel([served.addresses[2]]).publish(topic, [{"n": n} for n in range(first, first + count)], acks=2)


class Query:
    """A run of a query: what Spark does with a reader, with a checkpoint that outlives it."""

    def __init__(self, served: Served, key: str, log: list[Offset], **options: str) -> None:
        settings = {"nodes": ",".join(served.addresses), "client": key, "credential": SECRET, "timeoutMs": "10000"}
        self.source = M4castDataSource({**settings, **options})
        self.reader = self.source.streamReader(self.source.schema())
        self.tasks = pickle.loads(pickle.dumps(self.reader))
        self.log = log

    def read(self, start: Offset, end: Offset) -> list[int]:
        return [
            n
            for partition in self.reader.partitions(start, end)
            for rows in self.tasks.read(partition)
            for n in pa.table(rows)["n"].to_pylist()
        ]

    def step(self) -> list[int] | None:
        """The rows of the next micro-batch; None if there is none now."""
        if not self.log:
            self.log.append(checkpointed(self.reader.initialOffset()))
        limit = self.reader.getDefaultReadLimit()
        end = checkpointed(self.reader.latestOffset(self.log[-1], limit))
        if end == self.log[-1]:
            return None
        self.log.append(end)
        return self.read(*self.log[-2:])

    def all(self) -> list[int]:
        """Everything there is; a node waits a moment before it says that there is nothing."""
        rows: list[int] = []
        while (found := self.step()) is not None or self.step() is not None:
            rows += found or []
        return rows


def checkpointed(offset: Offset) -> Offset:
    found: Offset = json.loads(json.dumps(offset))
    return found


def test_a_query_gets_the_rows_of_its_client_once_over_restarts(served: Served) -> None:
    client = created(served, "restarts")
    client.subscribe("restarts", "n >= 5", start="earliest")
    client.subscribe("restarts", "n = 6", name="one")
    client.disconnect()
    publish(served, "restarts", 0, 10)
    log: list[Offset] = []
    assert Query(served, "restarts", log).all() == [5, 6, 7, 8, 9]
    publish(served, "restarts", 10, 5)
    again = Query(served, "restarts", log)
    assert again.all() == [10, 11, 12, 13, 14]
    assert again.read(*log[-2:]) == [10, 11, 12, 13, 14], "a replay is equal"
    assert Query(served, "restarts", log).all() == []


def test_a_limit_bounds_a_micro_batch_and_a_fill_comes_first(served: Served) -> None:
    client = created(served, "limited")
    publish(served, "limited", 0, 10)
    client.subscribe("limited", "n >= 100")
    client.subscribe("limited", "n >= 4", name="earlier", start="earliest")
    client.disconnect()
    publish(served, "limited", 100, 6)
    query = Query(served, "limited", [], maxRowsPerTrigger="4")
    batches = [query.step() for _ in range(5)]
    assert batches == [[], [4, 5, 6, 7], [8, 9], [100, 101, 102, 103], [104, 105]]
    assert isinstance(query.reader.getDefaultReadLimit(), ReadMaxRows)
    assert isinstance(Query(served, "limited", []).reader.getDefaultReadLimit(), ReadAllAvailable)


def test_profiles_that_were_changed_meanwhile_are_adopted(served: Served) -> None:
    client = created(served, "adopts")
    client.subscribe("adopts", "n < 10", start="earliest")
    client.disconnect()
    publish(served, "adopts", 0, 10)
    log: list[Offset] = []
    assert Query(served, "adopts", log).all() == list(range(10))
    other = Client(served.addresses, key="adopts", credential=SECRET)  # continues from the position that was saved
    other.connect()
    other.subscribe("adopts", "n >= 5", name="upper", start="earliest")
    other.unsubscribe("default")
    other.disconnect()
    publish(served, "adopts", 10, 5)
    query = Query(served, "adopts", log)
    assert query.step() == [], "the change is a micro-batch of its own"
    assert query.all() == [10, 11, 12, 13, 14], "5 to 9 were given before"


def test_what_is_finished_is_saved_at_the_access_point(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("m4cast.spark_connector.source.client_stream.SAVE_S", 0)
    client = created(served, "saves")
    client.subscribe("saves", start="earliest")
    client.disconnect()
    publish(served, "saves", 0, 10)
    query = Query(served, "saves", [])
    query.all()
    (origins,) = client.saved().frontier.values()
    assert list(origins.values()) == [11]
    assert Query(served, "saves", []).all() == [], "a new query begins there"


def test_a_query_goes_on_without_its_access_point(tmp_path: Path) -> None:
    with serving(tmp_path, 3, settings=told_doors(3)) as served:
        client = created(served, "left", at=1)
        client.subscribe("left", "n >= 2", start="earliest")
        client.disconnect()
        publish(served, "left", 0, 5)
        log: list[Offset] = []
        running = Query(served, "left", log)
        assert running.all() == [2, 3, 4]
        publish(served, "left", 5, 5)
        stopped = Query(served, "left", log, timeoutMs="1000")
        served.run(served.lose(1))
        assert running.all() == [5, 6, 7, 8, 9]
        Channel([served.addresses[0]]).publish("left", [{"n": 10}], acks=1)
        assert stopped.all() == [10], "it knew the columns; profiles and position are in the checkpoint"


def test_a_query_whose_client_is_taken_ends(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    for interval in ("SAVE_S", "SHOWN_S"):
        monkeypatch.setattr(f"m4cast.spark_connector.source.client_stream.{interval}", 0)
    client = created(served, "taken")
    client.subscribe("taken", start="earliest")
    publish(served, "taken", 0, 1)
    query = Query(served, "taken", [])
    assert query.all() == [0]
    Client(served.addresses, key="taken", credential=SECRET).connect()
    with pytest.raises(ConnectorError, match=r"M4CAST_CLIENT.*connected again.*a client of its own"):
        query.step()


def test_what_cannot_be_read_is_refused_with_the_fix(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    created(served, "empty").disconnect()
    for key, credential, said in (
        ("nobody", SECRET, r"M4CAST_CLIENT.*'nobody'.*m4cast client new"),
        ("empty", "another-secret-of-16", r"M4CAST_CLIENT.*not that of client 'empty'.*set credential"),
        ("empty", SECRET, r"M4CAST_CLIENT.*has no profiles.*subscribe"),
        ("empty", "env:NOWHERE", r"M4CAST_BAD_OPTION.*environment has no NOWHERE"),
    ):
        with pytest.raises(ConnectorError, match=said) as refused:
            Query(served, key, [], credential=credential)
        assert credential.startswith("env") or credential not in str(refused.value)
    monkeypatch.setenv("CREDENTIAL", SECRET)
    client = Client(served.addresses, key="empty", credential="env:CREDENTIAL")
    client.connect()
    client.subscribe("by-reference", start="earliest")
    publish(served, "by-reference", 0, 2)
    assert Query(served, "empty", [], credential="env:CREDENTIAL").all() == [0, 1]
    assert SECRET not in repr(
        read_options(parse({"nodes": "h:1", "client": "c", "credential": SECRET}), streaming=True)
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"client": "c"}, "no credential of client 'c'"),
        ({"credential": SECRET, "topic": "t"}, "credential has no effect without client"),
        ({"client": "c", "credential": SECRET, "topic": "t"}, "topic has no effect with client"),
        ({"client": "c", "credential": SECRET, "read": "rows"}, "read has no effect with client"),
        ({"client": "c", "credential": SECRET, "where": "n > 1"}, "where has no effect with client"),
        ({"client": "c", "credential": SECRET, "startingOffsets": "earliest"}, "startingOffsets has no effect"),
        ({"client": "c", "credential": SECRET, "metadata": "_node"}, "have no _node"),
    ],
)
def test_options_that_a_client_has_no_use_for_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConnectorError, match=said):
        read_options(parse({"nodes": "h:1", **options}), streaming=True)


def test_a_batch_read_and_another_checkpoint_are_refused(served: Served) -> None:
    client = created(served, "batch")
    client.subscribe("batch", start="earliest")
    publish(served, "batch", 0, 1)
    query = Query(served, "batch", [])
    with pytest.raises(ConnectorError, match="only be read by"):
        query.source.reader(query.source.schema())
    with pytest.raises(ConnectorError, match=r"the checkpoint is of rows of topics, not of client 'batch'"):
        query.reader.latestOffset({"batch": {"a" * 32: 5}}, ReadAllAvailable())
