"""Presence: which nodes rows can be asked of, and which of those that are away may come back with some.

A node is present until it leaves or others report that it failed, or until its beacons are missed: in a split network
most nodes of the other part go without a word.
"""

from collections.abc import Iterable

from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.interest.view import ABSENT_KEPT_MS, InterestView
from m4cast.overlay.protocol.roster.roster import Roster
from m4cast.overlay.protocol.selective.contract import keep_text
from m4cast.overlay.protocol.selective.demand import KEEPS_HASH
from m4cast.overlay.protocol.wire.messages import RosterEntry
from m4cast.overlay.protocol.wire.selective import ROUTED_VERSION


class Presence:
    def __init__(self, roster: Roster, view: InterestView) -> None:
        self._roster = roster
        self._view = view
        self._silent: dict[NodeId, None] = {}
        """Nodes whose beacons are missed, although nobody reported that they failed."""
        self._lives: dict[NodeId, int] = {}
        """The nodes that selective topics know to be there, with their incarnations."""
        self._unheard: dict[NodeId, int] = {}
        """Origins and keepers that no beacon has told of, and since when they have been awaited."""

    def nodes(self) -> list[NodeId]:
        """The other nodes that are present and have routed frames."""
        return [each for each in self._roster.able(ROUTED_VERSION) if each not in self._silent]

    def others(self, now_ms: int) -> dict[NodeId, int]:
        """The other nodes that are on the channel, with their incarnations."""
        others = (entry for entry in self._roster.members() if entry is not self._roster.own)
        return {each.node_id: each.incarnation for each in others if self._roster.is_present(each.node_id, now_ms)}

    def heard(self, node_id: NodeId) -> tuple[bool, bool]:
        """A beacon has arrived. Returns whether the node is there again, and whether it has restarted unnoticed."""
        self._silent.pop(node_id, None)
        entry = self._roster.get(node_id)
        if entry is None or not self._roster.is_able(node_id, ROUTED_VERSION):
            return False, False
        before, self._lives[node_id] = self._lives.get(node_id), entry.incarnation
        return before is None, before not in (None, entry.incarnation)

    def departed(self, node_id: NodeId) -> None:
        self._lives.pop(node_id, None)

    def sweep(self, now_ms: int, wanting: Iterable[NodeId] = ()) -> list[NodeId]:
        """The nodes that went without a word since this was asked last. Of some of those that want something no beacon
        has ever come here: their entries are not used any longer."""
        silent = [each for each in self.nodes() if self._roster.absent_for(each, now_ms, now_ms) > 0]
        self._silent.update(dict.fromkeys(silent))
        used = dict.fromkeys(entry.node_id for entry in self._view.used())
        return [*silent, *(each for each in wanting if each not in used and each not in silent)]

    def _unasked(self, now_ms: int) -> list[RosterEntry]:
        able = dict.fromkeys(self.nodes())
        others = (entry for entry in self._roster.members() if entry is not self._roster.own)
        return [each for each in others if each.node_id not in able and self._roster.is_present(each.node_id, now_ms)]

    def is_awaited(self, origin: NodeId, now_ms: int) -> bool:
        """True if the origin of rows that nobody has, or one that kept them, may come back, or if a node that seems to
        be there cannot be asked yet: after a start, beacons of all others have to come first."""
        if any(self._roster.own.address != each.address for each in self._unasked(now_ms)):
            return True
        kept, entries = keep_text(origin), self._view.entries
        keepers = (
            node_id
            for node_id in self._view.gone
            if any(item.text == kept and item.topic_hash == KEEPS_HASH for item in entries[node_id].items.values())
        )
        return any(self._may_return(each, now_ms) for each in (origin, *keepers))

    def _may_return(self, node_id: NodeId, now_ms: int) -> bool:
        if self._roster.get(node_id) is not None:
            self._unheard.pop(node_id, None)
            return self._roster.may_return(node_id, ABSENT_KEPT_MS, now_ms)
        if node_id == self._roster.own.node_id:
            return False
        # It went before its first beacon had come this far, but not before its rows were known of.
        return now_ms - self._unheard.setdefault(node_id, now_ms) < ABSENT_KEPT_MS
