"""Summaries survive the way, fit into 8 KB, and bad bytes are named."""

from contextlib import suppress
from random import Random

import pyarrow as pa
import pytest
from xxhash import xxh3_64_intdigest

from m4cast.overlay.errors import RemoteProtocolError
from m4cast.overlay.profiles.condition import Kind
from m4cast.overlay.profiles.profile import parse
from m4cast.overlay.profiles.summary import COLUMNS_MAX, ColumnSummary, Summary, may_match, summarise
from m4cast.overlay.profiles.summary_bytes import ENCODED_BYTES_MAX, VERSION, decode, encode
from tests.overlay.profiles.profile_parts import PATHS, random_batch, random_condition


def with_checksum(content: bytes) -> bytes:
    return content + xxh3_64_intdigest(content).to_bytes(8, "little")


@pytest.mark.parametrize("seed", range(10))
def test_a_summary_is_read_as_it_was_written(seed: int) -> None:
    random = Random(seed)
    summary = summarise(random_batch(random, random.choice([0, 1, 50])), random.sample(PATHS, 15))
    assert decode(encode(summary)) == summary


def test_a_known_summary_has_known_bytes() -> None:
    summary = summarise(pa.record_batch({"a": [1, None, 3]}), [("a",), ("gone",)])
    expected = "01 03 02  01 01 61 02 03 01 01 31 01 33 02 01 31 01 33  01 04 67 6f 6e 65 00 00 03"
    assert encode(summary) == with_checksum(bytes.fromhex(expected))
    assert encode(summary)[-8:].hex() == "10fb5f0a939c1384"


def test_what_does_not_fit_is_left_out_and_then_matches() -> None:
    texts = {f"c{at:02}": [f"{at:02}-{row:02}-{'x' * 58}" for row in range(30)] for at in range(64)}
    summary = summarise(pa.record_batch(texts), [(name,) for name in texts])
    encoded = encode(summary)
    assert len(encoded) <= ENCODED_BYTES_MAX
    found = decode(encoded)
    assert found is not None and 0 < len(found.columns) < 64
    assert all(column.values is None for column in found.columns.values())
    lost = next(name for name in texts if (name,) not in found.columns)
    assert may_match(parse(f"{lost} = 'nowhere'").condition, found) and not may_match(
        parse(f"{lost} = 'nowhere'").condition, summary
    )


def test_the_limit_of_bytes() -> None:
    def named(length: int) -> Summary:
        return Summary(5, {("n" * length,): ColumnSummary(Kind.OTHER, 0)})

    fits = 1_000 + ENCODED_BYTES_MAX - len(encode(named(1_000)))
    assert len(encode(named(fits))) == ENCODED_BYTES_MAX
    assert decode(encode(named(fits))) == named(fits)
    assert decode(encode(named(fits + 1))) == Summary(5, {})


def test_the_limit_of_bytes_for_sets() -> None:
    def listed(length: int) -> Summary:
        values = frozenset(f"{at:02}".ljust(64, "x") for at in range(32))
        column = ColumnSummary(Kind.TEXT, 0, least=min(values), greatest=max(values), values=values)
        return Summary(99, {("a",): column, ("b",): column, ("c",): column, ("n" * length,): ColumnSummary(None, 99)})

    fits = 1_000 + ENCODED_BYTES_MAX - len(encode(listed(1_000)))
    assert decode(encode(listed(fits))) == listed(fits)
    found = decode(encode(listed(fits + 1)))
    assert found is not None and len(encode(found)) < ENCODED_BYTES_MAX
    assert [column.values is None for column in found.columns.values()] == [True, False, False, True]


