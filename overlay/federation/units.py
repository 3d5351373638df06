"""Units of the hierarchy: a node is a unit of level 0, a channel one of level 1 (a cluster), and so on.

A unit has 128 random bits as its id, for good; a node's is its node id. What the unit belongs to, and its number there,
is a `UnitRecord` with an epoch: numbers are labels for people, and may change when units are merged or two halves gave
the same one. Everything else is keyed by ids, so that renumbering moves no state (H47).

A context is a node's chain of units, from itself up to the unit of the top level.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from random import Random
from typing import NamedTuple, NewType

from m4cast.overlay.value import value

UnitId = NewType("UnitId", bytes)
UNIT_ID_BYTES = 16
UNITS_MAX = 64
"""Sub-units of a unit: the block limit of GES. It refuses what joins; halves that meet again may exceed it."""
LEVELS_MAX = 7
"""The highest level: a request has one bit per level in a byte."""
NO_UNIT = UnitId(b"")
GONE = -1
"""The number of a unit that left."""


class Unit(NamedTuple):
    """A node of the connectivity graph. Sorted by level, then by id."""

    level: int
    id: UnitId


Chain = tuple[UnitId, ...]
"""The units that a node is in, by level: `chain[0]` is the node itself."""


@value
class UnitRecord:
    """The place of a unit: its parent, and its number there. Known to all nodes of `parent`, and to none outside."""

    unit: Unit
    parent: UnitId
    number: int
    epoch: int
    address: str = ""
    """The address at which a node takes calls."""

    def beats(self, other: "UnitRecord | None") -> bool:
        """True if it replaces the other record of the same unit. Equal epochs are ordered by content, so that all nodes
        decide alike."""
        return other is None or self.rank() > other.rank()

    def rank(self) -> tuple[int, bool, UnitId, int, str]:
        return self.epoch, self.number == GONE, self.parent, -self.number, self.address


def new_unit_id(random: Random) -> UnitId:
    return UnitId(random.randbytes(UNIT_ID_BYTES))


def founding_records(node: UnitId, top: int, address: str, random: Random) -> tuple[UnitRecord, ...]:
    """The records of a node that is alone, in new units."""
    return records_of_chain([node, *(new_unit_id(random) for _ in range(top + 1))], address)


def records_of_chain(chain: Sequence[UnitId], address: str) -> tuple[UnitRecord, ...]:
    """The first records of units with one sub-unit each, up to the id of the federation: all have the number 0."""
    return tuple(
        UnitRecord(Unit(level, unit), parent, number=0, epoch=1, address="" if level else address)
        for level, (unit, parent) in enumerate(pairwise(chain))
    )


def level_between(one: Chain, other: Chain) -> int:
    """The level of a link between two nodes: the highest at which their units differ.

    Found from below, by the first unit that they share: while news of a merge travels, the upper units of two nodes of
    one cluster may differ for a moment, and their link is of level 0 all the same.
    """
    for level, (mine, theirs) in enumerate(zip(one, other, strict=True)):
        if mine == theirs:
            return level - 1
    return len(one) - 1


def free_number(records: Iterable[UnitRecord], parent: UnitId) -> int:
    """The least number that no unit of the parent has."""
    used = {record.number for record in records if record.parent == parent}
    return next(number for number in range(len(used) + 1) if number not in used)


def members(records: Iterable[UnitRecord], level: int, parent: UnitId) -> list[UnitRecord]:
    """The records of the units of this level that belong to the parent, those that left aside."""
    return [
        record for record in records if record.unit.level == level and record.parent == parent and record.number != GONE
    ]


def address_text(numbers: Iterable[int]) -> str:
    """`3.1.4.0`: the numbers of a node's units, the top one first."""
    return ".".join(map(str, numbers))
