"""The short form of a client's state: what a client takes along when it moves to another access point.

A state names the same streams again and again: in the position, in every begin and in every fill. Here the origins are
listed once, 16 bytes each, and what is known of them follows as numbers of equal width. The rest is the JSON of the
long form, deflated, with a 1 in each place whose numbers follow, and a 0 where there are none. All of it is one text in
base 85: `{"short": text}`. Whoever reads a state takes both forms.

Reference: PROTOCOL.md, section 21.1.
"""

import base64
import json
import zlib
from collections.abc import Callable
from typing import Any

from m4cast.overlay.errors import LocalProtocolError
from m4cast.overlay.protocol.clients.state import ClientState, json_of, state_of

ORIGIN_BYTES = 16
COUNT_BYTES = 4
ENTRIES_MAX = 100_000
"""Positions in one state. Beyond it, the long form is used: a short one that is made up may not cost more memory than
its size suggests. Guess."""
REST_BYTES_MAX = 4 << 20
"""The JSON of a state without its positions. Guess."""
USUAL = (
    b'{"profiles":[{"name":"default","topic":"","where":"","language":null,"begin":1,"number":1}],'
    b'"frontier":{"":1},"last_number":1,"fills":[]}'
)
"""The dictionary of the deflated part: what nearly every state has."""

Change = Callable[[Any], Any]

base64.b85decode(b"")  # its first call fills a table, without a lock: a second thread would find half of it


def packed_of(state: ClientState) -> dict[str, Any]:
    """The state as JSON, in its short form."""
    written = json_of(state)
    places: list[dict[str, list[int]]] = []

    def take(by_origin: dict[str, Any]) -> int:
        if by_origin:
            places.append({origin: each if isinstance(each, list) else [each] for origin, each in by_origin.items()})
        return 1 if by_origin else 0

    rest = json.dumps(_changed(written, take, take), separators=(",", ":")).encode()
    if sum(map(len, places)) > ENTRIES_MAX or len(rest) > REST_BYTES_MAX:
        return written
    origins = sorted({origin for place in places for origin in place})
    deflating = zlib.compressobj(9, zlib.DEFLATED, -15, zdict=USUAL)
    deflated = deflating.compress(rest) + deflating.flush()
    parts = [_number(len(deflated)), deflated, _number(len(origins)), *(bytes.fromhex(origin) for origin in origins)]
    numbers = {origin: number for number, origin in enumerate(origins)}
    parts.extend(_packed({numbers[origin]: each for origin, each in place.items()}, len(origins)) for place in places)
    return {"short": base64.b85encode(b"".join(parts)).decode()}


def state_from(written: object) -> ClientState:
    """The state that this JSON means, in either form; `LocalProtocolError` says what is wrong with it."""
    if not isinstance(written, dict) or written.keys() != {"short"}:
        return state_of(written)
    try:
        rest = _Rest(base64.b85decode(written["short"]))
        inflating = zlib.decompressobj(-15, zdict=USUAL)
        fields = json.loads(inflating.decompress(rest.take(rest.number()), REST_BYTES_MAX))
        origins = [rest.take(ORIGIN_BYTES).hex() for _ in range(rest.number())]
        left = ENTRIES_MAX

        def unpacked(mark: object, count: int) -> dict[str, list[int]]:
            nonlocal left
            found = _unpacked(rest, origins, count, left) if mark else {}
            left -= len(found)
            return found

        def sequences(mark: object) -> dict[str, int]:
            return {origin: number for origin, (number,) in unpacked(mark, 1).items()}

        long = _changed(fields, sequences, lambda mark: unpacked(mark, 2))
        if not rest.is_over:
            raise ValueError
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, RecursionError, zlib.error):
        raise LocalProtocolError(
            "the short form of a client's state is damaged, or of another version: send the long form"
        ) from None
    return state_of(long)


def _changed(written: dict[str, Any], sequences: Change, ranges: Change) -> dict[str, Any]:
    """The same with each part that is by origin changed, always in the same order: one number for each, or a range."""

    def profile(each: dict[str, Any]) -> dict[str, Any]:
        return {**each, "begin": sequences(each["begin"])}

    def other(each: dict[str, Any]) -> dict[str, Any]:
        within = each["within"]
        changed = {"begin": sequences(each["begin"]), "hole": ranges(each["hole"])}
        return {**each, **changed, "within": None if within is None else ranges(within)}

    def fill(each: dict[str, Any]) -> dict[str, Any]:
        changed = {"profile": profile(each["profile"]), "ranges": ranges(each["ranges"])}
        standing = {"standing": sequences(each["standing"])} if "standing" in each else {}
        return {**each, **changed, **standing, "others": [other(one) for one in each["others"]]}

    return {
        **written,
        "profiles": [profile(each) for each in written["profiles"]],
        "frontier": {topic: sequences(each) for topic, each in written["frontier"].items()},
        "fills": [fill(each) for each in written["fills"]],
    }


def _packed(entries: dict[int, list[int]], origins: int) -> bytes:
    """The width of a number, that of an origin's place in the list, and the entries. Width 0: these are all origins, in
    their order; otherwise the number of entries comes first."""
    width = max(_width(number) for numbers in entries.values() for number in numbers)
    place = 0 if len(entries) == origins else _width(origins)
    parts = [bytes([width, place])]
    if place:
        parts.append(_number(len(entries)))
    for at, numbers in sorted(entries.items()):
        parts.append(at.to_bytes(place, "big") if place else b"")
        parts.extend(number.to_bytes(width, "big") for number in numbers)
    return b"".join(parts)


def _unpacked(rest: "_Rest", origins: list[str], count: int, entries_max: int) -> dict[str, list[int]]:
    width, place = rest.take(2)
    entries = rest.number() if place else len(origins)
    if entries > entries_max:
        raise LocalProtocolError(f"a client's state has more than {ENTRIES_MAX} positions: unsubscribe from some")
    found: dict[str, list[int]] = {}
    for number in range(entries):
        at = int.from_bytes(rest.take(place), "big") if place else number
        found[origins[at]] = [int.from_bytes(rest.take(width), "big") for _ in range(count)]
    return found


class _Rest:
    """Bytes that are taken from their beginning. Fewer than asked for are a `ValueError`."""

    def __init__(self, packed: bytes) -> None:
        self._packed = packed
        self._at = 0

    def take(self, count: int) -> bytes:
        taken = self._packed[self._at : self._at + count]
        if len(taken) < count:
            raise ValueError
        self._at += count
        return taken

    def number(self) -> int:
        return int.from_bytes(self.take(COUNT_BYTES), "big")

    @property
    def is_over(self) -> bool:
        return self._at == len(self._packed)


def _width(number: int) -> int:
    return max((number.bit_length() + 7) // 8, 1)


def _number(count: int) -> bytes:
    return count.to_bytes(COUNT_BYTES, "big")
