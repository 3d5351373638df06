"""Which columns are summarised, from when to when; and what is believed of a summary that somebody wrote."""

from random import Random

import pyarrow as pa
import pytest

from m4cast.overlay.door.rows import summaries
from m4cast.overlay.door.rows.summaries import UNUSED_S_MAX, FilteredColumns, Summaries, known_summary
from m4cast.overlay.profiles import may_match, parse, summarise
from m4cast.overlay.profiles.summary import COLUMNS_MAX, ColumnSummary, Summary
from m4cast.overlay.profiles.summary_bytes import VERSION, encode
from m4cast.overlay.protocol.wire.batch import SUMMARY_EXTENSION
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


def test_a_summary_that_cannot_be_made_stops_nobody(
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
