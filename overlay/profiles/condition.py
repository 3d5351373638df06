"""Conditions: the closed syntax tree that every filter language is translated into.

A condition is a tree of `AllOf` and `AnyOf` over terms; each term tests one column against literals. There is no NOT:
whoever translates a language pushes negation down to the terms (`negated` here), because only TRUE lets a row pass and
a term knows both its TRUE set and that of its negation. Three-valued logic then needs no third value: a row for which
a term is UNKNOWN (a null, a value of a kind that the literal has no meaning for) is in neither set, AND is the
intersection of TRUE sets, OR their union.

Conditions are canonical: `all_of` and `any_of` flatten, drop doubles, sort by text and fold constants, so that two
spellings of one filter have one text (`text_of`). The text is in the language `sql` and parses back to the same tree.

Everything here is a value. Limits are checked by `check_limits`, wherever a condition comes from.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from decimal import Context, Decimal
from enum import Enum, StrEnum
from typing import Literal as OneWord
from typing import assert_never

from m4cast.overlay.errors import M4castError
from m4cast.overlay.profiles.moments import clock_text, moment_text
from m4cast.overlay.value import value

TEXT_BYTES_MAX = 4_096
"""Limit on the text of a filter. Parsing costs about 4 ms per KB. Decided."""
CANONICAL_BYTES_MAX = 4 * TEXT_BYTES_MAX
"""Limit on the canonical text of a filter, which is what nodes tell each other: names are quoted in it, and BETWEEN,
dates and powers of ten written out. Decided."""
TERMS_MAX = 256
"""Tests of one column in a condition; each costs a pass over the rows. Decided."""
PATH_MAX = 32
"""Names in a nested column: as many as payloads may nest."""
DEPTH_MAX = 32
"""AND, OR, NOT and parentheses inside each other. Parsers and evaluation recurse so deep. Decided."""


class FilterError(M4castError):
    """A filter that cannot be used: says what is wrong, where, and what to write instead.

    `position` is the offset of the offending character in the text, None if the filter did not come as text.
    """

    def __init__(self, problem: str, position: int | None = None) -> None:
        super().__init__(problem, position)
        self.problem = problem
        self.position = position

    def __str__(self) -> str:
        return self.problem if self.position is None else f"at character {self.position + 1}: {self.problem}"


class Kind(StrEnum):
    """The kind by which values are compared. A column has one kind; values of different kinds are never compared."""

    BOOLEAN = "boolean"
    EXACT = "exact"  # integers and decimals
    FLOAT = "float"  # compared as doubles
    TEXT = "text"
    BYTES = "bytes"
    MOMENT = "moment"  # dates and timestamps, as microseconds since 1970 in UTC
    CLOCK = "clock"  # times of day, as microseconds since midnight
    OTHER = "other"  # lists, maps, structs, durations, intervals: only null or not


class NotANumber(Enum):
    """NaN as a value that equals itself."""

    NAN = "NaN"


NAN = NotANumber.NAN
LiteralValue = bool | int | Decimal | float | NotANumber | str | bytes


@value
class Literal:
    """A constant in a filter. Numbers are EXACT, but for NaN and the infinities, which are FLOAT."""

    kind: Kind
    value: LiteralValue


@value
class ColumnRef:
    """A column by name, or a member of a struct by the names on the way to it; `is_lowered`: in lower case."""

    path: tuple[str, ...]
    is_lowered: bool = False


Operator = OneWord["=", "!=", "<", "<=", ">", ">="]
NEGATED: dict[Operator, Operator] = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}
MIRRORED: dict[Operator, Operator] = {"=": "=", "!=": "!=", "<": ">", ">": "<", "<=": ">=", ">=": "<="}


@value
class Compare:
    """`column operator literal`."""

    column: ColumnRef
    operator: Operator
    literal: Literal


@value
class OneOf:
    """`column [NOT] IN (literals)`: at least two literals, sorted by text."""

    column: ColumnRef
    literals: tuple[Literal, ...]
    is_negated: bool = False


@value
class IsNull:
    """`column IS [NOT] NULL`. A column that a batch lacks is null in all its rows."""

    column: ColumnRef
    is_negated: bool = False


@value
class Like:
    """`column [NOT] LIKE pattern`, with the backslash as escape character."""

    column: ColumnRef
    pattern: str
    is_negated: bool = False


@value
class Words:
    """`[NOT] words(column, ...)`: all of these words are in the text; `any_words`: at least one is."""

    column: ColumnRef
    words: tuple[str, ...]
    is_any: bool = False
    is_negated: bool = False


@value
class Always:
    """TRUE for every row."""


@value
class Never:
    """TRUE for no row: FALSE, or UNKNOWN."""


Term = Compare | OneOf | IsNull | Like | Words


@value
class AllOf:
    """TRUE where all parts are: at least two, none of them an `AllOf` or a constant."""

    parts: "tuple[Condition, ...]"


@value
class AnyOf:
    """TRUE where one part is: at least two, none of them an `AnyOf` or a constant."""

    parts: "tuple[Condition, ...]"


Condition = Term | AllOf | AnyOf | Always | Never
_WRITTEN_OUT_MAX = 40
_NO_CHARACTER = re.compile("[\0\ud800-\udfff]")
_DIGITS = Context(prec=100)  # more than a literal has
ALWAYS = Always()
NEVER = Never()


# ---- making


def all_of(parts: Iterable[Condition]) -> Condition:
    """The conjunction in canonical form."""
    found: dict[str, Condition] = {}
    for part in parts:
        if isinstance(part, Never):
            return NEVER
        if not isinstance(part, Always):
            found.update((text_of(each), each) for each in (part.parts if isinstance(part, AllOf) else (part,)))
    return _joined(found, AllOf, ALWAYS)


def any_of(parts: Iterable[Condition]) -> Condition:
    """The disjunction in canonical form. Equalities on one column become one IN."""
    found: dict[str, Condition] = {}
    equal: dict[ColumnRef, list[Literal]] = {}
    for part in parts:
        if isinstance(part, Always):
            return ALWAYS
        if isinstance(part, Never):
            continue
        for each in part.parts if isinstance(part, AnyOf) else (part,):
            if isinstance(each, Compare) and each.operator == "=":
                equal.setdefault(each.column, []).append(each.literal)
            elif isinstance(each, OneOf) and not each.is_negated:
                equal.setdefault(each.column, []).extend(each.literals)
            else:
                found[text_of(each)] = each
    for column, literals in equal.items():
        term = one_of(column, literals)
        found[text_of(term)] = term
    return _joined(found, AnyOf, NEVER)


def _joined(
    found: dict[str, Condition], make: Callable[[tuple[Condition, ...]], AllOf | AnyOf], none: Always | Never
) -> Condition:
    if len(found) > 1:
        return make(tuple(found[text] for text in sorted(found)))
    return next(iter(found.values()), none)


def one_of(column: ColumnRef, literals: Iterable[Literal], *, negated: bool = False) -> Condition:
    """`column [NOT] IN (literals)` in canonical form."""
    distinct = {literal_text(literal): literal for literal in literals}
    if len(distinct) == 1:
        (literal,) = distinct.values()
        return _comparison(column, "!=" if negated else "=", literal)
    if not distinct:
        return IsNull(column, is_negated=True) if negated else NEVER
    return OneOf(column, tuple(distinct[text] for text in sorted(distinct)), negated)


def compare(column: ColumnRef, operator: Operator, literal: Literal | None, *, negated: bool = False) -> Condition:
    """A comparison; with NULL (None) it is UNKNOWN, and so is its negation."""
    if literal is None:
        return NEVER
    return _comparison(column, NEGATED[operator] if negated else operator, literal)


def _comparison(column: ColumnRef, operator: Operator, literal: Literal) -> Compare:
    """Normalise comparisons of booleans: not true is false, so both have one spelling."""
    if literal.kind is Kind.BOOLEAN and operator == "!=":
        return Compare(column, "=", Literal(Kind.BOOLEAN, not literal.value))
    return Compare(column, operator, literal)


def null_safe_equal(column: ColumnRef, literal: Literal | None, *, negated: bool = False) -> Condition:
    """Spark's `<=>`: TRUE or FALSE also where the column is null."""
    if literal is None:
        return IsNull(column, negated)
    if not negated:
        return Compare(column, "=", literal)
    return any_of([_comparison(column, "!=", literal), IsNull(column)])


