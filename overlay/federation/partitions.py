"""Units beside the own ones that cannot be reached (A4, A18), since when, and what follows from that.

A unit out of reach may come back, and until then its gatekeepers may know nothing of what is wanted here: at its level
nothing is confirmed, for at most `absent_ms`.
"""

from m4cast.overlay.federation.contract import PartitionChanged
from m4cast.overlay.federation.graph import ConnectivityGraph
from m4cast.overlay.federation.units import GONE, Unit
from m4cast.overlay.federation.vertex import Vertex


class Partitions:
    def __init__(self, vertex: Vertex, graph: ConnectivityGraph) -> None:
        self._vertex = vertex
        self._graph = graph
        self._since: dict[int, dict[Unit, int]] = {}
        """Level -> units beside the own one that cannot be reached -> since when."""

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

    def is_parted(self, level: int) -> bool:
        """True if a unit beside the own one of this level cannot be reached, and may come back."""
        since_ms, now_ms = self._since.get(level, {}), self._vertex.now_ms
        return any(
            now_ms - since_ms.get(unit, now_ms) < self._vertex.settings.absent_ms for unit in self._unreachable(level)
        )
