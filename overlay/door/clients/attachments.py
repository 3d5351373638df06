"""Clients at the door: attach them, keep their states, hold rows for them, and let them go when they are elsewhere.

The decisions are those of `protocol/clients`; here they meet the store and the node. Calls about one key take turns. A
state is durable before its row is announced, and both before the client is answered.

One thread follows the client table and renews the lease. Both may lag: a former access point holds on for longer, and
rows are retained for longer. Only what is needed *sooner* is leased at once, before a client is told that it is here.
"""

import json
import logging
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from random import SystemRandom
from typing import Any

from m4cast.overlay.door.access.rights import Caller
from m4cast.overlay.door.clients.arrived_rows import ArrivedRows
from m4cast.overlay.door.clients.client_lease import ClientLease
from m4cast.overlay.door.clients.client_requests import (
    ClientQuestion,
    ConnectRequest,
    MailRequest,
    SaveRequest,
    StateQuestion,
    digest_of,
)
from m4cast.overlay.door.clients.client_table import entries_of, rows_of, table_of
from m4cast.overlay.door.clients.client_wants import ClientWants, require_profiles
from m4cast.overlay.door.clients.elsewhere import unknown_of
from m4cast.overlay.door.clients.group_shares import GroupShares, Owns
from m4cast.overlay.door.clients.keeper_leases import KeeperLeases
from m4cast.overlay.door.clients.many_clients import ManyClients
from m4cast.overlay.door.clients.settling import SettlingClients
from m4cast.overlay.door.frontiers import LOOK_S, Frontiers
from m4cast.overlay.door.node_handle import NodeHandle, until_written, waited
from m4cast.overlay.door.refusals import Refusal, bad_request
from m4cast.overlay.door.requests import ClientReader
from m4cast.overlay.door.selected.reads import SelectiveReads
from m4cast.overlay.errors import StoreError
from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.clients.access_point import (
    AttachRefusal,
    AttachRequest,
    SeenRow,
    attach,
    is_superseded,
    lets_go,
    renewed,
    seen_row,
    winner,
)
from m4cast.overlay.protocol.clients.group import joined
from m4cast.overlay.protocol.clients.packed_state import packed_of
from m4cast.overlay.protocol.clients.roamed import ROAMED_HASH, roamed_of
from m4cast.overlay.protocol.clients.state import ClientState, json_of, state_of
from m4cast.overlay.protocol.effects import AnnounceClients, ClientRow, InterestChanged
from m4cast.overlay.protocol.wire.interest import CLIENT_LANGUAGE, InterestItem
from m4cast.overlay.store.store import Store

log = logging.getLogger("m4cast.door")

MOVED_MAX = 10_000
"""Clients that are remembered as gone elsewhere, so that they are told where."""
STRIPES = 64
ROWS_SHOWN_MAX = 1_000
WAITING_SHOWN_MAX = 100
"""The most clients that are shown with what waits for them: their states are read from the store."""
ONLINE_S = 30.0
"""A client that has not called for this long counts as gone. The library calls at least every 5 s while it waits for
rows, so nobody is probed. Lower: who is killed is seen sooner."""


