"""The interest machine: what every node of the channel wants, known to every node.

A node's registrations become its *entry*, a set of items with a version. A change is on its disk before anybody hears
of it; then it travels from neighbour to neighbour, each passing on only what was news to it. So it reaches every node
over as many hops as that node is away, costs a copy per link, and is stopped by no failure that leaves the graph whole.

    Registrations   what was asked for here, and which of it is announced
    ClientRows      the clients that are attached here
    InterestHistory what was registered here, from when to when
    InterestEntry   one node's items, their version and the latest changes
    InterestView    all entries
    Exchange        what each neighbour has, is sent, and is asked for

News waits until `interest_changes_max` entries have changed, or for `interest_delay_ms`; after a quiet time it is sent
at once.

A channel without registrations pays nothing: the machine is inactive until the first registration or message, has no
timer, and is not asked by others (`is_active`).

Guarantees
9. After a quiet time all present nodes have equal views. A change reaches all over at most as many hops as the farthest
   is away. Bytes follow the change, not the view. A registration that was given up and made again is seen as such.
"""

from collections.abc import Callable
from dataclasses import replace

from m4cast.overlay.errors import RemoteProtocolError
from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import (
    AnnounceClients,
    Append,
    ClientRow,
    ClientRowRecord,
    InterestSpanRecord,
    InterestStateRecord,
    Recovered,
    Refused,
    RegistrationRecord,
    Subscribe,
    Subscribed,
    Trace,
    Unsubscribe,
    Wish,
)
from m4cast.overlay.protocol.interest.client_rows import ClientRows
from m4cast.overlay.protocol.interest.entry import EntryVersion, InterestEntry, ViewDifference, bucket_of, items_digest
from m4cast.overlay.protocol.interest.entry import key_of as entry_key
from m4cast.overlay.protocol.interest.exchange import Exchange, InterestLink, joined_of, left_of, version_of
from m4cast.overlay.protocol.interest.history import InterestHistory
from m4cast.overlay.protocol.interest.hooks import InterestHooks
from m4cast.overlay.protocol.interest.registrations import EPOCH_SHIFT, Registrations, RowChange, config_wishes
from m4cast.overlay.protocol.interest.timers import InterestDue, InterestSweepDue
from m4cast.overlay.protocol.interest.undurable import Undurable, next_state, recovered_state
from m4cast.overlay.protocol.interest.view import InterestView
from m4cast.overlay.protocol.neighbours import Neighbour
from m4cast.overlay.protocol.wire.interest import (
    INTEREST_VERSION,
    InterestAskStmt,
    InterestDigestStmt,
    InterestItem,
    InterestKey,
    InterestNewsStmt,
    InterestVersionsStmt,
)

SWEEP_MS = 60_000
"""The interval at which entries of silent nodes are looked for."""


