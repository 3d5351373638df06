"""Clients that roam between channels, at a gatekeeper (PROTOCOL.md 22.7).

The client table of its channel tells a gatekeeper who came: a row that is covered, and whose session somebody else
began. It finds the channel that has an older row, and both take the client into the machine, which lets go of the old
one when the new one is confirmed for the smallest unit that has both. Then the old channel's nodes are told, by an item
of the interest, and withdraw what they have for the client.
"""

import time
from collections.abc import Callable, Iterable
from hashlib import blake2b

from m4cast.overlay.federation.contract import ClientArrived, ClientGone, FederationInput, UnwantRows
from m4cast.overlay.federation.federation import Federation
from m4cast.overlay.federation.messages import UnitWant
from m4cast.overlay.federation.units import UnitId, members
from m4cast.overlay.ids import NodeId
from m4cast.overlay.net.driver import Driver
from m4cast.overlay.net.gateways.reports.client_finding import ClientFinding, FoundClient
from m4cast.overlay.net.gateways.wire.messages import ClientFindCall
from m4cast.overlay.profiles.languages.canonical import facts_text
from m4cast.overlay.profiles.profile import read
from m4cast.overlay.protocol.clients.access_point import SeenRow, seen_row, winner
from m4cast.overlay.protocol.clients.roamed import (
    ROAMED_MAX,
    ROAMED_PREFIX,
    ROAMED_TOPIC,
    roamed_of,
    roamed_text,
)
from m4cast.overlay.protocol.effects import InterestChanged, Subscribe, Unsubscribe, Wish
from m4cast.overlay.protocol.interest.entry import InterestEntry
from m4cast.overlay.protocol.wire.interest import CLIENT_LANGUAGE

CLIENTS_TOPIC = "_clients"
"""The topic under which the machine knows where clients are; no rows have it."""
TRIES = 1 << 16
"""The machine's incarnation of a client is its session, and which try to have it released."""
FINDS_MAX = 64
"""Clients that are looked for at once; the others wait."""
AGAIN_S = 5.0
"""The time after which a client that was not released, or not found for sure, is looked for again. Guess."""
TIDY_S = 1.0


