"""Units beside the own ones that cannot be reached (A4, A18), since when, and what follows from that.

A unit out of reach may come back, and until then its gatekeepers may know nothing of what is wanted here: at its level
nothing is confirmed, for at most `absent_ms`. It may also have buried this node, and elsewhere wants are then confirmed
that this node does not know: what it matches meanwhile is in doubt.
"""

from m4cast.overlay.federation.contract import PartitionChanged
from m4cast.overlay.federation.graph import ConnectivityGraph
from m4cast.overlay.federation.units import GONE, LEVELS_MAX, Unit
from m4cast.overlay.federation.vertex import Vertex

WHOLE = LEVELS_MAX + 2
"""Above all levels: no unit is out of reach."""


class Partitions:
    def __init__(self, vertex: Vertex, graph: ConnectivityGraph) -> None:
        self._vertex = vertex
        self._graph = graph
        self._since: dict[int, dict[Unit, int]] = {}
        """Level -> units beside the own one that cannot be reached -> since when."""
        self.apart = WHOLE
        """The lowest level at which a unit beside the own one is out of reach, or was less than `bury_ms` ago. What is
        matched for units above it is in doubt."""
        self._apart_ms: dict[int, int] = {}
        """Level -> the last check at which a unit beside the own one was out of reach."""

    def __bool__(self) -> bool:
        """True if some unit cannot be reached."""
        return any(self._since.values())

    def check(self) -> None:
        for level in range(self._vertex.top + 1):
            unreachable = self._unreachable(level)
            if unreachable != tuple(self._since.get(level, ())):
                since_ms = self._since.get(level, {})
                now_ms = self._vertex.now_ms
                self._since[level] = {unit: since_ms.get(unit, now_ms) for unit in unreachable}
                self._vertex.out.append(PartitionChanged(level, unreachable))

    def _unreachable(self, level: int) -> tuple[Unit, ...]:
        beside = sorted(
            unit
            for unit, record in self._vertex.records.items()
            if unit.level == level and record.number != GONE and not self._vertex.is_mine(unit)
        )
        return tuple(unit for unit in beside if self._graph.path(unit) is None)

    def check_apart(self) -> None:
        """See how far up the own units are whole. A node is buried only after `bury_ms` out of reach, so it is enough
        to look at each check. A unit counts as back only after the same time: by then this node has heard if it was
        buried."""
        settings, now_ms = self._vertex.settings, self._vertex.now_ms
        for level, since_ms in self._since.items():
            if any(now_ms - at_ms < settings.absent_ms for at_ms in since_ms.values()):
                self._apart_ms[level] = now_ms
        lately = (level for level, at_ms in self._apart_ms.items() if now_ms - at_ms < settings.bury_ms)
        self.apart = min(lately, default=WHOLE)

    def is_parted(self, level: int) -> bool:
        """True if a unit beside the own one of this level cannot be reached, and may come back."""
        since_ms, now_ms = self._since.get(level, {}), self._vertex.now_ms
        return any(
            now_ms - since_ms.get(unit, now_ms) < self._vertex.settings.absent_ms for unit in self._unreachable(level)
        )
