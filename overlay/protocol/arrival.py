"""Arrival: from the start of a node until it may publish, and how others arrive through it (PROTOCOL.md 4.1, 8).

A node seeks the channel and is brought in, or founds it. Then it has to prove that its store is the latest (`Past`):
every node that it meets is asked what it has of this node's rows. Rows that it published under former identities,
before its store was rolled back, have to come back before it numbers new ones: they say which keyed commits were made.
"""

from m4cast.overlay.errors import RemoteProtocolError
from m4cast.overlay.ids import Contact
from m4cast.overlay.protocol.calls import Call
from m4cast.overlay.protocol.context import Context
from m4cast.overlay.protocol.effects import Recovered, Send, Trace
from m4cast.overlay.protocol.finding.seeking import SeekDue, Seeking
from m4cast.overlay.protocol.membership.membership import Membership
from m4cast.overlay.protocol.membership.merging import Merge
from m4cast.overlay.protocol.neighbours import Neighbour, State
from m4cast.overlay.protocol.publishing.publishing import Publishing
from m4cast.overlay.protocol.roster.roster import Roster
from m4cast.overlay.protocol.streams.dissemination import Dissemination
from m4cast.overlay.protocol.streams.past import Ask
from m4cast.overlay.protocol.wire.messages import (
    ConnectedStmt,
    ConnectionRequestCall,
    ConnectionRequestResp,
    HeldCall,
    HeldResp,
    HoldingsStmt,
    SeekingConnectionCall,
    SeekingConnectionResp,
)

ALONE_SEEK_ROUNDS = 5
"""A founder that is alone asks for others again after this many `seek_retry_ms`."""


