"""Masks equal DuckDB's answers where both mean the same: all but floats of 32 bits, and dates against times of day."""

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from m4cast.overlay.profiles.condition import (
    Always,
    ColumnRef,
    Compare,
    Condition,
    IsNull,
    Kind,
    Like,
    Literal,
    Never,
    NotANumber,
    OneOf,
)
from m4cast.overlay.profiles.evaluation import BatchTerms, mask
from m4cast.overlay.profiles.moments import clock_text
from m4cast.overlay.profiles.profile import parse
from tests.overlay.profiles.agreement import (
    TYPED,
    UNSIGNED,
    NullSafe,
    agreed_filter,
    agreement_batch,
    spark_text,
    written_text,
)

COMPARED = {name: typed for name, typed in {**TYPED, **UNSIGNED}.items() if name != "f32"}
"""DuckDB compares a 32-bit float with a decimal number as 32-bit floats, Spark and m4cast as doubles."""


def duck_literal(literal: Literal, name: str) -> str:
    content: Any = literal.value
    match literal.kind:
        case Kind.TEXT:
            return "'" + str(content).replace("'", "''") + "'"
        case Kind.BYTES:
            return "'" + "".join(f"\\x{byte:02X}" for byte in content) + "'::BLOB"
        case Kind.FLOAT:
            return f"'{'nan' if isinstance(content, NotANumber) else content}'::DOUBLE"
        case Kind.MOMENT:
            moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=content)
            zone = "TIMESTAMPTZ" if name == "tsz" else "TIMESTAMP"
            return f"{zone} '{moment:%Y-%m-%d %H:%M:%S.%f}{'+00' if name == 'tsz' else ''}'"
        case Kind.CLOCK:
            return f"TIME '{clock_text(content)}'"
        case _:
            return str(content)


def duck_column(column: ColumnRef) -> str:
    name = ".".join(column.path)
    return f"lower({name})" if column.is_lowered else name


def duck_term(condition: Condition | NullSafe) -> str:
    match condition:
        case Compare(column, operator, literal):
            return f"{duck_column(column)} {operator} {duck_literal(literal, column.path[0])}"
        case NullSafe(column, literal):
            written = duck_literal(literal, column.path[0]) if literal else "NULL"
            return f"{duck_column(column)} IS NOT DISTINCT FROM {written}"
        case OneOf(column, literals, is_negated):
            listed = ", ".join(duck_literal(literal, column.path[0]) for literal in literals)
            return f"{duck_column(column)} {'NOT ' * is_negated}IN ({listed})"
        case IsNull(column, is_negated):
            return f"{duck_column(column)} IS {'NOT ' * is_negated}NULL"
        case Like(column, pattern, is_negated):
            return f"{duck_column(column)} {'NOT ' * is_negated}LIKE '{pattern}' ESCAPE '\\'"
        case Always():
            return "TRUE"
        case Never():
            return "FALSE"
        case _:
            raise AssertionError(condition)


NUMBERS = ["0", "-1", "5.", ".5", "2.50", "1e0", "-0.0", "NULL"]
STRINGS = ["'a'", "''", "'it''s'", "'%'", "'a_b'", "'ä'", "NULL"]
PATTERNS = ["'a%'", "'%#%%'", "'_'", "'a#_b'", "'%a%b%'", "''"]
PLAIN: dict[str, tuple[pa.DataType, list[Any]]] = {
    "i": (pa.int32(), [0, 1, -1, 5]),
    "f": (pa.float64(), [0.0, -0.0, 0.5, 2.5, float("inf"), float("nan")]),
    "s": (pa.string(), ["", "a", "a_b", "aab", "%", "it's", "ä"]),
    "b": (pa.bool_(), [True, False]),
}


def plain_term(random: Random) -> str:
    """A test as both engines write it."""
    name, some = random.choice([("i", NUMBERS), ("f", NUMBERS), ("s", STRINGS)])
    one, two, operator = random.choice(some), random.choice(some), random.choice(["=", "<>", "!=", "<", ">=", "=="])
    negated = random.choice(["", "NOT "])
    pattern = f"s {negated}LIKE {random.choice(PATTERNS)} ESCAPE '#'"
    terms = [f"{name} {operator} {one}", f"{one} {operator} {name}", f"{name} IS {negated}NULL", pattern]
    terms += [f"{name} {negated}BETWEEN {one} AND {two}", f"{name} {negated}IN ({one}, {two})", "b", "b IS NOT FALSE"]
    return random.choice(terms)


def plain_text(random: Random, depth: int) -> str:
    """A filter in which mostly precedence says what belongs together."""
    parts = []
    for _ in range(random.randint(1, 4)):
        inner = plain_term(random) if not depth or random.random() < 0.7 else f"({plain_text(random, depth - 1)})"
        parts += [random.choice(["", "", "NOT ", "NOT NOT "]) + inner, random.choice([" AND ", " or ", "\nOR "])]
    return "".join(parts[:-1])


def test_filters_without_parentheses_mean_what_they_mean_to_duckdb() -> None:
    random = Random(5)
    values = {
        name: pa.array([None if random.random() < 0.2 else random.choice(known) for _ in range(40)], type_)
        for name, (type_, known) in PLAIN.items()
    }
    batch = pa.record_batch(values)
    texts = [plain_text(random, random.choice([0, 1, 2])) for _ in range(300)]
    with duckdb.connect() as connection:
        connection.register("rows", pa.table(batch))
        asked = ", ".join(f"coalesce(({text}), FALSE) AS c{at}" for at, text in enumerate(texts))
        answers = connection.sql(f"SELECT {asked} FROM rows").to_arrow_table()
    for at, text in enumerate(texts):
        assert mask(parse(text).condition, batch).tolist() == answers.column(at).to_pylist(), text


@pytest.mark.parametrize("seed", range(3))
def test_masks_equal_duckdb(seed: int) -> None:
    random = Random(seed)
    batch = agreement_batch(random, 60, COMPARED)
    terms = BatchTerms(batch)
    made = [agreed_filter(random, random.choice([0, 0, 1, 2]), COMPARED) for _ in range(150)]
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("rows", pa.table(batch))
        asked = ", ".join(f"coalesce({written_text(each, duck_term)}, FALSE) AS c{at}" for at, each in enumerate(made))
        answers = connection.sql(f"SELECT {asked} FROM rows").to_arrow_table()
    for at, text in enumerate(map(spark_text, made)):
        assert terms.mask(parse(text).condition).tolist() == answers.column(at).to_pylist(), text
    assert terms.errors == 0
