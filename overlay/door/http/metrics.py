"""Metrics for Prometheus: the answer to a scrape. `docs/METRICS.md` says what each metric means and what to alert on.

Numbers that can be looked up are not counted here: a scrape reads those of the node's machines on the node's loop, and
those of the store in its own thread. Only events that are recorded nowhere else are counted as they happen (`Tally`),
by plain additions. Counters start at 0 with the node; those of the protocol start again when the node takes a new id,
which Prometheus expects of counters.

Labels are few and bounded, and never name a stream. Clients choose only the names of readers and topics. At most
`READERS_MAX` readers are reported, those that lag most; at most `CLIENTS_MAX` clients that filter, those that cost
most; and topics only if the setting `metrics_topics_max` allows it.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import Literal, NamedTuple

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from m4cast.overlay.door.admin.status import Sample, samples_of, unready_of
from m4cast.overlay.door.call_counts import CallCounts
from m4cast.overlay.door.http.gateways import gateway_samples
from m4cast.overlay.door.node_handle import NodeHandle
from m4cast.overlay.door.selected.backlog import profile_of, rows_here
from m4cast.overlay.histogram import Histogram
from m4cast.overlay.ids import StreamId
from m4cast.overlay.net.driver import Driver, Shown
from m4cast.overlay.protocol.effects import Delivered, Trace
from m4cast.overlay.protocol.node import Node
from m4cast.overlay.protocol.wire.batch import How, Skip, SkipReason
from m4cast.overlay.protocol.wire.messages import PROTOCOL_VERSION_MAX, PROTOCOL_VERSION_MIN
from m4cast.overlay.store.store import FreeSpace, Reader, Store

LAG_BATCHES = 1_000
"""The most batches of one stream of a selective topic that are examined for a reader's lag, which takes about 4 ms. A
longer lag is reported as that of the first `LAG_BATCHES` batches."""
READERS_MAX = 100
CLIENTS_MAX = 100
HOPS = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20)
LATENCY_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0)


class Family(NamedTuple):
    kind: Literal["counter", "gauge", "histogram"]
    about: str
    labels: tuple[str, ...] = ()


def _traffic(what: str, about: str, *labels: str) -> dict[str, Family]:
    return {
        f"m4cast_{what}_{unit}_total": Family("counter", f"{about}: {unit}.", labels)
        for unit in ("batches", "rows", "bytes")
    }


FAMILIES: dict[str, Family] = {
    # ---- the node
    "m4cast_build_info": Family(
        "gauge", "The version of m4cast, and the protocol versions that it supports.", ("version", "oldest", "newest")
    ),
    "m4cast_node_info": Family("gauge", "The identity of this node.", ("node_id", "name", "site")),
    "m4cast_node_incarnation": Family("gauge", "Number of times that the store was opened."),
    "m4cast_node_state": Family("gauge", "1 for the state that the node is in, 0 for the others.", ("state",)),
    "m4cast_node_ready": Family("gauge", "1 if /readyz answers 200, else 0."),
    "m4cast_clock_ahead_seconds": Family(
        "gauge", "Time by which the clock is ahead of the median of the neighbours' clocks; negative if behind."
    ),
    "m4cast_retention_clock_lag_seconds": Family(
        "gauge", "Time by which the clock used for retention lags behind the system's, whose jumps it follows slowly."
    ),
    "m4cast_anonymous_memory_bytes": Family("gauge", "Memory of the process without mapped files."),
    "m4cast_loop_delay_seconds": Family("gauge", "Time that this scrape waited for the node's loop."),
    "m4cast_loop_inputs": Family("gauge", "Inputs that were waiting for the node when this scrape began."),
    # ---- the graph
    "m4cast_neighbours": Family("gauge", "Links to other nodes."),
    "m4cast_holes": Family("gauge", "Missing neighbours, at most `degree`."),
    "m4cast_diameter": Family("gauge", "Estimated diameter of the graph, in hops."),
    "m4cast_roster_nodes": Family("gauge", "Known nodes that have not left, including this one."),
    "m4cast_roster_silent_nodes": Family(
        "gauge", "Known nodes that have not left, but whose last three beacons are missing."
    ),
    "m4cast_connections": Family("gauge", "Open connections to other nodes: links and short calls."),
    "m4cast_refused_total": Family("counter", "Peers and clients that this node refused.", ("reason",)),
    "m4cast_refused_by_others_total": Family("counter", "Connections of this node that another node refused."),
    "m4cast_happenings_total": Family("counter", "Events of the protocol, by name.", ("name",)),
    # ---- traffic
    **_traffic("published", "Published by this node and on its disk"),
    **_traffic("delivered", "Delivered at this node, by the way of arrival", "how"),
    **_traffic("received", "Copies received from other nodes, including duplicates"),
    **_traffic("sent", "Copies sent to other nodes, pushed or pulled", "how"),
    "m4cast_duplicate_batches_total": Family("counter", "Copies received of batches that this node already had."),
    "m4cast_redundancy_ratio": Family("gauge", "Copies received for each batch delivered from other nodes."),
    "m4cast_delivery_hops": Family("histogram", "Links that batches from other nodes travelled over."),
    "m4cast_delivery_latency_seconds": Family(
        "histogram", "Time from publishing, by the origin's clock, to delivery, by this node's clock.", ("how",)
    ),
    # ---- routes
    "m4cast_routed_frames_total": Family(
        "counter", "Routed frames that this node sent, relayed, or received as a destination.", ("what",)
    ),
    "m4cast_routed_dropped_total": Family("counter", "Routed frames that were not passed on.", ("reason",)),
    "m4cast_routed_link_frames_total": Family("counter", "Routed frames sent over a link.", ("neighbour",)),
    "m4cast_routed_link_bytes_total": Family(
        "counter", "Bytes of routed frames sent over a link; the size of control messages is estimated.", ("neighbour",)
    ),
    "m4cast_selective_copies_total": Family(
        "counter", "Copies of own selective batches: sent to nodes that want or keep them, or spared.", ("what",)
    ),
    "m4cast_selective_copied_bytes_total": Family(
        "counter", "Payload bytes of copies of own selective batches, sent and spared.", ("what",)
    ),
    # ---- what is missing
    "m4cast_streams": Family("gauge", "Known streams."),
    "m4cast_missing_rows": Family("gauge", "Rows that a neighbour has and this node has not accepted yet."),
    "m4cast_forked_streams": Family("gauge", "Streams of which two histories were seen since the node started."),
    "m4cast_gaps_open": Family("gauge", "Streams in which a batch has arrived before earlier rows."),
    "m4cast_gaps_opened_total": Family("counter", "Gaps that opened."),
    "m4cast_gaps_repaired_total": Family("counter", "Gaps that closed because their rows arrived."),
    "m4cast_skips_total": Family("counter", "Skips delivered in place of rows.", ("reason",)),
    "m4cast_skipped_rows_total": Family("counter", "Rows that delivered skips replace.", ("reason",)),
    # ---- queues
    "m4cast_link_queued_bytes": Family("gauge", "Bytes that wait to be sent to a neighbour.", ("neighbour",)),
    "m4cast_held_back_bytes": Family("gauge", "Payload of batches that wait for earlier rows."),
    "m4cast_undurable_bytes": Family("gauge", "Payload from other nodes that was accepted but is not on disk yet."),
    "m4cast_publish_queue_requests": Family("gauge", "Publishes that wait for the window."),
    "m4cast_publish_window_used_bytes": Family(
        "gauge", "Own payload that the slowest neighbour does not have on disk yet."
    ),
    "m4cast_publisher_keys": Family("gauge", "Publisher keys of this node."),
    "m4cast_publisher_keys_bytes": Family("gauge", "Memory of the publisher keys, as publisher_bytes_max counts it."),
    "m4cast_own_topics": Family("gauge", "Topics under which this node has ever published, as topics_max counts them."),
    "m4cast_shed_total": Family(
        "counter", "Batches dropped because a queue was full, to be fetched later.", ("reason",)
    ),
    # ---- the store
    "m4cast_store_commit_seconds": Family("histogram", "Duration of a commit, including its fsync."),
    "m4cast_store_queued_bytes": Family("gauge", "Approximate bytes of appends that wait for their transaction."),
    "m4cast_store_live_bytes": Family("gauge", "Bytes of the store's pages in use."),
    "m4cast_store_file_bytes": Family("gauge", "Size of the store's file, including free pages."),
    "m4cast_store_map_bytes": Family("gauge", "Size that the store's file may grow to."),
    "m4cast_store_available_bytes": Family(
        "gauge", "Available space: free pages of the file, plus the space by which it may grow."
    ),
    "m4cast_store_reserve_bytes": Family("gauge", "Available space below which the store counts as full."),
    "m4cast_store_kept_rows": Family("gauge", "Rows from the retention floor of each stream to its end."),
    "m4cast_store_removed_rows": Family(
        "gauge", "Rows below the retention floors: removed, or published before this node began."
    ),
    "m4cast_store_oldest_row_timestamp_seconds": Family(
        "gauge", "Time at which the oldest retained row was published, in seconds since 1970."
    ),
    "m4cast_topic_rows_total": Family(
        "counter", "Rows of the topic that were delivered or skipped at this node.", ("topic",)
    ),
    "m4cast_topic_stored_bytes": Family("gauge", "Bytes of the topic's batches in the store.", ("topic",)),
    # ---- gateways, of a gatekeeper
    "m4cast_gateway_units": Family("gauge", "Other units that this gatekeeper knows."),
    "m4cast_gateway_unreached_units": Family("gauge", "Known units to which no gateway leads at the moment."),
    "m4cast_gateway_links": Family("gauge", "Links to gatekeepers of a channel that are up.", ("channel",)),
    "m4cast_gateway_sent_rows_total": Family(
        "counter", "Rows sent to a channel over links that are open.", ("channel",)
    ),
    "m4cast_gateway_sent_bytes_total": Family(
        "counter", "Bytes sent to a channel over links that are open, including control messages.", ("channel",)
    ),
    "m4cast_gateway_received_bytes_total": Family(
        "counter", "Bytes received from a channel over links that are open.", ("channel",)
    ),
    "m4cast_gateway_withheld_total": Family("counter", "Batches that a rule withheld from a channel.", ("channel",)),
    "m4cast_gateway_queued_bytes": Family("gauge", "Bytes that wait to be sent to a channel.", ("channel",)),
    "m4cast_gateway_open_batches": Family("gauge", "Batches that some other unit has not acknowledged yet."),
    # ---- clients
    "m4cast_clients": Family("gauge", "Clients with a key that are attached to this node, connected or not."),
    "m4cast_clients_uncovered": Family(
        "gauge", "Attached clients some of whose rows have not arrived at this node yet."
    ),
    "m4cast_readers": Family("gauge", "Named readers, for which rows are retained."),
    "m4cast_reader_lag_rows": Family("gauge", "Rows at this node that the reader has not read.", ("reader",)),
    "m4cast_reader_lease_seconds": Family(
        "gauge", "Time until the reader's lease expires; negative afterwards.", ("reader",)
    ),
    "m4cast_reader_cut_rows": Family("gauge", "Rows that were removed before the reader had read them.", ("reader",)),
    "m4cast_door_calls_total": Family(
        "counter", "Finished calls at the client door and the web door.", ("call", "outcome")
    ),
    "m4cast_filter_cpu_seconds_total": Family(
        "counter", "CPU time of filters, parsed and applied, by client.", ("client",)
    ),
    "m4cast_http_refused_total": Family("counter", "Connections that the HTTP door refused or cut off."),
}


class Tally:
    """A driver's watcher: counts what is recorded nowhere else. A delivery costs two searches among a dozen numbers."""

    def __init__(self, driver: Driver) -> None:
        self._clock_ms = driver.clock.wall_ms
        self.hops = Histogram(HOPS)
        self.latency = {how: Histogram(LATENCY_SECONDS) for how in How}
        self.skips: Counter[str] = Counter({reason.name.lower(): 0 for reason in SkipReason})
        self.skipped_rows = self.skips.copy()
        self.happenings: Counter[str] = Counter()
        self.shed: Counter[str] = Counter()

    def watch(self, output: Shown) -> None:
        if isinstance(output, Delivered):
            delivery = output.delivery
            if isinstance(delivery, Skip):
                reason = delivery.reason.name.lower()
                self.skips[reason] += 1
                self.skipped_rows[reason] += delivery.last_sequence - delivery.first_sequence + 1
            elif delivery.sender is not None:
                self.hops.add(delivery.hops)
                latency_ms = self._clock_ms() - delivery.published_at_ms
                # The clocks of two hosts are compared: the other one may be ahead.
                self.latency[delivery.how].add(latency_ms / 1000 if latency_ms > 0 else 0)
        elif isinstance(output, Trace):
            self.happenings[output.name] += 1
            if output.name == "shed":
                self.shed[str(dict(output.detail)["reason"])] += 1


