"""The option `where`: a filter that the nodes apply, so that rows which do not match are never sent.

`where` and `.filter()` must select the same rows under every setting of the session. What a constant of another type
means, and which column a name means, Spark decides by settings that it does not pass to a data source: time zone, ANSI
mode, case sensitivity. So the filter is checked against the columns when a query is planned: a constant must have the
type of its column, a time its zone, and a name must be spelled as the column's. Anything else is refused.
"""

import difflib
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pyspark.sql import types
from pyspark.sql.types import DataType, StructType

from m4cast.spark_connector.errors import ConnectorError

if TYPE_CHECKING:
    from m4cast.overlay.profiles import Profile
    from m4cast.overlay.profiles.condition import ColumnRef, Kind, Term
    from m4cast.overlay.profiles.condition import Literal as Constant

Language = Literal["sql", "json", "diet"]
LANGUAGES: tuple[Language, ...] = ("sql", "json", "diet")
TimeForm = Literal["date", "local", "zoned", "short"]
"""The notation of a time: a date alone, with a clock but no zone, with a zone, with a zone but no seconds."""
_TYPED_TIME = re.compile(r"\b(DATE|TIMESTAMP\w*)\s*(?:'([^']*)'|\"([^\"]*)\")", re.IGNORECASE)
_ZONE = re.compile(r"(?:Z|UTC|[+-][0-9]{2}:[0-9]{2})")


@dataclass(frozen=True, slots=True)
class SourceFilter:
    """A filter as the user wrote it. Offsets and partitions contain it, so that a replay filters as the plan did."""

    text: str
    language: Language = "sql"

    def profile(self) -> "Profile":
        """The parsed filter. Raises ConnectorError with the place of the mistake."""
        from m4cast.overlay.profiles import FilterError, parse

        try:
            return parse(self.text, self.language)
        except FilterError as error:
            problem = f"option where = {self.text[:100]!r} is not a filter in the language {self.language} ({error})"
            raise ConnectorError("M4CAST_BAD_OPTION", problem, "see docs/FILTERS.md") from None


def check_columns(row_filter: SourceFilter, schema: StructType, *, made: Iterable[str], is_complete: bool) -> None:
    """Refuse a filter whose result could differ from that of `.filter()`. `made`: the channel's columns, which the
    nodes do not filter by; `is_complete`: the schema has all columns of the topics, and others do not exist."""
    from m4cast.overlay.profiles.condition import terms_of

    forms = _times_as_written(row_filter.text)
    for term in terms_of(row_filter.profile().condition):
        path = term.column.path
        if path[0] in made:
            fix = "use .filter() on it, or startingOffsets, startingTimestamp, endingOffsets, endingTimestamp"
            raise _refused(f"names {path[0]}, which is a column of the channel and not of the topic", fix)
        found = _type_at(schema, path, is_complete=is_complete)
        if found is not None:
            _check_term(term, found, forms)


def _type_at(schema: StructType, path: tuple[str, ...], *, is_complete: bool) -> DataType | None:
    """The type of a column or of a member of a struct; None if it is not known."""
    within: DataType = schema
    for depth, name in enumerate(path):
        named = ".".join(path[: depth + 1])
        if not isinstance(within, StructType):
            raise _refused(f"names {named}, but {'.'.join(path[:depth])} is no struct", "name a column or a member")
        if name not in within.names:
            if depth == 0 and not is_complete:
                return None
            near = {each.lower(): each for each in within.names}
            close = difflib.get_close_matches(name.lower(), near, 1, 0.5)
            columns = f"columns are {', '.join(within.names[:20])}"
            fix = f"did you mean {near[close[0]]}? Upper and lower case differ" if close else columns
            raise _refused(f"names {named}, which does not exist", fix)
        within = within[name].dataType
    return within


def _check_term(term: "Term", type_: DataType, forms: dict[int, set[TimeForm]]) -> None:
    from m4cast.overlay.profiles.condition import Compare, IsNull, Kind, OneOf

    if isinstance(type_, types.NullType) or (isinstance(term, IsNull) and not term.column.is_lowered):
        return
    kind = _kind_of(type_)
    is_search = term.column.is_lowered or not isinstance(term, Compare | OneOf)
    if is_search and kind is not Kind.TEXT:
        raise _refused(f"searches for text in {_named(term.column, type_)}", "compare it with a constant")
    if isinstance(term, Compare | OneOf):
        for constant in (term.literal,) if isinstance(term, Compare) else term.literals:
            _check_constant(term.column, type_, kind, constant, forms)