# ---- looking


def terms_of(condition: Condition) -> Iterator[Term]:
    """All terms, from left to right, doubles included."""
    match condition:
        case AllOf(parts) | AnyOf(parts):
            for part in parts:
                yield from terms_of(part)
        case Always() | Never():
            return
        case _:
            yield condition


def columns_of(condition: Condition) -> tuple[tuple[str, ...], ...]:
    """The paths of all columns that the condition reads, sorted."""
    return tuple(sorted({term.column.path for term in terms_of(condition)}))


def check_text(text: str, what: str, bytes_max: int = TEXT_BYTES_MAX) -> None:
    """Refuse a text that is too long, or has characters that no column can hold."""
    size = len(text.encode(errors="surrogatepass"))
    if size > bytes_max:
        # The place is the first character that is over the limit, if all before it take a byte each.
        raise FilterError(f"{what} has {size} bytes, at most {bytes_max}: make it shorter", min(bytes_max, len(text)))
    found = _NO_CHARACTER.search(text)
    if found is not None:
        raise FilterError(f"the character {found[0]!r} cannot be in a filter: remove it", found.start())


def check_limits(condition: Condition, position: int | None = None) -> None:
    """Refuse a condition that is larger than the limits allow. `position`: where its text begins, if it has one."""
    problem = _size_problem(condition, 1, [0])
    if problem is not None:
        raise FilterError(problem, position)


