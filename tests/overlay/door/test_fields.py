"""The JSON of requests: whatever is quick about reading it, it is read as a strict reader would."""

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from m4cast.overlay.door.fields import object_of
from m4cast.overlay.door.refusals import Refusal

SCALARS = ('"text"', '"a\\":b"', '"\\"id\\":"', '":"', "1", "1.5", "null", "true", "NaN", "-Infinity", '"\\u0069d"')
NAMES = ('"id"', '"rows"', '"v"', '"\\u0069d"', '"a:b"', '"q\\""')


def strict(text: str) -> object:
    """The value, or None if the text is refused."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError
        return dict(pairs)

    def no_number(name: str) -> object:
        raise ValueError(name)

    try:
        return json.loads(text, object_pairs_hook=unique, parse_constant=no_number)
    except ValueError:
        return None


def _value(random: random.Random, depth: int, scalars: Sequence[str]) -> str:
    match random.randrange(5 if depth else 3):
        case 0 | 1 | 2:
            return random.choice(scalars)
        case 3:
            return "[" + ",".join(_value(random, depth - 1, scalars) for _ in range(random.randrange(3))) + "]"
        case _:
            return random_object(random, depth - 1, scalars)


def random_object(random: random.Random, depth: int, scalars: Sequence[str] = SCALARS) -> str:
    colon = random.choice((":", ":", ": ", " :"))
    members = (f"{random.choice(NAMES)}{colon}{_value(random, depth, scalars)}" for _ in range(random.randrange(4)))
    return "{" + ",".join(members) + "}"


def _read(text: str | bytes) -> Any:
    try:
        return object_of(text, "it")
    except Refusal:
        return None


def test_json_is_read_as_by_a_strict_reader() -> None:
    draw = random.Random(7)
    outcomes = set()
    for _ in range(20_000):
        text = random_object(draw, 3)
        expected = strict(text)
        assert _read(text) == expected == _read(text.encode()), text
        outcomes.add(expected is None)
    assert outcomes == {True, False}


@pytest.mark.parametrize(
    "text",
    [
        '{"id":1,"id":2}',
        '{"rows":[{"a":1,"a":2}]}',
        '{"rows":["x"],"id":1,"id":2}',  # as many characters in a list as names are missing
        '{"id":1,"\\u0069d":2,"v":"\\":"}',
    ],
)
def test_a_name_that_is_written_twice_is_refused(text: str) -> None:
    with pytest.raises(Refusal, match="twice: remove one"):
        object_of(text, "it")
