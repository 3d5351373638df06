"""Covers never says yes wrongly, and says yes whenever rows say so, where it promises to."""

from decimal import Decimal
from itertools import combinations, product
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from m4cast.overlay.profiles import literals
from m4cast.overlay.profiles.boxes import BOXES_MAX, CONSTRAINTS_MAX, boxes_of, covers, is_opaque
from m4cast.overlay.profiles.condition import (
    ColumnRef,
    Compare,
    Condition,
    IsNull,
    Literal,
    Operator,
    all_of,
    one_of,
    text_of,
)
from m4cast.overlay.profiles.evaluation import mask
from m4cast.overlay.profiles.profile import parse
from tests.overlay.profiles.profile_parts import random_batch, random_condition

TABLE = [  # the thesis' language: P, Q, P covers Q, Q covers P
    ("type = pdf OR doc", "type = pdf", True, False),
    ("title contains load", "title contains load AND network", True, False),
    ("title contains load OR event", "title contains load AND network", True, False),
    ("title contains load OR event", "title contains load", True, False),
    ("author contains stratos AND manolis", "author contains stratos OR manolis", False, True),
    ("200 < size < 800", "size = 200", False, False),
    ("size < 10", "4 < size < 10", True, False),
    ("size > 4", "size < 10", False, False),
    ("desired_client = 234; 123; 546", "desired_client = 123", True, False),
    ("", "type = pdf", True, False),
    ("", "", True, True),
    ("type = pdf", "title contains peer", False, False),
]


def is_covering(wide: str, narrow: str, language: str = "sql") -> bool:
    return covers(parse(wide, language).condition, parse(narrow, language).condition)


@pytest.mark.parametrize(("wide", "narrow", "forth", "back"), TABLE)
def test_the_covers_table_of_the_thesis(wide: str, narrow: str, forth: bool, back: bool) -> None:
    assert is_covering(wide, narrow, "diet") is forth
    assert is_covering(narrow, wide, "diet") is back


@pytest.mark.parametrize(
    ("wide", "narrow", "expected"),
    [
        ("a = 1", "a = 1 AND b = 2", True),
        ("a = 1 AND b = 2", "a = 1", False),
        ("a >= 1", "a > 1", True),
        ("a > 1", "a >= 1", False),
        ("a > 1", "a >= 1.5", True),
        ("a BETWEEN 1 AND 5", "a IN (1, 3, 5)", True),
        ("a BETWEEN 1 AND 5", "a IN (1, 3, 5.5)", False),
        ("a != 7", "a < 7", True),
        ("a != 7", "a <= 7", False),
        ("a < 7", "a <= 7 AND a != 7", True),
        ("a > 7", "a >= 7 AND a NOT IN (7, 8)", True),
        ("a NOT IN (1, 2)", "a NOT IN (1, 2, 3)", True),
        ("a NOT IN (1, 2, 3)", "a NOT IN (1, 2)", False),
        ("a < 5 OR a > 10", "a IN (1, 20)", True),
        ("a < 5 OR a > 10", "a IN (1, 7)", False),
        ("a = 1 OR b = 1", "a = 1", True),
        ("a IS NOT NULL", "a > 5", True),
        ("a IS NOT NULL", "a LIKE '%x'", True),
        ("a IS NULL OR a > 5", "a IS NULL", True),
        ("a IS NULL", "a > 5", False),
        ("a LIKE 'ab%'", "a LIKE 'abc%'", True),
        ("a LIKE 'ab%'", "a = 'abx'", True),
        ("a LIKE 'ab%'", "a LIKE 'abc%x'", True),
        ("a LIKE 'ab%'", "a >= 'ab' AND a < 'ac'", True),
        ("a LIKE '%x%'", "a LIKE '%x%' AND b = 1", True),
        ("a LIKE '%x%'", "a = 'yxy'", True),
        ("words(a, 'load')", "a = 'Load, network'", True),
        ("a >= ''", "a LIKE 'x%'", True),
        ("TRUE", "a = 1 OR b LIKE '%x%'", True),
        ("a = 1", "FALSE", True),
        ("a = 1", "a = 1 AND a = 2", True),
        ("b", "b = TRUE", True),
        ("b != FALSE", "b", True),
        ("a.x > 1", "a.x > 2", True),
        ("a.x > 1", "a.y > 2", False),
        # What a text means depends on the column: numbers and times count, too.
        ("a >= '10'", "a >= '9'", False),
        ("a >= '1'", "a >= '2026-01-01'", False),
        ("a >= '2026-01-01'", "a >= '2026-01-02'", True),
        ("a != 5", "a = '5.0'", False),
        ("a != 5", "a = 6", True),
        ("a != '5'", "a = '5.0'", False),
        # Two numbers may be one double.
        ("a > 9007199254740992", "a >= 9007199254740993", False),
        ("a > 9007199254740992", "a >= 9007199254740994", True),
    ],
)
def test_covers_case_by_case(wide: str, narrow: str, expected: bool) -> None:
    assert is_covering(wide, narrow) is expected


