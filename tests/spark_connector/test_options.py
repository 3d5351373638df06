"""Options: what is taken, what is refused and how, and that no secret is told."""

import json
import pickle
import re
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import Any

import pytest

from m4cast.spark_connector import options
from m4cast.spark_connector.errors import ConnectorError
from m4cast.spark_connector.option_table import OPTIONS, table
from m4cast.spark_connector.options import Access, parse, read_options, write_options

A = "a" * 32
READ = {"nodes": "a:1,b:2", "topic": "orders"}
DOCS = Path(__file__).parent.parent.parent / "docs" / "SPARK.md"


PRINTABLE = [chr(code) for code in range(0x2FFFF) if chr(code).isprintable()]
SPECIAL = [*" ,;:/\\\"'[]{}.%*_", "ß", "🐢"]


def read(*, streaming: bool = True, **more: str) -> options.ReadOptions:
    return read_options(parse({**READ, **more}), streaming=streaming)


def test_names_are_taken_in_any_case_and_values_parsed() -> None:
    found = read_options(
        parse({"NODES": " a:1 , b:2", "topicS": "x, y", "maxrowspertrigger": "5", "FAILONDATALOSS": "False"}),
        streaming=True,
    )
    assert found.access.nodes == ("a:1", "b:2")
    assert found.topics == ("x", "y")
    assert found.max_rows_per_trigger == 5
    assert found.fail_on_data_loss is False


def test_defaults_are_as_kafka_users_expect() -> None:
    assert read(streaming=True).starting == "latest"
    assert read(streaming=False).starting == "earliest"
    assert read().fail_on_data_loss
    assert not read().ignore_new_columns


def test_edges_are_words_frontiers_or_times() -> None:
    assert read(startingOffsets="EARLIEST").starting == "earliest"
    assert read(startingOffsets=f'{{"orders": {{"{A}": 5}}}}').starting == {"orders": {A: 5}}
    assert read(startingTimestamp="1700000000000").starting == 1_700_000_000_000
    assert read(streaming=False, endingOffsets=f'{{"orders": {{"{A}": 5}}}}').ending == {"orders": {A: 5}}


def test_times_are_milliseconds_or_iso_8601_with_a_zone() -> None:
    noon_ms = 1_772_366_400_000
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    there = noon.astimezone(timezone(timedelta(hours=-3, minutes=-30)))
    for said in (noon_ms, "2026-03-01T12:00:00Z", "2026-03-01 13:00+01:00", noon, noon.isoformat(), there):
        assert read(startingTimestamp=str(said)).starting == noon_ms
    assert read(streaming=False, endingTimestamp="2026-03-01T12:00:00.000001Z").ending == noon_ms + 1, "rounded up"
    with pytest.raises(ConnectorError, match="no time zone: add Z"):
        read(startingTimestamp=str(noon.replace(tzinfo=None)))


def random_topic(random: Random) -> str:
    """Any name that the nodes take: printable, 1 to 200 bytes."""
    letters = (random.choice(SPECIAL if random.random() < 0.5 else PRINTABLE) for _ in range(random.randint(1, 80)))
    name = "".join(letters)
    while len(name.encode()) > 200:
        name = name[:-1]
    return name


def test_every_topic_is_read_and_published_under_its_own_name() -> None:
    random = Random(7)
    names = [random_topic(random) for _ in range(200)] + [" ", "a ", "a", "a,b", "[a", '["a"]', "x" * 200]
    for name in names:
        assert read_options(parse({"nodes": "a:1", "topic": name}), streaming=True).topics == (name,)
        assert write_options(parse({"nodes": "a:1", "topic": name})).topic == name
    listed = read_options(parse({"nodes": "a:1", "topics": json.dumps(names)}), streaming=True)
    assert listed.topics == tuple(dict.fromkeys(names))


def test_names_that_differ_in_a_space_are_two_names() -> None:
    for name in ("sinkId", "reader", "of", "topicPattern"):
        assert parse({name: "a "}) == {name: "a "}


def test_what_spark_adds_for_itself_is_passed_over() -> None:
    assert parse({"checkpointLocation": "/x", "nodes": "a:1"}) == {"nodes": ("a:1",)}


