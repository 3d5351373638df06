"""Kafka as tests use it: topics, records in and out, and a small schema registry."""

import json
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from tests.kafka_broker import KafkaBroker

TIMEOUT_S = 60.0


class Sent(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int = 1_700_000_000_000
    partition: int = 0


class KafkaSide:
    def __init__(self, broker: KafkaBroker) -> None:
        self.broker = broker
        self.address = broker.address

    @contextmanager
    def admin(self) -> Iterator[Any]:
        admin = KafkaAdminClient(bootstrap_servers=self.address)
        try:
            yield admin
        finally:
            admin.close()

    def make_topic(self, partitions: int = 1, name: str = "", configs: Mapping[str, str] | None = None) -> str:
        topic = name or f"topic-{uuid.uuid4().hex[:8]}"
        made = {"num_partitions": partitions, "replication_factor": 1, "configs": dict(configs or {})}
        with self.admin() as admin:
            admin.create_topics({topic: made})
        return topic

    @contextmanager
    def producer(self, **settings: Any) -> Iterator[Any]:
        producer = KafkaProducer(bootstrap_servers=self.address, linger_ms=5, batch_size=256 << 10, **settings)
        try:
            yield producer
        finally:
            producer.close()

    def send(self, topic: str, records: Sequence[Sent]) -> None:
        with self.producer() as producer:
            sent = [
                producer.send(topic, each.value, each.key, list(each.headers), each.partition, each.timestamp_ms)
                for each in records
            ]
            producer.flush(timeout=TIMEOUT_S)
            for future in sent:
                future.get(timeout=TIMEOUT_S)

    def delete_records(self, topic: str, before: int) -> None:
        with self.admin() as admin:
            admin.delete_records({TopicPartition(topic, 0): before})

    @contextmanager
    def counting(self, topic: str) -> Iterator[Callable[[], int]]:
        """The approximate number of committed records of one partition: marks of transactions count, too."""
        partition = TopicPartition(topic, 0)
        consumer = KafkaConsumer(bootstrap_servers=self.address, isolation_level="read_committed")
        try:
            yield lambda: int(consumer.end_offsets([partition])[partition])
        finally:
            consumer.close()

    def read(self, topic: str, count: int, partitions: int = 1) -> list[Any]:
        """So many committed records, in the order of each partition; fails if fewer or more arrive."""
        consumer = KafkaConsumer(
            bootstrap_servers=self.address,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            consumer_timeout_ms=int(TIMEOUT_S * 1000),
        )
        try:
            assigned = [TopicPartition(topic, partition) for partition in range(partitions)]
            consumer.assign(assigned)
            found: list[Any] = []
            while len(found) < count:
                found.append(next(consumer))
            more = consumer.poll(timeout_ms=300)
            assert not more, f"{sum(map(len, more.values()))} records more than {count}"
            return found
        finally:
            consumer.close()


class SmallRegistry:
    """Answers as a schema registry does: schemas by number, numbers of schemas. `is_up`: else it fails."""

    def __init__(self) -> None:
        self.schemas: list[str] = []
        self.is_up = True
        self.asked = threading.Event()
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                number = int(self.path.rpartition("/")[2])
                known = 0 < number <= len(registry.schemas)
                self._answer(200 if known else 404, {"schema": registry.schemas[number - 1]} if known else {})

            def do_POST(self) -> None:
                schema = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["schema"]
                if schema not in registry.schemas:
                    registry.schemas.append(schema)
                self._answer(200, {"id": registry.schemas.index(schema) + 1})

            def _answer(self, code: int, content: object) -> None:
                registry.asked.set()
                body = json.dumps(content).encode()
                self.send_response(code if registry.is_up else 503)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def add(self, schema: object) -> int:
        self.schemas.append(json.dumps(schema))
        return len(self.schemas)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
