"""LIKE and words: what they find, and that no pattern costs more than a pass."""

from random import Random

import pyarrow as pa
import pytest

from m4cast.overlay.profiles.condition import FilterError
from m4cast.overlay.profiles.patterns import (
    after_prefix,
    holds_words,
    is_like,
    like_mask,
    like_pattern,
    literal_pattern,
    lowered_text,
    shape_of,
    words_mask,
    words_of,
)
from tests.overlay.profiles import reference


def test_random_patterns_equal_dynamic_programming() -> None:
    random = Random(1)
    for _ in range(600):
        pattern = like_pattern(
            "".join(random.choice(["a", "b", "é", "%", "_", "\\%", "\\\\"]) for _ in range(random.randint(0, 6)))
        )
        texts = ["".join(random.choice("abé%\\\n") for _ in range(random.randint(0, 7))) for _ in range(20)]
        expected = [reference.like(text, pattern) for text in texts]
        assert like_mask(pa.array(texts), pattern).tolist() == expected, pattern
        assert [is_like(text, pattern) for text in texts] == expected


@pytest.mark.parametrize(
    ("pattern", "search", "text"),
    [
        ("abc", "exact", "abc"),
        ("a\\%", "exact", "a%"),
        ("ab%", "prefix", "ab"),
        ("%", "prefix", ""),
        ("%ab", "suffix", "ab"),
        ("%a\\_b%", "substring", "a_b"),
        ("ab_", "general", "ab"),
        ("a%b", "general", "a"),
        ("%a%b%", "general", ""),
    ],
)
def test_simple_patterns_are_searched_for(pattern: str, search: str, text: str) -> None:
    assert shape_of(pattern) == (search, text)


def test_a_pattern_of_a_thousand_wildcards_reads_a_text_once() -> None:
    """Exponential for a backtracking engine: this would not end."""
    pattern = like_pattern("%a" * 1_000 + "%b")
    assert not is_like("a" * 20_000, pattern) and is_like("a" * 20_000 + "b", pattern)
    assert not is_like("a" * 2_000, like_pattern("%" + "_%a" * 500 + "b"))


def test_literal_text_matches_only_itself() -> None:
    for text in ("a%b_c\\d", "%", "\\"):
        assert is_like(text, literal_pattern(text)) and not is_like(text + "x", literal_pattern(text))


@pytest.mark.parametrize(
    ("pattern", "escape"), [("a\\", "\\"), ("a\\b", "\\"), ("a#b", "#"), ("a", "##"), ("a", ""), ("a", "_")]
)
def test_misplaced_escapes_are_refused(pattern: str, escape: str) -> None:
    with pytest.raises(FilterError):
        like_pattern(pattern, escape, 3)


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        *(("a", "b"), ("az", "a{"), ("\ud7ff", "\ue000"), ("a\U0010ffff", "b"), ("\U0010ffff", None), ("", None)),
        *((b"c", b"d"), (b"a\xff", b"b"), (b"\xff\xff", None)),
    ],
)
def test_what_follows_all_texts_with_a_prefix(prefix: str | bytes, expected: str | bytes | None) -> None:
    assert after_prefix(prefix) == expected


def test_words_are_casefolded_runs_of_letters_and_digits() -> None:
    assert words_of("Peer-to-peer, P2P_DIET  42%") == ["peer", "to", "peer", "p2p", "diet", "42"]
    assert words_of("Straße ΑΣ") == ["strasse", "ας".casefold()]
    assert words_of("") == words_of("-,-") == []


def test_words_of_many_texts_equal_words_of_each() -> None:
    texts = [None, "", "load", "Load-network", "NETWORK load", "loads network", "Straße", "K", "K (kelvin)", "éa ÉA"]
    many = ("a", "b", "c", "d", "e", "f", "k", "load", "network", "éa")  # more than are searched for
    for words in (("load",), ("load", "network"), ("strasse",), ("k",), ("éa",), ("load", "éa"), ("missing",), many):
        for is_any in (False, True):
            expected = [text is not None and holds_words(text, frozenset(words), is_any=is_any) for text in texts]
            assert words_mask(pa.array(texts), words, is_any=is_any).tolist() == expected, (words, is_any)


def test_bytes_are_looked_into_if_they_are_text() -> None:
    column = pa.array([b"load net", b"load\xff", None])
    assert words_mask(column, ("load",), is_any=False).tolist() == [True, False, False]
    assert like_mask(column, "load%").tolist() == [True, True, False]
    assert like_mask(column, "l_ad%").tolist() == [True, False, False]


def test_lower_case() -> None:
    assert lowered_text("ÀB") == "àb"
