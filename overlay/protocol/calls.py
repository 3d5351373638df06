"""Connections of one node: who is at the other end, and what the call is for.

Every connection begins with a `Hello` in both directions. It names the channel, the protocol versions, the cluster
settings and the node; a mismatch is refused by name and changes nothing else (guarantee 8). Where links have
certificates, a node id belongs to the name in the certificate that it was first met with. A connection is a call
until membership makes it a neighbour link; a call that is not over in `call_timeout_ms` is closed. Links are not
timed here: heartbeats watch them.

Identity of a peer is (node id, incarnation), the patents' "host, call-in port and connect time".
"""

from dataclasses import dataclass, field, replace

from m4cast.overlay.config import ClusterConfig
from m4cast.overlay.config.agreement import check_agreement
from m4cast.overlay.ids import Contact, NodeId
from m4cast.overlay.protocol.effects import Close, Dial, Output, Send, Trace
from m4cast.overlay.protocol.timers import Timer, Timers
from m4cast.overlay.protocol.wire.messages import (
    PROTOCOL_VERSION_MAX,
    PROTOCOL_VERSION_MIN,
    Hello,
    RefusedStmt,
    Setting,
)
from m4cast.overlay.value import value

CALLS_MAX = 512
"""Calls (not links) at a time, in both directions; guess. Raising it lets a crowd join faster and costs memory per
call."""
CHANNEL_SETTINGS = ("channel_type", "channel_instance")
"""Cluster settings that name a channel: a node in which these differ is on another channel."""
DETAIL_BYTES_MAX = 4_000
"""The limit of a refusal's detail in `schemas/avro`; a longer one (which quotes a caller's settings) is cut."""
ABSENT_PATIENCE_MS = 60_000
"""The time to wait for a node that may keep a range; guess. Raising it delays the skip of rows that are really gone,
and with it all later rows of the stream."""
NAMES_MAX = 20_000
"""Certificate names remembered of nodes that the roster does not know yet; beyond it the oldest are forgotten."""


@dataclass(slots=True)
class Call:
    conn: int
    purpose: object | None
    """The purpose of the dialler; None when the other side dialled."""
    expected: Contact | None = None
    peer: Contact | None = None
    incarnation: int = 0
    version: int = PROTOCOL_VERSION_MIN
    """The highest protocol version that both ends have."""
    peer_name: str = ""
    """The name in the peer's certificate; empty without certificates."""
    is_link: bool = False
    is_at_odds: bool = False
    """The other end is a node of this channel, or may be, and one of the two refused the other."""
    stage: int = field(default=0)
    """The stage that the dialler's purpose has reached; counted by the machine that dialled."""


@value
class Candidate:
    """A node that can be called and may keep what is missing here."""

    contact: Contact
    heard_at_ms: int
    """The time at which it was last heard of, or at which this node began to wait for its beacon."""
    is_heard: bool
    """Its own beacons arrive, and have done so since this node started."""


@value
class CallTimeout(Timer):
    """The call on this connection has taken too long."""

    conn: int