class ClientAdmin(SettlingClients, ManyClients):
    """Any thread may use it."""

    def __init__(self, store: Store, node: NodeHandle, frontiers: Frontiers, selective: SelectiveReads) -> None:
        self._store = store
        self._node = node
        self._frontiers = frontiers
        self._rows = ArrivedRows(store, frontiers)
        self._timeout_s = timeout_s = selective.timeout_s
        self._wants = ClientWants(node, selective)
        self._unsettled: dict[str, None] = {}
        """Clients whose rows have not all arrived."""
        self._turns = [threading.Lock() for _ in range(STRIPES)]
        self._lock = threading.Lock()
        """Over the fields below."""
        self._connections: dict[str, int] = {}
        self._heard_at: dict[str, float] = {}
        """The time at which each connected client called last, on the monotonic clock."""
        self._moved: OrderedDict[str, str] = OrderedDict()
        """Clients that went elsewhere, and where they are attached."""
        self._groups = GroupShares(node.now_ms)
        self._keepers = KeeperLeases(store, node, selective)
        self._lease = ClientLease(store, node.clock_ms, timeout_s, self._keepers.tell)
        self._heard: queue.SimpleQueue[tuple[NodeId, list[InterestItem]] | None] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None
        self._is_closed = False
        if next(store.clients.all(), None) is not None:
            self._start()

    # ---- what clients ask for

    def connect(self, asked: ConnectRequest, caller: Caller) -> dict[str, object]:
        caller.rights.require_client(asked.key)
        digest = digest_of(asked.key, asked.credential)
        if asked.state is not None:
            require_profiles(asked.key, asked.state, caller)
        with self._turn(asked.key):
            if asked.member is None and asked.key in self._groups:
                detail = f"client {asked.key!r} is a group that has members now: connect as one of them"
                raise Refusal("client-elsewhere", detail)
            me, rows = self._node.look(lambda node: rows_of(node, asked.key), self._timeout_s)
            self._check_device(asked.key, asked.credential)
            kept = self._store.clients.get(asked.key)
            here = None if kept is None else state_of(json.loads(kept)["state"])
            follows = asked.member is not None and not asked.take
            found = attach(AttachRequest(digest, asked.session, asked.state, asked.create, follows), me, rows, here)
            if isinstance(found, AttachRefusal):
                raise self._refusal(asked.key, found)
            if asked.member is not None and here is not None:
                found = replace(found, state=joined(here, found.state))
            self._keep(asked.key, found.state)
            self._lease.include(found.state)
            lacking = self._rows.lacking(found.state)
            if asked.session and not rows:
                self._rows.strangers[asked.key] = None
            own = next((seen.row for seen in rows if seen.node_id == me), None)
            if lacking and asked.state is not None:
                found = renewed(found, own)
            is_new = found.is_new or own is None
            if is_new or own is None:
                is_whole = not lacking and not self._is_awaited(asked.key, found.state)
                if is_whole:
                    self._rows.strangers.pop(asked.key, None)
                has_all = is_whole and not self._wants.is_wanted(found.state)
                row = ClientRow(found.session, has_all, self._node.clock_ms(), digest)
            else:
                row = own
            try:
                self._announce(asked.key, row, caller.is_cancelled)
            except Refusal:
                if own is None:
                    self._discard_unannounced([asked.key])
                raise
            self._wants.keep({asked.key: (found.session, found.state)}, caller.name)
            self._cover(asked.key, row, found.state)
            connection, version = SystemRandom().randrange(1, 2**53), 0
            if asked.member is not None:
                version = self._groups.join(asked.key, asked.member, connection)
            with self._lock:
                self._moved.pop(asked.key, None)
                if asked.member is None:
                    self._connections[asked.key] = connection
                    self._heard_at[asked.key] = time.monotonic()
                else:
                    self._connections.pop(asked.key, None)
                    self._heard_at.pop(asked.key, None)
        return {
            "session": found.session,
            "connection": connection,
            "version": version,
            "state": packed_of(found.state) if asked.short else json_of(found.state),
            "lacking": lacking,
            "waiting_max": self._rows.waiting_max(found.state),
            "node_id": me.hex(),
        }

    def save(self, asked: SaveRequest, caller: Caller) -> dict[str, object]:
        caller.rights.require_client(asked.key)
        with self._turn(asked.key):
            self._require_live(asked.key, asked.connection)
            kept = self._store.clients.get(asked.key)
            before = ClientState() if kept is None else state_of(json.loads(kept)["state"])
            state = asked.state
            if asked.key in self._groups:
                if state.fills:
                    raise bad_request("the state of a group has fills: a group's profiles begin at its position")
                state = joined(before, state)
            if state.profiles != before.profiles:
                require_profiles(asked.key, state, caller)
            self._keep(asked.key, state)
            if state.profiles != before.profiles:
                self._groups.change(asked.key, asked.connection)
            if state.topics != before.topics:
                self._lease.include(state)
            lacking = self._rows.lacking(state)
            _, row = self._own_row(asked.key)
            if row is not None:
                if state.profiles != before.profiles:
                    self._wants.keep({asked.key: (row.session, state)}, caller.name)
                self._cover(asked.key, row, state)
        self._lease.soon()
        return {"lacking": lacking}

    def share(self, asked: SaveRequest, caller: Caller) -> dict[str, object]:
        """A member of a group learns where the group stands, when its own position is saved."""
        if asked.key not in self._groups:
            caller.rights.require_client(asked.key)
            self._require_live(asked.key, asked.connection)
            raise bad_request(f"client {asked.key!r} is not connected as a group: connect as a member")
        self.save(asked, caller)
        version, members = self._groups.see(asked.key, asked.connection)
        kept = self._store.clients.get(asked.key)  # what is saved meanwhile is of a later version
        return {"version": version, "state": None if kept is None else json.loads(kept)["state"], "members": members}

    def unknown(self, asked: MailRequest, caller: Caller) -> list[str]:
        """Those of the recipients that nobody knows."""
        caller.rights.require_client(asked.key)
        self._require_live(asked.key, asked.connection)
        return unknown_of(self._node, asked.to, self._timeout_s)

    def disconnect(self, asked: tuple[str, int], caller: Caller) -> dict[str, object]:
        key, connection = asked
        caller.rights.require_client(key)
        with self._turn(key):
            self._require_live(key, connection)
            if key in self._groups:
                self._groups.leave(key, connection)
                return {}
            with self._lock:
                del self._connections[key], self._heard_at[key]
        return {}

    def state(self, asked: StateQuestion, caller: Caller) -> dict[str, object]:
        """Return the state that this node keeps of a client, to callers with its credential, so that it can be moved
        elsewhere."""
        key, credential = asked.key, asked.credential
        caller.rights.require_client(key)
        me, rows = self._node.look(lambda node: rows_of(node, key), self._timeout_s)
        own = next((seen.row for seen in rows if seen.node_id == me), None)
        if own is None:
            raise self._refusal(key, attach(AttachRequest(digest_of(key, credential), 0, None, False), me, rows, None))
        if own.digest != digest_of(key, credential):
            raise self._refusal(key, AttachRefusal("bad-credential"))
        kept = self._store.clients.get(key)
        assert kept is not None, "a row is announced after its state is stored, and withdrawn before that is removed"
        state = json.loads(kept)["state"]
        return {"session": own.session, "state": packed_of(state_of(state)) if asked.short else state}

    def remove(self, key: str) -> dict[str, object]:
        with self._turn(key):
            is_here = self._node.look(lambda node: key in node.interest.clients.rows, self._timeout_s)
            if is_here:
                self._let_go(key)
        return {"key": key, "removed": is_here}

    def table(self, question: ClientQuestion, caller: Caller) -> dict[str, object]:
        """Return where clients are attached, as far as this node knows."""
        entries = self._node.look(lambda node: entries_of(node, question.key), self._timeout_s)
        me = self._node.look(lambda node: node.me.node_id, self._timeout_s).hex()
        most = WAITING_SHOWN_MAX if question.waiting else ROWS_SHOWN_MAX
        rows = table_of(entries, question, caller.rights.may_client, most + 1)
        page = rows[:most]
        with self._lock:
            for row in page:
                row["online"] = self._is_online(str(row["key"])) if row["node_id"] == me else None
        if question.waiting:
            for row in page:
                row["waiting"] = self._waiting(str(row["key"])) if row["node_id"] == me else None
        return {"clients": page, "next": page[-1]["key"] if len(rows) > len(page) else None}

    # ---- reads of clients

    def watched(self, caller: Caller, attached: ClientReader) -> Caller:
        """The caller, whose call is over when its connection is."""
        caller.rights.require_client(attached.key)
        self._require_live(attached.key, attached.connection)
        self._require_fresh(attached)
        is_cancelled = caller.is_cancelled

        def is_over() -> bool:
            return is_cancelled() or not self._is_live(attached) or self._groups.is_stale(attached)

        return replace(caller, is_cancelled=is_over)

    def _require_fresh(self, attached: ClientReader) -> None:
        if self._groups.is_stale(attached):
            raise Refusal("regrouped", f"members of group {attached.key!r} came or went: share its streams anew")

    def shared(self, attached: ClientReader) -> Owns | None:
        """Return the streams that a member of a group may read; None if it is no member."""
        return self._groups.owns(attached) if attached.key in self._groups else None

    def until_over(self, attached: ClientReader, pieces: Iterator[Any]) -> Iterator[Any]:
        """These pieces; if the connection ends, the reason."""
        try:
            for piece in pieces:
                yield piece
                self._require_live(attached.key, attached.connection)
        except Refusal as refusal:
            if refusal.code == "cancelled":
                if not self._is_live(attached):
                    self._require_live(attached.key, attached.connection)
                self._require_fresh(attached)
            raise

    def _is_online(self, key: str) -> bool:
        """Called with the lock held."""
        if key in self._groups:
            return True
        return key in self._connections and time.monotonic() - self._heard_at[key] < ONLINE_S

    def _is_live(self, attached: ClientReader) -> bool:
        if self._groups.is_member(attached.key, attached.connection):
            return True
        with self._lock:
            return self._connections.get(attached.key) == attached.connection

    def _require_live(self, key: str, connection: int) -> None:
        if self._groups.is_heard(key, connection):
            return
        with self._lock:
            live, moved = self._connections.get(key), self._moved.get(key)
            if live == connection:
                self._heard_at[key] = time.monotonic()
                return
        if live is not None or key in self._groups:
            if key in self._groups:
                raise Refusal("not-connected", f"this connection is no longer a member of group {key!r}: connect again")
            raise Refusal("client-elsewhere", f"client {key!r} was connected again, and this connection is over")
        if moved is not None:
            raise Refusal("client-elsewhere", f"client {key!r} is attached {moved}: this connection is over")
        raise Refusal("not-connected", f"client {key!r} is not connected here: connect it again")

    # ---- parts of these

    def _check_device(self, key: str, credential: str) -> None:
        """Refuse a device with another credential than that of its client, as far as this node knows the client."""
        client, slash, _ = key.partition("/")
        if slash:
            _, rows = self._node.look(lambda node: rows_of(node, client), self._timeout_s)
            known = winner(rows)
            if known is not None and known.row.digest != digest_of(client, credential):
                raise self._refusal(key, AttachRefusal("bad-credential"))

    def _own_row(self, key: str) -> tuple[NodeId, ClientRow | None]:
        return self._node.look(lambda node: (node.me.node_id, node.interest.clients.rows.get(key)), self._timeout_s)

    def _turn(self, key: str) -> threading.Lock:
        return self._turns[self._turn_number(key)]

    def _turn_number(self, key: str) -> int:
        return sum(key.encode()) % STRIPES

    def _refusal(self, key: str, found: object) -> Refusal:
        assert isinstance(found, AttachRefusal)
        if found.code == "bad-credential":
            detail = f"the credential is not that of client {key!r}: use the one that the client was created with"
            return Refusal("bad-credential", detail)
        if found.elsewhere is None:
            detail = (
                f"this node knows no client {key!r}: check the key, connect where it was last attached, or create it"
            )
            return Refusal("unknown-client", detail)
        elsewhere = found.elsewhere
        entry = self._node.look(lambda node: node.roster.get(elsewhere), self._timeout_s)
        door = entry.door if entry is not None else ""
        where = f"node {elsewhere.hex()}, door {door or 'unknown'}"
        detail = f"client {key!r} is attached to {where}: bring its state from there"
        return Refusal("client-elsewhere", detail)

    def _keep(self, key: str, state: ClientState) -> None:
        until_written(self._store.clients.put(key, self._written(state)), self._timeout_s)

    def _announce(self, key: str, row: ClientRow | None, is_cancelled: Callable[[], bool] = lambda: False) -> None:
        self._announce_all([(key, row)], is_cancelled)

    def _announce_all(
        self, rows: Sequence[tuple[str, ClientRow | None]], is_cancelled: Callable[[], bool] = lambda: False
    ) -> None:
        asked = self._node.request(lambda number: AnnounceClients(number, tuple(rows)))
        waited(asked, self._timeout_s, is_cancelled)
        self._start()

    def _is_awaited(self, key: str, state: ClientState) -> bool:
        return self._rows.is_awaited(key, state, self._wants.selective(state))

    def _let_go(self, key: str) -> None:
        """First the row, then the state: a row without a state is never announced. What the row announces is no longer
        wanted before that."""
        self._wants.drop(key)
        self._announce(key, None)
        until_written(self._store.clients.remove(key), self._timeout_s)
        self._groups.drop(key)
        with self._lock:
            self._connections.pop(key, None)
            self._heard_at.pop(key, None)
        self._lease.soon()

    # ---- the client table

    def watch(self, output: object) -> None:
        """Runs on the loop, when the rows of some node have changed."""
        if not isinstance(output, InterestChanged):
            return
        if self._keepers.watch(output):
            self._start()
            self._heard.put((output.node_id, []))
        if self._worker is not None:
            items = [
                item
                for item in (*output.joined, *output.rejoined)
                if item.language == CLIENT_LANGUAGE or item.topic_hash == ROAMED_HASH
            ]
            if items:
                self._heard.put((output.node_id, items))

    def _start(self) -> None:
        with self._lock:
            if self._worker is None and not self._is_closed:
                self._worker = threading.Thread(target=self._work, name="clients", daemon=True)
                self._worker.start()

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        self._heard.put(None)

    def ended(self) -> None:
        """Wait until nothing is done any longer. Never on the loop, which the work needs."""
        if self._worker is not None:
            self._worker.join(self._timeout_s)

    def _work(self) -> None:
        is_claimed = False
        while True:
            heard: tuple[NodeId, list[InterestItem]] | None = (NodeId(b""), [])
            with suppress(queue.Empty):
                heard = self._heard.get(timeout=min(max(self._lease.due_at - time.monotonic(), 0), LOOK_S))
            if heard is None or self._is_closed:
                return
            try:
                if not is_claimed:
                    self._claim()
                    is_claimed = True
                self._follow(*heard)
                self._settle()
                self._groups.expire()
                self._keepers.follow()
                self._lease.tell_again()
                if time.monotonic() >= self._lease.due_at:
                    self._lease.follow(lambda key: key in self._connections or key in self._groups)
            except (Refusal, StoreError) as error:  # the node stops, or its disk fails
                self._lease.soon()
                log.warning("clients: %s", error)

    def _follow(self, node_id: NodeId, items: list[InterestItem]) -> None:
        """Rows of another node: clients of ours that went there are told so, and let go once they are covered. Those
        that went to another channel are let go at once: its gatekeeper has seen to the rest."""
        seen: dict[str, SeenRow] = {}
        for item in items:
            if item.topic_hash == ROAMED_HASH:
                self._follow_roamed(item.text)
            elif (found := seen_row(node_id, item)) is not None:
                seen[found[0]] = found[1]
        if not seen:
            return
        for key in self._node.look(lambda node: node.interest.clients.rows.keys() & seen.keys(), self._timeout_s):
            if self._is_closed:
                return
            other = seen[key]
            with self._turn(key):
                me, own = self._own_row(key)
                if own is None or node_id == me:
                    continue
                mine = SeenRow(me, own)
                if is_superseded(mine, other):
                    self._end(key, f"to node {node_id.hex()}")
                if lets_go(mine, other):
                    self._let_go(key)

    def _follow_roamed(self, text: str) -> None:
        found = roamed_of(text)
        if found is None:
            return
        key, session = found
        with self._turn(key):
            _, own = self._own_row(key)
            if own is not None and own.session < session:
                self._end(key, "in another channel")
                self._let_go(key)

    def _end(self, key: str, where: str) -> None:
        """The client's connection is over: it is attached elsewhere."""
        self._groups.drop(key)
        with self._lock:
            self._connections.pop(key, None)
            self._heard_at.pop(key, None)
            self._moved[key] = where
            while len(self._moved) > MOVED_MAX:
                self._moved.popitem(last=False)
