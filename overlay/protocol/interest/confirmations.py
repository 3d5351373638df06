"""Finds out when a registration is active: when the nodes that are present have confirmed that they know it.

The subscriber asks (`ActiveCall`, along its tree) the nodes that have not confirmed its version yet, again and again
until it has all, or nobody waits any longer. Who is asked confirms what it has applied, at once and again when it has
applied what was asked for. A confirmation names the node, its incarnation, and the version up to which it has applied
the subscriber's entry. Confirmations travel towards the subscriber from neighbour to neighbour; each passes on what it
has gathered in `MERGE_MS` as one set (`ActiveStmt`). Nobody counts children, and a set never says that it is whole:
wherever tables of routes differ, a set arrives late, twice or not at all, and the subscriber asks again.

Nothing is sent unless somebody waits.

Guarantees
11. `Active` names the nodes that have applied the registration, each by what it said itself; of all others that are
    present it says that they have not.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import Active, WaitActive
from m4cast.overlay.protocol.interest.timers import ActiveAskDue, ActiveMergeDue
from m4cast.overlay.protocol.interest.view import InterestView
from m4cast.overlay.protocol.wire.selective import ActiveCall, ActiveStmt, Confirmation

MERGE_MS = 10
"""The time for which confirmations wait to be merged at each hop; guess. Longer: fewer messages, later."""
ASK_MS = 250
"""The delay before the subscriber asks again, at first; guess. It doubles each time, up to `ASK_MS_MAX`."""
ASK_MS_MAX = 5_000
ROUTE_MS = 20
"""The interval at which the subscriber looks for routes to those whom none led to, which costs no message; guess."""
CALLS_MAX = 1_024
"""Subscribers that this node remembers that it owes a confirmation. One that is forgotten asks again."""
CALL_KEPT_MS = 2 * ASK_MS_MAX
CONFIRMATIONS_MAX = 1_024
"""The most confirmations in one message."""
HOPS_MAX = 64
"""A set that has gone further, since tables of routes differ, is sent to the subscriber itself."""

Content = ActiveCall | ActiveStmt


class AppliedVersion(NamedTuple):
    """The version of an entry that was applied."""

    incarnation: int
    ts: int


@dataclass(slots=True)
class Waiter:
    version: AppliedVersion
    deadline_ms: int


class OwedConfirmation(NamedTuple):
    """A version that a subscriber waits for, and until when that is remembered."""

    version: AppliedVersion
    until_ms: int


@dataclass(slots=True)
class Gathered:
    """Confirmations on their way to a subscriber."""

    hops: int = 0
    of_node: dict[NodeId, Confirmation] = field(default_factory=dict)


class Confirmations:
    def __init__(
        self,
        context: Context,
        view: InterestView,
        present: Callable[[int], Mapping[NodeId, int]],
        next_hop: Callable[[NodeId, int], NodeId | None],
        send: Callable[[Content, Iterable[NodeId], int], None],
        state: Callable[[NodeId, int], None],
    ) -> None:
        """`present`: the other nodes that are on the channel, with their incarnations. `next_hop`: the neighbour that
        leads to a node. `send` routes a message; it may be lost. `state` is called before a subscriber is sent a
        confirmation: what it has to hear with the registration is sent first."""
        self._context = context
        self._me = context.me.node_id
        self._view = view
        self._present = present
        self._next_hop = next_hop
        self._send = send
        self._state = state
        self.waiters: dict[int, Waiter] = {}
        """The waiters, by request."""
        self._confirmed: dict[NodeId, Confirmation] = {}
        self._interval_ms = ASK_MS
        self._ask_at_ms = 0
        self._unasked: list[NodeId] = []
        """Those whom no route led to when the others were asked."""
        self._owed: dict[NodeId, OwedConfirmation] = {}
        """Subscribers that wait for this node."""
        self._gathered: dict[NodeId, Gathered] = {}

    # ---- the subscriber

    def wait(self, asked: WaitActive, now_ms: int) -> None:
        """Answer when all nodes that are present have confirmed this version, or when the time is over."""
        own = self._view.entries.get(self._me)
        version = AppliedVersion(asked.incarnation, asked.ts)
        if own is not None:  # after a rollback, versions of the former identity may be greater
            version = min(version, AppliedVersion(*own.version[:2]))
        self.waiters[asked.request] = Waiter(version, now_ms + asked.timeout_ms)
        if not self._answer(now_ms):
            self._interval_ms = ASK_MS
            self._ask(now_ms)

    def _missing(self, version: AppliedVersion, present: Mapping[NodeId, int]) -> list[NodeId]:
        return [node_id for node_id, incarnation in present.items() if not self._has(node_id, incarnation, version)]

    def _has(self, node_id: NodeId, incarnation: int, version: AppliedVersion) -> bool:
        said = self._confirmed.get(node_id)
        return said is not None and said.incarnation == incarnation and _applied(said) >= version

    def _answer(self, now_ms: int) -> bool:
        """Answer those whose wait is over. Returns whether nobody waits any longer."""
        present = self._present(now_ms)
        for request, waiter in list(self.waiters.items()):
            missing = self._missing(waiter.version, present)
            if not missing or now_ms >= waiter.deadline_ms:
                absent = set(missing)
                confirmed = tuple(sorted(node_id for node_id in present if node_id not in absent))
                self._context.out.append(Active(request, confirmed, tuple(sorted(missing))))
                del self.waiters[request]
        for node_id in [each for each in self._confirmed if each not in present]:
            del self._confirmed[node_id]
        return not self.waiters

    def _ask(self, now_ms: int) -> None:
        self._unasked = self._missing(self._latest(), self._present(now_ms))
        self._ask_reachable(now_ms)
        self._ask_at_ms = now_ms + self._interval_ms
        self._interval_ms = min(2 * self._interval_ms, ASK_MS_MAX)
        self._set_ask(now_ms)

    def _ask_reachable(self, now_ms: int) -> None:
        """Ask those who were not asked and whom a route leads to by now."""
        asked = sorted(each for each in self._unasked if self._next_hop(each, now_ms) is not None)
        if asked:
            self._unasked = [each for each in self._unasked if each not in asked]
            self._send(ActiveCall(*self._latest()), asked, now_ms)

    def _latest(self) -> AppliedVersion:
        return max(waiter.version for waiter in self.waiters.values())

    def _set_ask(self, now_ms: int) -> None:
        deadline_ms = min(waiter.deadline_ms for waiter in self.waiters.values())
        due_ms = min(self._ask_at_ms, now_ms + ROUTE_MS) if self._unasked else self._ask_at_ms
        self._context.timers.set(ActiveAskDue(), min(due_ms, max(deadline_ms, now_ms + 1)))

    def ask_due(self, now_ms: int) -> None:
        if not self.waiters or self._answer(now_ms):
            return
        if now_ms >= self._ask_at_ms:
            self._ask(now_ms)
        else:
            self._ask_reachable(now_ms)
            self._set_ask(now_ms)

    # ---- who is asked

    def on_call(self, subscriber: NodeId, call: ActiveCall, now_ms: int) -> None:
        if len(self._owed) >= CALLS_MAX and subscriber not in self._owed:
            self._owed = {each: owed for each, owed in self._owed.items() if now_ms < owed.until_ms}
        if len(self._owed) < CALLS_MAX or subscriber in self._owed:
            self._owed[subscriber] = OwedConfirmation(AppliedVersion(call.incarnation, call.ts), now_ms + CALL_KEPT_MS)
        self._confirm(subscriber, now_ms)

    def applied(self, node_id: NodeId, now_ms: int) -> None:
        """An entry of the view has changed: its node may wait for that."""
        owed, entry = self._owed.get(node_id), self._view.entries.get(node_id)
        if owed is None:
            return
        if now_ms >= owed.until_ms:
            del self._owed[node_id]
        elif entry is not None and AppliedVersion(*entry.version[:2]) >= owed.version:
            self._confirm(node_id, now_ms)

    def _confirm(self, subscriber: NodeId, now_ms: int) -> None:
        """Confirm what is applied here. If that is less than was asked for, it is confirmed again later."""
        entry = self._view.entries.get(subscriber)
        if entry is None or subscriber in self._view.gone:
            return
        self._state(subscriber, now_ms)
        applied = AppliedVersion(*entry.version[:2])
        self._gather(subscriber, Confirmation(self._me, self._context.incarnation, *applied), 0)
        asked = self._owed.get(subscriber)
        if asked is not None and applied >= asked.version:
            del self._owed[subscriber]
        self._set_merge(now_ms)

    # ---- on the way

    def on_stmt(self, stmt: ActiveStmt, now_ms: int) -> None:
        if stmt.subscriber != self._me:
            for each in stmt.confirmations:
                self._gather(stmt.subscriber, each, stmt.hops)
            self._set_merge(now_ms)
            return
        for each in stmt.confirmations:
            self._confirmed[each.node_id] = _later(self._confirmed.get(each.node_id), each)
        if self.waiters:
            self._answer(now_ms)

    def _gather(self, subscriber: NodeId, said: Confirmation, hops: int) -> None:
        gathered = self._gathered.setdefault(subscriber, Gathered())
        gathered.hops = max(gathered.hops, hops)
        if len(gathered.of_node) < CONFIRMATIONS_MAX or said.node_id in gathered.of_node:
            gathered.of_node[said.node_id] = _later(gathered.of_node.get(said.node_id), said)

    def _set_merge(self, now_ms: int) -> None:
        if self._gathered and not self._context.timers.is_set(ActiveMergeDue()):
            self._context.timers.set(ActiveMergeDue(), now_ms + MERGE_MS)

    def merge_due(self, now_ms: int) -> None:
        """Pass on what was gathered."""
        gathered, self._gathered = self._gathered, {}
        for subscriber, each in gathered.items():
            to = subscriber if each.hops >= HOPS_MAX else self._next_hop(subscriber, now_ms)
            if to is not None:
                confirmations = tuple(each.of_node[node_id] for node_id in sorted(each.of_node))
                self._send(ActiveStmt(subscriber, min(each.hops + 1, HOPS_MAX), confirmations), (to,), now_ms)


def _applied(said: Confirmation) -> AppliedVersion:
    return AppliedVersion(said.applied_incarnation, said.applied_ts)


def _later(one: Confirmation | None, other: Confirmation) -> Confirmation:
    """Return the one of two confirmations by one node that says more."""
    if one is None or (other.incarnation, _applied(other)) > (one.incarnation, _applied(one)):
        return other
    return one
