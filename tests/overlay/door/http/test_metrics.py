"""Metrics of real nodes as Prometheus reads them: numbers that move with what happens, under the names of the list."""

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from m4cast.overlay.client import Channel
from m4cast.overlay.door.http.metrics import FAMILIES
from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.effects import Commit, Delivered, Published, Stage, Staged, StageDone, Trace
from m4cast.overlay.protocol.wire.batch import Skip, SkipReason
from tests.overlay.door.http.watched import Watched, get, samples, until, watching

LIST = Path(__file__).parents[4] / "docs" / "METRICS.md"
SMALL, LARGE = 1_000, 200_000
"""Bytes of a payload that is pushed, and of one that is announced and pulled."""


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with watching(tmp_path_factory.mktemp("trio"), 3) as watched:
        yield watched


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Watched]:
    with watching(tmp_path, 1) as watched:
        yield watched


def publish(watched: Watched, at: int, topic: str, count: int, rows: int, size: int) -> None:
    """Batches, until they are delivered at all nodes."""
    nodes = watched.served.nodes
    before = [len(node.deliveries) for node in nodes]
    for _ in range(count):
        watched.served.run(nodes[at].publish(topic, b"x" * size, rows))
    for node, already in zip(nodes, before, strict=True):
        watched.served.run(node.until_delivered(already + count))


def test_rows_are_counted_where_they_are_published_sent_received_and_delivered(trio: Watched) -> None:
    def counts(at: int, what: str, **labels: str) -> list[float]:
        return [trio.sample(at, f"m4cast_{what}_{unit}_total", **labels) for unit in ("batches", "rows", "bytes")]

    def grown(at: int, what: str, since: list[float], **labels: str) -> list[float]:
        return [now - then for now, then in zip(counts(at, what, **labels), since, strict=True)]

    watched = [(0, "published", {}), (0, "delivered", {"how": "published"}), (1, "delivered", {"how": "pushed"})]
    before = [counts(at, what, **labels) for at, what, labels in watched]
    received, sent = counts(1, "received"), counts(0, "sent", how="pushed")
    publish(trio, 0, "small", count=4, rows=3, size=SMALL)
    for (at, what, labels), since in zip(watched, before, strict=True):
        assert grown(at, what, since, **labels) == [4, 12, 4 * SMALL], (at, what)
    assert grown(0, "sent", sent, how="pushed")[0] >= 4
    batches, rows, size = grown(1, "received", received)
    assert batches >= 4 and rows == 3 * batches and size == SMALL * batches


def test_batches_that_were_staged_are_counted_as_pulled(trio: Watched) -> None:
    """Their payload is on the disk only, so they are announced to the neighbours, which ask for them."""
    before = [trio.sample(at, "m4cast_delivered_batches_total", how="pulled") for at in (1, 2)]
    nodes = trio.served.nodes
    delivered = [len(node.deliveries) for node in nodes]

    async def commit() -> None:
        request = nodes[0].driver.request
        for stage_id in ("a", "b"):
            staged = Staged("large", 1, 1, b"x" * LARGE)
            assert isinstance(await request(lambda n, i=stage_id, s=staged: Stage(n, i, s)), StageDone)  # type: ignore[misc]
        assert isinstance(await request(lambda n: Commit(n, ("a", "b"), ())), Published)

    trio.served.run(commit())
    for node, already in zip(nodes, delivered, strict=True):
        trio.served.run(node.until_delivered(already + 2))
    for at, since in zip((1, 2), before, strict=True):
        assert trio.sample(at, "m4cast_delivered_batches_total", how="pulled") == since + 2
        assert trio.sample(at, "m4cast_delivery_latency_seconds_count", how="pulled") == since + 2
    assert sum(trio.sample(at, "m4cast_sent_bytes_total", how="pulled") for at in range(3)) >= 4 * LARGE


def test_copies_that_were_here_already_make_duplicates_and_the_redundancy_ratio(trio: Watched) -> None:
    # Of three nodes that are all neighbours, the two that hear of a batch tell each other, too.
    publish(trio, 0, "copies", count=5, rows=1, size=SMALL)
    until(
        lambda: sum(trio.sample(at, "m4cast_duplicate_batches_total") for at in (1, 2)) >= 5,
        "a duplicate of each batch",
    )
    for at in (1, 2):
        found = samples(trio.get(at, "/metrics")[1])
        delivered = sum(found["m4cast_delivered_batches_total", (("how", how),)] for how in ("pushed", "pulled"))
        received = found["m4cast_received_batches_total", ()]
        assert received >= delivered + found["m4cast_duplicate_batches_total", ()] > 0
        assert found["m4cast_redundancy_ratio", ()] == pytest.approx(received / delivered)
    assert trio.sample(0, "m4cast_redundancy_ratio") == 0, "all that is delivered there was published there"