class Interest:
    def __init__(
        self,
        context: Context,
        recovered: Recovered,
        rolled_back: Callable[[str], None],
        is_gone: Callable[[NodeId], bool],
    ) -> None:
        """`rolled_back` is called when the channel has a newer entry of this node than its store; `is_gone`: whether a
        node is known to have left or failed."""
        self._context = context
        self._timers = context.timers
        self._out = context.out
        self._me = context.me.node_id
        self._rolled_back = rolled_back
        self._is_gone = is_gone
        rows = recovered.of(RegistrationRecord)
        self.registrations = Registrations(rows, hierarchy=context.config.interest_hierarchy)
        self.clients = ClientRows(recovered.of(ClientRowRecord))
        self.history = InterestHistory(recovered.of(InterestSpanRecord))
        self._state = recovered_state(recovered)
        """Including what is not durable yet."""
        self._durable_state = self._state
        self._stored = EntryVersion(0, 0, 0)
        """The version of the own entry that the store had: the latest of former lives, unless it is an older copy."""
        self._planned: dict[InterestKey, InterestItem] = {}
        """The items of the own entry, including what is not durable yet."""
        self.view = InterestView()
        self.exchange = Exchange(self.view, context.out)
        self.is_active = False
        self.hooks = InterestHooks()
        """The hooks of other machines that have to be told."""
        self.undurable: dict[int, Undurable] = {}
        """The undurable changes, by the token of their append."""
        self._changes = 0
        """Entries that changed since the last exchange."""
        self._exchanged_at_ms = 0
        if self._state.ts:
            self._recover()

    def _recover(self) -> None:
        self.is_active = True
        items = [*self.registrations.items(), *self.clients.items()]
        self._planned = {entry_key(item): item for item in items}
        own = self.view.add(self._me)
        own.version = self._stored = EntryVersion(self._state.incarnation, self._state.ts, items_digest(items))
        own.items = dict(self._planned)

    def start(self, now_ms: int) -> None:
        """Register what the configuration names, and give up what it names no more."""
        wishes = config_wishes(self._context.config.subscribe)
        gone = [each for each in self.registrations.configured() if each not in wishes]
        if wishes or gone:
            self.activate(now_ms)
            self._give_up(gone, now_ms)
            self._register(tuple(wishes.values()), "", now_ms)
            self._write(0, (), now_ms)
        elif self.is_active:
            self._timers.set_sooner(InterestSweepDue(), now_ms + SWEEP_MS)

    @property
    def version(self) -> int:
        """The version of the own entry, as far as it was requested."""
        return self._state.ts

    def activate(self, now_ms: int) -> None:
        """Watch neighbours from now on: some node wants something."""
        if self.is_active:
            return
        self.is_active = True
        for neighbour in self._context.table.neighbours.values():
            self.link_up(neighbour)
        self._timers.set_sooner(InterestSweepDue(), now_ms + SWEEP_MS)
        self.hooks.activated(now_ms)

    # ---- own registrations

    def subscribe(self, asked: Subscribe, now_ms: int) -> None:
        limit = self._context.config.registrations_max
        if len(self.registrations.rows) + len(asked.wishes) > limit:
            detail = f"this node has registrations_max = {limit} registrations: give some up, or have the limit raised"
            self._out.append(Refused(asked.request, "too-many", detail))
            return
        self.activate(now_ms)
        self._register(asked.wishes, asked.owner, now_ms)
        epochs = tuple(self.registrations.rows[wish.id].epoch for wish in asked.wishes)
        self._write(asked.request, epochs, now_ms)

    def register(
        self,
        request: int,
        wishes: tuple[Wish, ...],
        removed: tuple[str, ...],
        now_ms: int,
        renewed: tuple[str, ...] = (),
    ) -> None:
        """The node's own wishes, which no limit is for. Those `renewed` begin anew. `request` 0: nobody waits."""
        self.activate(now_ms)
        self._give_up([each for each in removed if each in self.registrations.rows], now_ms)
        self._register(wishes, "", now_ms)
        if renewed:
            self._count_leave()
            self.registrations.renew(renewed, self._epoch())
        self._write(request, (), now_ms)

    def unsubscribe(self, asked: Unsubscribe, now_ms: int) -> None:
        rows = self.registrations.rows
        for each in asked.ids:
            if each in rows and asked.owner is not None and rows[each].owner != asked.owner:
                detail = f"registration {each!r} was made by another client: ask an administrator"
                self._out.append(Refused(asked.request, "forbidden", detail))
                return
        self._give_up([each for each in dict.fromkeys(asked.ids) if each in rows], now_ms)
        self._write(asked.request, (), now_ms)

    def announce_clients(self, asked: AnnounceClients, now_ms: int) -> None:
        limit = self._context.config.registrations_max
        if len(self.clients.rows) >= limit and any(key not in self.clients.rows for key, _ in asked.rows):
            detail = f"this node has registrations_max = {limit} clients: use another one, or have the limit raised"
            self._out.append(Refused(asked.request, "too-many", detail))
            return
        self.activate(now_ms)
        before = self.clients.change(asked.rows)
        if not before:
            self._answer(asked.request, ())
            return
        keys = {self.clients.key(key): None for key in before}
        self._append(asked.request, (), keys, [], before, now_ms)

    def _register(self, wishes: tuple[Wish, ...], owner: str, now_ms: int) -> None:
        since_ms = self._wall_ms(now_ms)
        for wish in wishes:
            if self.registrations.replaces(wish):
                self._count_leave()
            self.registrations.add(wish, owner, self._epoch(), since_ms)

    def _give_up(self, ids: list[str], now_ms: int) -> None:
        for each in ids:
            self._count_leave()
            self.registrations.remove(each, self._epoch(), self._wall_ms(now_ms))

    def _count_leave(self) -> None:
        self._state = replace(self._state, counter=self._state.counter + 1)

    def _epoch(self) -> int:
        return (self._context.incarnation << EPOCH_SHIFT) + self._state.counter

    def _wall_ms(self, now_ms: int) -> int:
        return max(now_ms + self._context.clocks.offset_ms, 0)

    def _write(self, request: int, epochs: tuple[int, ...], now_ms: int) -> None:
        """Ask for the append of what was changed; it is announced when it is durable."""
        journal = self.registrations.take_journal()
        if not journal:
            self._answer(request, epochs)
            return
        rows = self.registrations.rows
        keys = dict[InterestKey, None]()
        for change in journal:
            for row in (change.before, rows.get(change.id)):
                if row is not None:
                    keys[self.registrations.key(row)] = None
        self._append(request, epochs, keys, journal, {}, now_ms)

    def _append(
        self,
        request: int,
        epochs: tuple[int, ...],
        keys: dict[InterestKey, None],
        journal: list[RowChange],
        clients_before: dict[str, ClientRow | None],
        now_ms: int,
    ) -> None:
        """Store what changed, with the next version of the entry if the items under these keys did."""
        before, joined, left = self._plan(keys)
        state_before = next(reversed(self.undurable.values())).state if self.undurable else self._durable_state
        if joined or left:
            self._state = next_state(self._state, self._context.incarnation)
        token = self._context.next_token()
        rows, ids = self.registrations.rows, list(dict.fromkeys(change.id for change in journal))
        history = self.history.record(ids, rows, self._state, self._wall_ms(now_ms))
        writes = [RegistrationRecord(each, rows.get(each)) for each in ids]
        planned = self.hooks.planned(token, self._state.ts, journal)
        clients = [ClientRowRecord(each, self.clients.rows.get(each)) for each in clients_before]
        state = InterestStateRecord("", self._state)
        self._out.append(Append(token, (*writes, *clients, state, *history.records, *planned)))
        self.undurable[token] = Undurable(
            request=request,
            epochs=epochs,
            state=self._state,
            joined=tuple(joined),
            left=tuple(left),
            journal=journal,
            state_before=state_before,
            items_before=before,
            clients_before=clients_before,
            history=history,
        )

    def _plan(
        self, keys: dict[InterestKey, None]
    ) -> tuple[dict[InterestKey, InterestItem | None], list[InterestItem], list[InterestKey]]:
        """The items under these keys as they were, and those that are new, changed or gone now."""
        before: dict[InterestKey, InterestItem | None] = {}
        joined, left = [], []
        for key in keys:
            old, new = self._planned.get(key), self.clients.item(key) or self.registrations.item(key)
            if old == new:
                continue
            before[key] = old
            if new is None:
                left.append(key)
                del self._planned[key]
            else:
                joined.append(new)
                self._planned[key] = new
        return before, joined, left

    def _answer(self, request: int, epochs: tuple[int, ...]) -> None:
        """Answer a request that changed nothing; what it found may not be durable yet."""
        if not request:
            return
        if self.undurable:
            last = next(reversed(self.undurable.values()))
            last.also.append((request, epochs))
        else:
            self._out.append(Subscribed(request, epochs))

    def durable(self, token: int, now_ms: int) -> None:
        change = self.undurable.pop(token, None)
        if change is None:
            return
        self._durable_state = change.state
        self.history.durable(change.history)
        if change.joined or change.left:
            own = self.view.entries.get(self._me) or self.view.add(self._me)
            digest = own.digest_after(change.joined, change.left)
            version = EntryVersion(change.state.incarnation, change.state.ts, digest)
            self._changed(own, own.change(version, change.joined, change.left), now_ms)
            self._schedule(now_ms)
        for request, epochs in ((change.request, change.epochs), *change.also):
            if request:
                self._out.append(Subscribed(request, epochs))

    def failed(self, token: int, reason: str) -> None:
        """The append was not kept, nor was any after it: all is as before."""
        for each in sorted((each for each in self.undurable if each >= token), reverse=True):
            change = self.undurable.pop(each)
            self.registrations.undo(change.journal)
            self.clients.undo(change.clients_before)
            self.history.undo(change.history)
            self._state = change.state_before
            for key, item in change.items_before.items():
                if item is None:
                    self._planned.pop(key, None)
                else:
                    self._planned[key] = item
            for request, _ in ((change.request, change.epochs), *change.also):
                if request:
                    self._out.append(Refused(request, "store", f"the registration could not be stored: {reason}"))

    # ---- neighbours

    def link_up(self, neighbour: Neighbour) -> None:
        call = self._context.calls.get(neighbour.conn)
        if call is not None and call.version >= INTEREST_VERSION:
            self.exchange.link_up(neighbour.contact.node_id, neighbour.conn)

    def link_down(self, neighbour: Neighbour) -> None:
        self.exchange.link_down(neighbour.contact.node_id, neighbour.conn)

    def blocked(self, conn: int, now_blocked: bool) -> None:
        for link in self.exchange.links.values():
            if link.conn == conn:
                link.is_blocked = now_blocked
                if not now_blocked:
                    self.exchange.ready(link)

    def _link(self, sender: Neighbour, now_ms: int) -> InterestLink:
        self.activate(now_ms)
        link = self.exchange.links.get(sender.contact.node_id)
        if link is None:
            raise RemoteProtocolError("interest is not in the protocol version of this link")
        return link

    def on_digest(self, sender: Neighbour, stmt: InterestDigestStmt, now_ms: int) -> None:
        self.exchange.on_digest(self._link(sender, now_ms), stmt)

    def on_versions(self, sender: Neighbour, stmt: InterestVersionsStmt, now_ms: int) -> None:
        link = self._link(sender, now_ms)
        for listed in stmt.entries:
            if listed.node_id == self._me:
                self._heard_own(version_of(listed))
        self.exchange.on_versions(link, stmt)
        if stmt.last:
            self.hooks.end_marked(now_ms)

    def on_ask(self, sender: Neighbour, stmt: InterestAskStmt, now_ms: int) -> None:
        self.exchange.on_ask(self._link(sender, now_ms), stmt)

    def on_news(self, sender: Neighbour, stmt: InterestNewsStmt, now_ms: int) -> None:
        link = self._link(sender, now_ms)
        parts = self.exchange.assemble(link, stmt)
        if parts is None:
            return
        if stmt.node_id == self._me:
            self._heard_own(version_of(stmt))
        elif stmt.ts:
            self._take(link, parts, now_ms)
        self.exchange.ask_all()
        self._schedule(now_ms)

    def _heard_own(self, version: EntryVersion) -> None:
        own = self.view.entries.get(self._me)
        is_of_now = version.incarnation == self._context.incarnation
        mine = own.version if own is not None and is_of_now else self._stored
        if version > mine or (version[:2] == mine[:2] and version != mine):
            self._rolled_back(f"another node has this node's interest of version {version.incarnation}.{version.ts}")

    def _take(self, link: InterestLink, parts: list[InterestNewsStmt], now_ms: int) -> None:
        """Take the entry, if it is newer than what is held and fits it."""
        stmt = parts[0]
        version = version_of(stmt)
        link.learn(stmt.node_id, version)
        entry = self.view.entries.get(stmt.node_id)
        if entry is not None and version <= entry.version:
            return
        joined = tuple(joined_of(parts))
        if stmt.buckets == 1:
            items = {entry_key(item): item for item in joined}
            if len(items) != len(joined) or items_digest(joined) != version.digest:
                raise RemoteProtocolError("InterestNewsStmt: the digest is not that of the items")
            if entry is None:
                entry = self._make_room(stmt.node_id, now_ms)
            if entry is not None:
                self._changed(entry, entry.replace(version, items), now_ms)
        elif entry is None or entry.version[:2] != (stmt.base_incarnation, stmt.base_ts):
            self.exchange.want(link, stmt)
        elif stmt.buckets == 0:
            left = tuple(left_of(parts))
            if entry.digest_after(joined, left) != version.digest:
                self.exchange.want(link, stmt, whole=True)
            else:
                self._changed(entry, entry.change(version, joined, left), now_ms)
        else:
            replaced = set(stmt.replaced)
            kept = [item for key, item in entry.items.items() if bucket_of(key, stmt.buckets) not in replaced]
            items = {entry_key(item): item for item in (*kept, *joined)}
            if items_digest(items.values()) != version.digest:
                self.exchange.want(link, stmt, whole=True)
            else:
                self._changed(entry, entry.replace(version, items), now_ms)

    def _make_room(self, node_id: NodeId, now_ms: int) -> InterestEntry | None:
        if not self.view.has_room():
            self._out.append(Trace("interest-shed", (("node", node_id.hex()),)))
            return None
        if self._is_gone(node_id):
            self.view.gone[node_id] = now_ms
        return self.view.add(node_id)

    def _changed(self, entry: InterestEntry, difference: ViewDifference, now_ms: int) -> None:
        entry.heard_at_ms = now_ms
        is_present = entry.node_id not in self.view.gone
        if is_present:
            self._show(entry, difference, now_ms)
        self.exchange.mark(entry.node_id)
        self._changes += 1

    def _show(self, entry: InterestEntry, difference: ViewDifference, now_ms: int, *, present: bool = True) -> None:
        self.view.revision += 1
        change = entry.changed_by(difference, self.view.revision, present=present)
        self._out.append(change)
        self.hooks.shown(change, now_ms)

    # ---- when news goes

    def _schedule(self, now_ms: int) -> None:
        """Exchange at once if enough has changed or nothing was sent for a while; else soon."""
        if not self._changes:
            return
        config = self._context.config
        is_quiet = now_ms - self._exchanged_at_ms >= config.interest_quiet_ms
        if self._changes >= config.interest_changes_max or is_quiet:
            self._send_news(now_ms)
        elif not self._timers.is_set(InterestDue()):
            self._timers.set(InterestDue(), now_ms + config.interest_delay_ms)

    def _send_news(self, now_ms: int) -> None:
        self._changes = 0
        self._exchanged_at_ms = now_ms
        self._timers.cancel(InterestDue())
        self.exchange.send_news()

    def due(self, now_ms: int) -> None:
        self._send_news(now_ms)

    # ---- who is there

    def departed(self, node_id: NodeId, now_ms: int) -> None:
        """The node left or failed: its entry is not used any longer."""
        entry = self.view.entries.get(node_id)
        if entry is None or node_id in self.view.gone or node_id == self._me:
            return
        self.view.gone[node_id] = now_ms
        self.exchange.forget(node_id)
        self._show(entry, ViewDifference((), tuple(entry.items), ()), now_ms, present=False)

    def returned(self, node_id: NodeId, now_ms: int) -> None:
        """A later beacon of it has arrived: its entry is used again, and neighbours that forgot it hear of it."""
        if self.view.gone.pop(node_id, None) is not None:
            entry = self.view.entries[node_id]
            self._show(entry, ViewDifference(tuple(entry.items.values()), (), ()), now_ms)
            self.exchange.mark(node_id, mention=True)
            self._changes += 1
            self._schedule(now_ms)

    def sweep(self, is_silent: Callable[[NodeId, int], bool], now_ms: int) -> None:
        """Find nodes that went without a word, and forget those that are long gone. `is_silent` is given a node and
        since when its entry is here."""
        for node_id, entry in list(self.view.entries.items()):
            if node_id != self._me and node_id not in self.view.gone and is_silent(node_id, entry.heard_at_ms):
                self.departed(node_id, now_ms)
        self.view.forget_gone(now_ms)
        self._timers.set(InterestSweepDue(), now_ms + SWEEP_MS)
