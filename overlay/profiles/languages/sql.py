"""The language `sql`, version 1: a subset of Spark's WHERE.

    condition  := condition OR condition | condition AND condition | NOT condition | (condition) | test
    test       := column operator literal | literal operator column | column
                | column [NOT] IN (literal, ...) | column [NOT] BETWEEN literal AND literal
                | column [NOT] LIKE 'pattern' [ESCAPE 'c'] | column IS [NOT] NULL
                | words(column, 'load network') | any_words(column, 'load network') | TRUE | FALSE | NULL
    column     := name | name.member... | `any name` | lower(column)
    operator   := = | == | <> | != | < | <= | > | >= | <=>
    literal    := 5 | -1.25 | 1e3 | 'text' | "text" | TRUE | FALSE | NULL | X'00FF' | DATE '2026-01-31'
                | TIMESTAMP '2026-01-31 12:30:00+01:00' | TIME '12:30' | double('NaN')

The text is sqlglot's to tokenise and parse, under guard (`sql_tokens`). What it returns is translated by a list of node
types and their arguments; nothing of sqlglot leaves this module.

Filters are code from strangers, and parsing takes up to 20 ms: never on a node's loop. What nodes tell each other is
canonical, and read by `canonical`.
"""

from collections.abc import Callable
from typing import Any

from sqlglot import exp

from m4cast.overlay.profiles import literals
from m4cast.overlay.profiles.condition import (
    ALWAYS,
    MIRRORED,
    NEVER,
    PATH_MAX,
    ColumnRef,
    Condition,
    FilterError,
    IsNull,
    Kind,
    Like,
    Literal,
    Operator,
    Words,
    all_of,
    any_of,
    check_limits,
    check_text,
    compare,
    literal_text,
    null_safe_equal,
    one_of,
)
from m4cast.overlay.profiles.languages.sql_tokens import tree_of
from m4cast.overlay.profiles.moments import DAY_US, clock_of, moment_of
from m4cast.overlay.profiles.patterns import like_pattern, words_of

