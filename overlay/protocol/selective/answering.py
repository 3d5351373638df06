"""Answering: other nodes' pulls and their questions where registrations begin, by what this node has (rule R5).

Anybody hands over the batches that it has. "Nothing else there" is said only inside the coverage that this node has on
its disk of profiles that cover the asked ones: the origin of its own streams, a keeper, or whoever wants as much.
"""

from collections.abc import Callable

from m4cast.overlay.ids import NodeId, StreamId, is_of_lineage
from m4cast.overlay.protocol.effects import FindTimes, ReadSelected, SelectedRead, TimesFound, Trace
from m4cast.overlay.protocol.selective.contract import SelectiveOutput, SelectiveSettings
from m4cast.overlay.protocol.selective.demand import condition_of, matches, summary_of
from m4cast.overlay.protocol.selective.receiving import Authority, Receiving
from m4cast.overlay.protocol.selective.speaking import Speaking, route
from m4cast.overlay.protocol.wire.batch import How
from m4cast.overlay.protocol.wire.selective import (
    BeginCall,
    BeginResp,
    Destination,
    KeptCall,
    KeptEntry,
    KeptResp,
    RoutedFrame,
    SelectPullCall,
    SelectPullResp,
    SentBatch,
)

READS_MAX = 64
"""Calls that wait for the disk at a time; further ones are dropped, and asked again elsewhere."""
LISTED_MAX = 1_024
"""Batches of one answer."""
KEPT_MAX = 1_024
"""Streams that one answer to `KeptCall` names."""


class Answering:
    def __init__(
        self,
        me: NodeId,
        receiving: Receiving,
        speaking: Speaking,
        settings: SelectiveSettings,
        next_token: Callable[[], int],
        out: list[SelectiveOutput],
    ) -> None:
        self._me = me
        self._receiving = receiving
        self._speaking = speaking
        self._settings = settings
        self._next_token = next_token
        self._out = out
        self._reads: dict[int, tuple[NodeId, SelectPullCall, Authority]] = {}
        self._finds: dict[int, tuple[NodeId, BeginCall, int]] = {}

    def authority(self, stream_id: StreamId, call: SelectPullCall) -> Authority:
        if stream_id.origin == self._me:
            own = self._speaking.streams.get(stream_id)
            return Authority(max(own.next if own else 1, call.first_sequence), has_all=True, is_whole=True)
        return self._receiving.authority(stream_id, call.first_sequence, call.profiles)

    def _end(self, stream_id: StreamId) -> int:
        own = self._speaking.streams.get(stream_id) if stream_id.origin == self._me else None
        stream = self._receiving.streams.get(stream_id)
        return own.next if own else stream.durable.end if stream else 1

    # ---- pulls

    def on_pull(self, sender: NodeId, call: SelectPullCall) -> None:
        stream_id = StreamId(call.origin, call.topic)
        if len(self._reads) + len(self._finds) >= READS_MAX:
            self._out.append(Trace("shed", (("reason", "pulls"), ("topic", call.topic))))
            return
        authority = self.authority(stream_id, call)
        token = self._next_token()
        self._reads[token] = (sender, call, authority)
        bytes_max = min(call.bytes_max, self._settings.pull_bytes)
        following = call.next_sequence
        if stream_id.origin == self._me:  # of others' streams the log may have rows beyond the marks: wanted once
            following = min(following, max(self._end(stream_id), call.first_sequence))
        self._out.append(ReadSelected(token, stream_id, call.first_sequence, following, bytes_max))

    def read(self, read: SelectedRead) -> None:
        sender, call, authority = self._reads.pop(read.token, (None, None, None))
        if sender is None or call is None or authority is None:
            return
        stream_id = StreamId(call.origin, call.topic)
        asked = [condition_of(profile) for profile in call.profiles]
        following = read.read_next
        sent: list[SentBatch] = []
        for batch in read.batches:
            if asked and not matches(asked, summary_of(batch)):
                continue
            if len(sent) == LISTED_MAX:
                following = min(following, batch.first_sequence)
                break
            sent.append(SentBatch(batch.first_sequence, batch.next_sequence))
            destination = Destination(sender, batch.first_sequence, call.version)
            self._out.append(RoutedFrame(self._me, (destination,), batch, how=How.PULLED))
        is_fork = bool(call.checksum and read.checksum_before) and call.checksum != read.checksum_before
        answer = SelectPullResp(
            call=call.call,
            origin=call.origin,
            topic=call.topic,
            first_sequence=call.first_sequence,
            covered_next=max(min(authority.next, following), call.first_sequence),
            low=read.low,
            next=self._end(stream_id),
            is_whole=authority.is_whole,
            is_fork=is_fork,
            batches=tuple(sent),
        )
        route(self._out, self._me, [Destination(sender, 0, 0)], answer)

    # ---- begins

    def on_begin(self, sender: NodeId, call: BeginCall) -> None:
        """Only who has every row from the first on can tell."""
        stream_id = StreamId(call.origin, call.topic)
        if stream_id.origin == self._me:
            end = self._end(stream_id)
        else:
            authority = self._receiving.authority(stream_id, 1, ())
            end = authority.next if authority.is_whole else 1  # when rows were published that are lost, nobody knows
            if not authority.has_all:
                return
        if len(self._reads) + len(self._finds) < READS_MAX:
            token = self._next_token()
            latest = self._speaking.known(stream_id, sender, end, by_the_present_run=call.are_named)
            self._finds[token] = (sender, call, latest)
            times = tuple(max(time_ms - self._settings.clock_skew_ms, 0) for time_ms in call.times_ms)
            self._out.append(FindTimes(token, stream_id, times))

    def found(self, found: TimesFound) -> BeginResp | None:
        """The answer, if it was this node itself that asked."""
        sender, call, end = self._finds.pop(found.token, (None, None, 0))
        if sender is None or call is None:
            return None
        begins = tuple(min(sequence or end, end) for sequence in found.sequences)
        resp = BeginResp(call.call, call.origin, call.topic, begins)
        if sender == self._me:
            return resp
        route(self._out, self._me, [Destination(sender, 0, 0)], resp)
        return None

    # ---- what is kept

    def on_kept(self, sender: NodeId, call: KeptCall) -> None:
        """Answer how far this node has the streams of these origins without a hole."""
        entries = []
        for stream_id, stream in self._receiving.streams.items():
            if any(is_of_lineage(stream_id.origin, origin) for origin in call.origins):
                end = stream.durable.end
                checksum = stream.known_checksum if stream.known_at == end else 0
                entries.append(KeptEntry(*stream_id, end, checksum))
        route(self._out, self._me, [Destination(sender, 0, 0)], KeptResp(tuple(entries[:KEPT_MAX])))
