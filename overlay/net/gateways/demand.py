"""Rows that come on demand: what nodes and clients of this channel want of other channels' selective topics.

What the other nodes want of such a topic, and this one's own clients, is wanted of the federation; and this node
registers what the others want as its own, so that it has coverage of it and may speak (H49). Such registrations begin
with `_gateway/`, are never counted among what is wanted here, and other gatekeepers of the channel announce for
themselves: so interest does not keep itself alive (H42).
"""

from collections.abc import Callable
from functools import lru_cache

from m4cast.overlay.errors import M4castError, RemoteProtocolError
from m4cast.overlay.federation.contract import FederationInput, UnwantRows, WantRows
from m4cast.overlay.federation.messages import UnitWant
from m4cast.overlay.federation.units import UnitId
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.net.driver import Driver
from m4cast.overlay.net.gateways.channel_side import ChannelSide
from m4cast.overlay.net.gateways.finding import FoundRows, StreamFinding
from m4cast.overlay.net.gateways.wire.messages import AcrossFrame, StreamHead
from m4cast.overlay.profiles.condition import ColumnRef, Kind, Literal, one_of
from m4cast.overlay.profiles.profile import SQL, SQL_VERSION, Profile, profile_of, read
from m4cast.overlay.protocol.clients.letters import mail_keys
from m4cast.overlay.protocol.clients.unit_levels import MIRROR_PREFIX
from m4cast.overlay.protocol.effects import CreateTopic, Subscribe, Unsubscribe, Wish
from m4cast.overlay.protocol.selective.demand import topic_hash
from m4cast.overlay.protocol.wire.batch import Batch
from m4cast.overlay.protocol.wire.interest import CLIENT_LANGUAGE, MAIL_TO, MAIL_TOPIC, InterestItem
from m4cast.overlay.protocol.wire.routed import decode_routed, encode_routed
from m4cast.overlay.protocol.wire.selective import (
    BeginCall,
    BeginResp,
    CoverEntry,
    CoverStmt,
    Destination,
    ProfileText,
    RoutedFrame,
    SelectPullCall,
    SelectPullResp,
)

NAME = "demand:"
FRAMES_MAX = 64
"""Frames of a stream that wait for a way; older ones are dropped, and asked again."""
ASKERS_MAX = 4_096
PROFILES_REMEMBERED = 65_536