_OPERATORS: dict[type[exp.Expr], Operator] = {
    exp.EQ: "=",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_NODES: dict[type[exp.Expr], frozenset[str]] = {
    **dict.fromkeys((exp.Paren, exp.Not, exp.Neg, exp.Lower, exp.HexString, exp.Boolean), frozenset({"this"})),
    **dict.fromkeys((exp.And, exp.Or, exp.NullSafeEQ, exp.Is, exp.Escape, exp.Dot), frozenset({"this", "expression"})),
    **dict.fromkeys(_OPERATORS, frozenset({"this", "expression"})),
    exp.Like: frozenset({"this", "expression", "negate"}),
    exp.In: frozenset({"this", "expressions"}),
    exp.Between: frozenset({"this", "low", "high"}),
    exp.Anonymous: frozenset({"this", "expressions"}),
    exp.Column: frozenset({"this", "table", "db", "catalog"}),
    exp.Identifier: frozenset({"this", "quoted"}),
    exp.Literal: frozenset({"this", "is_string"}),
    exp.Null: frozenset(),
    exp.Cast: frozenset({"this", "to"}),
    exp.TryCast: frozenset({"this", "to"}),
    exp.DataType: frozenset({"this", "expressions"}),
    exp.DataTypeParam: frozenset({"this"}),
}
"""The types of nodes that are translated, each with the arguments that are. Anything else that sqlglot understands, in
this version or the next, is refused, never ignored."""
_TIMES = ("DATE", "TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMPLTZ", "TIMESTAMPNTZ")
_SUFFIXES = ("BIGINT", "SMALLINT", "TINYINT", "FLOAT", "DOUBLE", "DECIMAL")


def parse(text: str) -> Condition:
    """The condition that the text means; `FilterError` with the place if it means none."""
    check_text(text, "the filter")
    tree = tree_of(text)
    _check_nodes(tree)
    condition = _condition(tree, False)
    check_limits(condition, 0)
    return condition


# ---- translation


def _check_nodes(tree: exp.Expr) -> None:
    """Refuse every node and argument that is not on the list."""
    for node in tree.walk():
        known = _NODES.get(type(node))
        if known is None:
            raise _refused(node, f"{type(node).__name__.upper()} is not supported: see docs/FILTERS.md")
        for name, argument in node.args.items():
            if argument and name not in known:
                raise _refused(node, f"{type(node).__name__.upper()} with {name} is not supported")


def _condition(node: Any, negated: bool) -> Condition:
    match node:
        case exp.Paren():
            return _condition(node.this, negated)
        case exp.Not():
            return _condition(node.this, not negated)
        case exp.And() | exp.Or():
            joined: Callable[[list[Condition]], Condition]
            joined = all_of if isinstance(node, exp.And) is not negated else any_of
            return joined([_condition(part, negated) for part in _chain(node)])
        case exp.Boolean():
            return ALWAYS if bool(node.this) is not negated else NEVER
        case exp.Null():
            return NEVER
        case exp.EQ() | exp.NEQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE():
            column, operator, literal = _compared(node, _OPERATORS[type(node)])
            return compare(column, operator, literal, negated=negated)
        case exp.NullSafeEQ():
            column, _, literal = _compared(node, "=")
            return null_safe_equal(column, literal, negated=negated)
        case exp.In():
            return _one_of(node, negated)
        case exp.Between():
            return _between(node, negated)
        case exp.Like() | exp.Escape():
            return _like(node, negated)
        case exp.Is():
            return _is(node, negated)
        case exp.Anonymous():
            return _words(node, negated)
        case exp.Column() | exp.Dot():
            return compare(_column(node), "=", Literal(Kind.BOOLEAN, True), negated=negated)
        case _:
            raise _refused(node, "this is not a condition: compare a column with a constant")


def _compared(node: Any, operator: Operator) -> tuple[ColumnRef, Operator, Literal | None]:
    left, right = node.this, node.expression
    if _is_column(left):
        if _is_column(right):
            raise _refused(right, "two columns cannot be compared: compare a column with a constant")
        return _column(left), operator, _literal(right)
    if _is_column(right):
        return _column(right), MIRRORED[operator], _literal(left)
    raise _refused(node, "no column is compared here: compare a column with a constant")


def _one_of(node: exp.In, negated: bool) -> Condition:
    listed = node.args.get("expressions") or []
    if not listed:
        raise _refused(node, "IN needs a list of constants, such as country IN ('PL', 'DE')")
    literals = [_literal(each) for each in listed]
    known = [literal for literal in literals if literal is not None]
    column = _column(node.this)
    if negated and len(known) < len(literals):
        return NEVER  # NOT IN (..., NULL) is UNKNOWN or FALSE
    return one_of(column, known, negated=negated) if known else NEVER


def _between(node: exp.Between, negated: bool) -> Condition:
    column = _column(node.this)
    ends: tuple[tuple[Operator, Any], ...] = ((">=", node.args["low"]), ("<=", node.args["high"]))
    parts = [compare(column, operator, _literal(end), negated=negated) for operator, end in ends]
    return any_of(parts) if negated else all_of(parts)


def _like(node: exp.Like | exp.Escape, negated: bool) -> Condition:
    escape = "\\"
    if isinstance(node, exp.Escape):
        escape = _string(node.expression)
        if not isinstance(node.this, exp.Like):
            raise _refused(node, "ESCAPE belongs after LIKE 'pattern'")
        node = node.this
    column = _column(node.this)
    if isinstance(node.expression, exp.Null):
        return NEVER
    pattern = like_pattern(_string(node.expression), escape, _place(node.expression))
    return Like(column, pattern, negated is not bool(node.args.get("negate")))


def _is(node: exp.Is, negated: bool) -> Condition:
    if isinstance(node.expression, exp.Null):
        return IsNull(_column(node.this), negated)
    if isinstance(node.expression, exp.Boolean):
        return null_safe_equal(_column(node.this), _literal(node.expression), negated=negated)
    raise _refused(node.expression, "IS must be followed by NULL, NOT NULL, TRUE or FALSE")


def _words(node: exp.Anonymous, negated: bool) -> Condition:
    name = str(node.this).casefold()
    if name not in ("words", "any_words"):
        problem = f"the function {str(node.this)[:40]!r} is unknown: there are words, any_words and lower"
        raise _refused(node, problem)
    if len(node.expressions) != 2:
        raise _refused(node, f"{name} takes a column and a text, as in {name}(title, 'load network')")
    column = _column(node.expressions[0])
    words = words_of(_string(node.expressions[1]))
    if column.is_lowered:
        raise _refused(node, f"{name} ignores case: write the column without lower()")
    if not words:
        raise _refused(node.expressions[1], f"{name} needs at least one word")
    return Words(column, tuple(sorted(set(words))), name == "any_words" and len(set(words)) > 1, negated)


def _column(node: Any) -> ColumnRef:
    if isinstance(node, exp.Paren):
        return _column(node.this)
    if isinstance(node, exp.Lower):
        inner = _column(node.this)
        return ColumnRef(inner.path, is_lowered=True)
    names: list[str] = []
    while isinstance(node, exp.Dot):
        if not isinstance(node.expression, exp.Identifier):
            raise _refused(node.expression, "a column is a name, or names joined by dots")
        names.insert(0, str(node.expression.this))
        node = node.this
    if not isinstance(node, exp.Column) or not all(isinstance(part, exp.Identifier) for part in node.parts):
        raise _refused(node, "a column is expected here: a name, names joined by dots, or lower(name)")
    path = (*(str(part.this) for part in node.parts), *names)
    if len(path) > PATH_MAX or not all(path):
        raise _refused(node, f"a column has 1 to {PATH_MAX} names, none of them empty")
    return ColumnRef(path)


def _literal(node: Any) -> Literal | None:
    """The constant, None for NULL."""
    match node:
        case exp.Paren():
            return _literal(node.this)
        case exp.Null():
            return None
        case exp.Boolean():
            return Literal(Kind.BOOLEAN, bool(node.this))
        case exp.Literal() if not node.is_string:
            return literals.number(str(node.this), _place(node))
        case exp.Literal():
            return literals.text(_string(node))
        case exp.Neg():
            return _negative(node)
        case exp.HexString():
            return Literal(Kind.BYTES, _bytes(node))
        case exp.Cast() | exp.TryCast():
            return _typed(node)
        case _:
            raise _refused(node, "a constant is expected here: a number, a text, a time, TRUE, FALSE or NULL")


def _negative(node: exp.Neg) -> Literal:
    inner = _literal(node.this)
    if inner is None or inner.kind is not Kind.EXACT or not isinstance(node.this, exp.Literal | exp.TryCast):
        raise _refused(node, "only a number can be negative")
    return literals.number(f"-{literal_text(inner)}", _place(node))


def _bytes(node: exp.HexString) -> bytes:
    digits = str(node.this)
    try:
        return bytes.fromhex(digits.zfill(len(digits) + len(digits) % 2))
    except ValueError:
        raise _refused(node, f"X'{digits[:40]}' has something other than hexadecimal digits") from None


def _typed(node: exp.Cast) -> Literal:
    kind = node.to.this.name
    if kind in _SUFFIXES and isinstance(node.this, exp.Literal):
        written, place = str(node.this.this), _place(node.this)
        named = literals.special(written) if kind in ("DOUBLE", "FLOAT") else None
        return named or (literals.single if kind == "FLOAT" else literals.number)(written, place)
    if kind in _TIMES or kind == "TIME":
        written = _string(node.this)
        found = clock_of(written) if kind == "TIME" else moment_of(written)
        if found is None:
            form = "TIME '12:30:00'" if kind == "TIME" else "DATE '2026-01-31' or TIMESTAMP '2026-01-31 12:30:00'"
            raise _refused(node.this, f"{written[:40]!r} is not a time: write {form}")
        if kind == "DATE" and found % DAY_US:  # Spark cuts the clock off
            raise _refused(node.this, f"the date {written[:40]!r} has a clock: write TIMESTAMP, or remove the clock")
        return Literal(Kind.CLOCK if kind == "TIME" else Kind.MOMENT, found)
    raise _refused(node, "casts are not supported: compare a column with a constant of its type")


def _string(node: Any) -> str:
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Literal) and node.is_string:
        return str(node.this)
    raise _refused(node, "a text in quotes is expected here")


def _place(node: Any) -> int:
    """Return the place at which the node begins: sqlglot knows it for names and constants, the leftmost of which is the
    place."""
    found = [each.meta["start"] for each in node.walk() if "start" in each.meta]
    return min(found, default=0)


def _refused(node: Any, problem: str) -> FilterError:
    return FilterError(problem, _place(node))


def _chain(node: Any) -> list[Any]:
    """The parts of a chain of one operator, from left to right: sqlglot nests them to the left, as deep as they are."""
    kind = type(node)
    parts: list[Any] = []
    while isinstance(node, kind):
        parts.append(node.expression)
        node = node.this
    return [node, *reversed(parts)]


def _is_column(node: Any) -> bool:
    while isinstance(node, exp.Paren):
        node = node.this
    return isinstance(node, exp.Column | exp.Dot | exp.Lower)
