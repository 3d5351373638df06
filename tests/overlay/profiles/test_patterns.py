"""LIKE and words: what they find, and that no pattern costs more than a pass."""

import time
from random import Random

import pyarrow as pa
import pytest

from m4cast.overlay.profiles.condition import FilterError
from m4cast.overlay.profiles.patterns import (
    FLOATING_MAX,
    GENERAL_MAX,
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


PLAIN, DEAREST = "%a%bc", 60
"""A pattern that is no search, and how many times its CPU time a pattern within the limits may take; twice what was
measured."""
ANY_RUN = "_" * FLOATING_MAX


@pytest.mark.parametrize(
    "pattern",
    [
        *("%a" * (GENERAL_MAX // 2), "%a" * (GENERAL_MAX // 2 - 1) + "_b", "%" + "a" * (GENERAL_MAX - 3) + "_%"),
        *("%a" + ANY_RUN, "%" + "a_" * FLOATING_MAX + "b%", "%a" + ANY_RUN + "a" * (GENERAL_MAX - 11) + "%"),
        *("%a" * (GENERAL_MAX // 2 - 5) + ANY_RUN + "b", "_" * (GENERAL_MAX - 12) + "%a" + ANY_RUN + "b%"),
    ],
    ids=lambda pattern: f"{pattern[:4]}-{pattern[-4:]}-{len(pattern)}",
)
def test_no_pattern_costs_more_than_a_pass_over_the_text(pattern: str) -> None:
    """Beyond the limits RE2 falls back to a pass for each character of the pattern: 70 to 15,000 times as much."""
    assert like_pattern(pattern) == pattern and shape_of(pattern).search == "general"
    random = Random(1)
    for letters in ("a", "ab", "a" * 30 + "b", "aé"):
        text = "".join(random.choice(letters) for _ in range(100_000))
        assert cpu_s(text, pattern) < DEAREST * cpu_s(text, PLAIN), letters
        assert cpu_s(text * 2, pattern) < 3 * cpu_s(text, pattern), letters


def cpu_s(text: str, pattern: str) -> float:
    """The least CPU time of several."""
    column = pa.array([text])

    def once() -> float:
        began_s = time.thread_time()
        like_mask(column, pattern)
        return time.thread_time() - began_s

    return min(once() for _ in range(5))


@pytest.mark.parametrize(
    ("longest", "longer", "problem"),
    [
        ("%a" * 128, "%a" * 128 + "%", "257 characters, at most 256"),
        ("a_" + "\\%" * 254, "a_" + "\\%" * 255, "257 characters"),
        ("_" * 256, "_" * 257, "257 characters"),
        ("_" * 100 + "%" + "_a" * 8, "_" * 100 + "%" + "_a" * 9, "9 _ after a %, at most 8"),
        ("%\\____\\_%____", "%____%_____", "9 _ after a %"),
    ],
)
def test_the_limits_of_patterns(longest: str, longer: str, problem: str) -> None:
    assert like_pattern(longest) == longest
    with pytest.raises(FilterError, match=problem) as refused:
        like_pattern(longer, position=7)
    assert refused.value.position == 7


def test_a_search_has_no_limit_of_its_own() -> None:
    for pattern in ("a" * 4_000, "%" + "a" * 4_000, "a" * 4_000 + "%", "%" + "a" * 4_000 + "%", "%" * 4_000):
        assert shape_of(like_pattern(pattern)).search != "general"


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
