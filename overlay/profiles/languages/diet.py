"""The language `diet`, version 1: the profiles of the P2P-DIET thesis.

    profile := empty | atom { ";" atom }
    atom    := "type" "=" word {"OR" word}
             | ("name" | "title" | "author") "contains" words
             | "desired_client" "=" key {";" key} [";"]
             | "size" ("=" | "<" | ">") integer | integer "<" "size" "<" integer | integer ">" "size" ">" integer
    words   := word { "AND" word } | word { "OR" word } | word { word }

The attributes are columns: `type`, `name`, `title`, `author`, `size`, and `key` for the client that published the
resource. Each may be constrained once; the empty profile matches everything. Words without an operator mean AND. Sizes
are whole and not negative, so strict bounds become closed ones: `4 < size < 10` is 5 to 9. Types are compared in lower
case. A null attribute satisfies no atom.
"""

import re
from typing import NamedTuple

from m4cast.overlay.profiles import literals
from m4cast.overlay.profiles.condition import (
    ColumnRef,
    Compare,
    Condition,
    FilterError,
    Operator,
    Words,
    all_of,
    check_limits,
    check_text,
    one_of,
)
from m4cast.overlay.profiles.patterns import lowered_text, words_of

NAME = "diet"
VERSION = 1
SIZE_DIGITS_MAX = 18
"""Digits of a size in bytes that always fit into 64 bits."""
_TOKEN = re.compile(r"\s*(?:([;<>=])|([^\s;<>=]+))")  # two character classes: linear
_FORMS = "type = ..., name (title, author) contains ..., desired_client = ..., or 4 < size < 10"


class Token(NamedTuple):
    """A sign or a word, and where it begins."""

    text: str
    position: int


def parse(text: str) -> Condition:
    """The condition that the text means; `FilterError` with the place if it means none."""
    check_text(text, "the profile")
    condition = _Reader(text).profile()
    check_limits(condition, 0)
    return condition