def test_a_table_is_refused_in_one_sentence() -> None:
    with pytest.raises(ConnectorError, match=r"M4CAST_NO_TABLES.*USING m4cast.*TEMPORARY VIEW"):
        parse({"provider": "m4cast", "option.nodes": "a:1", **READ})
    for use in (lambda values: read_options(values, streaming=False), write_options):
        with pytest.raises(ConnectorError, match=r'M4CAST_MISSING_OPTION.*option\("nodes".*a table.*TEMPORARY VIEW'):
            use(parse({}))


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("topik", "topic"),
        ("maxOffsetsPerTrigger", "maxRowsPerTrigger"),
        ("startingOffset", "startingOffsets"),
        ("node", "nodes"),
        ("path", 'option("topic", ...)'),
        ("zzzzzzzz", "options are nodes, topic"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_one(name: str, near: str) -> None:
    with pytest.raises(ConnectorError) as refused:
        parse({**READ, name: "secret-value"})
    assert refused.value.id == "M4CAST_UNKNOWN_OPTION"
    assert near in str(refused.value)
    assert "secret-value" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nodes", "a"),
        ("nodes", "a:0"),
        ("nodes", "a:65536"),
        ("nodes", "a:1,,b:2"),
        ("topic", ""),
        ("topic", "a\n"),
        ("topic", "é" * 101),
        ("topics", "a,,b"),
        ("topics", "[]"),
        ("topics", "[a]"),
        ("topics", '["a", 5]'),
        ("topics", '["a", ""]'),
        ("topicPattern", "("),
        ("startingOffsets", "first"),
        ("startingOffsets", "[1]"),
        ("startingOffsets", '{"t": {"x": 1}}'),
        ("startingOffsets", f'{{"t": {{"{A}": {2**62}}}}}'),
        ("endingOffsets", f'{{"t": {{"{A}": {2**63 - 1}}}}}'),
        ("startingTimestamp", "yesterday"),
        ("startingTimestamp", "-5"),
        ("startingTimestamp", "2026-03-01T12:00:00"),
        ("startingTimestamp", "2026-03-01"),
        ("endingTimestamp", "1969-12-31T23:59:59Z"),
        ("endingTimestamp", "2026-13-01T12:00:00Z"),
        ("maxRowsPerTrigger", "0"),
        ("maxBytesPerTrigger", "many"),
        ("minPartitions", "100001"),
        ("maxRowsPerPartition", "-1"),
        ("failOnDataLoss", "maybe"),
        ("onNewColumns", "drop"),
        ("read", "tables"),
        ("of", " "),
        ("metadata", "_topic,price"),
        ("minRowsPerTrigger", "0"),
        ("maxTriggerDelay", "15"),
        ("compression", "gzip"),
        ("acks", "65"),
        ("batchBytes", "1023"),
        ("batchId", "-1"),
        ("receipts", "folder"),
        ("batchBytes", "8388609"),
        ("leaseMs", "999"),
        ("leaseMs", "86400001"),
        ("timeoutMs", "99"),
        ("timeoutMs", "3600001"),
    ],
)
def test_a_bad_value_is_refused_with_what_is_allowed(name: str, value: str) -> None:
    (option,) = [option for option in OPTIONS if option.name == name]
    with pytest.raises(ConnectorError) as refused:
        parse({name: value})
    assert refused.value.id == "M4CAST_BAD_OPTION"
    assert name in str(refused.value) and option.allowed in str(refused.value)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("minPartitions", 1, 100_000),
        ("leaseMs", 1_000, 86_400_000),
        ("acks", 0, 64),
        ("batchBytes", 1_024, 8 << 20),
        ("timeoutMs", 100, 3_600_000),
    ],
)
def test_limits_are_allowed_themselves(name: str, low: int, high: int) -> None:
    assert parse({name: str(low)}) == {name: low}
    assert parse({name: str(high)}) == {name: high}


@pytest.mark.parametrize(
    ("more", "error_id"),
    [
        ({"topics": "x"}, "M4CAST_CONFLICTING_OPTIONS"),
        ({"topicPattern": "x"}, "M4CAST_CONFLICTING_OPTIONS"),
        ({"startingOffsets": "latest", "startingTimestamp": "5"}, "M4CAST_CONFLICTING_OPTIONS"),
        ({"endingOffsets": "latest"}, "M4CAST_CONFLICTING_OPTIONS"),
        ({"endingTimestamp": "5"}, "M4CAST_CONFLICTING_OPTIONS"),
        ({"leaseMs": "1000"}, "M4CAST_CONFLICTING_OPTIONS"),
        ({"sinkId": "x"}, "M4CAST_CONFLICTING_OPTIONS"),
        ({"tlsCert": "x"}, "M4CAST_CONFLICTING_OPTIONS"),
        ({"of": "all"}, "M4CAST_CONFLICTING_OPTIONS"),
        ({"maxTriggerDelay": "1s"}, "M4CAST_CONFLICTING_OPTIONS"),
        ({"minRowsPerTrigger": "6", "maxRowsPerTrigger": "5"}, "M4CAST_CONFLICTING_OPTIONS"),
        ({"read": "raw", "metadata": "_sequence"}, "M4CAST_CONFLICTING_OPTIONS"),
        ({"read": "raw", "onNewColumns": "ignore"}, "M4CAST_CONFLICTING_OPTIONS"),
        ({"read": "deliveries"}, "M4CAST_CONFLICTING_OPTIONS"),
        ({"read": "roster"}, "M4CAST_CONFLICTING_OPTIONS"),
    ],
)
def test_options_of_a_stream_that_contradict_each_other_are_refused(more: dict[str, str], error_id: str) -> None:
    with pytest.raises(ConnectorError) as refused:
        read(streaming=True, **more)
    assert refused.value.id == error_id


