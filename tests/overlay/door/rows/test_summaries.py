"""Columns that are summarised, and their ranges; and how far a foreign summary is believed."""

from random import Random

import pyarrow as pa
import pytest
from xxhash import xxh3_64_intdigest

from m4cast.overlay.door.rows import summaries
from m4cast.overlay.door.rows.summaries import UNUSED_S_MAX, FilteredColumns, Summaries, known_summary
from m4cast.overlay.ids import NodeId
from m4cast.overlay.profiles import may_match, parse, summarise
from m4cast.overlay.profiles.summary import COLUMNS_MAX, ColumnSummary, Summary
from m4cast.overlay.profiles.summary_bytes import VERSION, encode
from m4cast.overlay.protocol.interest.entry import key_of
from m4cast.overlay.protocol.wire.batch import SUMMARY_EXTENSION
from m4cast.overlay.protocol.wire.interest import InterestItem
from tests.overlay.profiles.profile_parts import PATHS, random_batch

ROWS = pa.record_batch({"a": [1, 2, 3], "b": ["x", "y", None]})


class Clock:
    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


# ---- which columns


def test_columns_are_remembered_for_an_hour_after_their_last_use() -> None:
    clock = Clock()
    filtered = FilteredColumns(clock)
    assert filtered.of("t") == () and "t" not in filtered.topics
    filtered.filtered("t", [("a",), ("st", "x")])
    clock.now_s += UNUSED_S_MAX - 1
    filtered.filtered("t", [("a",)])
    filtered.filtered("other", [("z",)])
    assert set(filtered.of("t")) == {("a",), ("st", "x")}
    clock.now_s += 1
    assert filtered.of("t") == (("a",),)
    clock.now_s += UNUSED_S_MAX
    assert filtered.of("t") == () and "t" not in filtered.topics
    filtered.filtered("t", [("a",)])
    assert filtered.of("t") == (("a",),)


def test_the_columns_used_last_are_kept_when_there_are_too_many() -> None:
    filtered = FilteredColumns(Clock())
    filtered.filtered("t", [(f"c{at}",) for at in range(COLUMNS_MAX)])
    filtered.filtered("t", [("c0",), ("one more",)])
    found = filtered.of("t")
    assert len(found) == COLUMNS_MAX and found[-2:] == (("c0",), ("one more",)) and ("c1",) not in found


def test_the_topic_filtered_longest_ago_is_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summaries, "TOPICS_MAX", 2)
    clock = Clock()
    filtered = FilteredColumns(clock)
    for topic in ("first", "second", "first", "third"):
        clock.now_s += 1
        filtered.filtered(topic, [("a",)])
    assert [filtered.of(topic) for topic in ("first", "second", "third")] == [(("a",),), (), (("a",),)]


def test_columns_of_the_channel_are_not_summarised() -> None:
    filtered = FilteredColumns(Clock())
    filtered.filtered("t", [("_sequence",), ("_Origin",)])
    assert filtered.topics == {}
    filtered.filtered("t", [("_sequence",), ("_key",)])
    assert filtered.of("t") == (("_key",),)


def registered_item(topic: str, text: str, number: int, language: str = "sql") -> InterestItem:
    return InterestItem(xxh3_64_intdigest(topic.encode()), number, 1, 0, False, language, 1, text)


def test_columns_that_registrations_name_count_while_they_last() -> None:
    one, two = NodeId(b"1" * 16), NodeId(b"2" * 16)
    made = Summaries({"off": ()}, FilteredColumns())
    items = [
        registered_item("t", parse("a > 1 AND _sequence > 5").text, 1),
        registered_item("t", parse("b = 'x'").text, 2),
        registered_item("t", "this is no filter (", 3),
        registered_item("t", "", 0),  # every row
        registered_item("t", "who", 4, language="client"),
        registered_item("t", parse("c = 1").text, 5, language="later"),
        registered_item("off", parse("a > 1").text, 1),
    ]
    made.registered.changed(one, items, ())
    made.registered.changed(two, items[:1], ())
    made.filtered.filtered("t", [("b",), ("z",)])
    assert made.columns("t") == (("b",), ("z",), ("a",))
    assert made.columns("other") == made.columns("off") == ()
    made.registered.changed(one, (), [key_of(item) for item in items])
    assert made.columns("t") == (("b",), ("z",), ("a",)), "the other node still wants it"
    made.registered.changed(two, (), [key_of(items[0]), key_of(items[1])])
    assert made.columns("t") == (("b",), ("z",))
    assert made.registered.topics == {}


def test_many_registrations_name_as_many_columns_as_a_summary_has() -> None:
    made = Summaries({}, FilteredColumns())
    items = [registered_item("t", parse(f"c{at} = 1").text, at) for at in range(1, 100)]
    made.registered.changed(NodeId(bytes(16)), items, ())
    assert len(made.columns("t")) == COLUMNS_MAX


def test_a_setting_goes_before_filters() -> None:
    filtered = FilteredColumns(Clock())
    filtered.filtered("set", [("a",)])
    filtered.filtered("off", [("a",)])
    filtered.filtered("auto", [("a",)])
    made = Summaries({"set": (("b",),), "off": ()}, filtered)
    assert made.extensions("off", ROWS) == made.extensions("nobody filters", ROWS) == ()
    for topic, columns in (("set", [("b",)]), ("auto", [("a",)])):
        (extension,) = made.extensions(topic, ROWS)
        assert extension == (SUMMARY_EXTENSION, False, encode(summarise(ROWS, columns)))


def test_a_failed_summary_does_not_stop_a_publish(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> Summary:
        raise pa.ArrowNotImplementedError("never seen such a type")

    monkeypatch.setattr(summaries, "summarise", broken)
    assert Summaries({"t": (("a",),)}, FilteredColumns()).extensions("t", ROWS) == ()
    assert "no summary could be made of 3 rows of topic 't'" in caplog.text


# ---- what is believed


def test_a_summary_of_these_rows_is_believed() -> None:
    summary = summarise(ROWS, [("a",), ("b",)])
    assert known_summary(encode(summary), 3) == summary


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"\0",
        bytes([VERSION]),
        bytes([VERSION + 1]) + b"what is to come",
        encode(summarise(ROWS, [("a",)]))[:-1],
        encode(summarise(ROWS.slice(1), [("a",)])),
        encode(Summary(0, {})),
        bytes(8_193),
    ],
)
def test_anything_else_is_no_summary(content: bytes | None) -> None:
    assert known_summary(content, 3) is None


def test_columns_of_the_channel_are_not_believed() -> None:
    """They are not in the payload: who summarises it finds nulls."""
    lie = ColumnSummary(None, 3)
    summary = known_summary(encode(Summary(3, {("_sequence",): lie, ("a",): lie})), 3)
    assert summary == Summary(3, {("a",): lie})
    assert may_match(parse("_sequence > 5").condition, summary)


def test_random_bytes_are_never_an_error() -> None:
    random = Random(5)
    written = encode(summarise(random_batch(random, 20), PATHS))
    for _ in range(2_000):
        damaged = bytearray(written if random.random() < 0.5 else random.randbytes(random.randrange(60)))
        for _ in range(random.randrange(4)):
            if damaged:
                damaged[random.randrange(len(damaged))] = random.randrange(256)
        found = known_summary(bytes(damaged), 20)
        assert found is None or bytes(damaged) == written
