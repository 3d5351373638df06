"""The profile graph of GES: which units want an event, by an ordered list of attributes.

A profile names values for the attributes of an event type, in the order of its signature; `ANY` (written `*`) takes
any value, attributes before the last one named are filled with it, and nothing is asked of those after it. An event
must have every attribute that is named, be it by `*`.

The paper keeps a tree whose edges count, per unit, the profiles behind them. Here each distinct profile is one
condition in a `ProfileIndex` and has signed counts per unit; the tree is a view of these (`edges`). So no event can
satisfy halves of two profiles, and matching costs the same for a thousand profiles and for a million.

Changes carry an id, (origin, number), numbered from 0 by each origin: one that comes again has no effect, and a
withdrawal that overtakes its profile leaves a count of -1 until that comes. Only counts above 0 receive.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

import pyarrow as pa

from m4cast.overlay.errors import LocalProtocolError
from m4cast.overlay.profiles import literals
from m4cast.overlay.profiles.condition import ColumnRef, Compare, Condition, IsNull, Literal, all_of, literal_text
from m4cast.overlay.profiles.index import ProfileIndex
from m4cast.overlay.profiles.profile import profile_of


class Star(Enum):
    """The constraint that any value satisfies."""

    ANY = "*"

    def __str__(self) -> str:
        return self.value


ANY = Star.ANY
Unit = TypeVar("Unit", bound=Hashable)
Step = Literal | Star
Path = tuple[Step, ...]


class ChangeId(NamedTuple):
    """Identifies a change: its author, and its number among that author's changes, from 0."""

    origin: Hashable
    number: int


class ProfileGraph(Generic[Unit]):
    """The profiles of one event type, and the units that have them."""

    def __init__(self, attributes: Sequence[str]) -> None:
        if not attributes or len(set(attributes)) < len(attributes):
            raise LocalProtocolError(f"attributes {list(attributes)!r}: name at least one, and each once")
        self._attributes = tuple(attributes)
        self._counts: dict[Path, Counter[Unit]] = {}
        self._index: ProfileIndex[Path] = ProfileIndex()
        self._applied: dict[Hashable, _Frontier] = {}

    def add(self, change: ChangeId, unit: Unit, constraints: Mapping[str, object]) -> bool:
        """Count one more profile of the unit; False if the change had been applied before."""
        return self._change(change, unit, constraints, 1)

    def remove(self, change: ChangeId, unit: Unit, constraints: Mapping[str, object]) -> bool:
        """Count one profile of the unit less; False if the change had been applied before."""
        return self._change(change, unit, constraints, -1)

    def _change(self, change: ChangeId, unit: Unit, constraints: Mapping[str, object], by: int) -> bool:
        path = self._path(constraints)
        if not self._applied.setdefault(change.origin, _Frontier()).takes(change.number):
            return False
        counts = self._counts.setdefault(path, Counter())
        counts[unit] += by
        if not counts[unit]:
            del counts[unit]
        is_wanted = any(count > 0 for count in counts.values())
        if is_wanted and path not in self._index:
            self._index.add(path, profile_of(self._condition(path)))
        elif not is_wanted and path in self._index:
            self._index.remove(path)
        if not counts:
            del self._counts[path]
        return True

    def _path(self, constraints: Mapping[str, object]) -> Path:
        unknown = [name for name in constraints if name not in self._attributes]
        if unknown or not constraints:
            known = ", ".join(self._attributes)
            raise LocalProtocolError(f"constraints on {unknown!r}: name at least one attribute of {known}")
        steps = [self._step(constraints.get(name, ANY)) for name in self._attributes]
        last = max(at for at, name in enumerate(self._attributes) if name in constraints)
        return tuple(steps[: last + 1])

    def _step(self, wanted: object) -> Step:
        if isinstance(wanted, Star):
            return wanted
        literal = literals.of_python(wanted)
        if literal is None:
            raise LocalProtocolError("a constraint of None: events without the attribute match nothing; leave it out")
        return literal

    def _condition(self, path: Path) -> Condition:
        named = zip((ColumnRef((name,)) for name in self._attributes), path, strict=False)
        return all_of(
            IsNull(column, is_negated=True) if isinstance(step, Star) else Compare(column, "=", step)
            for column, step in named
        )

    def edges(self) -> dict[tuple[str, ...], dict[Unit, int]]:
        """The paper's tree: for each beginning of a profile, the units behind it and their numbers of profiles."""
        found: dict[tuple[str, ...], Counter[Unit]] = {}
        for path, counts in self._counts.items():
            texts = tuple(str(step) if isinstance(step, Star) else literal_text(step) for step in path)
            for length in range(1, len(path) + 1):
                edge = found.setdefault(texts[:length], Counter())
                edge.update({unit: count for unit, count in counts.items() if count > 0})
        return {texts: dict(edge) for texts, edge in found.items() if edge}

    def match(self, events: pa.RecordBatch) -> list[list[Unit]]:
        """The units that want each event, each once, in the order of their text."""
        found: list[set[Unit]] = [set() for _ in range(events.num_rows)]
        for path, rows in self._index.match(events).by_key():
            units = [unit for unit, count in self._counts[path].items() if count > 0]
            for row in rows.tolist():
                found[row].update(units)
        return [sorted(units, key=str) for units in found]

    def __len__(self) -> int:
        """The number of distinct profiles that have a unit behind them, or are owed one."""
        return len(self._counts)


class _Frontier:
    """The changes of one origin that have been applied: all before `next`, and some beyond."""

    def __init__(self) -> None:
        self._next = 0
        self._beyond: set[int] = set()

    def takes(self, number: int) -> bool:
        if number < self._next or number in self._beyond:
            return False
        self._beyond.add(number)
        while self._next in self._beyond:
            self._beyond.remove(self._next)
            self._next += 1
        return True
