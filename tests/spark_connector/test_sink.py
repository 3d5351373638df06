"""From where a key is moved, and what cannot be published."""

import pytest
from pyspark.sql.types import LongType, StructType

from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.options import WriteOptions, parse, write_options
from m4cast.spark_connector.sink import check_columns, expected


def options(**more: str) -> WriteOptions:
    return write_options(parse({"nodes": "a:1", **more}))


def test_a_key_goes_from_where_its_query_left_it() -> None:
    assert expected(None, "q", 0, options()) is None
    assert expected("q/4", "q", 5, options()) == "q/4"
    assert expected("q/4", "q", 9, options()) == "q/4", "micro-batches without partitions do not move it"


def test_a_replayed_micro_batch_is_left_to_the_node() -> None:
    assert expected("q/5", "q", 5, options()) is None


def test_an_older_checkpoint_is_refused() -> None:
    with pytest.raises(ConnectorError, match=r"M4CAST_CHECKPOINT_BEHIND.*published up to 6"):
        expected("q/6", "q", 5, options())


def test_another_querys_key_is_refused_with_the_fix() -> None:
    with pytest.raises(ConnectorError, match=r'M4CAST_SINK_TAKEN.*option\("takeover", "p/6"\)'):
        expected("p/6", "q", 7, options(sinkId="s"))


def test_a_takeover_is_of_the_very_position() -> None:
    assert expected("p/6", "q", 0, options(sinkId="s", takeover="p/6")) == "p/6"
    assert expected("q/0", "q", 1, options(sinkId="s", takeover="p/6")) == "q/0"
    with pytest.raises(ConnectorError, match="M4CAST_SINK_TAKEN"):
        expected("p/7", "q", 0, options(sinkId="s", takeover="p/6"))


@pytest.mark.parametrize("name", ["_origin", "_sequence", "_published_at", "_channel", "_node", "_m4cast_x"])
def test_columns_of_the_channel_cannot_be_published(name: str) -> None:
    schema = StructType().add("a", LongType()).add(name, LongType())
    with pytest.raises(ConnectorError, match=rf"M4CAST_RESERVED_COLUMN.*{name}"):
        check_columns(schema, options(topic="t"))


def test_a_topic_is_needed() -> None:
    check_columns(StructType().add("a", LongType()).add("_topic", LongType()), options())
    check_columns(StructType().add("a", LongType()), options(topic="t"))
    with pytest.raises(ConnectorError, match="M4CAST_NO_TOPIC"):
        check_columns(StructType().add("a", LongType()), options())
    with pytest.raises(ConnectorError, match="M4CAST_NO_TOPIC"):
        check_columns(StructType().add("_topic", LongType()), options(topic="t"))