class ChannelRoamers:
    """`feed` takes inputs of the machine, `fellows` are the other gatekeepers of the channel."""

    def __init__(
        self,
        driver: Driver,
        machine: Federation,
        feed: Callable[[FederationInput], None],
        fellows: Callable[[], list[UnitId]],
    ) -> None:
        self.finding: ClientFinding
        self._driver = driver
        self._machine = machine
        self._feed = feed
        self._fellows = fellows
        self._known_fellows: list[UnitId] | None = None
        self._new: dict[str, None] = {}
        """Clients whose rows have changed, and those that are not released everywhere."""
        self._asked: dict[str, float] = {}
        """The time at which each client that is being looked for was asked for."""
        self._gone: dict[str, int] = {}
        """Clients that the nodes of this channel have to be told of, and their sessions elsewhere."""
        self._tidied_s = 0.0

    # ---- clients that came

    def changed(self, change: InterestChanged) -> None:
        """Called when an entry in the client table has changed."""
        for item in (*change.joined, *change.rejoined):
            if item.language == CLIENT_LANGUAGE and (found := seen_row(change.node_id, item)) is not None:
                self._new[found[0]] = None

    def look(self) -> None:
        """Find out where clients with new rows came from, as far as that is this gatekeeper's to do."""
        fellows = sorted(self._fellows())
        if fellows != self._known_fellows:  # what was another one's may be this one's now
            self._known_fellows = fellows
            for entry in self._driver.node.interest.view.used():
                for item in entry.items.values():
                    if item.language == CLIENT_LANGUAGE and (found := seen_row(entry.node_id, item)) is not None:
                        self._new[found[0]] = None
        me, now_s = self._machine.vertex.me.id, time.monotonic()
        under_way = sum(now_s - at_s < AGAIN_S for at_s in self._asked.values())
        for key in list(self._new):
            if key in self._asked and now_s - self._asked[key] < AGAIN_S:
                continue
            row = winner(self._rows(key))
            if row is None or row.row.session <= 1 or max((me, *fellows), key=lambda each: _weight(key, each)) != me:
                self._settled(key)
            elif row.row.covered and under_way < FINDS_MAX:
                under_way += 1
                self._asked[key] = now_s
                self._new[key] = self._new.pop(key)  # the others come before it when it is looked for again
                self.finding.find(key, row.row.digest, row.row.session, self._answer(key, row.row.session))
        self.finding.echo.look()
        if now_s - self._tidied_s >= TIDY_S:
            self._tidied_s = now_s
            self._tell()

    def _answer(self, key: str, session: int) -> Callable[[FoundClient | None], None]:
        return lambda found: self._found(key, session, found)

    def _found(self, key: str, session: int, found: FoundClient | None) -> None:
        row = winner(self._rows(key))
        if row is not None and row.row.session != session:
            self._asked.pop(key, None)  # it has moved meanwhile: that is another question
            return
        if found is None:
            return  # it is asked again
        if not found.session:
            self._settled(key)
            return
        known = self._machine.roaming.clients.get(key)
        if known is None or known.incarnation // TRIES < session or found.at not in known.previous:
            incarnation = max(session * TRIES, 0 if known is None else known.incarnation + 1)
            self._feed(ClientArrived(key, incarnation, _presence(key), found.at))

    def released(self, key: str) -> None:
        """A channel that the client left has let it go: perhaps it left others before."""
        self._asked.pop(key, None)

    def _settled(self, key: str) -> None:
        """Forget the client: no channel has an older row, or asking is the task of another gatekeeper."""
        self._new.pop(key, None)
        self._asked.pop(key, None)
        client = self._machine.roaming.clients.get(key)
        if client is not None and not client.to and not client.previous:
            self._feed(UnwantRows(key))

    # ---- clients that went

    def older(self, call: ClientFindCall) -> FoundClient:
        """Answer another channel's question for a client."""
        vertex = self._machine.vertex
        if any(each.unit.id == call.asker for each in members(vertex.records.values(), 0, vertex.unit(1).id)):
            return FoundClient()  # the channel's own table has told it
        row = winner(self._rows(call.key))
        if row is None or row.row.digest != call.digest or row.row.session >= call.session:
            return FoundClient()
        if self._reported().get(call.key, self._gone.get(call.key, 0)) >= call.session:
            return FoundClient()  # it is released, and its node will hear of it
        known = self._machine.roaming.clients.get(call.key)
        if known is None or known.to or known.incarnation // TRIES < row.row.session:
            incarnation = max(row.row.session * TRIES, 0 if known is None else known.incarnation + 1)
            self._feed(ClientArrived(call.key, incarnation, _presence(call.key)))
        return FoundClient(row.row.session, vertex.chain)

    def gone(self, output: ClientGone) -> None:
        """Another channel's gatekeeper has the client, confirmed."""
        self._gone[output.name] = output.incarnation // TRIES
        self._tell()

    def _tell(self) -> None:
        """Tell the channel's nodes of clients that went, until none has an older row of them."""
        reported = self._reported()
        done = tuple(ROAMED_PREFIX + key for key, session in reported.items() if not self._is_awaited(key, session))
        if done:
            self._driver.feed(Unsubscribe(0, done))
        for key in [key for key, session in self._gone.items() if not self._is_awaited(key, session)]:
            del self._gone[key]
        room = ROAMED_MAX - len(reported) + len(done)
        new = list(self._gone.items())[: max(room, 0)]
        if new:
            wishes = (Wish(ROAMED_PREFIX + key, ROAMED_TOPIC, read(roamed_text(key, at))) for key, at in new)
            self._driver.feed(Subscribe(0, tuple(wishes)))
            for key, _ in new:
                del self._gone[key]

    def _reported(self) -> dict[str, int]:
        rows = self._driver.node.interest.registrations.rows
        found = (roamed_of(row.text) for name, row in rows.items() if name.startswith(ROAMED_PREFIX))
        return dict(each for each in found if each is not None)

    def _is_awaited(self, key: str, session: int) -> bool:
        """True if a node that is known, even one that is away, has an older row."""
        rows = self._rows(key, self._driver.node.interest.view.entries.values())
        return any(seen.row.session < session for seen in rows)

    def _rows(self, key: str, entries: Iterable[InterestEntry] | None = None) -> list[SeenRow]:
        interest = self._driver.node.interest
        at, rows = interest.clients.key(key), []
        for entry in interest.view.used() if entries is None else entries:
            item = entry.items.get(at)
            found = None if item is None else seen_row(NodeId(entry.node_id), item)
            if found is not None and found[0] == key:
                rows.append(found[1])
        return rows


def _presence(key: str) -> UnitWant:
    return UnitWant(CLIENTS_TOPIC, read(facts_text({"key": key})))


def _weight(key: str, gatekeeper: UnitId) -> bytes:
    return blake2b(key.encode() + gatekeeper, digest_size=8).digest()
