"""Masks equal DuckDB's answers where both mean the same: all but floats of 32 bits, and dates against times of day."""

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from m4cast.overlay.profiles.condition import (
    AllOf,
    Always,
    AnyOf,
    Compare,
    Condition,
    IsNull,
    Kind,
    Like,
    Literal,
    Never,
    NotANumber,
    OneOf,
    text_of,
)
from m4cast.overlay.profiles.evaluation import BatchTerms
from tests.overlay.profiles.agreement import TYPED, agreed_condition, agreement_batch

COLUMNS = [name for name in TYPED if name != "f32"]
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
        case _:
            return str(content)


def duck_text(condition: Condition) -> str:
    match condition:
        case AllOf(parts) | AnyOf(parts):
            return "(" + (" AND " if isinstance(condition, AllOf) else " OR ").join(map(duck_text, parts)) + ")"
        case Compare(column, operator, literal):
            return f"{'.'.join(column.path)} {operator} {duck_literal(literal, column.path[0])}"
        case OneOf(column, literals, is_negated):
            listed = ", ".join(duck_literal(literal, column.path[0]) for literal in literals)
            return f"{'.'.join(column.path)} {'NOT ' * is_negated}IN ({listed})"
        case IsNull(column, is_negated):
            return f"{'.'.join(column.path)} IS {'NOT ' * is_negated}NULL"
        case Like(column, pattern, is_negated):
            return f"{column.path[0]} {'NOT ' * is_negated}LIKE '{pattern}' ESCAPE '\\'"
        case Always():
            return "TRUE"
        case Never():
            return "FALSE"
        case _:
            raise AssertionError(condition)


@pytest.mark.parametrize("seed", range(3))
def test_masks_equal_duckdb(seed: int) -> None:
    random = Random(seed)
    batch = agreement_batch(random, 60)
    terms = BatchTerms(batch)
    conditions = [agreed_condition(random, random.choice([0, 0, 1, 2]), COLUMNS) for _ in range(150)]
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("rows", pa.table(batch))
        asked = ", ".join(f"coalesce({duck_text(each)}, FALSE) AS c{at}" for at, each in enumerate(conditions))
        answers = connection.sql(f"SELECT {asked} FROM rows").to_arrow_table()
    for at, condition in enumerate(conditions):
        assert terms.mask(condition).tolist() == answers.column(at).to_pylist(), text_of(condition)
    assert terms.errors == 0