def _check_constant(
    column: "ColumnRef", type_: DataType, kind: "Kind", constant: "Constant", forms: dict[int, set[TimeForm]]
) -> None:
    from m4cast.overlay.profiles.condition import Kind, literal_text

    numbers = (Kind.EXACT, Kind.FLOAT)
    if kind is Kind.MOMENT and constant.kind in (Kind.MOMENT, Kind.TEXT):
        fix = _time_problem(type_, constant, forms)
    elif isinstance(type_, types.FloatType) and isinstance(constant.value, int) and _is_rounded(constant.value):
        fix = "write a number that a float holds: not in ANSI mode, Spark rounds this one to a float"
    elif constant.kind is kind or (kind in numbers and constant.kind in numbers):
        fix = None
    else:
        fix = {
            Kind.BOOLEAN: "compare it with TRUE or FALSE",
            Kind.EXACT: "write a number, without quotes",
            Kind.FLOAT: "write a number, without quotes",
            Kind.TEXT: "write a text, in quotes",
            Kind.BYTES: "write bytes, as X'00FF'",
            Kind.MOMENT: "write a time, as '2026-01-31 12:00:00Z'",
            Kind.CLOCK: "write a time of day, as TIME '12:30:00'",
            Kind.OTHER: "only IS NULL and IS NOT NULL can test it",
        }[kind]
    if fix is not None:
        raise _refused(f"compares {_named(column, type_)} with {literal_text(constant)}", fix)


def _is_rounded(whole: int) -> bool:
    """True if a BIGINT is another number as a float. What is longer is a DECIMAL to Spark, and becomes a double."""
    return abs(whole) < 1 << 63 and bool(struct.unpack("<f", struct.pack("<f", whole))[0] != whole)


def _time_problem(type_: DataType, constant: "Constant", forms: dict[int, set[TimeForm]]) -> str | None:
    """Advice on what to write instead, if Spark and the nodes could interpret this time differently."""
    from m4cast.overlay.profiles.moments import moment_of

    content = constant.value
    is_text = isinstance(content, str)
    if isinstance(content, str):
        written = set() if moment_of(content) is None else {_form_of(content)}
    else:
        assert isinstance(content, int)
        written = forms.get(content, {"zoned"})
    if "short" in written:
        return "add its seconds, as '2026-01-31 12:00:00Z': to Spark it is no time without them"
    allowed: set[TimeForm]
    match type_:
        case types.DateType():
            allowed, fix = {"date"}, "write a date alone, as '2026-01-31'"
        case types.TimestampNTZType():
            allowed, fix = ({"date", "local"} if is_text else {"date"}), "write a text without a zone"
        case _:
            allowed = {"zoned"}
            fix = "add its zone, as '2026-01-31 12:00:00Z': a data source does not know the time zone of the session"
    return None if written and written <= allowed else fix


def _times_as_written(text: str) -> dict[int, set[TimeForm]]:
    """The notations of each time with a type (DATE '...', TIMESTAMP '...'), by its value."""
    from m4cast.overlay.profiles.moments import moment_of

    found: dict[int, set[TimeForm]] = {}
    for typed in _TYPED_TIME.finditer(text):
        content = typed[2] if typed[2] is not None else typed[3]
        moment, form = moment_of(content), _form_of(content)
        if moment is not None:
            if (typed[1].upper() == "DATE") != (form == "date"):
                # Spark cuts the clock off a DATE. It takes a TIMESTAMP without one as midnight in the session's zone.
                form = "zoned" if form == "zoned" and typed[1].upper() != "DATE" else "local"
            found.setdefault(moment, set()).add(form)
    return found


def _form_of(time: str) -> TimeForm:
    if len(time) == len("2026-01-31"):
        return "date"
    zone = _ZONE.search(time, len("2026-01-31"))
    if zone is None:
        return "local"
    return "short" if zone.start() <= len("2026-01-31 12:30 ") else "zoned"


def _kind_of(type_: DataType) -> "Kind":
    """The kind as which the nodes compare a column of this type."""
    from m4cast.overlay.profiles.condition import Kind

    match type_:
        case types.BooleanType():
            return Kind.BOOLEAN
        case types.IntegralType() | types.DecimalType():
            return Kind.EXACT
        case types.FractionalType():
            return Kind.FLOAT
        case types.StringType() if type_.collation != types.StringType().collation:
            return Kind.OTHER  # nodes compare texts by code points only
        case types.StringType() | types.CharType() | types.VarcharType():
            return Kind.TEXT
        case types.BinaryType():
            return Kind.BYTES
        case types.DateType() | types.TimestampType() | types.TimestampNTZType():
            return Kind.MOMENT
        case types.TimeType():
            return Kind.CLOCK
    return Kind.OTHER


def _named(column: "ColumnRef", type_: DataType) -> str:
    return f"{'.'.join(column.path)} ({type_.simpleString()})"


def _refused(problem: str, fix: str) -> ConnectorError:
    return ConnectorError("M4CAST_BAD_OPTION", f"option where {problem}", fix)
