"""Literals: how constants are made, and what one means to a column of each kind.

`readings` is the one place that defines comparisons across types. A literal has a value for some kinds of columns;
against a column of any other kind the comparison is UNKNOWN. All values of a kind are ordered by `<`:

| literal         | boolean   | exact      | float         | text | bytes | moment       | clock        |
| --------------- | --------- | ---------- | ------------- | ---- | ----- | ------------ | ------------ |
| TRUE            | itself    |            |               |      |       |              |              |
| 5, 1.25, 1e3    |           | itself     | nearest double|      |       |              |              |
| NaN, infinities |           | above (below) all | itself |      |       |              |              |
| 'text'          | true, false | if a number | if a number | itself | UTF-8 | if a moment | if a clock  |
| X'00FF'         |           |            |               |      | itself |             |              |
| DATE, TIMESTAMP |           |            |               |      |       | itself       |              |
| TIME            |           |            |               |      |       |              | itself       |

As in Spark, NaN equals itself and is greater than every other float, and -0.0 equals 0.0.
"""

import math
import re
import struct
from datetime import UTC, date, datetime, time, timedelta
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache

from m4cast.overlay.profiles.condition import NAN, FilterError, Kind, Literal, NotANumber
from m4cast.overlay.profiles.moments import DAY_US, clock_of, is_in_reach, moment_of

DIGITS_MAX = 76
"""Significant digits of a number: those of the widest decimal column. Decided."""
EXPONENT_MAX = 400
"""Powers of ten, either way: beyond the range of a double. A larger one would be written out. Decided."""
FloatValue = tuple[bool, float]
"""A double in Spark's order: (is NaN, the number, or 0.0 for NaN)."""
Value = bool | int | Decimal | FloatValue | str | bytes
"""A value of a kind, ordered among the values of that kind only."""

FLOAT_NAN: FloatValue = (True, 0.0)
_NUMBER_FORM = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,9})?")
_BEYOND = Decimal("Infinity")
_CONTEXT = Context(prec=DIGITS_MAX + 1)


def number(text: str, position: int | None = None) -> Literal:
    """A numeric literal, as written in a filter."""
    found = number_of(text)
    if found is None:
        problem = (
            f"the number {text[:40]!r} has more than {DIGITS_MAX} digits or a power of ten beyond {EXPONENT_MAX}: "
            "write a shorter one"
        )
        raise FilterError(problem, position)
    return Literal(Kind.EXACT, found)


def single(text: str, position: int | None = None) -> Literal:
    """A numeric literal of 32 bits, such as `0.1F`: the float next to it."""
    found = number(text, position)
    assert isinstance(found.value, int | Decimal)
    try:
        (nearest,) = struct.unpack("<f", struct.pack("<f", float(found.value)))
    except OverflowError:
        raise FilterError(f"the number {text[:40]!r} is beyond the floats of 32 bits", position) from None
    return number(repr(nearest), position)


def number_of(text: str) -> int | Decimal | None:
    """The number that a text names, None if it names none within the limits."""
    if _NUMBER_FORM.fullmatch(text) is None or len(text) > EXPONENT_MAX:
        return None
    return _plain(Decimal(text))


def _plain(exact: Decimal) -> int | Decimal | None:
    """One object for one number: an int if it is whole, else a decimal without trailing zeros."""
    if not exact:
        return 0
    if len(exact.as_tuple().digits) > DIGITS_MAX:
        exact = exact.normalize(Context(prec=len(exact.as_tuple().digits)))
    if len(exact.as_tuple().digits) > DIGITS_MAX or abs(exact.adjusted()) > EXPONENT_MAX:
        return None
    whole = exact.to_integral_value()
    return int(whole) if whole == exact else exact.normalize(_CONTEXT)


def special(text: str) -> Literal | None:
    """NaN or an infinity by its name, None for any other name."""
    folded = text.casefold().lstrip("+")
    if folded == "nan":
        return Literal(Kind.FLOAT, NAN)
    if folded in ("infinity", "inf", "-infinity", "-inf"):
        return Literal(Kind.FLOAT, -math.inf if folded[0] == "-" else math.inf)
    return None