class Demanded:
    """`feed` takes inputs of the federation; `fellows` are the other gatekeepers of the channel."""

    def __init__(
        self,
        driver: Driver,
        side: ChannelSide,
        finding: StreamFinding,
        topics: dict[str, int],
        feed: Callable[[FederationInput], None],
        fellows: Callable[[], list[UnitId]],
    ) -> None:
        self._driver = driver
        self._side = side
        self._finding = finding
        self._topics = {topic_hash(topic): topic for topic in topics}
        self._feed = feed
        self._fellows = fellows
        self._wanted: dict[str, UnitWant] = {}
        self._mirrored: dict[str, Wish] = {}
        self._ways: dict[StreamId, int] = {}
        """Finds whose way leads to a stream's channel."""
        self._waiting: dict[StreamId, list[RoutedFrame]] = {}
        self._askers: dict[tuple[NodeId, object], AcrossFrame] = {}
        """The frames of requests from other channels, by call or stream: the way back."""

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics.values()

    # ---- what is wanted

    def look(self) -> None:
        """Compare what is wanted here with what was announced."""
        if not self._topics:
            return
        wanted: dict[str, UnitWant] = {}
        mirrored: dict[str, Wish] = {}
        node = self._driver.node
        for name in self._topics.values():
            # Else doors here take rows that nobody wants for lost ones. Mail makes its topic itself, with keepers.
            if name != MAIL_TOPIC and name not in node.selection.descriptors:
                self._driver.feed(CreateTopic(0, name, 0))
        me, fellows = node.me.node_id, dict.fromkeys(map(NodeId, self._fellows()))
        for entry in node.interest.view.used():
            if entry.node_id == me or entry.node_id in fellows:
                continue
            for item in entry.items.values():
                topic = self._topics.get(item.topic_hash)
                if topic is not None:
                    profile, is_client = _profile_of(item), item.language == CLIENT_LANGUAGE
                    want = UnitWant(topic, profile)
                    key = f"{topic}/{want.key[1].hex()}"
                    wanted[NAME + key] = want
                    before = mirrored.get(MIRROR_PREFIX + key)
                    earliest = is_client or item.earliest or (before is not None and before.earliest)
                    mirrored[MIRROR_PREFIX + key] = Wish(MIRROR_PREFIX + key, topic, profile, earliest)
        for name, row in node.interest.registrations.rows.items():
            if not name.startswith(MIRROR_PREFIX) and row.topic in self._topics.values():
                want = UnitWant(row.topic, _profile(ProfileText(SQL, SQL_VERSION, row.canonical)))
                wanted[f"{NAME}{row.topic}/{want.key[1].hex()}"] = want
        if MAIL_TOPIC in self._topics.values():
            for key in node.interest.clients.rows:
                want = UnitWant(MAIL_TOPIC, _mail_of(key))
                wanted[f"{NAME}{MAIL_TOPIC}/{want.key[1].hex()}"] = want
        self._announce(wanted)
        self._mirror(mirrored)

    def _announce(self, wanted: dict[str, UnitWant]) -> None:
        for name in [name for name in self._wanted if name not in wanted]:
            self._feed(UnwantRows(name))
        for name, want in wanted.items():
            if name not in self._wanted:
                self._feed(WantRows(name, want))
        self._wanted = wanted

    def _mirror(self, mirrored: dict[str, Wish]) -> None:
        rows = self._driver.node.interest.registrations.rows
        gone = tuple(name for name in rows if name.startswith(MIRROR_PREFIX) and name not in mirrored)
        new = tuple(wish for name, wish in mirrored.items() if name not in rows and self._mirrored.get(name) != wish)
        self._mirrored = mirrored
        if gone:
            self._driver.feed(Unsubscribe(0, gone))
        if new:
            self._driver.feed(Subscribe(0, new))

    def names(self) -> list[str]:
        return list(self._wanted)

    # ---- what comes

    def delivered(self, batch: Batch, hops: int) -> None:
        me, origin = self._driver.node.me.node_id, batch.stream.origin
        self._side.across(RoutedFrame(origin, (Destination(me, batch.first_sequence, 0),), batch, hops=min(hops, 255)))

    def head(self, head: StreamHead) -> None:
        entry = CoverEntry(head.topic, head.next, head.next, 0)
        destination = Destination(self._driver.node.me.node_id, 0, 0)
        self._side.across(RoutedFrame(head.origin, (destination,), CoverStmt(head.origin, (entry,))))

    # ---- frames across

    def send(self, frame: RoutedFrame) -> None:
        """The node says something to a node of another channel: a question of its own, or an answer to one."""
        content, to = frame.content, frame.destinations[0].node_id
        match content:
            case SelectPullCall(_, origin, topic) | BeginCall(_, origin, topic):
                self._ask(StreamId(origin, topic), frame)
            case SelectPullResp(call) | BeginResp(call):
                self._answer((to, call), frame)
            case Batch():
                self._answer((to, content.stream), frame)
            case _:
                pass  # acknowledgements and statements stay in the channel

    def _ask(self, stream: StreamId, frame: RoutedFrame) -> None:
        way = self._ways.get(stream)
        if way is not None and self._finding.send_frame(way, encode_routed(frame)):
            return
        waiting = self._waiting.setdefault(stream, [])
        waiting.append(frame)
        del waiting[:-FRAMES_MAX]
        if len(waiting) == 1:
            self._finding.find(stream, 1, 0, lambda found: self._found(stream, found))

    def _found(self, stream: StreamId, found: FoundRows | None) -> None:
        waiting = self._waiting.pop(stream, [])
        if found is None or not found.low:
            self._ways.pop(stream, None)
            return  # the node asks again
        self._ways[stream] = found.ask
        for frame in waiting:
            self._finding.send_frame(found.ask, encode_routed(frame))

    def _answer(self, key: tuple[NodeId, object], frame: RoutedFrame) -> None:
        message = self._askers.get(key)
        if message is not None:
            self._finding.send_back(message.asker, message.ask, encode_routed(frame))

    def frame_here(self, message: AcrossFrame, data: bytes) -> None:
        """A frame came: a question for this channel, or an answer."""
        frame = decode_routed(data)
        content, stream = frame.content, self._finding.stream_of(message)
        if isinstance(content, Batch):
            is_asked = content.stream == stream
        elif isinstance(content, SelectPullCall | SelectPullResp | BeginCall | BeginResp):
            is_asked = StreamId(content.origin, content.topic) == stream
        else:
            raise RemoteProtocolError(f"{type(content).__name__} across a gateway")
        if not is_asked:  # the rules were held against the stream that was found
            self._driver.refusals.add("gateway", f"{type(content).__name__} of another stream than the one found")
            return
        me = self._driver.node.me.node_id
        if message.is_back:
            if isinstance(content, SelectPullResp | BeginResp | Batch):
                first = frame.destinations[0].first if isinstance(content, Batch) else 0
                frame = RoutedFrame(frame.speaker, (Destination(me, first, 0),), content, frame.hops, frame.how)
                self._side.across(frame)
        elif isinstance(content, SelectPullCall | BeginCall):
            asker = NodeId(message.asker)
            for key in (content.call, stream):
                self._askers.pop((asker, key), None)
                self._askers[asker, key] = message
            while len(self._askers) > ASKERS_MAX:
                self._askers.pop(next(iter(self._askers)))
            self._side.across(RoutedFrame(asker, (Destination(me, 0, 0),), content))
        else:
            raise RemoteProtocolError(f"{type(content).__name__} across a gateway")


def _profile_of(item: InterestItem) -> Profile | None:
    """The profile that an item of the interest wants. The row of a client wants its mail (PROTOCOL.md 21.6)."""
    if item.language == CLIENT_LANGUAGE:
        return _mail_of(item.text.rpartition(" ")[0])
    return _profile(ProfileText(item.language, item.version, item.text))


@lru_cache(PROFILES_REMEMBERED)
def _mail_of(key: str) -> Profile:
    return profile_of(one_of(ColumnRef((MAIL_TO,)), (Literal(Kind.TEXT, each) for each in mail_keys(key))))


@lru_cache(PROFILES_REMEMBERED)
def _profile(told: ProfileText) -> Profile | None:
    """Read the text of a profile; None stands for every row, also if the text cannot be read here."""
    if not told.text:
        return None
    try:
        return read(told.text, told.language, told.version)
    except M4castError:
        return None
