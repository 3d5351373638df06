"""LIKE patterns and words: the two tests that look inside a text.

A pattern is kept in one form: backslash as escape character, no `%%`. Most patterns are a prefix, a suffix or a
substring and cost a search, however long they are. The others go to Arrow's `match_like`: RE2, which never backtracks.
Its automaton reads each text once as long as its states fit into RE2's memory; beyond that a text costs its length
times that of the pattern. So these patterns are limited: in length, as a state has up to one entry per character, and
in `_` after a `%`, each of which may double the number of states.

Words are the casefolded runs of letters and digits of a text; everything else separates. They are whole words:
`network` does not find `networks`. (P2P-DIET 4.3.)
"""

import re
from functools import lru_cache
from typing import Literal as OneWord
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from m4cast.overlay.profiles.condition import FilterError

Mask = npt.NDArray[np.bool_]
GENERAL_MAX = 256
"""The characters of a pattern that is no prefix, suffix or substring. Measured: from 600 on, RE2 runs out of memory."""
FLOATING_MAX = 8
"""The `_` after a `%`. Measured, in 200,000 characters: up to 30 times the cost of `%a%bc`; with 14 of them, 190."""
SEARCHES_MAX = 8
"""Words that are searched for before texts are taken apart. Each search is a pass; 2,000 words fit into a filter."""
_RUN = re.compile(r"[^\W_]+")  # one character class: linear
_LAST_CHARACTER = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


class Shape(NamedTuple):
    """A pattern by how it is searched for. `text` is the literal text (of `general`: what it begins with)."""

    search: OneWord["exact", "prefix", "suffix", "substring", "general"]
    text: str


def like_pattern(pattern: str, escape: str = "\\", position: int | None = None) -> str:
    """The pattern in its one form, refused if an escape character stands before anything but `%`, `_` or itself, or if
    a text might cost more than one pass."""
    if len(escape) != 1 or escape in "%_":
        raise FilterError(f"ESCAPE {escape!r} must be one character other than % and _", position)
    found: list[str] = []
    characters = iter(pattern)
    for character in characters:
        if character == escape:
            following = next(characters, "")
            if following not in ("%", "_", escape):
                problem = f"in LIKE {pattern[:40]!r} the escape character {escape!r} must be doubled, or precede % or _"
                raise FilterError(problem, position)
            found.append(_escaped(following))
        elif character == "%":
            if found[-1:] != ["%"]:
                found.append("%")
        elif character == "_":
            found.append("_")
        else:
            found.append(_escaped(character))
    written = "".join(found)
    if shape_of(written).search == "general":
        _check_cost(found, position)
    return written


def _check_cost(characters: list[str], position: int | None) -> None:
    if len(characters) > GENERAL_MAX:
        problem = f"the LIKE pattern has {len(characters)} characters, at most {GENERAL_MAX} unless its only wildcards "
        raise FilterError(problem + "are a % at its ends: make it shorter", position)
    floating = characters[characters.index("%") :].count("_") if "%" in characters else 0
    if floating > FLOATING_MAX:
        problem = f"the LIKE pattern has {floating} _ after a %, at most {FLOATING_MAX}: use % for a run of them"
        raise FilterError(problem, position)


def literal_pattern(text: str) -> str:
    """The pattern that only this text matches."""
    return "".join(map(_escaped, text))


def _escaped(character: str) -> str:
    return "\\" + character if character in "%_\\" else character


@lru_cache(maxsize=4_096)
def shape_of(pattern: str) -> Shape:
    """The way to search for a pattern in canonical form."""
    pieces: list[str] = [""]  # literal text between wildcards
    wild: list[str] = []
    characters = iter(pattern)
    for character in characters:
        if character in "%_":
            wild.append(character)
            pieces.append("")
        else:
            pieces[-1] += next(characters) if character == "\\" else character
    match wild:
        case []:
            return Shape("exact", pieces[0])
        case ["%"] if not pieces[1]:
            return Shape("prefix", pieces[0])
        case ["%"] if not pieces[0]:
            return Shape("suffix", pieces[1])
        case ["%", "%"] if not pieces[0] and not pieces[2]:
            return Shape("substring", pieces[1])
        case _:
            return Shape("general", pieces[0])


