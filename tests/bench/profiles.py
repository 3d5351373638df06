"""Filters on one core: a profile that matches 0.01 % of rows (100 bytes and 4 columns) beside DuckDB, by rows and by
summaries; the index with 10 candidates per row at every number of profiles, beside one-by-one evaluation and a DuckDB
join; what a summary costs, and what a hundred thousand profiles cost a summary."""

import tracemalloc

import duckdb
import numpy as np
import pyarrow as pa

from m4cast.overlay.profiles import ProfileIndex, mask, may_match, parse, summarise
from m4cast.overlay.profiles.condition import ColumnRef, Condition, all_of, compare
from m4cast.overlay.profiles.evaluation import BatchTerms
from m4cast.overlay.profiles.literals import number, text
from m4cast.overlay.profiles.profile import profile_of
from m4cast.overlay.profiles.summary import Summary
from tests.bench.comparison import Bench, Side
from tests.bench.processes import Watch

BATCH_ROWS = (10_000, 100)
ROWS = 2_000_000
CANDIDATES = 10
"""Profiles that share a row's value, at every size of the index."""
SIZES = (1_000, 100_000, 1_000_000)
INDEX_ROWS = 100_000
JOINED = 1_024
"""Small batches that are tested together."""


def measure(bench: Bench) -> None:
    for size in BATCH_ROWS:
        _one_profile(bench, size)
    for profiles in SIZES[: bench.of(3, 2)]:
        _many_profiles(bench, profiles)
    _summaries(bench)


# ---- one profile


def _one_profile(bench: Bench, batch_rows: int) -> None:
    rows = bench.of(ROWS, 500_000)
    random = np.random.default_rng(1)
    batches = [_rows(random, batch_rows) for _ in range(rows // batch_rows)]
    where = "n = 4711 AND kind = 'b'"  # 1 in 10,000 by the number alone
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
    assert found or len(batches) * batches[0].num_rows < 100_000


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


def _many_profiles(bench: Bench, profiles: int) -> None:
    values = profiles // CANDIDATES
    conditions = [_subscription(at, values) for at in range(profiles)]
    tracemalloc.start()
    index: ProfileIndex[int] = ProfileIndex()
    for at, condition in enumerate(conditions):
        index.add(at, profile_of(condition))
    random = np.random.default_rng(2)
    batches = [_events(random, values, 10_000) for _ in range(INDEX_ROWS // 10_000)]
    index.match(batches[0])
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    expected = sum(len(index.match(batch).rows) for batch in batches)
    assert len(index.match(batches[0]).rows) == _joined_pairs(batches[0], values, profiles)
    ours = Side("ProfileIndex", lambda watch: _indexed(index, batches, expected, watch))
    few = min(profiles, 1_000)
    singly = Side(f"one by one ({few:,} of them)", lambda watch: _singly(conditions[:few], batches[0], profiles, watch))
    join = Side("DuckDB join", lambda watch: _duck_join(batches, values, profiles, expected, watch))
    rows = len(batches) * 10_000
    bench.compare(
        f"{profiles:,} profiles, {CANDIDATES} candidates a row", "rows/s", ours, singly, join, amount=rows, rounds=3
    )
    bench.fact(profiles=profiles, bytes_per_profile=round(held / profiles), matches_per_row=round(expected / rows, 2))


def _subscription(at: int, values: int) -> Condition:
    amount = number(str(500 + at % 400))
    return all_of(
        [compare(ColumnRef(("key",)), "=", text(f"key-{at % values}")), compare(ColumnRef(("amount",)), ">", amount)]
    )


def _events(random: np.random.Generator, values: int, count: int) -> pa.RecordBatch:
    keys = [f"key-{at}" for at in random.integers(0, values, count)]
    return pa.record_batch(
        {"key": keys, "amount": random.random(count) * 1_000, "payload": pa.array([bytes(100)] * count)}
    )


def _joined_pairs(batch: pa.RecordBatch, values: int, profiles: int) -> int:
    """How many pairs there are, counted in another way."""
    keys = np.array([int(key.removeprefix("key-")) for key in batch["key"].to_pylist()])
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


def _duck_join(batches: list[pa.RecordBatch], values: int, profiles: int, expected: int, watch: Watch) -> None:
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute(
            f"CREATE TABLE wanted AS SELECT i AS id, 'key-' || (i % {values}) AS key, 500 + i % 400 AS low "
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
