"""Clients that roam (A17): a client connects at another node, and what it wants, and what it missed, follow it.

The new node announces the want as its own. When it is confirmed for the smallest unit that both nodes are in, the new
node tells the old one, which releases the client and hands over what it has for it. So at no time is there a batch that
neither node gets; some come to both, and the client drops what it had, by id.

A batch may be on its way to the old node's unit then, matched for the want there, and would find no taker inside: so a
node releases nobody while units beside its own are out of reach, withdraws the want only `drain_ms` later, and hands
over what comes until then. What comes to the node later, by chance, is handed over for `absent_ms`.

A client that moves on before it was released is released by its second node only when the first one has released it:
batches follow it from node to node. An incarnation rises at each arrival; arrivals with an older one are refused.
"""

from m4cast.overlay.federation.contract import ClientArrived, ClientGone, ClientRefused, KeepValue, KeptClient
from m4cast.overlay.federation.gateways import Gateways
from m4cast.overlay.federation.interest import UnitInterest
from m4cast.overlay.federation.messages import ClientMoved, ClientReleased, UnitEvent
from m4cast.overlay.federation.units import level_between
from m4cast.overlay.federation.vertex import Vertex
from m4cast.overlay.federation.wants import may_want


class Roaming:
    def __init__(
        self, vertex: Vertex, gateways: Gateways, interest: UnitInterest, clients: dict[str, KeptClient]
    ) -> None:
        self._vertex = vertex
        self._gateways = gateways
        self._interest = interest
        self.clients = clients
        """Those that are here, or left less than `absent_ms` ago."""
        self._asked_ms: dict[str, int] = {}
        """The time at which the node that a client left was last told."""
        for name, client in clients.items():
            if client.to:  # what was to be handed over when this node went down
                vertex.out.append(ClientGone(name, client.incarnation))

    # ---- at the new node

    def arrive(self, arrived: ClientArrived) -> None:
        name, known = arrived.name, self.clients.get(arrived.name)
        if known is not None and arrived.incarnation <= known.incarnation:
            self._vertex.out.append(ClientRefused(name, known.incarnation))
            return
        is_back = known is not None and self._interest.clients.get(name) == arrived.want
        before = known.previous if known is not None else ()  # they have not released it yet
        is_elsewhere = arrived.previous and arrived.previous[0] != self._vertex.me.id
        previous = tuple(dict.fromkeys((*before, *((arrived.previous,) if is_elsewhere else ()))))
        self._keep(name, KeptClient(arrived.incarnation, arrived.want, previous))
        if not is_back:
            self._interest.want(name, arrived.want)
        self._asked_ms.pop(name, None)

    def drop(self, name: str) -> None:
        """A client that is here wants nothing any longer; if it came from a node, that has released it."""
        client = self.clients.get(name)
        if client is not None and not client.to and not client.previous:
            del self.clients[name]
            self._vertex.out.append(KeepValue(("client", name), None))

    def tell_previous(self) -> None:
        """Tell the nodes that clients came from, once their wants are confirmed here; again until they answer."""
        vertex = self._vertex
        for name, client in self.clients.items():
            is_due = vertex.now_ms - self._asked_ms.get(name, -vertex.settings.retry_ms) >= vertex.settings.retry_ms
            if not client.previous or not is_due:
                continue
            for previous in client.previous:
                if self._interest.confirmed_level(name) > level_between(vertex.chain, previous):
                    self._asked_ms[name] = vertex.now_ms
                    self._gateways.send_note(ClientMoved(previous, name, client.incarnation, vertex.chain))

    def released(self, note: ClientReleased) -> None:
        client = self.clients.get(note.client)
        if client is not None and client.previous and note.incarnation == client.incarnation:
            left = tuple(each for each in client.previous if each[0] != note.by)
            self._keep(note.client, KeptClient(client.incarnation, client.want, left))

    # ---- at the old one

    def moved(self, note: ClientMoved) -> None:
        name, client = note.client, self.clients.get(note.client)
        if client is not None and client.incarnation < note.incarnation:
            if client.previous or self._is_parted():
                return  # it has not been released by the node before, or batches may be held up: it asks again
            if not client.to:
                self._vertex.out.append(ClientGone(name, note.incarnation))
            self._keep(name, KeptClient(note.incarnation, client.want, (), note.by, self._vertex.now_ms))
        self._gateways.send_note(ClientReleased(note.by, name, note.incarnation, self._vertex.me.id))

    def late(self, event: UnitEvent) -> list[str]:
        """Clients that left, and want a batch that has just come."""
        matched: dict[bytes, bool] = {}
        return [name for name, client in self.clients.items() if client.to and may_want(client.want, event, matched)]

    def gone(self, name: str) -> KeptClient | None:
        """A client that left, with the node that it went to; None if it is here, or nobody knows it."""
        client = self.clients.get(name)
        return client if client is not None and client.to else None

    def _is_parted(self) -> bool:
        return any(self._gateways.is_parted(level) for level in range(self._vertex.top + 1))

    def forget(self) -> None:
        """Withdraw the wants of clients that left, and let go of those that left long ago."""
        now_ms, absent_ms = self._vertex.now_ms, self._vertex.settings.absent_ms
        for name, each in self.clients.items():
            is_drained = each.to and now_ms - each.left_ms >= self._vertex.settings.drain_ms
            if is_drained and name in self._interest.clients and not self._is_parted():
                self._interest.unwant(name)
        for name in [name for name, each in self.clients.items() if each.to and now_ms - each.left_ms >= absent_ms]:
            del self.clients[name]
            self._vertex.out.append(KeepValue(("client", name), None))

    def _keep(self, name: str, client: KeptClient) -> None:
        self.clients[name] = client
        self._vertex.out.append(KeepValue(("client", name), client))