def text(content: str) -> Literal:
    return Literal(Kind.TEXT, content)


def of_python(content: object) -> Literal | None:
    """The literal for a Python value, as JSON and Spark's filters hold them; None for None."""
    match content:
        case None:
            return None
        case bool():
            return Literal(Kind.BOOLEAN, content)
        case int():
            return number(str(content)) if abs(content) < 10**DIGITS_MAX else number("1" * (DIGITS_MAX + 1))
        case float() if math.isfinite(content):
            return number(repr(content))
        case float():
            return special(str(content))
        case Decimal():
            return number(str(content)) if content.is_finite() else special(str(content))
        case str():
            _refuse_lone_surrogates(content)
            return text(content)
        case bytes() | bytearray():
            return Literal(Kind.BYTES, bytes(content))
        case datetime():
            zoned = content if content.tzinfo else content.replace(tzinfo=UTC)
            micros = (zoned - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
            if not is_in_reach(micros):
                raise FilterError(f"the time {content} is outside the years 1 to 9999 in UTC: use another")
            return Literal(Kind.MOMENT, micros)
        case date():
            return Literal(Kind.MOMENT, (content - date(1970, 1, 1)).days * DAY_US)
        case time():
            whole = (content.hour * 60 + content.minute) * 60 + content.second
            return Literal(Kind.CLOCK, whole * 1_000_000 + content.microsecond)
        case _:
            kind = type(content).__name__
            raise FilterError(f"a value of type {kind} cannot be compared with a column: use text, a number or a time")


def _refuse_lone_surrogates(content: str) -> None:
    try:
        content.encode()
    except UnicodeEncodeError as error:
        problem = f"the text {content[:40]!r} has half of a surrogate pair and cannot be in a column: remove it"
        raise FilterError(problem, error.start) from None


@lru_cache(maxsize=4_096)
def readings(literal: Literal) -> dict[Kind, Value]:
    """The meaning of the literal for a column of each kind; a kind that is absent is never compared with it."""
    content = literal.value
    if isinstance(content, str):
        return _readings_of_text(content)
    if isinstance(content, NotANumber):
        return {Kind.FLOAT: FLOAT_NAN, Kind.EXACT: _BEYOND}
    if literal.kind is Kind.FLOAT:
        assert isinstance(content, float)
        return {Kind.FLOAT: (False, content), Kind.EXACT: _BEYOND if content > 0 else -_BEYOND}
    if literal.kind is Kind.EXACT:
        assert isinstance(content, int | Decimal)
        return {Kind.EXACT: content, Kind.FLOAT: float_value(content)}
    assert not isinstance(content, float)
    return {literal.kind: content}


def _readings_of_text(content: str) -> dict[Kind, Value]:
    found: dict[Kind, Value] = {Kind.TEXT: content, Kind.BYTES: content.encode()}
    if (exact := number_of(content)) is not None:
        found |= {Kind.EXACT: exact, Kind.FLOAT: float_value(exact)}
    elif (named := special(content)) is not None:
        found |= readings(named)
    if (moment := moment_of(content)) is not None:
        found[Kind.MOMENT] = moment
    if (clock := clock_of(content)) is not None:
        found[Kind.CLOCK] = clock
    if content.casefold() in ("true", "false"):
        found[Kind.BOOLEAN] = content.casefold() == "true"
    return found


def float_value(exact: int | Decimal | float) -> FloatValue:
    """The nearest double, in Spark's order."""
    try:
        nearest = float(exact)
    except OverflowError:
        nearest = math.inf if exact > 0 else -math.inf
    return FLOAT_NAN if math.isnan(nearest) else (False, nearest + 0.0)  # -0.0 + 0.0 is 0.0


def as_ratio(exact: int | Decimal) -> Fraction | None:
    """A finite number as a fraction, None for an infinity."""
    return None if isinstance(exact, Decimal) and not exact.is_finite() else Fraction(exact)