def test_an_opaque_condition_covers_only_itself() -> None:
    opaque = parse(" AND ".join(f"(a{at} = 1 OR b{at} = 2)" for at in range(7))).condition
    assert boxes_of(opaque) is None
    assert (
        covers(opaque, opaque) and covers(parse("TRUE").condition, opaque) and covers(opaque, parse("FALSE").condition)
    )
    assert not covers(opaque, all_of([opaque, parse("c = 1").condition]))
    assert not covers(parse("a0 = 1 OR b0 = 2").condition, opaque), "unsure, so no"


def test_boxes_are_limited() -> None:
    at_limit = " AND ".join(f"(a{at} = 1 OR b{at} = 2)" for at in range(6))
    boxes = boxes_of(parse(at_limit).condition)
    assert boxes is not None and len(boxes) == BOXES_MAX
    assert boxes_of(parse(" OR ".join(f"a{at} > 1" for at in range(BOXES_MAX + 1))).condition) is None


def test_constraints_of_all_boxes_are_limited() -> None:
    def many(columns: int) -> Condition:
        alternatives = " AND ".join(f"(x{at} > 1 OR y{at} > 1)" for at in range(5))  # 32 boxes of 5 columns
        return parse(" AND ".join([alternatives, *(f"c{at} > 1" for at in range(columns))])).condition

    boxes = boxes_of(many(CONSTRAINTS_MAX // 32 - 5))
    assert boxes is not None and sum(map(len, boxes)) == CONSTRAINTS_MAX
    assert is_opaque(many(CONSTRAINTS_MAX // 32 - 4))


@pytest.mark.parametrize("seed", range(6))
def test_covers_implies_containment_of_masks(seed: int) -> None:
    random = Random(seed)
    paths: list[tuple[str, ...]] = [("i64",), ("f64",), ("s",), ("day",), ("d9",), ("y",), ("b",)]
    batch = random_batch(random, 120)
    conditions = [
        random_condition(random, random.choice([0, 1, 1, 2]), paths[: random.randint(1, 7)]) for _ in range(60)
    ]
    masks = [mask(condition, batch) for condition in conditions]
    said = 0
    for (wide, rows), (narrow, fewer) in product(zip(conditions, masks, strict=True), repeat=2):
        if covers(wide, narrow):
            said += wide is not narrow
            assert not (fewer & ~rows).any(), f"{text_of(wide)} does not cover {text_of(narrow)}"
    assert said, "nothing was tested"


# ---- the thesis' language, against all rows of a small universe


def thesis_profiles() -> list[str]:
    words = [frozenset(chosen) for count in (1, 2, 3) for chosen in combinations("abc", count)]
    titles = ["", *(f"title contains {f' {joined} '.join(sorted(each))}" for joined in ("AND", "OR") for each in words)]
    types = ["", "type = x", "type = y", "type = x OR y"]
    ends = range(5)
    ranges = [f"{low} < size < {high}" for low in ends for high in ends if high - low > 1]
    sizes = [
        "",
        *(f"size = {at}" for at in ends),
        *(f"size < {at}" for at in (1, 2, 4)),
        "size > 0",
        "size > 3",
        *ranges,
    ]
    chosen = Random(1).sample(sizes, 7)
    return ["; ".join(filter(None, parts)) for parts in product(titles, types, ["", *chosen])]


def thesis_universe() -> pa.RecordBatch:
    titles = [None, *(" ".join(chosen) for count in range(5) for chosen in combinations("abcd", count))]
    rows = [{"title": title, "type": kind, "size": size} for title, kind, size in product(titles, "xyz", range(7))]
    return pa.RecordBatch.from_pylist(
        rows, pa.schema([("title", pa.string()), ("type", pa.string()), ("size", pa.int64())])
    )


def wrong_pairs(pairs_max: int) -> tuple[int, list[tuple[str, str]]]:
    texts = list(dict.fromkeys(thesis_profiles()))
    universe = thesis_universe()
    conditions = [parse(text, "diet").condition for text in texts]
    masks = np.array([mask(condition, universe) for condition in conditions])
    pairs = [(wide, narrow) for wide in range(len(texts)) for narrow in range(len(texts))]
    chosen = pairs if len(pairs) <= pairs_max else Random(2).sample(pairs, pairs_max)
    wrong = [
        (texts[wide], texts[narrow])
        for wide, narrow in chosen
        if covers(conditions[wide], conditions[narrow]) is not bool((masks[narrow] <= masks[wide]).all())
    ]
    return len(chosen), wrong


def test_covers_equals_brute_force_on_the_thesis_language() -> None:
    assert wrong_pairs(100_000) == (100_000, [])


@pytest.mark.soak
def test_covers_equals_brute_force_on_all_pairs_of_the_thesis_language() -> None:
    assert wrong_pairs(1_000_000) == (384 * 384, [])


# ---- conjunctions of intervals and sets, against columns of every numeric type


ENDS = [Decimal(0), Decimal(1), Decimal("1.5"), Decimal(2), Decimal(3)]
UNIVERSE = sorted({*ENDS, *(end + shift for end in ENDS for shift in (Decimal("-0.25"), Decimal("0.25")))})


def random_conjunction(random: Random) -> Condition:
    parts: list[Condition] = []
    for name in ("a", "b"):
        column = ColumnRef((name,))
        match random.randrange(6):
            case 0:
                continue
            case 1:
                parts.append(one_of(column, random_literals(random), negated=random.random() < 0.3))
            case 2:
                parts.append(IsNull(column, random.random() < 0.7))
            case _:
                operators: list[Operator] = random.choices(["<", "<=", ">", ">=", "=", "!="], k=random.randint(1, 3))
                parts += [Compare(column, operator, random_literals(random)[0]) for operator in operators]
    return all_of(parts)


def random_literals(random: Random) -> list[Literal]:
    return [literals.number(str(random.choice(ENDS))) for _ in range(random.randint(1, 3))]


def conjunction_universes() -> list[pa.RecordBatch]:
    """All pairs of values, as decimals and as doubles."""
    found = []
    for type_ in (pa.decimal128(9, 2), pa.float64()):
        values: list[Any] = [None, *(UNIVERSE if pa.types.is_decimal(type_) else map(float, UNIVERSE))]
        pairs = list(product(values, values))
        found.append(
            pa.record_batch({"a": pa.array([a for a, _ in pairs], type_), "b": pa.array([b for _, b in pairs], type_)})
        )
    return found


def wrong_conjunctions(seed: int, count: int) -> list[tuple[str, str]]:
    random = Random(seed)
    universes = conjunction_universes()
    conditions = [random_conjunction(random) for _ in range(count)]

    def rows(condition: Condition) -> npt.NDArray[np.bool_]:
        return np.concatenate([mask(condition, batch) for batch in universes])

    masks = [rows(condition) for condition in conditions]
    return [
        (text_of(wide), text_of(narrow))
        for (wide, all_rows), (narrow, fewer) in product(zip(conditions, masks, strict=True), repeat=2)
        if covers(wide, narrow) is not bool((fewer <= all_rows).all())
    ]


def test_covers_equals_brute_force_on_conjunctions() -> None:
    assert wrong_conjunctions(1, 70) == []


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
def test_covers_equals_brute_force_on_conjunctions_at_length(seed: int) -> None:
    assert wrong_conjunctions(seed, 330) == []
