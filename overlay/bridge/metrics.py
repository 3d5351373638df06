"""The metrics of a bridge, for Prometheus. docs/KAFKA.md explains each."""

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server


class BridgeMetrics:
    """Labelled with the bridge and, where useful, the topic that is read (bounded by the routes) or the reason."""

    def __init__(self, direction: str, name: str) -> None:
        self.registry = CollectorRegistry()
        self._labels = {"direction": direction, "bridge": name}
        self.records = self._counter("records", "Records carried, by source topic.", "topic")
        self.bytes = self._counter("bytes", "Bytes of the values carried.", "topic")
        self.dead_letters = self._counter("dead_letters", "Records that became dead letters, by reason.", "reason")
        self.echoes = self._counter("echoes", "Records left out because they came from the target itself.", "topic")
        self.commits = self._counter("commits", "Commits: to the channel (kafka-in), to Kafka (kafka-out).")
        self.losses = self._counter("losses", "Times that records were gone before they could be carried.", "topic")
        self.lag = self._gauge("lag_records", "Records not yet carried, by topic.", "topic")
        self.trouble = self._gauge(
            "trouble", "1 while the bridge waits for this service: kafka, node, registry.", "what"
        )
        self.stalled = self._gauge("stalled_partitions", "Partitions whose rows the channel refuses.", "topic")
        self.committed_at = self._gauge("last_commit_timestamp_seconds", "When the last commit was made.")

    def serve(self, address: str) -> Any:
        """Serve /metrics at the address; returns the server, to be shut down."""
        host, _, port = address.rpartition(":")
        server, _ = start_http_server(int(port), host.strip("[]"), self.registry)
        return server

    def _counter(self, name: str, about: str, *labels: str) -> "Labelled":
        made = Counter(f"m4cast_bridge_{name}", about, ["direction", "bridge", *labels], registry=self.registry)
        return Labelled(made, self._labels)

    def _gauge(self, name: str, about: str, *labels: str) -> "Labelled":
        made = Gauge(f"m4cast_bridge_{name}", about, ["direction", "bridge", *labels], registry=self.registry)
        return Labelled(made, self._labels)


class Labelled:
    """A metric of this bridge; call it with the remaining labels."""

    def __init__(self, metric: Any, labels: dict[str, str]) -> None:
        self._metric = metric
        self._labels = labels

    def __call__(self, **labels: str) -> Any:
        return self._metric.labels(**self._labels, **labels)
