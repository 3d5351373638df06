"""Tasks that read by a filter: an answer counts only as far as its node certifies it."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from m4cast.overlay.client.channel import Channel
from m4cast.spark_connector.columns import merged, spark_schema
from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.options import METADATA, parse, read_options
from m4cast.spark_connector.source.planner import SequenceSpan
from m4cast.spark_connector.source.spans import SpanReader
from m4cast.spark_connector.source_filter import SourceFilter

TOPIC, ORIGIN = "orders", "a" * 32
WHERE = SourceFilter("id > 5")
SPAN = SequenceSpan(TOPIC, ORIGIN, 1, 101)


class Answer:
    """A `RangeReader` that has been read: certified up to `until`."""

    def __init__(self, until: int, profile: str | None) -> None:
        self.frontier = {TOPIC: {ORIGIN: until}}
        self.where = {"topic": TOPIC, "origin": ORIGIN, "next": until, "profile": profile}

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(())

    def close(self) -> None:
        pass


def rows_of(monkeypatch: pytest.MonkeyPatch, answer: Answer, **access: str) -> list[pa.RecordBatch]:
    asked: list[dict[str, Any]] = []

    def read_batches(self: Channel, *_: Any, **options: Any) -> Answer:
        asked.append(options)
        return answer

    monkeypatch.setattr(Channel, "read_batches", read_batches)
    schema = spark_schema(merged([("", pa.schema([("id", pa.int64())]))], METADATA))
    options = read_options(parse({"nodes": "127.0.0.1:1", "topic": TOPIC, **access}), streaming=True)
    rows = list(SpanReader(options, schema, drop_others=False).read(SPAN, WHERE))
    assert [(each["where"], each["language"]) for each in asked] == [("id > 5", "sql")]
    return rows


def test_an_answer_without_rows_that_is_certified_to_the_end_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rows_of(monkeypatch, Answer(101, WHERE.profile().id.hex())) == []


def test_a_token_may_narrow_the_filter_and_a_certificate_may_not(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = SourceFilter("id > 5 AND country = 'PL'").profile().id.hex()
    narrowed = Answer(101, profile)
    assert rows_of(monkeypatch, narrowed, token="a secret of this test") == []
    with pytest.raises(ConnectorError, match="M4CAST_NOT_CERTIFIED"):
        rows_of(monkeypatch, narrowed, tlsCa="ca.crt", tlsCert="client.crt", tlsKey="client.key")
    with pytest.raises(ConnectorError, match="M4CAST_NOT_CERTIFIED"):
        rows_of(monkeypatch, Answer(100, profile), token="a secret of this test")


@pytest.mark.parametrize(
    ("until", "profile"),
    [(100, WHERE.profile().id.hex()), (101, SourceFilter("id > 6").profile().id.hex()), (101, None)],
)
def test_an_answer_that_is_not_certified_fails_the_task(
    monkeypatch: pytest.MonkeyPatch, until: int, profile: str | None
) -> None:
    with pytest.raises(ConnectorError, match=rf"M4CAST_NOT_CERTIFIED.*up to row {until - 1} for filter {profile}"):
        rows_of(monkeypatch, Answer(until, profile))
