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

The text is sqlglot's to tokenise and parse, under guard: before it parses, the tokens are checked against a list of
kinds, and nesting and numbers of tokens against limits, since its parser recurses; every error that it raises becomes
a `FilterError`. What it returns is translated by a list of node types; nothing of sqlglot leaves this module.

Filters are code from strangers, and parsing takes up to 25 ms: never on a node's loop.
"""

from collections.abc import Callable
from typing import Any

from sqlglot import ErrorLevel, exp
from sqlglot.dialects.spark import Spark
from sqlglot.tokens import Token, TokenType

from m4cast.overlay.profiles import literals
from m4cast.overlay.profiles.condition import (
    ALWAYS,
    DEPTH_MAX,
    MIRRORED,
    NEVER,
    TERMS_MAX,
    TEXT_BYTES_MAX,
    Column,
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
    compare,
    null_safe_equal,
    one_of,
)
from m4cast.overlay.profiles.moments import clock_of, moment_of
from m4cast.overlay.profiles.patterns import like_pattern, words_of

NAME = "sql"
VERSION = 1
PATH_MAX = 32
"""Names in a nested column: as many as payloads may nest."""

_ALLOWED = frozenset(
    getattr(TokenType, name)
    for name in (
        *("VAR", "IDENTIFIER", "DOT", "COMMA", "L_PAREN", "R_PAREN", "DASH", "PLUS"),
        *("NUMBER", "STRING", "HEX_STRING", "TRUE", "FALSE", "NULL"),
        *("EQ", "NEQ", "LT", "LTE", "GT", "GTE", "NULLSAFE_EQ"),
        *("AND", "OR", "NOT", "IN", "BETWEEN", "LIKE", "ESCAPE", "IS"),
        *("DATE", "TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMPLTZ", "TIMESTAMPNTZ", "TIME", "DOUBLE"),
        *("DCOLON", "BIGINT", "SMALLINT", "TINYINT", "FLOAT", "DECIMAL"),  # 5L is 5::BIGINT to sqlglot
    )
)
_INSTEAD = {
    "SEMICOLON": "write one condition",
    "RLIKE": "regular expressions are not supported: use LIKE or words()",
    "ILIKE": "write lower(column) LIKE 'pattern in lower case'",
    "SELECT": "write the condition only, as after WHERE",
    "WHERE": "write the condition only, without WHERE",
    "STAR": "arithmetic is not supported: compare a column with a constant",
    "SLASH": "arithmetic is not supported: compare a column with a constant",
    "L_BRACKET": "elements of lists and maps cannot be tested: publish them as columns",
    "CASE": "CASE is not supported: use AND and OR",
    "DPIPE": "texts cannot be joined: compare a column with a constant",
}
_OPERATORS: dict[type[exp.Expression], Operator] = {
    exp.EQ: "=",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_NODES: dict[type[exp.Expression], frozenset[str]] = {
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
    exp.Concat: frozenset({"expressions"}),
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
_TOKENS_PER_TERM = 16


def parse(text: str) -> Condition:
    """The condition that the text means; `FilterError` with the place if it means none."""
    size = len(text.encode(errors="surrogatepass"))
    if size > TEXT_BYTES_MAX:
        raise FilterError(f"the filter has {size} bytes, at most {TEXT_BYTES_MAX}: make it shorter", TEXT_BYTES_MAX)
    _check_characters(text)
    tokens = _tokens(text)
    if not tokens:
        raise FilterError("the filter is empty: write a condition such as country = 'PL'", 0)
    _check_tokens(text, tokens)
    translation = _Translation(text)
    tree = _tree(text, tokens)
    translation.check_nodes(tree)
    condition = translation.condition(tree, False)
    check_limits(condition)
    return condition


# ---- under guard


def _check_characters(text: str) -> None:
    for at, character in enumerate(text):
        if character == "\0" or "\ud800" <= character <= "\udfff":
            raise FilterError(f"the character {character!r} cannot be in a filter: remove it", at)


def _tokens(text: str) -> list[Token]:
    try:
        return Spark().tokenize(text)
    except Exception as error:  # whatever sqlglot raises about a stranger's text is a refusal
        place = _unclosed(text)
        raise FilterError(f"a quote, a comment or a character cannot be read ({_first_line(error)})", place) from None


def _unclosed(text: str) -> int:
    """Where the quote opens that is not closed; the end if there is none."""
    opened: int | None = None
    skip = False
    for at, character in enumerate(text):
        if skip:
            skip = False
        elif character == "\\" and opened is not None:
            skip = True
        elif opened is None and character in "'\"`":
            opened = at
        elif opened is not None and character == text[opened]:
            opened = None
    return len(text) if opened is None else opened


def _check_tokens(text: str, tokens: list[Token]) -> None:
    """Refuse by token what the grammar lacks, and what would make the parser recurse."""
    opened: list[int] = []
    run = terms = 0
    for at, token in enumerate(tokens):
        kind = token.token_type
        if kind not in _ALLOWED:
            instead = _INSTEAD.get(kind.name, "it is not part of the language; see docs/FILTERS.md, or put a name in ``")
            raise FilterError(f"{text[token.start : token.end + 1][:40]!r} is not allowed here: {instead}", token.start)
        if kind is TokenType.DCOLON and token.end - token.start < 1 + (text[token.start : token.end + 1] == "::"):
            raise FilterError("casts are not supported: compare a column with a constant of its type", token.start)
        run = run + 1 if kind in (TokenType.NOT, TokenType.DASH, TokenType.PLUS) else 0
        if kind is TokenType.L_PAREN:
            opened.append(token.start)
        elif kind is TokenType.R_PAREN:
            if not opened:
                raise FilterError("this parenthesis closes nothing: remove it", token.start)
            opened.pop()
        if len(opened) + run > DEPTH_MAX:
            raise FilterError(f"parentheses and NOT are nested deeper than {DEPTH_MAX}: flatten it", token.start)
        terms += kind in (TokenType.AND, TokenType.OR)
        if terms > 2 * TERMS_MAX or at > TEXT_BYTES_MAX:
            raise FilterError(f"the filter has more than {TERMS_MAX} terms: use IN, or split it", token.start)
    if opened:
        raise FilterError("this parenthesis is not closed: add )", opened[-1])


def _tree(text: str, tokens: list[Token]) -> exp.Expression:
    try:
        parser = Spark().parser(error_level=ErrorLevel.IMMEDIATE)
        trees = parser.parse_into(exp.Condition, tokens, text)
    except Exception as error:  # sqlglot's own errors, and whatever else a stranger's text brings it to
        raise FilterError(f"this is not a condition ({_first_line(error)})", _place_of(error, tokens)) from None
    if len(trees) != 1 or trees[0] is None:
        raise FilterError("write one condition", 0)
    return trees[0]


def _first_line(error: Exception) -> str:
    line = str(error).partition("\n")[0].partition(". Line")[0]
    return line[:120] or type(error).__name__


def _place_of(error: Exception, tokens: list[Token]) -> int:
    """Where sqlglot met the error: it gives the line, and the column of the end of the token."""
    for detail in getattr(error, "errors", ()):
        line, column = detail.get("line"), detail.get("col")
        for token in tokens:
            if (token.line, token.col) == (line, column):
                return token.start
    return tokens[-1].start


# ---- translation


class _Translation:
    """Turns sqlglot's tree into a condition, node type by node type. The text is for quotes and for messages."""

    def __init__(self, text: str) -> None:
        self._text = text

    def check_nodes(self, tree: exp.Expression) -> None:
        """Refuse every node and argument that is not on the list."""
        for node in tree.walk():
            known = _NODES.get(type(node))
            if known is None:
                raise self._refused(node, f"{type(node).__name__.upper()} is not supported: see docs/FILTERS.md")
            for name, argument in node.args.items():
                if argument and name not in known:
                    raise self._refused(node, f"{type(node).__name__.upper()} with {name} is not supported")

    def condition(self, node: Any, negated: bool) -> Condition:
        match node:
            case exp.Paren():
                return self.condition(node.this, negated)
            case exp.Not():
                return self.condition(node.this, not negated)
            case exp.And() | exp.Or():
                joined: Callable[[list[Condition]], Condition]
                joined = all_of if isinstance(node, exp.And) is not negated else any_of
                return joined([self.condition(part, negated) for part in _chain(node)])
            case exp.Boolean():
                return ALWAYS if bool(node.this) is not negated else NEVER
            case exp.Null():
                return NEVER
            case exp.EQ() | exp.NEQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE():
                column, operator, literal = self._compared(node, _OPERATORS[type(node)])
                return compare(column, operator, literal, negated=negated)
            case exp.NullSafeEQ():
                column, _, literal = self._compared(node, "=")
                return null_safe_equal(column, literal, negated=negated)
            case exp.In():
                return self._one_of(node, negated)
            case exp.Between():
                return self._between(node, negated)
            case exp.Like() | exp.Escape():
                return self._like(node, negated)
            case exp.Is():
                return self._is(node, negated)
            case exp.Anonymous():
                return self._words(node, negated)
            case exp.Column() | exp.Dot():
                return compare(self._column(node), "=", Literal(Kind.BOOLEAN, True), negated=negated)
            case _:
                raise self._refused(node, "this is not a condition: compare a column with a constant")

    def _compared(self, node: Any, operator: Operator) -> tuple[Column, Operator, Literal | None]:
        left, right = node.this, node.expression
        if _is_column(left):
            if _is_column(right):
                raise self._refused(right, "two columns cannot be compared: compare a column with a constant")
            return self._column(left), operator, self._literal(right)
        if _is_column(right):
            return self._column(right), MIRRORED[operator], self._literal(left)
        raise self._refused(node, "no column is compared here: compare a column with a constant")

    def _one_of(self, node: exp.In, negated: bool) -> Condition:
        listed = node.args.get("expressions") or []
        if not listed:
            raise self._refused(node, "IN needs a list of constants, such as country IN ('PL', 'DE')")
        literals = [self._literal(each) for each in listed]
        known = [literal for literal in literals if literal is not None]
        column = self._column(node.this)
        if negated and len(known) < len(literals):
            return NEVER  # NOT IN (..., NULL) is UNKNOWN or FALSE
        return one_of(column, known, negated=negated) if known else NEVER

    def _between(self, node: exp.Between, negated: bool) -> Condition:
        column = self._column(node.this)
        ends: tuple[tuple[Operator, Any], ...] = ((">=", node.args["low"]), ("<=", node.args["high"]))
        parts = [compare(column, operator, self._literal(end), negated=negated) for operator, end in ends]
        return any_of(parts) if negated else all_of(parts)

    def _like(self, node: exp.Like | exp.Escape, negated: bool) -> Condition:
        escape = "\\"
        if isinstance(node, exp.Escape):
            escape = self._string(node.expression)
            if not isinstance(node.this, exp.Like):
                raise self._refused(node, "ESCAPE belongs after LIKE 'pattern'")
            node = node.this
        column = self._column(node.this)
        if isinstance(node.expression, exp.Null):
            return NEVER
        pattern = like_pattern(self._string(node.expression), escape, self._place(node.expression))
        return Like(column, pattern, negated is not bool(node.args.get("negate")))

    def _is(self, node: exp.Is, negated: bool) -> Condition:
        if isinstance(node.expression, exp.Null):
            return IsNull(self._column(node.this), negated)
        if isinstance(node.expression, exp.Boolean):
            return null_safe_equal(self._column(node.this), self._literal(node.expression), negated=negated)
        raise self._refused(node.expression, "IS must be followed by NULL, NOT NULL, TRUE or FALSE")

    def _words(self, node: exp.Anonymous, negated: bool) -> Condition:
        name = str(node.this).casefold()
        if name not in ("words", "any_words"):
            problem = f"the function {str(node.this)[:40]!r} is unknown: there are words, any_words and lower"
            raise self._refused(node, problem)
        if len(node.expressions) != 2:
            raise self._refused(node, f"{name} takes a column and a text, as in {name}(title, 'load network')")
        column = self._column(node.expressions[0])
        words = words_of(self._string(node.expressions[1]))
        if column.is_lowered:
            raise self._refused(node, f"{name} ignores case: write the column without lower()")
        if not words:
            raise self._refused(node.expressions[1], f"{name} needs at least one word")
        return Words(column, tuple(sorted(set(words))), name == "any_words" and len(set(words)) > 1, negated)

    def _column(self, node: Any) -> Column:
        if isinstance(node, exp.Paren):
            return self._column(node.this)
        if isinstance(node, exp.Lower):
            inner = self._column(node.this)
            return Column(inner.path, is_lowered=True)
        names: list[str] = []
        while isinstance(node, exp.Dot):
            if not isinstance(node.expression, exp.Identifier):
                raise self._refused(node.expression, "a column is a name, or names joined by dots")
            names.insert(0, str(node.expression.this))
            node = node.this
        if not isinstance(node, exp.Column) or not all(isinstance(part, exp.Identifier) for part in node.parts):
            raise self._refused(node, "a column is expected here: a name, names joined by dots, or lower(name)")
        path = (*(str(part.this) for part in node.parts), *names)
        if len(path) > PATH_MAX or not all(path):
            raise self._refused(node, f"a column has 1 to {PATH_MAX} names, none of them empty")
        return Column(path)

    def _literal(self, node: Any) -> Literal | None:
        """The constant, None for NULL."""
        match node:
            case exp.Paren():
                return self._literal(node.this)
            case exp.Null():
                return None
            case exp.Boolean():
                return Literal(Kind.BOOLEAN, bool(node.this))
            case exp.Literal() if not node.is_string:
                return literals.number(str(node.this), self._place(node))
            case exp.Literal() | exp.Concat():
                return literals.text(self._string(node))
            case exp.Neg():
                return self._negative(node)
            case exp.HexString():
                return Literal(Kind.BYTES, self._bytes(node))
            case exp.Cast() | exp.TryCast():
                return self._typed(node)
            case _:
                raise self._refused(node, "a constant is expected here: a number, a text, a time, TRUE, FALSE or NULL")

    def _negative(self, node: exp.Neg) -> Literal:
        inner = self._literal(node.this)
        if inner is None or inner.kind is not Kind.EXACT or not isinstance(node.this, exp.Literal | exp.TryCast):
            raise self._refused(node, "only a number can be negative")
        return literals.number(f"-{inner.value}".removeprefix("--"), self._place(node))

    def _bytes(self, node: exp.HexString) -> bytes:
        digits = str(node.this)
        try:
            return bytes.fromhex(digits.zfill(len(digits) + len(digits) % 2))
        except ValueError:
            raise self._refused(node, f"X'{digits[:40]}' has something other than hexadecimal digits") from None

    def _typed(self, node: exp.Cast) -> Literal:
        kind = node.to.this.name
        if kind in _SUFFIXES and isinstance(node.this, exp.Literal):
            named = literals.special(str(node.this.this)) if kind in ("DOUBLE", "FLOAT") else None
            return named or literals.number(str(node.this.this), self._place(node.this))
        if kind in _TIMES or kind == "TIME":
            written = self._string(node.this)
            found = clock_of(written) if kind == "TIME" else moment_of(written)
            if found is None:
                form = "TIME '12:30:00'" if kind == "TIME" else "DATE '2026-01-31' or TIMESTAMP '2026-01-31 12:30:00'"
                raise self._refused(node.this, f"{written[:40]!r} is not a time: write {form}")
            return Literal(Kind.CLOCK if kind == "TIME" else Kind.MOMENT, found)
        raise self._refused(node, "casts are not supported: compare a column with a constant of its type")

    def _string(self, node: Any) -> str:
        """A string constant. Two quotes inside one are a quote, as in Spark 4; sqlglot sees two strings there."""
        if isinstance(node, exp.Literal) and node.is_string:
            return str(node.this)
        if isinstance(node, exp.Concat):
            pieces = node.expressions
            for left, right in zip(pieces, pieces[1:], strict=False):
                is_doubled = left.meta.get("end", -9) + 1 == right.meta.get("start", -1)
                if not is_doubled or not isinstance(left, exp.Literal) or not isinstance(right, exp.Literal):
                    raise self._refused(right, "two texts in a row: write one")
            quote = self._text[pieces[0].meta["start"]]
            return quote.join(str(piece.this) for piece in pieces)
        raise self._refused(node, "a text in quotes is expected here")

    def _place(self, node: Any) -> int:
        """Where the node begins: sqlglot knows it for names and constants, the leftmost of which is the place."""
        found = [each.meta["start"] for each in node.walk() if "start" in each.meta]
        return min(found, default=0)

    def _refused(self, node: Any, problem: str) -> FilterError:
        return FilterError(problem, self._place(node))


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
