"""The guard in front of sqlglot's parser: tokens are checked before it sees them, and its errors become refusals.

sqlglot's parser recurses and understands far more than the language `sql` has. So tokens are held against a list of
kinds, and their number and nesting against limits; after that the tree is at most as deep as the limit allows.
"""

from typing import Any

from sqlglot import ErrorLevel, exp
from sqlglot.dialects.spark import Spark

from m4cast.overlay.profiles.condition import DEPTH_MAX, TERMS_MAX, FilterError

Token = Any  # sqlglot exports its tokens in one version and not in the next
_ALLOWED = frozenset(
    (
        *("VAR", "IDENTIFIER", "DOT", "COMMA", "L_PAREN", "R_PAREN", "DASH"),
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
    "L_BRACKET": "elements of lists and maps cannot be tested: publish them as columns",
    "CASE": "CASE is not supported: use AND and OR",
    "DPIPE": "texts cannot be joined: compare a column with a constant",
    **dict.fromkeys(
        ("STAR", "SLASH", "PLUS", "MOD", "DIV"), "arithmetic is not supported: compare a column with a constant"
    ),
}
_OTHERWISE = "it is not part of the language (docs/FILTERS.md); if it is a column, put its name in backticks"


def tree_of(text: str) -> exp.Expr:
    """sqlglot's tree of a filter that has passed the guard."""
    tokens = _tokens(text)
    if not tokens:
        raise FilterError("the filter is empty: write a condition such as country = 'PL'", 0)
    _check(text, tokens)
    try:
        parser = Spark().parser(error_level=ErrorLevel.IMMEDIATE)
        trees = parser.parse_into(exp.Condition, tokens, text)
    except Exception as error:  # sqlglot's own errors, and whatever else a stranger's text brings it to
        place = _place_of(error, tokens)
        problem = f"no condition can be read here, near {text[place : place + 20]!r}: write column operator constant"
        raise FilterError(problem, place) from None
    if len(trees) != 1 or trees[0] is None:
        raise FilterError("the filter holds several conditions: join them with AND or OR", 0)
    return trees[0]


def _tokens(text: str) -> list[Token]:
    try:
        tokens: list[Token] = list(Spark().tokenize(text))
    except Exception:  # whatever sqlglot raises about a stranger's text is a refusal
        place = _unclosed(text)
        problem = (
            f"a quote, a comment or a number cannot be read, near {text[place : place + 20]!r}: close or remove it"
        )
        raise FilterError(problem, place) from None
    return _with_doubled_quotes(text, tokens)


def _with_doubled_quotes(text: str, tokens: list[Token]) -> list[Token]:
    """Two quotes inside a string are one quote, as in Spark 4; sqlglot makes two strings of it."""
    found: list[Token] = []
    for token in tokens:
        last = found[-1] if found else None
        if _kind(token) == "STRING" and last is not None and _kind(last) == "STRING":
            if last.end + 1 != token.start or text[last.end] != text[token.start]:
                raise FilterError("two texts in a row: write one", token.start)
            joined = type(last)(
                last.token_type,
                last.text + text[last.end] + token.text,
                line=token.line,
                col=token.col,
                start=last.start,
                end=token.end,
            )
            found[-1] = joined
        else:
            found.append(token)
    return found


def _unclosed(text: str) -> int:
    """Return the place of the quote that is not closed; the last character if there is none."""
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
    return max(len(text) - 1, 0) if opened is None else opened


def _check(text: str, tokens: list[Token]) -> None:
    """Refuse by token what the grammar lacks, and what would make the parser recurse."""
    opened: list[int] = []
    run = terms = 0
    for token in tokens:
        kind = _kind(token)
        written = text[token.start : token.end + 1]
        if kind not in _ALLOWED:
            problem = f"{written[:40]!r} is not allowed here: {_INSTEAD.get(kind, _OTHERWISE)}"
            raise FilterError(problem, token.start)
        if kind == "DCOLON" and written == "::":  # of 5L, sqlglot gives it the place of the number
            raise FilterError("casts are not supported: compare a column with a constant of its type", token.start)
        run = run + 1 if kind in ("NOT", "DASH") else 0
        if kind == "L_PAREN":
            opened.append(token.start)
        elif kind == "R_PAREN":
            if not opened:
                raise FilterError("this parenthesis closes nothing: remove it", token.start)
            opened.pop()
        if len(opened) + run > DEPTH_MAX:
            raise FilterError(f"parentheses and NOT are nested deeper than {DEPTH_MAX}: flatten it", token.start)
        terms += kind in ("AND", "OR")
        if terms >= 2 * TERMS_MAX:  # a BETWEEN has an AND of its own
            raise FilterError(f"the filter has more than {TERMS_MAX} terms: use IN, or split it", token.start)
    if opened:
        raise FilterError("this parenthesis is not closed: add )", opened[-1])


def _place_of(error: Exception, tokens: list[Token]) -> int:
    """Return the place at which sqlglot met the error: it gives the line, and the column of the end of the token."""
    for detail in getattr(error, "errors", ()):
        for token in tokens:
            if (token.line, token.col) == (detail.get("line"), detail.get("col")):
                return int(token.start)
    return int(tokens[-1].start)


def _kind(token: Token) -> str:
    return str(token.token_type.name)
