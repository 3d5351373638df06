"""Filters on one core: a profile that matches 0.01 % of rows (100 bytes and 4 columns) beside DuckDB, by rows and by
summaries; the index with 10 candidates per row at every number of profiles, whose keys are texts or numbers, beside
one-by-one evaluation and a DuckDB join; what a summary costs, and what a hundred thousand profiles cost a summary; the
CPU time of the slowest of a hundred thousand hostile texts, with collections of garbage and without."""

import gc
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from m4cast.overlay.profiles import ProfileIndex, mask, may_match, parse, summarise
from m4cast.overlay.profiles.condition import ColumnRef, Condition, Literal, all_of, compare
from m4cast.overlay.profiles.evaluation import BatchTerms
from m4cast.overlay.profiles.languages import diet, json_form, sql
from m4cast.overlay.profiles.literals import number, text
from m4cast.overlay.profiles.profile import profile_of
from m4cast.overlay.profiles.summary import Summary
from tests.bench.comparison import Bench, Side
from tests.bench.processes import Watch
from tests.overlay.profiles.test_hostile_texts import VALID, hostile, parsed_or_refused

BATCH_ROWS = (10_000, 100)
ROWS = 2_000_000
CANDIDATES = 10
"""Profiles that share a row's value, at every size of the index."""
SIZES = (1_000, 100_000, 1_000_000)
INDEX_ROWS = 100_000
JOINED = 1_024
"""Small batches that are tested together."""
TEXTS = 100_000
TEXT_MS_MAX = 50.0
"""The bar for each hostile text."""
SHOWN_MS = 10.0
AGAIN = 5
"""Slow texts are parsed so many times more, and the least time counts: a virtual machine charges a thread for moments
in which it did not run."""


def measure(bench: Bench) -> None:
    for size in BATCH_ROWS:
        _one_profile(bench, size)
    for profiles in SIZES[: bench.of(3, 2)]:
        for keys in (Keys(is_number=False), Keys(is_number=True)):
            _many_profiles(bench, profiles, keys)
    _summaries(bench)
    _hostile_texts(bench)


# ---- one profile