def test_hops_and_latency_are_of_what_came_from_others(trio: Watched) -> None:
    def count(at: int) -> float:
        return trio.sample(at, "m4cast_delivery_hops_count")

    before = [count(at) for at in range(3)]
    latency_sum = trio.sample(1, "m4cast_delivery_latency_seconds_sum", how="pushed")
    publish(trio, 0, "hops", count=3, rows=1, size=SMALL)
    assert [count(at) - since for at, since in enumerate(before)] == [0, 3, 3]
    for at in (1, 2):
        within_two = trio.sample(at, "m4cast_delivery_hops_bucket", le="2.0")
        assert within_two == count(at), "no way is longer in a complete graph of three"
    grown = trio.sample(1, "m4cast_delivery_latency_seconds_sum", how="pushed") - latency_sum
    assert 0 <= grown < 60, "seconds, on one host"


def test_metrics_report_the_graph(trio: Watched) -> None:
    for at in range(3):
        found = samples(trio.get(at, "/metrics")[1])
        assert found["m4cast_neighbours", ()] == 2
        assert found["m4cast_holes", ()] == 2
        assert found["m4cast_diameter", ()] == 1
        assert found["m4cast_roster_nodes", ()] == 3
        assert found["m4cast_node_state", (("state", "full"),)] == 1
        assert found["m4cast_node_state", (("state", "seeking"),)] == 0
        neighbours = {node.driver.node.me.node_id.hex() for node in trio.served.nodes if node.name != f"n{at}"}
        assert {dict(labels)["neighbour"] for name, labels in found if name == "m4cast_link_queued_bytes"} == neighbours


def test_metrics_report_commits_and_store_size(alone: Watched) -> None:
    before = samples(alone.get(0, "/metrics")[1])
    assert ("m4cast_store_oldest_row_timestamp_seconds", ()) not in before
    publish(alone, 0, "rows", count=3, rows=10, size=LARGE)
    after = samples(alone.get(0, "/metrics")[1])
    assert after["m4cast_store_commit_seconds_count", ()] >= before["m4cast_store_commit_seconds_count", ()] + 3
    assert after["m4cast_store_commit_seconds_sum", ()] > before["m4cast_store_commit_seconds_sum", ()]
    assert after["m4cast_store_live_bytes", ()] >= before["m4cast_store_live_bytes", ()] + 3 * LARGE
    assert after["m4cast_store_kept_rows", ()] == 30
    first = alone.served.nodes[0].deliveries[0]
    assert not isinstance(first, Skip)
    oldest = after["m4cast_store_oldest_row_timestamp_seconds", ()]
    assert oldest == pytest.approx(first.published_at_ms / 1000)


def test_a_reader_has_a_lag(alone: Watched) -> None:
    publish(alone, 0, "read", count=2, rows=10, size=SMALL)
    publish(alone, 0, "unread", count=1, rows=10, size=SMALL)
    node = alone.served.nodes[0]
    stream = StreamId(node.driver.node.me.node_id, "read")
    lease_ms = node.driver.clock.now_ms() + 600_000
    node.store.set_reader('a "reader"', {stream: 11}, lease_ms).result()
    node.store.set_reader("new", {}, lease_ms, ("read", "unread")).result()
    assert alone.sample(0, "m4cast_readers") == 2
    assert alone.sample(0, "m4cast_reader_lag_rows", reader='a "reader"') == 10
    assert alone.sample(0, "m4cast_reader_lag_rows", reader="new") == 30
    assert 0 < alone.sample(0, "m4cast_reader_lease_seconds", reader="new") <= 600
    assert alone.sample(0, "m4cast_reader_cut_rows", reader="new") == 0


def test_a_reader_of_a_selective_topic_lags_by_its_own_rows(alone: Watched) -> None:
    channel = Channel(alone.served.addresses[0])
    channel.create_topic("chosen", keepers=0, route_by=["country"])
    for country in ("PL", "DE", "PL", "PL"):
        channel.publish("chosen", [{"country": country}] * 2)
    node = alone.served.nodes[0]
    stream = StreamId(node.driver.node.me.node_id, "chosen")
    lease_ms = node.driver.clock.now_ms() + 600_000
    node.store.set_reader("polish", {stream: 2}, lease_ms, profiles={"chosen": "`country` = 'PL'"}).result()
    node.store.set_reader("whole", {stream: 4}, lease_ms).result()
    assert alone.sample(0, "m4cast_reader_lag_rows", reader="polish") == 5
    assert alone.sample(0, "m4cast_reader_lag_rows", reader="whole") == 5


def test_metrics_report_the_most_lagging_readers(alone: Watched) -> None:
    publish(alone, 0, "read", count=1, rows=200, size=SMALL)
    node = alone.served.nodes[0]
    stream = StreamId(node.driver.node.me.node_id, "read")
    for number in range(1, 121):
        node.store.set_reader(f"r{number}", {stream: number}, node.driver.clock.now_ms() + 600_000)
    node.store.sync().result()
    found = samples(alone.get(0, "/metrics")[1])
    told = {dict(labels)["reader"] for name, labels in found if name == "m4cast_reader_lag_rows"}
    assert told == {f"r{number}" for number in range(1, 101)}
    assert found["m4cast_readers", ()] == 120