def test_a_batch_read_from_latest_is_refused() -> None:
    with pytest.raises(ConnectorError, match="M4CAST_CONFLICTING_OPTIONS"):
        read(streaming=False, startingOffsets="latest")


def test_records_of_nodes_need_no_topic_and_have_no_options_of_rows() -> None:
    found = read_options(parse({"nodes": "a:1", "read": "Deliveries", "of": "n1"}), streaming=True)
    assert (found.read, found.of, found.starting) == ("deliveries", "n1", "latest")
    assert read_options(parse({"nodes": "a:1", "read": "roster"}), streaming=False).of == "first"
    with pytest.raises(ConnectorError, match=r"M4CAST_CONFLICTING_OPTIONS.*maxBytesPerTrigger.*deliveries"):
        read_options(parse({"nodes": "a:1", "read": "deliveries", "maxBytesPerTrigger": "5"}), streaming=True)
    with pytest.raises(ConnectorError, match=r"M4CAST_CONFLICTING_OPTIONS.*startingOffsets.*roster"):
        read_options(parse({"nodes": "a:1", "read": "roster", "startingOffsets": "latest"}), streaming=True)


def test_a_delay_has_a_unit() -> None:
    delays = {"250ms": 250, "2s": 2_000, " 3 M ": 180_000, "1h": 3_600_000}
    for text, delay_ms in delays.items():
        assert read(minRowsPerTrigger="5", maxTriggerDelay=text).max_trigger_delay_ms == delay_ms
    assert read(minRowsPerTrigger="5").max_trigger_delay_ms == 900_000


def test_columns_of_the_channel_are_chosen_in_their_order() -> None:
    assert read().metadata == ("_topic", "_origin", "_sequence", "_published_at")
    assert read(metadata="_sequence, _key").metadata == ("_sequence", "_key")
    assert read(read="raw").metadata == ("_topic", "_origin", "_published_at")


def test_what_is_needed_is_named() -> None:
    with pytest.raises(ConnectorError, match=r"M4CAST_MISSING_OPTION.*nodes"):
        read_options(parse({"topic": "x"}), streaming=True)
    with pytest.raises(ConnectorError, match=r"M4CAST_MISSING_OPTION.*topicPattern"):
        read_options(parse({"nodes": "a:1"}), streaming=True)
    with pytest.raises(ConnectorError, match=r"M4CAST_MISSING_OPTION.*nodes"):
        write_options(parse({"topic": "x"}))


def test_options_of_a_write() -> None:
    found = write_options(parse({**READ, "sinkId": "s", "takeover": "q/5", "acks": "1"}))
    assert (found.topic, found.sink_id, found.takeover, found.acks) == ("orders", "s", "q/5", 1)
    with pytest.raises(ConnectorError, match="M4CAST_CONFLICTING_OPTIONS"):
        write_options(parse({**READ, "takeover": "q/5"}))
    with pytest.raises(ConnectorError, match=r"M4CAST_CONFLICTING_OPTIONS.*batchId.*sinkId"):
        write_options(parse({**READ, "batchId": "5"}))
    with pytest.raises(ConnectorError, match=r"M4CAST_CONFLICTING_OPTIONS.*batchId is only for batch writes"):
        write_options(parse({**READ, "sinkId": "s", "batchId": "5"}), streaming=True)
    with pytest.raises(ConnectorError, match="startingOffsets is only for reads"):
        write_options(parse({**READ, "startingOffsets": "latest"}))


def test_a_secret_is_not_shown() -> None:
    found: Any = read(token="s3cret")
    assert found.access.token == "s3cret"
    assert "s3cret" not in repr(found) + repr(write_options(parse({**READ, "token": "s3cret"})))
    with pytest.raises(ConnectorError) as refused:
        parse({"token": " "})
    assert " = '" not in str(refused.value)


def test_the_dataclasses_have_the_defaults_that_the_table_shows() -> None:
    shown = {option.name: option.default for option in OPTIONS}
    assert shown["timeoutMs"] == str(Access(("a:1",)).timeout_ms)
    assert shown["maxRowsPerPartition"] == str(read().max_rows_per_partition)
    assert shown["leaseMs"] == str(read().lease_ms)
    assert shown["minPartitions"] == str(read().min_partitions)
    assert shown["batchBytes"] == str(write_options(parse(READ)).batch_bytes)
    assert write_options(parse(READ)).acks is None, "the node decides"


def test_an_error_survives_pickling() -> None:
    error = ConnectorError("M4CAST_BAD_OPTION", "this", "do that")
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == "[M4CAST_BAD_OPTION] this: do that"


def test_the_docs_show_every_option() -> None:
    assert table() in DOCS.read_text(encoding="utf-8")


def test_what_kafka_users_are_told_to_use_is_there() -> None:
    lines = (DOCS.parent / "SPARK-KAFKA.md").read_text(encoding="utf-8").splitlines()
    ours = [name for line in lines if line.startswith("|") for name in re.findall(r"`(\w+)`", line.split("|")[2])]
    assert len(ours) > 25
    assert set(ours) <= {option.name for option in OPTIONS}
