"""Bridges, broker and node killed at random moments: every Kafka record is one channel row, in order, and back."""

import random
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.compute as pc
import pytest

from m4cast.cluster.local import LocalCluster
from m4cast.overlay.client import Channel
from m4cast.overlay.errors import M4castError
from tests.overlay.bridge.kafka_side import KafkaSide, Sent
from tests.overlay.bridge.running import BridgeProcess
from tests.processes.clusters import until

# kafka-python leaves sockets of a broker that was killed to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore:.*unclosed <socket:pytest.PytestUnraisableExceptionWarning")

PARTITIONS = 3
LONG_S = 1_800.0


class Keeper:
    """Keeps some bridges of one name running, as a supervisor does."""

    def __init__(self, make: Callable[[int], BridgeProcess], count: int) -> None:
        self._make = make
        self.bridges = [make(at) for at in range(count)]
        self.ended = 0

    def look(self) -> None:
        for at, bridge in enumerate(self.bridges):
            if bridge.exit_code is not None:
                self.ended += 1
                self.bridges[at] = self._make(at)

    def kill(self, at: int) -> None:
        self.bridges[at].kill()
        self.bridges[at] = self._make(at)


@contextmanager
def kept(make: Callable[[int], BridgeProcess], count: int) -> Iterator[Keeper]:
    keeper = Keeper(make, count)
    try:
        yield keeper
    finally:
        for bridge in keeper.bridges:
            bridge.kill()


def rows_kept(channel: Channel, topic: str) -> int:
    try:
        return sum(at - 1 for at in channel.frontier(topic).get(topic, {}).values())
    except M4castError:
        return -1  # the node is away


def produce(kafka: KafkaSide, topic: str, records: int, done: threading.Event) -> None:
    """Publish as a user's producer does: it waits for a broker that is away."""
    with kafka.producer(delivery_timeout_ms=600_000, max_block_ms=600_000) as producer:
        for at in range(records):
            producer.send(topic, b"%d" % at, partition=at % PARTITIONS)
        producer.flush(timeout=600)
    done.set()


def check(channel: Channel, topic: str, records: int) -> None:
    rows = channel.read(topic)
    assert rows.num_rows == records
    for partition in range(PARTITIONS):
        of_partition = rows.filter(pc.equal(pc.struct_field(rows["_kafka"], "partition"), partition))
        offsets = pc.struct_field(of_partition["_kafka"], "offset").to_pylist()
        values = [int(value) for value in of_partition["value"].to_pylist()]
        assert offsets == list(range(len(offsets))), f"offsets of partition {partition}"
        assert values == list(range(partition, records, PARTITIONS)), f"values of partition {partition}"


