"""The language `sql`: what it means, what it refuses and where, and its limits."""

from types import SimpleNamespace

import pytest
from sqlglot import exp
from sqlglot.dialects.spark import Spark

from m4cast.overlay.profiles.condition import DEPTH_MAX, PATH_MAX, TERMS_MAX, TEXT_BYTES_MAX, FilterError, text_of
from m4cast.overlay.profiles.languages import sql_tokens
from m4cast.overlay.profiles.languages.sql import _check_nodes, parse
from m4cast.overlay.profiles.patterns import GENERAL_MAX


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("a=1", "`a` = 1"),
        ("b = 2 AND a = 1 and a = 1.0", "`a` = 1 AND `b` = 2"),
        ("1 < a", "`a` > 1"),
        ("a == 1 OR a <> 2", "`a` != 2 OR `a` = 1"),
        ("a = 1 OR a = 2 OR a IN (3, 2)", "`a` IN (1, 2, 3)"),
        ("NOT (a = 1 OR NOT b < 2)", "`a` != 1 AND `b` < 2"),
        ("NOT (a = 1 AND b IS NULL)", "`a` != 1 OR `b` IS NOT NULL"),
        ("a BETWEEN 1 AND 2", "`a` <= 2 AND `a` >= 1"),
        ("a NOT BETWEEN 1 AND 2", "`a` < 1 OR `a` > 2"),
        ("a NOT IN (1)", "`a` != 1"),
        ("a IN (1, NULL)", "`a` = 1"),
        ("a NOT IN (1, NULL)", "FALSE"),
        ("a = NULL", "FALSE"),
        ("NOT a = NULL", "FALSE"),
        ("a <=> NULL", "`a` IS NULL"),
        ("NOT a <=> 1", "`a` != 1 OR `a` IS NULL"),
        ("flag AND NOT other", "`flag` = TRUE AND `other` = FALSE"),
        ("flag IS TRUE", "`flag` = TRUE"),
        ("flag IS NOT TRUE", "`flag` = FALSE OR `flag` IS NULL"),
        ("a.b.c.d.e.f = 1", "`a`.`b`.`c`.`d`.`e`.`f` = 1"),
        ("`a b`.`c.d` = 1", "`a b`.`c.d` = 1"),
        ("`a``b` = 1", "`a``b` = 1"),
        ("date = 1 AND time = 2 AND timestamp = 3", "`date` = 1 AND `time` = 2 AND `timestamp` = 3"),
        ("s LIKE 'a%%b' ", "`s` LIKE 'a%b'"),
        ("s NOT LIKE 'a#%' ESCAPE '#'", "`s` NOT LIKE 'a\\\\%'"),
        ("NOT s NOT LIKE 'a%'", "`s` LIKE 'a%'"),
        ("lower(s) = 'x'", "lower(`s`) = 'x'"),
        ("words(t, 'Load, NETWORK load')", "words(`t`, 'load network')"),
        ("NOT any_words(t, 'b a')", "NOT any_words(`t`, 'a b')"),
        ("any_words(t, 'a')", "words(`t`, 'a')"),
        ("s = 'it''s' OR s = \"it's\" OR s = 'it\\'s'", "`s` = 'it\\'s'"),
        ("s = 'a\\\\b'", "`s` = 'a\\\\b'"),
        ("a = -1.50", "`a` = -1.5"),
        ("a = 1e3 OR a = 10L OR a = 2.5BD OR a = 1.5D", "`a` IN (1.5, 10, 1000, 2.5)"),
        ("a = 0.1F OR a = float('0.1') OR a = 16777217F", "`a` IN (0.10000000149011612, 16777216)"),
        ("a = 1E-320", "`a` = 1E-320"),
        ("a = double('NaN') OR a = double('-inf')", "`a` IN (double('-inf'), double('NaN'))"),
        ("k = X'0aF'", "`k` = X'00AF'"),
        ("t = DATE '2026-01-31'", "`t` = TIMESTAMP '2026-01-31 00:00:00Z'"),
        ("t = TIMESTAMP '2026-01-31T12:30:00.5+02:00'", "`t` = TIMESTAMP '2026-01-31 10:30:00.5Z'"),
        ("t = TIME '12:30'", "`t` = TIME '12:30:00'"),
        ("TRUE", "TRUE"),
        ("TRUE AND a = 1", "`a` = 1"),
        ("FALSE OR NULL", "FALSE"),
        ("a = 1 -- why\n AND /* not */ b = 2", "`a` = 1 AND `b` = 2"),
    ],
)
def test_what_a_filter_means(written: str, canonical: str) -> None:
    condition = parse(written)
    assert text_of(condition) == canonical
    assert parse(canonical) == condition