def _size_problem(condition: Condition, depth: int, seen: list[int]) -> str | None:
    if depth > DEPTH_MAX:
        return f"AND, OR and NOT are nested deeper than {DEPTH_MAX}: make the filter flatter"
    if isinstance(condition, AllOf | AnyOf):
        problems = (_size_problem(part, depth + 1, seen) for part in condition.parts)
        return next((problem for problem in problems if problem is not None), None)
    seen[0] += 1
    if seen[0] > TERMS_MAX:
        return f"the filter has more than {TERMS_MAX} terms: use IN for many values, or split the filter"
    return None


# ---- canonical text


def text_of(condition: Condition) -> str:
    """The canonical text, in the language `sql`."""
    match condition:
        case AllOf(parts):
            return " AND ".join(f"({text_of(part)})" if isinstance(part, AnyOf) else text_of(part) for part in parts)
        case AnyOf(parts):
            return " OR ".join(f"({text_of(part)})" if isinstance(part, AllOf) else text_of(part) for part in parts)
        case Compare(column, operator, literal):
            return f"{_column_text(column)} {operator} {literal_text(literal)}"
        case OneOf(column, literals, is_negated):
            listed = ", ".join(map(literal_text, literals))
            return f"{_column_text(column)} {'NOT IN' if is_negated else 'IN'} ({listed})"
        case IsNull(column, is_negated):
            return f"{_column_text(column)} {'IS NOT NULL' if is_negated else 'IS NULL'}"
        case Like(column, pattern, is_negated):
            return f"{_column_text(column)} {'NOT LIKE' if is_negated else 'LIKE'} {quoted(pattern)}"
        case Words(column, words, is_any, is_negated):
            call = f"{'any_words' if is_any else 'words'}({_column_text(column)}, {quoted(' '.join(words))})"
            return f"NOT {call}" if is_negated else call
        case Always():
            return "TRUE"
        case Never():
            return "FALSE"
        case _:
            assert_never(condition)


def _column_text(column: ColumnRef) -> str:
    # Always in backticks: an unquoted name may be a keyword of the parser's, today or in its next version.
    name = ".".join("`" + part.replace("`", "``") + "`" for part in column.path)
    return f"lower({name})" if column.is_lowered else name


def literal_text(literal: Literal) -> str:
    """A literal as `sql` writes it. One value has one text."""
    content = literal.value
    match literal.kind:
        case Kind.BOOLEAN:
            return "TRUE" if content else "FALSE"
        case Kind.EXACT:
            written = str(content)
            is_long = len(written) > _WRITTEN_OUT_MAX and isinstance(content, int)
            return str(Decimal(written).normalize(_DIGITS)) if is_long else written
        case Kind.FLOAT:
            return f"double('{content.value if isinstance(content, NotANumber) else str(content)}')"
        case Kind.TEXT:
            assert isinstance(content, str)
            return quoted(content)
        case Kind.BYTES:
            assert isinstance(content, bytes)
            return f"X'{content.hex().upper()}'"
        case Kind.MOMENT:
            assert isinstance(content, int)
            return f"TIMESTAMP '{moment_text(content)}'"
        case Kind.CLOCK:
            assert isinstance(content, int)
            return f"TIME '{clock_text(content)}'"
        case Kind.OTHER:
            raise AssertionError("no literal has this kind")
        case _:
            assert_never(literal.kind)


def quoted(text: str) -> str:
    """Text as a string literal of Spark SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