class NodeCollector(Collector):
    """Takes a snapshot of a node at each scrape. It raises `Refusal` or `StoreError`."""

    def __init__(
        self,
        driver: Driver,
        store: Store,
        node: NodeHandle,
        calls: CallCounts,
        timeout_s: float,
        *,
        topics_max: int = 0,
    ) -> None:
        self._topics_max = topics_max
        self._driver = driver
        self._store = store
        self._node = node
        self._calls = calls
        self.http_refused: Counter[str] = Counter()
        self._timeout_s = timeout_s
        self._versions = (version("m4cast"), str(PROTOCOL_VERSION_MIN), str(PROTOCOL_VERSION_MAX))
        self._tally = Tally(driver)
        driver.watchers.append(self._tally.watch)

    def collect(self) -> Iterable[Metric]:
        families = {name: _new_family(name, family) for name, family in FAMILIES.items()}
        space = self._store.free_space()
        for name, labels, value in (*self._of_node(space.is_nearly_full), *self._of_store(space), *self._of_process()):
            family = families[name]
            assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
            family.add_metric(labels, value)
        for name, labels, histogram in self._histograms():
            _fill(families[name], labels, histogram)
        return families.values()

    def as_json(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        """Every sample by its name, with its labels and its value."""
        found: dict[str, list[tuple[dict[str, str], float]]] = {}
        for family in self.collect():
            for sample in family.samples:
                found.setdefault(sample.name, []).append((sample.labels, sample.value))
        return found

    def _of_node(self, is_full: bool) -> list[Sample]:
        asked_s = time.monotonic()
        inputs = self._driver.inputs_waiting

        def look(node: Node) -> list[Sample]:
            delay_s = time.monotonic() - asked_s
            tally = self._tally
            return [
                *samples_of(node, self._driver.network.queued_bytes, self._driver.clock.now_ms()),
                ("m4cast_retention_clock_lag_seconds", (), self._driver.upkeep.retention_lag_ms() / 1000),
                ("m4cast_node_ready", (), unready_of(node) is None and not is_full),
                ("m4cast_loop_delay_seconds", (), delay_s),
                ("m4cast_loop_inputs", (), inputs),
                ("m4cast_refused_by_others_total", (), tally.happenings["was-refused"]),
                ("m4cast_clients", (), len(node.interest.clients.rows)),
                ("m4cast_clients_uncovered", (), sum(not row.covered for row in node.interest.clients.rows.values())),
                *gateway_samples(self._driver.network.federation()),
                *_by_label("m4cast_refused_total", self._driver.refused),
                *_by_label("m4cast_happenings_total", tally.happenings),
                *_by_label("m4cast_skips_total", tally.skips),
                *_by_label("m4cast_skipped_rows_total", tally.skipped_rows),
                *_by_label("m4cast_shed_total", tally.shed),
            ]

        return self._node.look(look, self._timeout_s)

    def _of_store(self, space: FreeSpace) -> Iterator[Sample]:
        yield "m4cast_store_queued_bytes", (), self._store.queued_bytes
        yield "m4cast_store_live_bytes", (), space.live_bytes
        yield "m4cast_store_file_bytes", (), space.file_bytes
        yield "m4cast_store_map_bytes", (), space.map_bytes
        yield "m4cast_store_available_bytes", (), space.available_bytes
        yield "m4cast_store_reserve_bytes", (), space.reserve_bytes
        streams = self._store.streams()
        yield "m4cast_store_kept_rows", (), sum(until - low for low, until in streams.values())
        yield "m4cast_store_removed_rows", (), sum(low - 1 for low, _ in streams.values())
        oldest_ms = self._store.oldest_ms()
        if oldest_ms is not None:
            yield "m4cast_store_oldest_row_timestamp_seconds", (), oldest_ms / 1000
        yield from self._of_topics()
        readers = self._store.readers()
        yield "m4cast_readers", (), len(readers)
        selective = self._node.look(lambda node: frozenset(node.selection.descriptors), self._timeout_s)
        lags = {name: self._lag(reader, streams, selective) for name, reader in readers.items()}
        now_ms = self._driver.clock.wall_ms()
        for name, lag in sorted(lags.items(), key=lambda item: -item[1])[:READERS_MAX]:
            cut_rows = sum(cut.next_sequence - cut.first_sequence for cut in readers[name].cuts)
            yield "m4cast_reader_lag_rows", (name,), lag
            yield "m4cast_reader_lease_seconds", (name,), (readers[name].lease_until_ms - now_ms) / 1000
            yield "m4cast_reader_cut_rows", (name,), cut_rows

    def _lag(self, reader: Reader, streams: Mapping[StreamId, tuple[int, int]], selective: frozenset[str]) -> int:
        lag = 0
        for stream, (low, until) in streams.items():
            wanted = reader.holds(stream)
            first = until if wanted is None else max(wanted, low)
            if first < until and stream.topic in selective:
                profile = profile_of(reader, stream.topic)
                lag += rows_here(self._store, stream, first, until, profile, batches_max=LAG_BATCHES)
            else:
                lag += max(until - first, 0)
        return lag

    def _of_topics(self) -> Iterator[Sample]:
        """Samples of the topics with the most stored bytes. Their number is limited: names of topics may be data."""
        rows: Counter[str] = Counter()
        stored: Counter[str] = Counter()
        for stream, held in self._store.held().items() if self._topics_max else ():
            rows[stream.topic] += held.next - 1
            stored[stream.topic] += held.log_bytes
        for topic, size in stored.most_common(self._topics_max):
            yield "m4cast_topic_rows_total", (topic,), rows[topic]
            yield "m4cast_topic_stored_bytes", (topic,), size

    def _of_process(self) -> Iterator[Sample]:
        yield "m4cast_build_info", self._versions, 1
        anonymous = _anonymous_bytes()
        if anonymous is not None:
            yield "m4cast_anonymous_memory_bytes", (), anonymous
        for (call, outcome), count in self._calls.so_far().items():
            yield "m4cast_door_calls_total", (call, outcome), count
        spent = sorted(self._calls.filter_cpu.so_far().items(), key=lambda item: -item[1])
        for client, cpu_s in spent[:CLIENTS_MAX]:
            yield "m4cast_filter_cpu_seconds_total", (client,), cpu_s
        yield "m4cast_http_refused_total", (), self.http_refused.total()

    def _histograms(self) -> Iterator[tuple[str, tuple[str, ...], Histogram]]:
        yield "m4cast_delivery_hops", (), self._tally.hops
        for how in (How.PUSHED, How.PULLED):
            yield "m4cast_delivery_latency_seconds", (how.name.lower(),), self._tally.latency[how]
        yield "m4cast_store_commit_seconds", (), self._store.commit_seconds


def _new_family(name: str, family: Family) -> Metric:
    match family.kind:
        case "counter":
            return CounterMetricFamily(name, family.about, labels=family.labels)
        case "gauge":
            return GaugeMetricFamily(name, family.about, labels=family.labels)
        case "histogram":
            return HistogramMetricFamily(name, family.about, labels=family.labels)


def _fill(family: Metric, labels: tuple[str, ...], histogram: Histogram) -> None:
    assert isinstance(family, HistogramMetricFamily)
    bounds = [*(str(float(bound)) for bound in histogram.bounds), "+Inf"]
    total = list(accumulate(histogram.counts()))
    family.add_metric(labels, list(zip(bounds, total, strict=True)), histogram.sum)


def _by_label(name: str, counts: Counter[str]) -> Iterator[Sample]:
    return ((name, (label,), count) for label, count in list(counts.items()))


def _anonymous_bytes() -> int | None:
    """`RssAnon` of this process, without mapped pages of the store. None if the system does not report it."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), None)
