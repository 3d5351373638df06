"""Slow neighbours, readers and large commits: they cost their own lag, never a node's memory or the others' pace."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from m4cast.cluster.local import LocalCluster
from tests.bench.references import BATCH_BYTES, batch_of_rows, until_delivered
from tests.processes.clusters import paused, running_cluster
from tests.processes.load import UnkeyedPublisher, publishing
from tests.processes.memory import MemoryWatch
from tests.processes.reading import assert_delivered

SLOW = "n5"
IDLE_CLIENTS = 100
SLOW_READERS = 20
CALL_S = 120.0


@pytest.mark.parametrize(
    ("before_s", "paused_s"), [(0.0, 8.0), pytest.param(20.0, 60.0, marks=pytest.mark.soak)], ids=["short", "long"]
)
def test_a_stopped_node_does_not_hold_up_the_others_and_catches_up(
    tmp_path: Path, before_s: float, paused_s: float
) -> None:
    """SIGSTOP under load. The rates are compared in the long form, which is for a machine with nothing else to do. They
    drift, whoever is stopped, so what was before is taken together with what comes after."""
    with running_cluster(tmp_path / "cluster", 5) as cluster:
        pace_s = 0.0 if before_s else 0.02
        publishers = [
            UnkeyedPublisher("one", cluster.channel("n1"), 1, pace_s),
            UnkeyedPublisher("two", cluster.channel("n2"), 2, pace_s),
        ]
        with publishing(*publishers):
            for publisher in publishers:
                publisher.wait_for(10_000)
            rate_before = rate_after = rate_over(publishers, before_s)
            with MemoryWatch(cluster, *(name for name in cluster.names() if name != SLOW)), paused(cluster, SLOW):
                rate = rate_over(publishers, paused_s)
            if before_s:
                until_caught_up(cluster, SLOW, publishers)
                rate_after = rate_over(publishers, before_s)
                print(f"{rate:,.0f} rows/s while one was stopped, {rate_before:,.0f} before, {rate_after:,.0f} after")
        assert_delivered(cluster, *publishers)
        if before_s:
            assert rate >= 0.9 * (rate_before + rate_after) / 2


def until_caught_up(cluster: LocalCluster, name: str, publishers: list[UnkeyedPublisher]) -> None:
    """Wait until the node has what was published when it is first asked, and once more: it keeps up then."""
    for _ in range(2):
        until_delivered(cluster, sum(publisher.rows for publisher in publishers), [name])


def rate_over(publishers: list[UnkeyedPublisher], seconds: float) -> float:
    """Acknowledged rows a second, for so long; every publisher gets on all the time."""
    began, rows = time.monotonic(), sum(publisher.rows for publisher in publishers)
    while time.monotonic() < began + seconds:
        for publisher in publishers:
            publisher.wait_for_more(1)
    return (sum(publisher.rows for publisher in publishers) - rows) / max(time.monotonic() - began, 1e-9)


# ---- memory


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with running_cluster(tmp_path_factory.mktemp("memory") / "cluster", 3) as cluster:
        yield cluster


SIZES = [200, pytest.param(1_000, marks=pytest.mark.soak)]
"""Megabytes."""


@pytest.mark.parametrize("megabytes", SIZES)
def test_a_large_staged_commit_does_not_fill_the_memory(cluster: LocalCluster, megabytes: int) -> None:
    topic = f"staged-{megabytes}"
    with MemoryWatch(cluster, *cluster.names()), connected(cluster, "n1") as client:
        stage_ids = put(client, {"stage": topic, "topic": topic}, megabytes)[-1]["stage_ids"]
        body = {"stage_ids": stage_ids, "key": topic, "next": "1", "acks": 2, "timeout_ms": int(CALL_S * 1000)}
        action = flight.Action("commit", json.dumps(body).encode())
        (said,) = client.do_action(action, flight.FlightCallOptions(timeout=CALL_S))
    (rows,) = json.loads(said.body.to_pybytes())["ranges"]
    assert rows["next"] - rows["first"] == megabytes * 10_000
    for name in cluster.names():
        assert cluster.channel(name).frontier(topic)[topic][rows["origin"]] == rows["next"], "acks = 2 are all others"


@pytest.mark.parametrize("megabytes", SIZES)
def test_slow_readers_do_not_fill_the_memory(cluster: LocalCluster, megabytes: int) -> None:
    """They read one batch and then nothing, some a range and some the tail, while more is published."""
    topic = f"read-{megabytes}"
    with ExitStack() as stack:
        client = stack.enter_context(connected(cluster, "n1"))
        put(client, {"topic": topic}, megabytes // 2)
        stack.enter_context(MemoryWatch(cluster, *cluster.names()))
        for end in (None, "latest") * (SLOW_READERS // 2):
            reader = stack.enter_context(connected(cluster, "n1")).do_get(ticket(topic, end))
            stack.callback(reader.cancel)
            assert reader.read_chunk().data.num_rows
        put(client, {"topic": topic}, megabytes // 2)


@pytest.mark.parametrize("megabytes", SIZES)
def test_a_slow_neighbour_does_not_fill_the_memory(cluster: LocalCluster, megabytes: int) -> None:
    with connected(cluster, "n1") as client, MemoryWatch(cluster, "n1", "n2"), paused(cluster, "n3"):
        put(client, {"topic": "slow-neighbour"}, megabytes)


def test_idle_clients_do_not_fill_the_memory(cluster: LocalCluster) -> None:
    """Tails that wait for rows, each with a connection of its own."""
    cluster.channel("n1").publish("idle", [{"id": 0}])
    with ExitStack() as stack:
        stack.enter_context(MemoryWatch(cluster, "n1"))
        readers = []
        for _ in range(IDLE_CLIENTS):
            client = stack.enter_context(connected(cluster, "n1"))
            readers.append(client.do_get(ticket("idle", None)))
            stack.callback(readers[-1].cancel)
            assert readers[-1].read_chunk().data.column("id").to_pylist() == [0]
        cluster.channel("n1").publish("idle", [{"id": 1}])
        for reader in readers:
            assert reader.read_chunk().data.column("id").to_pylist() == [1]


def connected(cluster: LocalCluster, name: str) -> Any:
    """A client with a connection of its own; Flight shares those of clients with equal options."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    return flight.connect(f"grpc://{cluster.node(name).door}", generic_options=options)


def ticket(topic: str, end: str | None) -> Any:
    return flight.Ticket(json.dumps({"topic": topic, "start": "earliest", "end": end}).encode())


def put(client: Any, command: dict[str, object], megabytes: int) -> list[dict[str, Any]]:
    """Write a record batch for each megabyte as fast as the node takes them; what it said, when all is acknowledged."""
    rows = batch_of_rows()
    assert BATCH_BYTES == 1_000_000
    descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
    writer, acks = client.do_put(descriptor, rows.schema, flight.FlightCallOptions(timeout=CALL_S))
    said: list[dict[str, Any]] = []

    def listen() -> None:
        try:
            while (ack := acks.read()) is not None:
                said.append(json.loads(ack.to_pybytes()))
        except pa.ArrowException:
            pass  # told by the writer

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    with writer:
        for _ in range(megabytes):
            writer.write_batch(rows)
        writer.done_writing()
        listener.join(CALL_S)
    assert said[-1]["rows"] == megabytes * rows.num_rows
    return said