class Arrival:
    def __init__(
        self,
        context: Context,
        recovered: Recovered,
        membership: Membership,
        roster: Roster,
        dissemination: Dissemination,
        publishing: Publishing,
    ) -> None:
        self.seeking = Seeking(context)
        self._context = context
        self._membership = membership
        self._roster = roster
        self._dissemination = dissemination
        self._past = dissemination.past
        self._publishing = publishing
        self._founded = False
        self._has_former_ids = bool(recovered.former_ids)
        self._knew_others = any(not entry.leaving for entry in recovered.roster)

    # ---- seeking and founding

    def seek(self, now_ms: int) -> None:
        if self._context.table.neighbours or self._membership.leaving:
            return
        if self.seeking.begin(self._roster.passive.addresses(), now_ms):
            self.found(now_ms)

    def seek_soon(self, now_ms: int) -> None:
        """The last neighbour is gone."""
        self._context.timers.set_sooner(SeekDue(), now_ms + self._context.random.randrange(100) + 1)

    def found(self, now_ms: int) -> None:
        self.seeking.stop()
        self._dissemination.founded()
        self._membership.links.become_full()
        self._context.out.append(Trace("alone" if self._founded else "founded", ()))
        self._founded = True
        # A founder may have missed others that are on the channel and could not be reached just now.
        self._context.timers.set(SeekDue(), now_ms + ALONE_SEEK_ROUNDS * self._context.config.seek_retry_ms)

    def call_failed(self, call: Call, now_ms: int) -> None:
        """A call of the search for the channel ended without an answer."""
        if self.seeking.call_failed(call, now_ms, self._knew_others):
            self.found(now_ms)

    def on_seeking_call(self, call: Call, asked: SeekingConnectionCall, now_ms: int) -> None:
        """Routine 15."""
        assert call.peer is not None
        full = self._membership.state is State.FULL and not self._membership.leaving
        hears = self._roster.hears(call.peer.node_id, now_ms)
        self._context.out.append(Send(call.conn, SeekingConnectionResp(full, hears, self.seeking.depth)))
        if asked.seeking and not full and not self._membership.leaving:
            self.seeking.met(call.peer, asked.depth)

    def on_seeking_answer(self, call: Call, answer: SeekingConnectionResp, now_ms: int) -> None:
        if isinstance(call.purpose, Merge):
            self._membership.merging.on_probe(call, answer, now_ms)
            return
        ask, found = self.seeking.answered(call, answer, now_ms, self._knew_others)
        if ask:
            self._membership.joining.request(call)
        if found:
            self.found(now_ms)

    def on_connected(self, call: Call, _: ConnectedStmt, now_ms: int) -> None:
        """A fellow seeker is on the channel now."""
        assert call.peer is not None
        self._context.calls.close(call.conn)
        if self._membership.state is State.SEEKING and not self._membership.leaving:
            self.seeking.fellow_connected(call.peer, now_ms)

    def on_connection_request(self, call: Call, request: ConnectionRequestCall, now_ms: int) -> None:
        self._membership.joining.on_request(call, request.holes, self._roster.entries(), now_ms)

    def on_connection_answer(self, call: Call, answer: ConnectionRequestResp, now_ms: int) -> None:
        assert call.peer is not None
        self.seeking.request_answered(call)
        if self._context.table.courting.get(call.peer.node_id) == call.conn:  # else nobody asked for it
            for entry in answer.roster:
                self._roster.heard(entry, now_ms, second_hand=True)
                if not entry.leaving and entry.node_id != self._context.me.node_id:
                    contact = Contact(entry.node_id, entry.address)
                    self._roster.passive.meet(contact, now_ms)
                    if self._past.is_asking:
                        self._past.heard_of(contact, now_ms)
            self._membership.diameter.resize(self._roster.population())
        self._membership.joining.on_response(call, answer, now_ms)

    # ---- may it publish?

    def why_not_ready(self) -> str | None:
        """The reason why nothing may be numbered yet; None when it may. A store that was rolled back must learn of it
        first: a number is never used twice. Alone, only a node that never knew another may start."""
        if not (self._dissemination.exchanged_once or (self._founded and not self._knew_others)):
            return "this node has not exchanged frontiers with the channel yet: try again"
        if (unproven := self._past.why_unproven()) is not None:
            return unproven
        return self._why_not_whole() if self._has_former_ids else None

    def _why_not_whole(self) -> str | None:
        """After a rollback the rows that this node published before have to come back first."""
        spreading = self._dissemination.spreading
        if self._membership.state is not State.FULL or not spreading.all_exchanged():
            return "this node's store was older than the channel, and it has not heard yet what is missing: try again"
        near = self._context.table.neighbours  # what these have is known by their links
        reported = self._past.former_streams(lambda node_id: node_id in near or self._roster.has_gone(node_id))
        missing = self._dissemination.missing_former_stream(reported)
        if missing is None:
            return None
        (_, topic), next_sequence = missing
        return (
            f"this node's store was older than the channel, and its former rows of topic {topic!r} have not come back "
            f"up to {next_sequence - 1} yet: try again"
        )

    # ---- what others have of this node's rows, and it of theirs

    def on_holdings(self, sender: Neighbour, holdings: HoldingsStmt, now_ms: int) -> None:
        self._dissemination.on_holdings(sender, holdings, self._publishing.origin_batch, now_ms)
        if holdings.last and self._past.is_asking:
            self._past.exchanged(sender.contact.node_id, now_ms)

    def on_held_call(self, call: Call, asked: HeldCall, _now_ms: int) -> None:
        assert call.peer is not None
        node_id = call.peer.node_id
        knew = self._roster.knew(node_id, call.incarnation) or any(self._roster.get(each) for each in asked.origins[1:])
        self._dissemination.on_held_call(call.conn, asked, self._roster.as_seen(node_id), knew=knew)

    def on_held_answer(self, call: Call, answer: HeldResp, now_ms: int) -> None:
        if not isinstance(call.purpose, Ask):
            raise RemoteProtocolError("HeldResp answers what was not asked")
        self._take_held(call, answer, now_ms)

    def on_neighbours_held_call(self, sender: Neighbour, asked: HeldCall, now_ms: int) -> None:
        self.on_held_call(self._link_of(sender), asked, now_ms)

    def on_neighbours_held_answer(self, sender: Neighbour, answer: HeldResp, now_ms: int) -> None:
        if self._past.has_asked_on(sender.conn) or self._publishing.acks.former_origins():
            self._take_held(self._link_of(sender), answer, now_ms)

    def _link_of(self, sender: Neighbour) -> Call:
        call = self._context.calls.get(sender.conn)
        assert call is not None
        return call

    def _take_held(self, call: Call, answer: HeldResp, now_ms: int) -> None:
        assert call.peer is not None
        seen = (answer.incarnation, answer.origin_batch)
        if self._past.shows_rollback(call.peer.address, *seen, self._publishing.origin_batch):
            return
        self._past.check_own(answer.entries)
        self._publishing.acks.held(call.peer.node_id, answer.entries)
        self._past.answered(call, answer, now_ms)
        if isinstance(call.purpose, Ask) and answer.last:
            former = self._past.former_at(call.peer.node_id)
            if not self._dissemination.pull_on(call, former, now_ms):
                self._context.calls.close(call.conn)

    def ask_again(self, now_ms: int) -> None:
        """Ask the nodes that may have former rows, or proof, and could not give it before. Called with each beacon."""
        if self._has_former_ids:
            self._fetch_former(now_ms)
        if self._past.lacks_proof:
            self._past.ask_all_again([each.contact for each in self._roster.expected(now_ms)], now_ms)

    def _fetch_former(self, now_ms: int) -> None:
        """Former rows come from neighbours as everything does. Where these do not have them (they may have another
        history of the stream), those who do are asked again."""
        for node_id in self._past.former_holders:
            entry = self._roster.get(node_id)
            is_near = node_id in self._context.table.neighbours
            if entry is None or is_near or self._roster.has_gone(node_id):
                continue
            if any(self._dissemination.lacks(*each) for each in self._past.former_at(node_id).items()):
                self._past.ask_again(Contact(node_id, entry.address), now_ms)