@pytest.mark.parametrize("what", ["columns", "names of a path", "values"])
def test_limits_of_what_is_read(what: str) -> None:
    def summary(count: int) -> Summary:
        match what:
            case "columns":
                return Summary(99, {(f"c{at}",): ColumnSummary(Kind.OTHER, 0) for at in range(count)})
            case "values":
                return Summary(99, {("a",): ColumnSummary(Kind.EXACT, 0, 0, count - 1, frozenset(range(count)))})
            case _:
                return Summary(99, {("n",) * count: ColumnSummary(Kind.OTHER, 0)})

    assert decode(encode(summary(COLUMNS_MAX))) == summary(COLUMNS_MAX)
    with pytest.raises(RemoteProtocolError, match=f"65 {what}: at most 64 are allowed"):
        decode(encode(summary(COLUMNS_MAX + 1)))


def test_sets_are_left_out_before_columns() -> None:
    texts = {f"c{at}": [f"{row:02}-{'x' * 55}" for row in range(30)] for at in range(6)}
    found = decode(encode(summarise(pa.record_batch(texts), [(name,) for name in texts])))
    assert found is not None and len(found.columns) == 6
    kept = sum(column.values is not None for column in found.columns.values())
    assert 0 < kept < 6


def test_a_newer_version_tells_nothing() -> None:
    assert decode(bytes([VERSION + 1]) + b"whatever") is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("00", "version 0"),
        ("01 05", "ends at byte 2"),
        ("01 05 41", "65 columns"),
        ("01 05 01 00", "without a name"),
        ("01 05 02 01 01 61 00 00 05 01 01 61 00 00 05", "twice"),
        ("01 05 01 01 01 ff 00 00 05", "not UTF-8"),
        ("01 05 01 01 01 61 09 00 00", "kind 9"),
        ("01 05 01 01 01 61 01 20 00", "flags 32"),
        ("01 05 01 01 01 61 01 00 06", "6 nulls in 5 rows"),
        ("01 05 01 01 01 61 00 01 05", "column of nulls"),
        ("01 05 01 01 01 61 02 01 00 01 35 01 33", "range from 5 to 3"),
        ("01 05 01 01 01 61 02 01 00 01 78 01 33", "cannot be read: 78"),
        ("01 05 01 01 01 61 03 01 00 01 00 01 00", "cannot be read: 00"),
        ("01 05 01 01 01 61 02 02 00 41", "65 values"),
        ("01 05 01 01 01 61 02 04 00", "flags 4"),
        ("01 05 01 01 01 61 04 10 00", "flags 16"),
        ("01 05 00 00", "1 bytes after its end"),
        ("01 80 80 80 80 80 80 80 80 80 01", "more than 56 bits"),
        ("01" * 8_185, "8193 bytes"),
    ],
)
def test_bad_bytes_are_named(content: str, problem: str) -> None:
    with pytest.raises(RemoteProtocolError, match=problem):
        decode(with_checksum(bytes.fromhex(content)))


@pytest.mark.parametrize("content", [b"", b"\1", bytes(8)])
def test_too_few_bytes_are_refused(content: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=r"version 0|does not have its checksum"):
        decode(content)


def test_every_hostile_summary_is_read_or_refused() -> None:
    """Bytes of any content with a right checksum: readers, too, may raise nothing but a refusal."""
    encoded = encode(summarise(random_batch(Random(1), 20), PATHS))[:-8]
    random = Random(2)
    conditions = [random_condition(random, 2) for _ in range(10)]
    for _ in range(3_000):
        damaged = bytearray(encoded)
        damaged[random.randrange(len(damaged))] = random.randrange(256)
        cut = random.choice([len(damaged), random.randrange(len(damaged))])
        with suppress(RemoteProtocolError):
            found = decode(with_checksum(bytes(damaged[:cut])))
            if found is not None:
                may_match(random.choice(conditions), found)


def test_a_flipped_bit_is_never_taken_for_a_summary() -> None:
    encoded = encode(summarise(random_batch(Random(1), 20), PATHS[:5]))
    for at in range(8 * len(encoded)):
        damaged = bytearray(encoded)
        damaged[at // 8] ^= 1 << at % 8
        with suppress(RemoteProtocolError):
            assert decode(bytes(damaged)) is None, "only a newer version is passed over"