class Calls:
    def __init__(
        self, me: Contact, incarnation: int, cluster: ClusterConfig, timeout_ms: int, timers: Timers, out: list[Output]
    ) -> None:
        self._version_min = PROTOCOL_VERSION_MIN
        self.version_max = PROTOCOL_VERSION_MAX
        """The latest protocol version of this node."""
        self._me = me
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        self._timers = timers
        self._out = out
        self._calls: dict[int, Call] = {}
        self._next_conn = 1
        self._names: dict[NodeId, str] = {}
        settings = tuple(Setting(key, str(value)) for key, value in cluster.settings().items())
        self._hello = Hello(self._version_min, self.version_max, me.node_id, incarnation, me.address, settings)

    def require(self, version: int) -> None:
        """Refuse nodes that do not have this version from now on."""
        if version > self._version_min:
            self._version_min = version
            self._hello = replace(self._hello, version_min=version)

    def get(self, conn: int) -> Call | None:
        return self._calls.get(conn)

    def __len__(self) -> int:
        return len(self._calls)

    def dial(self, address: str, purpose: object, now_ms: int, expected: Contact | None = None) -> int:
        conn = self._next_conn
        self._next_conn += 2
        self._calls[conn] = Call(conn, purpose, expected)
        self._timers.set(CallTimeout(conn), now_ms + self._timeout_ms)
        self._out.append(Dial(conn, address))
        return conn

    def connected(self, conn: int, now_ms: int, peer_name: str = "") -> None:
        call = self._calls.get(conn)
        if call is None:
            if conn % 2 == 1:  # a call that was given up while it was being dialled
                self._out.append(Close(conn))
                return
            if len(self._calls) >= CALLS_MAX:
                self._out.append(Trace("call-shed", (("calls", len(self._calls)),)))
                self._out.append(Close(conn))
                return
            call = self._calls[conn] = Call(conn, None)
            # The answerer waits longer than any dialler, so that the dialler is the one to give up.
            self._timers.set(CallTimeout(conn), now_ms + 2 * self._timeout_ms)
        call.peer_name = peer_name
        self._out.append(Send(conn, self._hello))

    def hello(self, call: Call, hello: Hello, known_name: str = "") -> bool:
        """Take the peer's hello; False when the call ends because of it. `known_name`: its name in the roster."""
        if call.peer is not None:
            return self.refuse(call, "second-hello", "hello is said once, as the first message")
        if hello.version_min > self.version_max or hello.version_max < self._version_min:
            call.is_at_odds = self._is_of_channel(hello)
            return self.refuse(
                call,
                "version",
                f"this node speaks protocol {self._version_min}..{self.version_max}, "
                f"the caller {hello.version_min}..{hello.version_max}: upgrade the older one",
            )
        if hello.settings != self._hello.settings and (
            mismatches := check_agreement(self._cluster, dict(hello.settings))
        ):
            call.is_at_odds = self._is_of_channel(hello)
            return self.refuse(call, "settings", "; ".join(str(mismatch) for mismatch in mismatches))
        if hello.node_id == self._me.node_id:
            return self.refuse(
                call, "self", "this is the caller's own identity: two nodes share one store, or dial themselves"
            )
        if call.peer_name and (bound := self._bound_name(hello.node_id, known_name, call.peer_name)) != call.peer_name:
            call.is_at_odds = True
            return self.refuse(
                call,
                "certificate",
                f"the node id is {bound!r}'s and the certificate {call.peer_name!r}'s: a node keeps the name that it "
                "began with; a new name takes a new store",
            )
        if call.expected is not None and call.expected.node_id != hello.node_id:
            # Another node is at that address now.
            self.close(call.conn)
            return False
        call.peer = Contact(hello.node_id, hello.address)
        call.incarnation = hello.incarnation
        call.version = min(hello.version_max, self.version_max)
        return True

    def _is_of_channel(self, hello: Hello) -> bool:
        settings = dict(hello.settings)
        return all(settings.get(name) == str(getattr(self._cluster, name)) for name in CHANNEL_SETTINGS)

    def _bound_name(self, node_id: NodeId, known_name: str, shown_name: str) -> str:
        """The name that a node id belongs to: the roster's, else the one it was first met under."""
        if known_name:
            self._names.pop(node_id, None)
            return known_name
        if node_id not in self._names and len(self._names) >= NAMES_MAX:
            del self._names[next(iter(self._names))]
        return self._names.setdefault(node_id, shown_name)

    def refuse(self, call: Call, reason: str, detail: str) -> bool:
        if len(detail) > DETAIL_BYTES_MAX // 4:  # a character has at most 4 bytes
            detail = detail.encode()[:DETAIL_BYTES_MAX].decode(errors="ignore")
        self._out.append(Trace("refused", (("reason", reason), ("detail", detail))))
        self._out.append(Send(call.conn, RefusedStmt(reason, detail)))
        self.close(call.conn)
        return False

    def promote(self, call: Call) -> None:
        """The call becomes a neighbour link ("that external connection becomes the internal one", 1702)."""
        call.is_link = True
        self._timers.cancel(CallTimeout(call.conn))

    def extend(self, call: Call, now_ms: int) -> None:
        """The call is still useful: let it live for another time-out."""
        if not call.is_link:
            self._timers.set(CallTimeout(call.conn), now_ms + 2 * self._timeout_ms)

    def close(self, conn: int) -> None:
        if self._calls.pop(conn, None) is not None:
            self._timers.cancel(CallTimeout(conn))
            self._out.append(Close(conn))

    def lost(self, conn: int) -> Call | None:
        """The driver reports that the connection is gone, or was never made."""
        self._timers.cancel(CallTimeout(conn))
        return self._calls.pop(conn, None)