def storm(
    kafka: KafkaSide, cluster: LocalCluster, folder: Path, *, records: int, kills: int, restarts: int, bridges: int
) -> None:
    """Bridges are killed (-9) at random moments, broker and node restarted at others, while records come."""
    chance = random.Random(records)
    topic, name = kafka.make_topic(PARTITIONS), f"storm-{uuid.uuid4().hex[:8]}"
    channel = cluster.channel("n1")
    flags = ["--topic", topic, "--name", name, "--batch-bytes", "65536", "--linger-ms", "20"]
    flags += ["--kafka", "session_timeout_ms=2000", "--kafka", "heartbeat_interval_ms=400"]

    def make(at: int) -> BridgeProcess:
        own = [*flags, "--group", f"{name}-{at}"]  # groups of their own: they race for every partition
        return BridgeProcess("kafka-in", cluster.node("n1").door, kafka.address, folder / f"{at}.log", *own)

    done = threading.Event()
    producing = threading.Thread(target=produce, args=(kafka, topic, records, done))
    producing.start()
    moments = sorted(chance.sample(range(1, 1_000), kills + restarts))
    kinds = ["kill"] * kills + ["broker", "node"] * (restarts // 2)
    chance.shuffle(kinds)
    with kept(make, bridges) as keeper:
        for moment, kind in zip(moments, kinds, strict=True):

            def is_there(moment: int = moment) -> bool:
                keeper.look()
                return rows_kept(channel, topic) >= records * moment / 1_000

            until(is_there, f"{moment / 10} % of the rows", LONG_S)
            if kind == "kill":
                keeper.kill(chance.randrange(bridges))
            elif kind == "broker":
                kafka.broker.kill()
                kafka.broker.start()
            else:
                cluster.kill("n1")
                cluster.start("n1")

        def is_complete() -> bool:
            keeper.look()
            return done.is_set() and rows_kept(channel, topic) >= records

        until(is_complete, "all rows", LONG_S)
    producing.join()
    check(channel, topic, records)


def test_a_killed_kafka_in_goes_on_exactly_where_it_was(
    kafka: KafkaSide, bridge_cluster: LocalCluster, tmp_path: Path
) -> None:
    storm(kafka, bridge_cluster, tmp_path, records=30_000, kills=3, restarts=0, bridges=1)


@pytest.mark.soak
def test_thirty_kills_restarts_and_a_race_over_two_million_records(
    kafka: KafkaSide, bridge_cluster: LocalCluster, tmp_path: Path
) -> None:
    storm(
        kafka,
        bridge_cluster,
        tmp_path,
        records=2_000_000,
        kills=30,
        restarts=6,
        bridges=2,
    )


def out_storm(kafka: KafkaSide, cluster: LocalCluster, folder: Path, *, rows: int, kills: int) -> None:
    chance = random.Random(rows)
    topic, back = f"t-{uuid.uuid4().hex[:8]}", kafka.make_topic()
    channel = cluster.channel("n1")
    flags = ["--topic", f"{topic} -> {back}", "--name", f"storm-{uuid.uuid4().hex[:8]}", "--transaction-rows", "500"]

    def make(at: int) -> BridgeProcess:
        return BridgeProcess("kafka-out", cluster.node("n1").door, kafka.address, folder / f"{at}.log", *flags)

    channel.publish(topic, [{"value": b"%d" % at} for at in range(rows)])
    with kept(make, 1) as keeper, kafka.counting(back) as counted:
        for moment in sorted(chance.sample(range(1, 1_000), kills)):
            until(lambda moment=moment: counted() >= rows * moment / 1_000, f"{moment / 10} %")  # type: ignore[misc]
            keeper.kill(0)
        found = [int(each.value) for each in kafka.read(back, rows)]
    assert found == list(range(rows))


def test_a_killed_kafka_out_repeats_nothing_for_readers_of_committed_records(
    kafka: KafkaSide, bridge_cluster: LocalCluster, tmp_path: Path
) -> None:
    out_storm(kafka, bridge_cluster, tmp_path, rows=10_000, kills=2)


@pytest.mark.soak
def test_a_kafka_out_killed_thirty_times(kafka: KafkaSide, bridge_cluster: LocalCluster, tmp_path: Path) -> None:
    out_storm(kafka, bridge_cluster, tmp_path, rows=200_000, kills=30)


def test_a_paused_bridge_that_wakes_up_writes_nothing_twice_and_sigterm_ends_it_in_order(
    kafka: KafkaSide, bridge_cluster: LocalCluster, tmp_path: Path
) -> None:
    topic, name = kafka.make_topic(), f"twin-{uuid.uuid4().hex[:8]}"
    channel, door = bridge_cluster.channel("n1"), bridge_cluster.node("n1").door

    def make(at: int) -> BridgeProcess:
        own = ("--topic", topic, "--name", name, "--group", f"{name}-{at}")
        return BridgeProcess("kafka-in", door, kafka.address, tmp_path / f"{at}.log", *own)

    first = make(1)
    second = None
    try:
        kafka.send(topic, [Sent(b"0")])
        until(lambda: rows_kept(channel, topic) == 1, "the first row")
        first.send(signal.SIGSTOP)
        second = make(2)
        kafka.send(topic, [Sent(b"1")])
        until(lambda: rows_kept(channel, topic) == 2, "the second row, by the second bridge")
        first.send(signal.SIGCONT)
        assert first.wait() == 2 and "moved by another bridge" in first.said()
        kafka.send(topic, [Sent(b"2")])
        until(lambda: rows_kept(channel, topic) == 3, "the third row")
        assert second.stop() == 0 and second.said().endswith(" stopped\n")
    finally:
        first.kill()
        if second is not None:
            second.kill()
    assert [row["value"] for row in channel.read(topic).to_pylist()] == [b"0", b"1", b"2"]


def test_brokers_and_nodes_that_are_away_are_waited_for_with_one_line(
    kafka: KafkaSide, bridge_cluster: LocalCluster, tmp_path: Path
) -> None:
    topic = kafka.make_topic()
    channel, door = bridge_cluster.channel("n1"), bridge_cluster.node("n1").door
    kafka.broker.stop()
    flags = ("--topic", topic, "--name", f"away-{uuid.uuid4().hex[:8]}")
    bridge = BridgeProcess("kafka-in", door, kafka.address, tmp_path / "log", *flags)
    try:
        bridge.until_says(f"Kafka at {kafka.address}")
        bridge_cluster.kill("n1")
        kafka.broker.start()
        bridge.until_says(f"node {door}")
        bridge_cluster.start("n1")
        kafka.send(topic, [Sent(b"1")])
        until(lambda: rows_kept(channel, topic) == 1, f"the row\n{bridge.said()}")
        assert bridge.stop() == 0
    finally:
        bridge.kill()
    lines = [line for line in bridge.said().splitlines() if "; retrying" in line]
    assert len(lines) == 2, bridge.said()


def test_a_partition_that_waited_for_its_writer_goes_on_when_the_others_have_ended(
    kafka: KafkaSide, bridge_cluster: LocalCluster, tmp_path: Path
) -> None:
    topic, channel = kafka.make_topic(PARTITIONS), bridge_cluster.channel("n1")
    counts = (15_000, 15_000, 90_000)
    with kafka.producer() as producer:
        for partition, count in enumerate(counts):
            for at in range(count):
                producer.send(topic, b"%d" % at, partition=partition)
    flags = ("--topic", topic, "--name", f"full-{uuid.uuid4().hex[:8]}", "--batch-bytes", "16384")
    bridge = BridgeProcess("kafka-in", bridge_cluster.node("n1").door, kafka.address, tmp_path / "log", *flags)
    try:
        until(lambda: rows_kept(channel, topic) >= sum(counts), "all rows")
        assert bridge.stop() == 0
    finally:
        bridge.kill()
    rows = channel.read(topic)
    offsets = pc.value_counts(pc.struct_field(rows["_kafka"], "partition")).to_pylist()
    assert sorted((each["values"], each["counts"]) for each in offsets) == list(enumerate(counts))