class _Reader:
    """Reads the tokens of one profile from left to right."""

    def __init__(self, text: str) -> None:
        found = _TOKEN.finditer(text)
        self._tokens = [Token(each[1] or each[2], each.start(1 if each[1] else 2)) for each in found]
        self._at = 0
        self._end = len(text)

    def profile(self) -> Condition:
        atoms: dict[str, Condition] = {}
        while self._peek() is not None:
            start = self._position()
            attribute, atom = self._atom()
            if attribute in atoms:
                raise FilterError(f"{attribute!r} is constrained twice: write one atom for each attribute", start)
            atoms[attribute] = atom
            if self._peek() is not None:
                self._take(";", "atoms are separated by ;")
                if self._peek() is None and attribute != "desired_client":
                    raise FilterError("an atom is expected after ;: add one, or remove it", self._end)
        return all_of(atoms.values())

    def _atom(self) -> tuple[str, Condition]:
        first = self._next(f"an atom is expected: {_FORMS}")
        attribute = first.text.casefold()
        if attribute == "type":
            self._take("=", "type is followed by =")
            words = [lowered_text(word) for word in self._words(only_or=True)[0]]
            return attribute, one_of(ColumnRef(("type",), is_lowered=True), map(literals.text, words))
        if attribute in ("name", "title", "author"):
            return attribute, self._contains(attribute)
        if attribute == "desired_client":
            self._take("=", "desired_client is followed by =")
            return attribute, one_of(ColumnRef(("key",)), map(literals.text, self._keys()))
        if attribute == "size":
            sign = self._sign()
            return attribute, _size_atom(*_bounds(sign.text, self._integer()), first.position)
        if first.text.isascii() and first.text.isdigit():
            return "size", self._range(first)
        raise FilterError(f"{first.text[:40]!r} is no attribute: write {_FORMS}", first.position)

    def _contains(self, attribute: str) -> Condition:
        token = self._next(f"{attribute} is followed by contains")
        if token.text.casefold() != "contains":
            raise FilterError(f"{attribute} is followed by contains, not {token.text[:40]!r}", token.position)
        start = self._position()
        found, is_any = self._words(only_or=False)
        words = sorted({word for text in found for word in words_of(text)})
        if not words:
            raise FilterError("a word needs a letter or a digit: add one, or remove the word", start)
        if is_any and any(len(words_of(text)) != 1 for text in found):
            raise FilterError("with OR, write words of letters and digits only: no hyphens or signs", start)
        return Words(ColumnRef((attribute,)), tuple(words), is_any and len(words) > 1)

    def _words(self, *, only_or: bool) -> tuple[list[str], bool]:
        """Words up to the next `;`, and whether they are joined by OR."""
        found: list[str] = []
        joined: str | None = None
        while True:
            token = self._next("a word is expected")
            if token.text in (";", "=", "<", ">") or token.text in ("AND", "OR"):
                raise FilterError(f"a word is expected, not {token.text!r}", token.position)
            found.append(token.text)
            following = self._peek()
            if following is None or following.text == ";":
                return found, joined == "OR"
            operator = following.text if following.text in ("AND", "OR") else "AND"
            if only_or and operator != "OR":
                raise FilterError("types are joined by OR: write OR here", following.position)
            if joined not in (None, operator):
                raise FilterError("AND and OR cannot be mixed in one atom: use one of them", following.position)
            joined = operator
            if following.text in ("AND", "OR"):
                self._at += 1

    def _keys(self) -> list[str]:
        """Keys separated by `;`, up to the next attribute."""
        keys: list[str] = []
        while True:
            token = self._next("a key is expected")
            if token.text in (";", "=", "<", ">"):
                raise FilterError(f"a key is expected, not {token.text!r}: write a word", token.position)
            keys.append(token.text)
            following = self._peek(1)
            after = self._peek(2)
            if self._peek() is None or self._peek() != Token(";", self._position()) or following is None:
                return keys
            is_attribute = after is not None and (after.text in ("=", "<", ">") or after.text.casefold() == "contains")
            if is_attribute:
                return keys
            self._at += 1

    def _range(self, low: Token) -> Condition:
        """`4 < size < 10` or `10 > size > 4`."""
        first = self._sign()
        token = self._next("size is expected")
        if token.text.casefold() != "size":
            raise FilterError(f"only size has bounds, not {token.text[:40]!r}", token.position)
        second = self._sign()
        if first.text == "=" or first.text != second.text:
            problem = "bounds go one way: write 4 < size < 10 or 10 > size > 4"
            raise FilterError(problem, second.position)
        ends = (_whole(low), self._integer())
        least, greatest = ends if first.text == "<" else ends[::-1]
        return _size_atom(least + 1, greatest - 1, low.position)

    def _sign(self) -> Token:
        token = self._next("=, < or > is expected")
        if token.text not in ("=", "<", ">"):
            raise FilterError(f"=, < or > is expected, not {token.text[:40]!r}", token.position)
        return token

    def _integer(self) -> int:
        return _whole(self._next("a whole number is expected"))

    def _peek(self, ahead: int = 0) -> Token | None:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else None

    def _position(self) -> int:
        token = self._peek()
        return self._end if token is None else token.position

    def _next(self, problem: str) -> Token:
        token = self._peek()
        if token is None:
            raise FilterError(f"{problem}, but the profile ends here", self._end)
        self._at += 1
        return token

    def _take(self, sign: str, problem: str) -> None:
        token = self._next(problem)
        if token.text != sign:
            raise FilterError(f"{problem}, not {token.text[:40]!r}", token.position)


def _whole(token: Token) -> int:
    if not token.text.isascii() or not token.text.isdigit() or len(token.text) > SIZE_DIGITS_MAX:
        problem = f"{token.text[:40]!r} is no whole number of at most {SIZE_DIGITS_MAX} digits"
        raise FilterError(problem, token.position)
    return int(token.text)


def _bounds(sign: str, bound: int) -> tuple[int, int | None]:
    if sign == "=":
        return bound, bound
    return (0, bound - 1) if sign == "<" else (bound + 1, None)


def _size_atom(least: int, greatest: int | None, position: int) -> Condition:
    column = ColumnRef(("size",))
    if greatest is None:
        return Compare(column, ">=", literals.number(str(least)))
    if greatest < least:
        raise FilterError("no size lies between these bounds: widen them", position)
    if greatest == least:
        return Compare(column, "=", literals.number(str(least)))
    ends: tuple[tuple[Operator, int], ...] = ((">=", least), ("<=", greatest))
    return all_of(Compare(column, operator, literals.number(str(end))) for operator, end in ends)
