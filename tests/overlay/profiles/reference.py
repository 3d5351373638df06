"""A slow, plain evaluator of conditions: row by row, in Python, with three truth values. Shares no code with ours.

It states the rules of docs/FILTERS.md once more, in the most direct way: values are converted to what they are
compared as, and compared.
"""

import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pyarrow as pa

from m4cast.overlay.profiles.condition import (
    AllOf,
    Always,
    AnyOf,
    ColumnRef,
    Compare,
    Condition,
    IsNull,
    Like,
    Literal,
    Never,
    NotANumber,
    OneOf,
    Words,
)

Truth = bool | None


def true_rows(condition: Condition, batch: pa.RecordBatch) -> list[bool]:
    rows = batch.to_pylist()
    return [truth(condition, row, batch.schema) is True for row in rows]


def truth(condition: Condition, row: dict[str, Any], schema: pa.Schema) -> Truth:
    match condition:
        case Always():
            return True
        case Never():
            return False
        case AllOf(parts):
            found = [truth(part, row, schema) for part in parts]
            return False if False in found else (None if None in found else True)
        case AnyOf(parts):
            found = [truth(part, row, schema) for part in parts]
            return True if True in found else (None if None in found else False)
        case IsNull(column, is_negated):
            return (value(column, row, schema)[0] is None) is not is_negated
        case Compare(column, operator, literal):
            return compared(*value(column, row, schema), operator, literal)
        case OneOf(column, literals, is_negated):
            found = [compared(*value(column, row, schema), "=", literal) for literal in literals]
            answer = True if True in found else (None if None in found else False)
            return answer if answer is None or not is_negated else not answer
        case Like(column, pattern, is_negated):
            return looked_into(*value(column, row, schema), is_negated, lambda text: like(text, pattern), pattern)
        case Words(column, words, is_any, is_negated):

            def holds(text: Any) -> bool:
                there = set(re.findall(r"[^\W_]+", text.casefold()))
                return any(word in there for word in words) if is_any else all(word in there for word in words)

            return looked_into(*value(column, row, schema), is_negated, holds, None)


def value(column: ColumnRef, row: dict[str, Any], schema: pa.Schema) -> tuple[Any, pa.DataType | None]:
    content: Any = row.get(column.path[0])
    if column.path[0] not in schema.names:
        return None, None
    type_ = schema.field(column.path[0]).type
    for name in column.path[1:]:
        if not pa.types.is_struct(type_) or type_.get_field_index(name) < 0:
            return None, None
        type_ = type_.field(name).type
        content = None if content is None else content[name]
    if column.is_lowered and content is not None:
        return (content.lower(), type_) if isinstance(content, str) else (content, pa.null())
    return content, type_


def looked_into(content: Any, type_: Any, is_negated: bool, test: Any, pattern: str | None) -> Truth:
    if content is None or not isinstance(content, str | bytes) or type_ == pa.null():
        return None
    if isinstance(content, bytes):
        try:
            content = content.decode()
        except UnicodeDecodeError:
            # A prefix, suffix or substring is looked for in the bytes as they are.
            if pattern is None or not is_plain(pattern):
                return None
            content = content.decode("latin-1")
            found = like(content, pattern.encode().decode("latin-1"))
            return found is not is_negated
    return bool(test(content)) is not is_negated


def is_plain(pattern: str) -> bool:
    bare = re.sub(r"\\.", "", pattern)
    return "_" not in bare and "%" not in bare.strip("%") and bare.count("%") <= 1 + (bare[:1] == bare[-1:] == "%")


def like(text: str, pattern: str) -> bool:
    """LIKE by dynamic programming over the pattern, so that this is no regular expression either."""
    items: list[tuple[str, str]] = []
    at = 0
    while at < len(pattern):
        if pattern[at] == "\\":
            at += 1
            items.append(("char", pattern[at]))
        else:
            items.append(({"%": "any", "_": "one"}.get(pattern[at], "char"), pattern[at]))
        at += 1
    reach = [True] + [False] * len(text)
    for kind, character in items:
        if kind == "any":
            for at in range(1, len(text) + 1):
                reach[at] = reach[at] or reach[at - 1]
        else:
            reach = [False] + [reach[at] and (kind == "one" or text[at] == character) for at in range(len(text))]
    return reach[-1]