def like_mask(column: pa.Array, pattern: str) -> Mask:
    """Find the texts (or bytes) that match; a null does not. Cost: one pass over the text.

    Bytes are compared with the UTF-8 of the pattern; where a character has to be told from a byte (`_`, several `%`),
    they are decoded, and what is not UTF-8 does not match.
    """
    shape = shape_of(pattern)
    match shape.search:
        case "exact":
            found = pc.equal(column, pa.scalar(shape.text, column.type))
        case "prefix":
            found = pc.starts_with(column, shape.text)
        case "suffix":
            found = pc.ends_with(column, shape.text)
        case "substring":
            found = pc.match_substring(column, shape.text)
        case _:
            found = pc.match_like(decoded(column), pattern)
    return true_rows(found)


def is_like(text: str | bytes, pattern: str) -> bool:
    """True if one text matches: by the same code as many, so that both always agree."""
    return bool(like_mask(pa.array([text]), pattern)[0])


def decoded(column: pa.Array) -> pa.StringArray:
    """The texts of a column of texts or bytes; bytes that are not UTF-8 become null."""
    if types.is_string(column.type):
        return column
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if each is None else _text_or_none(each) for each in column.to_pylist()], pa.string())


def _text_or_none(content: bytes) -> str | None:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def after_prefix(prefix: str | bytes) -> str | bytes | None:
    """The least text that is greater than all texts with this prefix, None if there is none."""
    if isinstance(prefix, bytes):
        kept = prefix.rstrip(b"\xff")
        return kept[:-1] + bytes([kept[-1] + 1]) if kept else None
    for at in range(len(prefix) - 1, -1, -1):
        following = ord(prefix[at]) + 1
        if following in _SURROGATES:
            following = _SURROGATES.stop
        if following <= _LAST_CHARACTER:
            return prefix[:at] + chr(following)
    return None


# ---- words


def words_of(text: str) -> list[str]:
    """The words of a text, casefolded, in order."""
    return _RUN.findall(text.casefold())


def words_mask(column: pa.Array, words: tuple[str, ...], *, is_any: bool) -> Mask:
    """Find the texts (or bytes that are UTF-8) that hold all (any) of the words; a null holds none.

    Cost: a substring search per word, then a look at each text that may hold them: those that are not ASCII, where
    casefolding may change letters, and those in which the letters were found.
    """
    column = decoded(column)
    plain = true_rows(pc.string_is_ascii(column))
    may = plain & _may_hold(column, words, is_any=is_any)
    rows = np.flatnonzero(may | (true_rows(column.is_valid()) & ~plain))
    result = np.zeros(len(column), dtype=bool)
    wanted = frozenset(words)
    texts = column.take(pa.array(rows)).to_pylist()
    for row, text in zip(rows.tolist(), texts, strict=True):
        result[row] = holds_words(text, wanted, is_any=is_any)
    return result


def _may_hold(column: pa.Array, words: tuple[str, ...], *, is_any: bool) -> Mask:
    """Find the ASCII texts that may hold the words, by their letters. A few searches at most, whatever a stranger asks
    for."""
    letters = [word for word in words if word.isascii()]  # an ASCII text holds no others
    if not is_any and len(letters) < len(words):
        return np.zeros(len(column), dtype=bool)
    if is_any and len(letters) > SEARCHES_MAX:
        return np.ones(len(column), dtype=bool)
    searched = sorted(letters, key=len, reverse=True)[:SEARCHES_MAX]  # long words are rare
    found = [true_rows(pc.match_substring(column, word, ignore_case=True)) for word in searched]
    joined: Mask = np.logical_or.reduce(found) if is_any else np.logical_and.reduce(found)
    return joined if found else np.zeros(len(column), dtype=bool)


def holds_words(text: str | bytes, wanted: frozenset[str], *, is_any: bool) -> bool:
    """True if one text holds all (any) of the words."""
    if isinstance(text, bytes):
        text = _text_or_none(text) or ""
    return not wanted.isdisjoint(words_of(text)) if is_any else wanted.issubset(words_of(text))


def lowered(column: pa.Array) -> pa.Array:
    """The texts in lower case, letter by letter."""
    return pc.utf8_lower(column)


def lowered_text(text: str) -> str:
    """One text in lower case: by the same code as many."""
    found: str = lowered(pa.array([text]))[0].as_py()
    return found


def true_rows(answers: pa.BooleanArray) -> Mask:
    """TRUE as True, FALSE and UNKNOWN as False."""
    if answers.null_count:
        answers = answers.fill_null(False)
    rows: Mask = answers.to_numpy(zero_copy_only=False)
    return rows