@pytest.mark.parametrize(
    ("written", "place", "problem"),
    [
        ("", 0, "the filter is empty"),
        ("  -- only a comment", 0, "the filter is empty"),
        ("a = ", 2, "no condition can be read here"),
        ("a = 1 AND", 6, "no condition can be read here"),
        ("a = 1 b = 2", 6, "no condition can be read here"),
        ("a = 'x", 4, "a quote"),
        ("a = 1 /* x", 9, "a comment"),
        ("(a = 1", 0, "is not closed"),
        ("a = 1)", 5, "closes nothing"),
        ("a = 1; b = 2", 5, "write one condition"),
        ("a RLIKE 'x'", 2, "regular expressions"),
        ("a ILIKE 'x'", 2, "lower"),
        ("SELECT 1", 0, "as after WHERE"),
        ("a IN (SELECT 1)", 6, "as after WHERE"),
        ("a + 1 = 2", 2, "arithmetic"),
        ("a[0] = 2", 1, "elements of lists"),
        ("CASE WHEN a THEN b END", 0, "use AND and OR"),
        ("a = b", 4, "two columns"),
        ("1 = 1", 0, "no column is compared"),
        ("a = -b", 5, "a constant is expected"),
        ("a = (1, 2)", 5, "TUPLE is not supported"),
        ("f(a) = 1", 0, "no column is compared"),
        ("a = -'x'", 5, "only a number"),
        ("f(a)", 0, "the function 'f' is unknown"),
        ("upper(a) = 'X'", 0, "UPPER is not supported"),
        ("words(a)", 0, "takes a column and a text"),
        ("words('a', 'b')", 6, "a column is expected"),
        ("words(a, '-,-')", 9, "at least one word"),
        ("words(lower(a), 'b')", 0, "without lower()"),
        ("a IN ()", 0, "IN needs a list"),
        ("a IS 5", 5, "IS must be followed"),
        ("a LIKE b", 7, "a text in quotes"),
        ("a LIKE 'x#' ESCAPE '#'", 7, "must be doubled"),
        ("a LIKE 'x' ESCAPE '%'", 7, "must be one character"),
        ("a LIKE ANY ('x', 'y')", 7, "not allowed here"),
        ("a = 'x' 'y'", 8, "two texts in a row"),
        ("a::int = 1", 1, "casts"),
        ("a = DATE 'today'", 9, "is not a time"),
        ("a = DATE '2026-01-31 12:30'", 9, "has a clock: write TIMESTAMP"),
        ("a = TIMESTAMP '2026-02-30'", 14, "is not a time"),
        ("a = X'0g'", 8, "cannot be read"),
        ("a = 1e39F", 4, "beyond the floats of 32 bits"),
        ("a = 1e500", 4, "a power of ten beyond"),
        ("a = " + "7" * 80, 4, "more than 76 digits"),
        ("a = 'x\0'", 6, "cannot be in a filter"),
        ("a = '\ud800'", 5, "cannot be in a filter"),
        ("5", 0, "this is not a condition"),
        ("`` = 1", 0, ""),
    ],
)
def test_a_refusal_names_the_place_and_the_problem(written: str, place: int, problem: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse(written)
    assert problem in caught.value.problem
    assert caught.value.position == place, str(caught.value)
    assert str(caught.value).startswith(f"at character {place + 1}: ")


def test_what_sqlglot_may_understand_some_day_is_refused() -> None:
    column, one = exp.column("a"), exp.Literal.number(1)
    with pytest.raises(FilterError, match="BETWEEN with symmetric is not supported"):
        _check_nodes(exp.Between(this=column, low=one, high=one, symmetric=True))
    with pytest.raises(FilterError, match="SOUNDEX is not supported"):
        _check_nodes(exp.EQ(this=exp.Soundex(this=column), expression=one))


@pytest.mark.parametrize("error", [RecursionError, ZeroDivisionError, AttributeError])
@pytest.mark.parametrize("step", ["tokenize", "parser"])
def test_whatever_sqlglot_raises_is_a_refusal_with_a_place(
    monkeypatch: pytest.MonkeyPatch, step: str, error: type[Exception]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error("of sqlglot's own")

    dialect = SimpleNamespace(tokenize=Spark().tokenize, parser=Spark().parser)
    setattr(dialect, step, fail)
    monkeypatch.setattr(sql_tokens, "Spark", lambda: dialect)
    with pytest.raises(FilterError, match="at character 5: "):
        parse("a = 1")


def test_the_limit_of_bytes() -> None:
    within = f"s = '{'é' * 2_045}'"
    assert len(within.encode()) == TEXT_BYTES_MAX and text_of(parse(within)) == f"`s` = '{'é' * 2_045}'"
    with pytest.raises(FilterError, match="has 4097 bytes, at most 4096"):
        parse(within + " ")
    many = f"a IN ({','.join(map(str, range(1_000)))})"
    assert len(text_of(parse(many))) > TEXT_BYTES_MAX, "canonical text may be longer than what was written"


def test_large_powers_of_ten_are_not_written_out() -> None:
    listed = ", ".join(f"1e{at}" for at in range(300, 400))
    assert len(text_of(parse(f"a IN ({listed})"))) < 1_000
    assert text_of(parse("a = -7e400")) == "`a` = -7E+400" and parse("`a` = -7E+400") == parse("a = -7e400")


def test_the_limit_of_terms() -> None:
    def terms(count: int) -> str:
        return " OR ".join(f"a>{at}" for at in range(count))

    assert len(text_of(parse(terms(TERMS_MAX)))) > 0
    with pytest.raises(FilterError, match="more than 256 terms"):
        parse(terms(TERMS_MAX + 1))
    with pytest.raises(FilterError, match="more than 256 terms"):
        parse(" OR ".join(["a>1"] * 520))


def test_the_limit_of_depth() -> None:
    assert parse("(" * DEPTH_MAX + "a=1" + ")" * DEPTH_MAX) == parse("NOT " * DEPTH_MAX + "a=1") == parse("a=1")
    for deeper in ("(" * (DEPTH_MAX + 1) + "a=1" + ")" * (DEPTH_MAX + 1), "NOT " * (DEPTH_MAX + 1) + "a=1"):
        with pytest.raises(FilterError, match="nested deeper than 32"):
            parse(deeper)


def test_a_long_chain_is_no_nesting() -> None:
    assert text_of(parse(" AND ".join(f"a{at}=1" for at in range(200)))).count("AND") == 199


def test_the_limit_of_names_in_a_path() -> None:
    assert text_of(parse(".".join(["a"] * PATH_MAX) + " = 1")).count("a") == PATH_MAX
    with pytest.raises(FilterError, match="1 to 32 names"):
        parse(".".join(["a"] * (PATH_MAX + 1)) + " = 1")


def test_the_limits_of_patterns() -> None:
    assert text_of(parse(f"s LIKE '{'%a' * (GENERAL_MAX // 2)}'"))
    with pytest.raises(FilterError, match="at character 18: the LIKE pattern has 257 characters") as refused:
        parse(f"n = 1 AND s LIKE '{'%a' * (GENERAL_MAX // 2)}%'")
    assert refused.value.position == 17