def _one_profile(bench: Bench, batch_rows: int) -> None:
    rows = bench.of(ROWS, 500_000)
    random = np.random.default_rng(1)
    batches = [_rows(random, batch_rows) for _ in range(rows // batch_rows)]
    where = "n BETWEEN 4708 AND 4715 AND kind = 'b'"
    condition = parse(where).condition
    table = pa.Table.from_batches(batches).combine_chunks()
    summaries = [summarise(batch, [("n",)]) for batch in batches]
    elsewhere = parse("n > 20000").condition
    exact = Side("m4cast", lambda watch: _masked(condition, batches, watch))
    name = f"one profile, 0.01 % of rows, batches of {batch_rows:,}"
    bench.compare(name, "rows/s", exact, Side("DuckDB", lambda watch: _duck(table, where, watch)), amount=rows)
    decided = Side("by summaries", lambda watch: _decided(elsewhere, summaries, watch))
    bench.compare(f"summaries decide, batches of {batch_rows:,}", "rows/s", decided, exact, amount=rows)


def _rows(random: np.random.Generator, count: int) -> pa.RecordBatch:
    return pa.record_batch(
        {
            "n": random.integers(0, 10_000, count),
            "amount": random.random(count) * 1_000,
            "kind": pa.array(["abcdefgh"[at] for at in random.integers(0, 8, count)]),
            "at": pa.array(random.integers(0, 10**15, count), pa.timestamp("us")),
            "payload": pa.array([bytes(100)] * count),
        }
    )


def _masked(condition: Condition, batches: list[pa.RecordBatch], watch: Watch) -> None:
    found = 0
    with watch:
        for at in range(0, len(batches), step := max(1, JOINED * 10 // batches[0].num_rows)):
            joined = (
                batches[at] if step == 1 else pa.concat_batches([_narrow(each) for each in batches[at : at + step]])
            )
            found += int(np.count_nonzero(mask(condition, joined)))
    share = found / (len(batches) * batches[0].num_rows)
    assert 0.5e-4 < share < 2e-4, f"{share:.4%} match, 8 of 10,000 numbers and 1 of 8 kinds are meant to"


def _narrow(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns that the filter reads: small batches are joined without their payload."""
    return batch.select(["n", "kind"])


def _decided(condition: Condition, summaries: list[Summary], watch: Watch) -> None:
    with watch:
        found = sum(may_match(condition, summary) for summary in summaries)
    assert not found


def _duck(table: pa.Table, where: str, watch: Watch) -> None:
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.register("rows", table)
        with watch:
            connection.sql(f"SELECT * FROM rows WHERE {where}").to_arrow_table()


# ---- many profiles


@dataclass(frozen=True, slots=True)
class Keys:
    """The column that all profiles compare with a value of theirs: of texts or of numbers."""

    is_number: bool

    @property
    def name(self) -> str:
        return "numbers" if self.is_number else "texts"

    def literal(self, at: int) -> Literal:
        return number(str(at)) if self.is_number else text(f"key-{at}")

    def column(self, numbers: npt.NDArray[np.int64]) -> pa.Array:
        return pa.array(numbers) if self.is_number else pa.array([f"key-{at}" for at in numbers])

    def in_duckdb(self, number: str) -> str:
        return number if self.is_number else f"'key-' || {number}"


TEXT_KEYS = Keys(is_number=False)


def _many_profiles(bench: Bench, profiles: int, keys: Keys) -> None:
    values = profiles // CANDIDATES
    conditions = [_subscription(at, values, keys) for at in range(profiles)]
    tracemalloc.start()
    index: ProfileIndex[int] = ProfileIndex()
    for at, condition in enumerate(conditions):
        index.add(at, profile_of(condition))
    random = np.random.default_rng(2)
    drawn = [random.integers(0, values, 10_000) for _ in range(INDEX_ROWS // 10_000)]
    batches = [_events(random, keys.column(numbers)) for numbers in drawn]
    index.match(batches[0])
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    expected = sum(len(index.match(batch).rows) for batch in batches)
    assert len(index.match(batches[0]).rows) == _joined_pairs(drawn[0], batches[0], values, profiles)
    ours = Side("ProfileIndex", lambda watch: _indexed(index, batches, expected, watch))
    few = min(profiles, 1_000)
    singly = Side(f"one by one ({few:,} of them)", lambda watch: _singly(conditions[:few], batches[0], profiles, watch))
    join = Side("DuckDB join", lambda watch: _duck_join(batches, values, profiles, keys, expected, watch))
    rows = len(batches) * 10_000
    name = f"{profiles:,} profiles, {CANDIDATES} candidates a row, keys are {keys.name}"
    bench.compare(name, "rows/s", ours, singly, join, amount=rows, rounds=3)
    bench.fact(
        profiles=profiles,
        keys=keys.name,
        bytes_per_profile=round(held / profiles),
        matches_per_row=round(expected / rows, 2),
    )


def _subscription(at: int, values: int, keys: Keys = TEXT_KEYS) -> Condition:
    amount = number(str(500 + at % 400))
    return all_of(
        [compare(ColumnRef(("key",)), "=", keys.literal(at % values)), compare(ColumnRef(("amount",)), ">", amount)]
    )


def _events(random: np.random.Generator, keys: pa.Array) -> pa.RecordBatch:
    count = len(keys)
    return pa.record_batch(
        {"key": keys, "amount": random.random(count) * 1_000, "payload": pa.array([bytes(100)] * count)}
    )


def _joined_pairs(keys: npt.NDArray[np.int64], batch: pa.RecordBatch, values: int, profiles: int) -> int:
    """The number of pairs, counted in another way."""
    amounts = batch["amount"].to_numpy()
    return sum(int((amounts > 500 + (keys + shift) % 400).sum()) for shift in range(0, profiles, values))


def _indexed(index: ProfileIndex[int], batches: list[pa.RecordBatch], expected: int, watch: Watch) -> None:
    with watch:
        found = sum(len(index.match(batch).rows) for batch in batches)
    assert found == expected


def _singly(conditions: list[Condition], batch: pa.RecordBatch, profiles: int, watch: Watch) -> float:
    """Rows per second if all profiles were evaluated, terms shared, from what some of them take."""
    with watch:
        terms = BatchTerms(batch)
        for condition in conditions:
            terms.mask(condition)
    return float(batch.num_rows) / (watch.seconds * profiles / len(conditions))


def _duck_join(
    batches: list[pa.RecordBatch], values: int, profiles: int, keys: Keys, expected: int, watch: Watch
) -> None:
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute(
            f"CREATE TABLE wanted AS SELECT i AS id, {keys.in_duckdb(f'(i % {values})')} AS key, 500 + i % 400 AS low "
            f"FROM range({profiles}) AS t(i)"
        )
        connection.register("rows", pa.Table.from_batches(batches).select(["key", "amount"]))
        with watch:
            asked = "SELECT wanted.id FROM rows JOIN wanted ON rows.key = wanted.key AND rows.amount > wanted.low"
            found = connection.sql(asked).to_arrow_table()
    assert len(found) == expected


# ---- summaries


def _summaries(bench: Bench) -> None:
    batch = _rows(np.random.default_rng(3), 10_000)
    paths = [("n",), ("amount",), ("kind",), ("at",)]
    times = bench.of(200, 20)

    def made(watch: Watch) -> None:
        with watch:
            for _ in range(times):
                summarise(batch, paths)

    def written(watch: Watch) -> None:
        with watch:
            for _ in range(times):
                batch.serialize()

    bench.compare(
        "summaries of 10,000 rows, 4 columns",
        "batches/s",
        Side("summarise", made),
        Side("Arrow IPC of the batch", written),
        amount=times,
    )
    profiles = bench.of(100_000, 10_000)
    index: ProfileIndex[int] = ProfileIndex()
    for at in range(profiles):
        index.add(at, profile_of(_subscription(at, profiles // CANDIDATES)))
    few = pa.record_batch({"key": ["key-1", "key-2"] * 50, "amount": [1_000.0] * 100})
    summary = summarise(few, [("key",), ("amount",)])

    def asked(watch: Watch) -> None:
        with watch:
            found = [len(index.candidates(summary, few.schema)) for _ in range(times)]
        assert set(found) == {2 * CANDIDATES}

    def asked_singly(watch: Watch) -> float:
        some = [_subscription(at, profiles // CANDIDATES) for at in range(1_000)]
        with watch:
            for condition in some:
                may_match(condition, summary)
        return 1 / (watch.seconds * profiles / len(some))

    bench.compare(
        f"{profiles:,} profiles against a summary",
        "summaries/s",
        Side("ProfileIndex", asked),
        Side("one by one (1,000 of them)", asked_singly),
        amount=times,
    )


# ---- hostile texts


class Collections:
    """The time that collections of garbage take."""

    def __init__(self) -> None:
        self.ns = 0
        self._began_ns = 0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began_ns = time.thread_time_ns()
        else:
            self.ns += time.thread_time_ns() - self._began_ns


def _hostile_texts(bench: Bench) -> None:
    """Each in three languages. Every now and then a collection of garbage falls into a parse, and takes as long as the
    process is large; nodes leave out what they have when they start."""
    count = bench.of(TEXTS, 2_000)
    random, collections = Random(5), Collections()
    parsers = {"sql": sql.parse, "diet": diet.parse, "json": json_form.parse}
    for parser in parsers.values():  # what is imported and made once
        for valid in VALID:
            parsed_or_refused(parser, valid)
    whole: list[tuple[float, str, str]] = []
    own: list[tuple[float, str, str]] = []
    gc.collect()
    gc.freeze()
    gc.callbacks.append(collections)
    try:
        for _ in range(count):
            hostile_text = hostile(random)
            for language, parser in parsers.items():
                collected_ns, began_ns = collections.ns, time.thread_time_ns()
                parsed_or_refused(parser, hostile_text)
                ms = (time.thread_time_ns() - began_ns) / 1e6
                own_ms = ms - (collections.ns - collected_ns) / 1e6
                if ms > SHOWN_MS:
                    whole.append((ms, language, hostile_text[:40]))
                if own_ms > SHOWN_MS:
                    own_ms = min(_parse_ms(parser, hostile_text) for _ in range(AGAIN))
                if own_ms > SHOWN_MS:
                    own.append((own_ms, language, hostile_text[:40]))
    finally:
        gc.callbacks.remove(collections)
        gc.unfreeze()
    for what, times in (("with collections of garbage", whole), ("without, the least of several", own)):
        worst = max(times, default=(0.0, "", ""))
        bench.fact(
            hostile_texts=count * len(parsers),
            cpu=what,
            slower_than_50_ms=sum(ms > TEXT_MS_MAX for ms, _, _ in times),
            slower_than_10_ms=len(times),
            worst_ms=round(worst[0], 1),
            language=worst[1],
            text=worst[2],
        )
    assert all(ms < TEXT_MS_MAX for ms, _, _ in own), f"a text takes {max(own)[0]:.0f} ms, at most {TEXT_MS_MAX:g}"


def _parse_ms(parser: Callable[[str], Condition], hostile_text: str) -> float:
    began_ns = time.thread_time_ns()
    parsed_or_refused(parser, hostile_text)
    return (time.thread_time_ns() - began_ns) / 1e6
