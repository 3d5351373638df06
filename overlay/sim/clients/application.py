"""The application behind a client, as the checker of guarantee 12 sees it: what it is owed, row by row.

It keeps no fills and no frontiers of the library's kind. The main line has a position per stream, which moves with what
is taken. A profile that begins before it is owed, as a set of rows, what it matches there and no profile in force had
given or still owes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from m4cast.overlay.sim.checkers import Violation

Value = str
Row = tuple[str, str, int]
"""Topic, origin, sequence."""


def matches(where: str | None, found: Value) -> bool:
    """A condition lists the values that it wants; None: all."""
    return where is None or found in where


class SimTable:
    """A topic whose rows replace one another: of the rows with one value, the one that was published last stands."""

    def __init__(self, topic: str, values: dict[str, list[Value]]) -> None:
        self.topic = topic
        self.values = values
        self._order: dict[tuple[str, int], int] = {}
        """The place of each row among all that were published."""

    def published(self, origin: str) -> None:
        """All rows of this origin are published."""
        for sequence in range(1, len(self.values[origin]) + 1):
            self._order.setdefault((origin, sequence), len(self._order))

    def is_replaced(self, origin: str, sequence: int, below: Mapping[str, int] | None = None) -> bool:
        """True if a later row has the same value, and lies below these positions; None: anywhere."""
        found, place = self.values[origin][sequence - 1], self._order[origin, sequence]
        return any(
            later > place and self.values[each][number - 1] == found and (below is None or number < below.get(each, 1))
            for (each, number), later in self._order.items()
        )


@dataclass
class Owed:
    """The rows that a profile has to deliver from before the main line, and which rows it leaves to which other
    profiles."""

    rows: dict[Row, None]
    left_to: dict[Row, set[str]]

    def givers(self, row: Row, name: str) -> set[str]:
        """Return the profiles that gave or give a row that others had left to this profile, which ends."""
        if row in self.rows:
            return set()
        return self.left_to.get(row, {name})


@dataclass
class WantedRows:
    topic: str
    where: str | None
    begin: dict[str, int]


class Application:
    def __init__(self, rows: dict[str, dict[str, list[Value]]], table: SimTable | None = None) -> None:
        self.rows = rows
        self.table = table
        self.wanted: dict[str, WantedRows] = {}
        self.at: dict[tuple[str, str], int] = {}
        self.owed: dict[str, Owed] = {}
        """The rows owed, by the name of the profile, in the order in which they are due."""
        self.taken = 0

    def __deepcopy__(self, memo: dict[int, object]) -> "Application":
        copy = Application(self.rows, self.table)
        copy.wanted = {name: WantedRows(each.topic, each.where, dict(each.begin)) for name, each in self.wanted.items()}
        copy.at = dict(self.at)
        copy.owed = {
            name: Owed(dict(each.rows), {row: set(names) for row, names in each.left_to.items()})
            for name, each in self.owed.items()
        }
        copy.taken = self.taken
        return copy

    def subscribe(
        self,
        name: str,
        topic: str,
        where: str | None,
        begin: dict[str, int],
        here: dict[str, int],
        *,
        standing: bool = False,
    ) -> None:
        """`standing`: of the rows before the main line, only those that stand there are owed."""
        in_force = {each: wanted for each, wanted in self.wanted.items() if wanted.topic == topic}
        ended = self._end(name)
        if not in_force:
            begins = {origin: min(begin.get(origin, 1), until) for origin, until in here.items()}
            for origin, until in here.items():
                self.at[topic, origin] = until if standing else begins[origin]
            self.wanted[name] = WantedRows(topic, where, begins)
            if standing:
                due = [(origin, at) for origin, until in here.items() for at in range(begins[origin], until)]
                rows = [(topic, *row) for row in due if matches(where, self.rows[topic][row[0]][row[1] - 1])]
                self.owed[name] = Owed({row: None for row in rows if not self._is_replaced(row, here)}, {})
            return
        owed = Owed({}, {})
        begins = {}
        main = {origin: self.at.get((topic, origin), 1) for origin in self.rows[topic]}
        for origin, values in self.rows[topic].items():
            end = self.at.get((topic, origin), 1)
            begins[origin] = min(begin.get(origin, 1), end)
            for sequence in range(begins[origin], end):
                row, found = (topic, origin, sequence), values[sequence - 1]
                if not matches(where, found) or (standing and self._is_replaced(row, main)):
                    continue
                givers = {
                    each
                    for each, wanted in in_force.items()
                    if wanted.begin.get(origin, 1) <= sequence and matches(wanted.where, found)
                }
                if name in givers:  # what it still owed it does not give any more; what it left to others is theirs
                    givers = (givers - {name}) | ended.givers(row, name)
                if givers:
                    owed.left_to[row] = givers
                else:
                    owed.rows[row] = None
        self.wanted[name] = WantedRows(topic, where, begins)
        self.owed[name] = owed

    def unsubscribe(self, name: str) -> None:
        self._end(name)

    def _end(self, name: str) -> Owed:
        """Forget the profile; what it still owed is owed by later ones that had left it to it."""
        self.wanted.pop(name, None)
        names = list(self.owed)
        ended = self.owed.pop(name, Owed({}, {}))
        for later in names[names.index(name) + 1 :] if name in names else ():
            owed = self.owed[later]
            for row, givers in list(owed.left_to.items()):
                if name in givers:
                    owed.left_to[row] = (givers - {name}) | ended.givers(row, name)
                    if not owed.left_to[row]:
                        del owed.left_to[row]
                        owed.rows[row] = None
        return ended

    def take(self, is_fill: bool, topic: str, origin: str, sequences: list[int], until: int) -> None:
        if is_fill:
            self._take_owed(topic, origin, sequences, until)
        else:
            self._take_main(topic, origin, sequences, until)
        self.taken += len(sequences)

    def _take_main(self, topic: str, origin: str, sequences: list[int], until: int) -> None:
        first = self.at.get((topic, origin), 1)
        wheres = [wanted.where for wanted in self.wanted.values() if wanted.topic == topic]
        values = self.rows[topic][origin]
        due = [at for at in range(first, until) if any(matches(where, values[at - 1]) for where in wheres)]
        due = [at for at in due if at in sequences or not self._is_replaced((topic, origin, at))]
        if due != sequences:
            raise Violation(
                "clients", f"{topic} {origin[-1]}: rows {due} of {first} to {until} are due, not {sequences}"
            )
        self.at[topic, origin] = until

    def _take_owed(self, topic: str, origin: str, sequences: list[int], until: int) -> None:
        """Take rows from whichever debt of this stream has them first."""
        for sequence in sequences:
            row = (topic, origin, sequence)
            debtor = next((owed for owed in self.owed.values() if row in owed.rows), None)
            if debtor is None:
                raise Violation("clients", f"row {sequence} of {topic} {origin[-1]} is given again")
            del debtor.rows[row]

    def _is_replaced(self, row: Row, below: Mapping[str, int] | None = None) -> bool:
        topic, origin, sequence = row
        return self.table is not None and topic == self.table.topic and self.table.is_replaced(origin, sequence, below)

    def drop(self, topic: str, origin: str, low: int) -> None:
        self.at[topic, origin] = max(self.at.get((topic, origin), 1), low)
        for owed in self.owed.values():
            for row in [row for row in owed.rows if row[:2] == (topic, origin) and row[2] < low]:
                del owed.rows[row]

    def unsettled(self) -> list[str]:
        """Return what it has not received. A row of a table that was replaced meanwhile may be gone everywhere."""
        owed = {name: [row for row in each.rows if not self._is_replaced(row)] for name, each in self.owed.items()}
        lacking = [f"{name} is owed {sorted(rows)[:3]}" for name, rows in owed.items() if rows]
        for topic in {wanted.topic for wanted in self.wanted.values()}:
            for origin, values in self.rows[topic].items():
                if self.at.get((topic, origin), 1) <= len(values):
                    lacking.append(f"{topic} {origin[-1]} is at {self.at.get((topic, origin), 1)} of {len(values)}")
        return lacking
