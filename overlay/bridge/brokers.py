"""Creates the Kafka clients of a bridge. Settings of kafka-python are passed to each client that knows them."""

from collections.abc import Mapping, Sequence
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import KafkaConfigurationError
from kafka.record import memory_records
from kafka.record.default_records import DefaultRecordBatch

from m4cast.overlay.bridge.records import OddName
from m4cast.overlay.errors import ConfigError

METADATA_MAX_AGE_MS = 5_000
"""Longest time until new topics and partitions are noticed. Lower: more requests to the brokers. Guess."""
SESSION_TIMEOUT_MS = 10_000
"""Time that Kafka waits for a killed bridge before it reassigns its partitions. Kafka's default is 45 s; presuming a
bridge dead too early costs a rebalance and never a record. Guess."""
BOOTSTRAP_TIMEOUT_MS = 5_000
PRODUCER = {"linger_ms": 5, "batch_size": 256 << 10, "max_block_ms": 15_000}
"""Defaults for many small records; [kafka] overrides them. Guess."""


class LenientBytes(bytes):
    """Bytes whose slices always decode as text."""

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        return found if isinstance(found, int) else LenientBytes(found)

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        try:
            return super().decode(encoding, errors)
        except UnicodeDecodeError:
            return OddName(super().decode(encoding, "backslashreplace"))


class LenientRecordBatch(DefaultRecordBatch):  # type: ignore[misc]  # kafka-python ships no types
    """kafka-python fails at a header whose name is not UTF-8, which brokers accept, and would never get past that
    record. This class decodes the name leniently, and the writer detects it."""

    _buffer: Any

    def _read_msg(self, *given: Any, **named: Any) -> Any:
        try:
            return super()._read_msg(*given, **named)
        except UnicodeDecodeError:
            strict, self._buffer = self._buffer, LenientBytes(self._buffer)
            try:
                return super()._read_msg(*given, **named)
            finally:
                self._buffer = strict


memory_records.DefaultRecordBatch = LenientRecordBatch


class Brokers:
    """Creates clients. Each is connected when it is returned; raises `KafkaError` if that fails."""

    def __init__(self, addresses: Sequence[str], name: str, settings: Mapping[str, Any]) -> None:
        self.addresses = ", ".join(addresses)
        self._settings = dict(settings)
        self._own = {
            "bootstrap_servers": list(addresses),
            "client_id": f"m4cast-{name}",
            "bootstrap_timeout_ms": BOOTSTRAP_TIMEOUT_MS,
        }
        classes = (KafkaAdminClient, KafkaConsumer, KafkaProducer)
        for setting in settings:
            if not any(setting in each.DEFAULT_CONFIG for each in classes):
                raise ConfigError(f"[kafka] {setting}: not a setting of kafka-python; remove it")

    def consumer(self, **own: Any) -> Any:
        defaults = {"metadata_max_age_ms": METADATA_MAX_AGE_MS, "session_timeout_ms": SESSION_TIMEOUT_MS}
        return self._made(KafkaConsumer, defaults, own)

    def producer(self, **own: Any) -> Any:
        return self._made(KafkaProducer, {"metadata_max_age_ms": METADATA_MAX_AGE_MS, **PRODUCER}, own)

    def admin(self) -> Any:
        return self._made(KafkaAdminClient, {}, {})

    def _made(self, client: Any, defaults: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
        chosen = {name: value for name, value in self._settings.items() if name in client.DEFAULT_CONFIG}
        try:
            return client(**{**defaults, **self._own, **chosen, **own})
        except (KafkaConfigurationError, TypeError, ValueError, AssertionError) as error:
            raise ConfigError(f"[kafka]: {error}") from error