def compared(content: Any, type_: pa.DataType | None, operator: str, literal: Literal) -> Truth:
    if content is None or type_ is None:
        return None
    pair = sides(content, type_, literal)
    if pair is None:
        return None
    left, right = pair
    answers: dict[str, bool] = {
        "=": left == right,
        "!=": left != right,
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
    }
    return answers[operator]


def sides(content: Any, type_: pa.DataType, literal: Literal) -> tuple[Any, Any] | None:
    """Both sides of a comparison in one ordered domain, None if they have none in common."""
    kind, wanted = literal.kind.value, literal.value
    if pa.types.is_boolean(type_):
        if kind == "text" and str(wanted).lower() in ("true", "false"):
            return content, str(wanted).lower() == "true"
        return (content, wanted) if kind == "boolean" else None
    if pa.types.is_integer(type_) or pa.types.is_decimal(type_):
        right = number(kind, wanted)
        return None if right is None else ((0, Fraction(content)), ranked(right))
    if pa.types.is_floating(type_):
        right = number(kind, wanted)
        return None if right is None else (ranked_float(float(content)), ranked_float(nearest(right)))
    if pa.types.is_string(type_):
        return (content, wanted) if kind == "text" else None
    if pa.types.is_binary(type_) or pa.types.is_fixed_size_binary(type_):
        if kind == "text":
            return content, str(wanted).encode()
        return (content, wanted) if kind == "bytes" else None
    if pa.types.is_date(type_) or pa.types.is_timestamp(type_):
        moment = wanted if kind == "moment" else moment_of(str(wanted)) if kind == "text" else None
        return None if moment is None else (micros(content), moment)
    if pa.types.is_time(type_):
        clock = wanted if kind == "clock" else clock_of(str(wanted)) if kind == "text" else None
        midnight = timedelta(hours=content.hour, minutes=content.minute, seconds=content.second)
        return None if clock is None else (midnight // timedelta(microseconds=1) + content.microsecond, clock)
    return None


def number(kind: str, wanted: Any) -> Any:
    if kind in ("exact", "float"):
        return wanted
    if kind == "text":
        if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", wanted):
            return Decimal(wanted)
        if wanted.lower() in ("nan", "inf", "-inf", "infinity", "-infinity"):
            return float(wanted)
    return None


def ranked(exact: Any) -> Any:
    if isinstance(exact, NotANumber) or exact != exact:
        return (1, Fraction(0))
    if isinstance(exact, float) and exact in (float("inf"), float("-inf")):
        return (1 if exact > 0 else -1, Fraction(0))
    return (0, Fraction(exact))


def nearest(exact: Any) -> float:
    if isinstance(exact, NotANumber):
        return float("nan")
    try:
        return float(exact)
    except OverflowError:
        return float("inf") if exact > 0 else float("-inf")


def ranked_float(each: float) -> tuple[int, float]:
    return (1, 0.0) if each != each else (0, each)


def micros(content: date | datetime) -> int:
    if not isinstance(content, datetime):
        content = datetime.combine(content, time(0))
    if content.tzinfo is None:
        content = content.replace(tzinfo=UTC)
    return (content - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def moment_of(text: str) -> int | None:
    try:
        return (
            micros(datetime.fromisoformat(text)) if re.fullmatch(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d.*)?", text) else None
        )
    except ValueError:
        return None


def clock_of(text: str) -> int | None:
    try:
        found = time.fromisoformat(text) if re.fullmatch(r"\d\d:\d\d.*", text) else None
    except ValueError:
        return None
    if found is None:
        return None
    return ((found.hour * 60 + found.minute) * 60 + found.second) * 1_000_000 + found.microsecond