def test_calls_of_clients_are_counted_by_how_they_ended(alone: Watched) -> None:
    client = flight.connect(f"grpc://{alone.served.addresses[0]}")
    table = pa.table({"id": [1, 2]})

    def calls(call: str, outcome: str) -> float:
        return alone.sample(0, "m4cast_door_calls_total", call=call, outcome=outcome)

    writer, acks = client.do_put(flight.FlightDescriptor.for_path("orders"), table.schema)
    with writer:
        writer.write_table(table)
        writer.done_writing()
        assert acks.read() is not None
    until(lambda: calls("put", "ok") == 1, "the put ended")
    ticket = flight.Ticket(json.dumps({"topic": "orders", "end": "latest"}).encode())
    assert client.do_get(ticket).read_all().num_rows == 2
    until(lambda: calls("get", "ok") == 1, "the get ended")
    assert len(list(client.do_action(flight.Action("topics", b"")))) == 1
    assert calls("topics", "ok") == 1
    for name in ("no-such-thing", "another"):
        with pytest.raises(flight.FlightServerError):
            list(client.do_action(flight.Action(name, b"")))
    assert calls("unknown", "bad-request") == 2
    with pytest.raises(flight.FlightServerError):
        client.do_get(flight.Ticket(b"nonsense")).read_all()
    assert calls("get", "bad-request") == 1
    tail = client.do_get(flight.Ticket(json.dumps({"topic": "orders"}).encode()))
    assert tail.read_chunk().data.num_rows == 2
    tail.cancel()
    until(lambda: calls("get", "cancelled") == 1, "the tail ended")
    large = Channel([alone.served.addresses[0]])
    for _ in range(10):
        large.publish("large", pa.table({"n": range(10_000), "text": ["x" * 200] * 10_000}))
    query = large.query("large", "n >= 0")  # P38: of which the node has sent a part when it is closed
    assert next(query).num_rows
    query.close()
    until(lambda: calls("get", "cancelled") == 2, "the query ended")
    client.close()


def test_a_peer_that_sends_garbage_is_counted(alone: Watched) -> None:
    host, _, port = alone.served.nodes[0].address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as peer:
        peer.sendall(b"GET / HTTP/1.1\r\n\r\n" * 100)
        until(lambda: alone.sample(0, "m4cast_refused_total", reason="malformed") == 1, "a refusal")


def test_happenings_that_the_driver_shows_are_counted(alone: Watched) -> None:
    driver = alone.served.nodes[0].driver
    node_id = driver.node.me.node_id
    skip = Skip(StreamId(node_id, "gone"), 11, 20, SkipReason.EXPIRED, node_id)
    shown = (
        Delivered(skip),
        Trace("shed", (("reason", "hold-back"), ("topic", "gone"))),
        Trace("was-refused", (("reason", "who knows"), ("detail", ""))),
        Trace("fork", ()),
    )
    for output in shown:
        for watcher in driver.watchers:
            alone.served.loop.call_soon_threadsafe(watcher, output)
    assert alone.sample(0, "m4cast_skips_total", reason="expired") == 1
    assert alone.sample(0, "m4cast_skipped_rows_total", reason="expired") == 10
    assert alone.sample(0, "m4cast_skips_total", reason="lost") == 0
    assert alone.sample(0, "m4cast_shed_total", reason="hold-back") == 1
    assert alone.sample(0, "m4cast_refused_by_others_total") == 1
    assert alone.sample(0, "m4cast_happenings_total", name="fork") == 1
    assert "who knows" not in alone.get(0, "/metrics")[1], "what peers say is no label"


# ---- the list


def listed() -> dict[str, tuple[str, tuple[str, ...]]]:
    """Name -> type and labels, by docs/METRICS.md."""
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \|([^|]*)\|[^|]+\|[^|]*\|$", LIST.read_text("utf-8"), re.MULTILINE)
    assert len(rows) == len({name for name, *_ in rows}), "a metric is listed twice"
    return {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


def test_the_list_names_what_a_node_exports_and_nothing_else(trio: Watched) -> None:
    _, text = get(trio.doors[0].address, "/metrics")
    exported = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
    assert {name: kind for name, (kind, _) in listed().items()} == exported


def test_the_list_names_the_labels() -> None:
    exported = {name: (family.kind, family.labels) for name, family in FAMILIES.items()}
    assert {name: row for name, row in listed().items() if name.startswith("m4cast_")} == exported


def test_the_cpu_time_of_filters_is_reported_by_client(alone: Watched) -> None:
    channel = Channel(alone.served.addresses[:1])
    channel.publish("filtered", [{"n": number} for number in range(1_000)])
    assert channel.read("filtered", where="n = 5").num_rows == 1
    ((client, spent_ms),) = channel.status()["filter_cpu_ms"].items()
    assert spent_ms >= 0
    assert alone.sample(0, "m4cast_filter_cpu_seconds_total", client=client) > 0
    for number in range(120):
        alone.served.doors[0].services.calls.filter_cpu.spend(f"client {number}", 1_000 + number, None)
    found = samples(alone.get(0, "/metrics")[1])
    shown = {dict(labels)["client"] for name, labels in found if name == "m4cast_filter_cpu_seconds_total"}
    assert shown == {f"client {number}" for number in range(20, 120)}, "those that used most"
