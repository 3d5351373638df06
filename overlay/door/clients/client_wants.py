"""Registrations of clients on selective topics, made at their access point: rows arrive even while a client is absent.

A client has one registration for each selective topic of its profiles, from the earliest rows on; it goes when the
client does. Its mail is registered without being announced: the client's row in the interest says as much to other
nodes (PROTOCOL.md, 21.6). So that registration is made after the row, and anew in each session: what others say about
rows counts for it from the version on that the row came with.
"""

import threading
import time
from collections.abc import Iterable

from xxhash import xxh3_64_hexdigest

from m4cast.overlay.door.access.rights import Caller
from m4cast.overlay.door.node_handle import NodeHandle, waited
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.requests import parse_condition
from m4cast.overlay.door.selected.reads import SelectiveReads
from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.profiles import Profile, parse, widened
from m4cast.overlay.protocol.clients.letters import mail_where
from m4cast.overlay.protocol.clients.state import MAIL, ClientState, Sequences
from m4cast.overlay.protocol.effects import Subscribe, Unsubscribe, Wish
from m4cast.overlay.protocol.node import Node
from m4cast.overlay.protocol.wire.interest import MAILBOX_PREFIX

CLIENT_PREFIX = "_client/"
"""Ids of registrations of clients, other than of their mail."""
SETTLE_S = 1.0
"""The time that origins have to report what they have, before a client's rows may be taken to be here; guess."""


def is_own_mail(profile: Profile, key: str) -> bool:
    return profile.text == parse(mail_where(key)).text


def require_profiles(key: str, state: ClientState, caller: Caller) -> None:
    """Refuse profiles that cannot be parsed, or that the caller has no right to. A client may read its own mail."""
    caller.rights.require_topics("read", tuple(topic for topic in state.topics if topic != MAIL))
    for profile in state.profiles:
        parsed = parse_condition(profile.where, profile.language)
        if profile.topic == MAIL and not is_own_mail(parsed, key):
            raise Refusal("forbidden", f"client {key!r} may read only its own mail: set where to {mail_where(key)}")


class ClientWants:
    """Any thread may use it; calls about one client take turns."""

    def __init__(self, node: NodeHandle, selective: SelectiveReads) -> None:
        self._node = node
        self._selective = selective
        self._timeout_s = selective.timeout_s
        self._lock = threading.Lock()
        self._made: dict[str, dict[str, float]] = {}
        """The registrations of each client that has some, and when they were made."""
        for each in node.now(_registered):
            self._made.setdefault(_key_of(each), {})[each] = 0.0

    def is_wanted(self, state: ClientState) -> bool:
        """True if the client wants rows of selective topics."""
        return bool(self.selective(state))

    def selective(self, state: ClientState) -> tuple[str, ...]:
        """The selective topics that the client wants rows of."""
        return tuple(self._selective.chosen(state.topics))

    def keep(self, key: str, session: int, state: ClientState, owner: str) -> None:
        """Register what the client wants, and nothing else in its name."""
        wishes = self._wishes(key, session, state)
        made = self._made.get(key, {})
        if wishes.keys() == made.keys():
            return
        self._give_up([each for each in made if each not in wishes])
        added = tuple(wish for each, wish in wishes.items() if each not in made)
        if added:
            asked = self._node.request(lambda number: Subscribe(number, added, owner=owner))
            waited(asked, self._timeout_s, lambda: False)
        now = time.monotonic()
        with self._lock:
            kept = {each: made.get(each, now) for each in wishes}
            if kept:
                self._made[key] = kept
            else:
                self._made.pop(key, None)

    def _wishes(self, key: str, session: int, state: ClientState) -> dict[str, Wish]:
        wishes = {}
        for topic in self._selective.chosen(state.topics):
            profiles = [parse_condition(each.where, each.language) for each in state.profiles if each.topic == topic]
            profile = widened(profiles)
            name = f"{MAILBOX_PREFIX}{session}/{key}"
            if topic != MAIL or "/" in key:  # a device has its client's mail, which its own row does not announce
                digest = xxh3_64_hexdigest(f"{topic}\0{profile.text}".encode())
                name = f"{CLIENT_PREFIX}{digest}/{key}"
            wishes[name] = Wish(name, topic, profile, earliest=True)
        return wishes

    def drop(self, key: str) -> None:
        """The client is no longer attached here: before its row is withdrawn."""
        with self._lock:
            made = self._made.pop(key, {})
        self._give_up(made)

    def _give_up(self, names: Iterable[str]) -> None:
        ids = tuple(names)
        if ids:
            for each in ids:
                self._node.later(lambda name=each: self._forget(name))  # type: ignore[misc]  # a lambda with a default
            waited(self._node.request(lambda number: Unsubscribe(number, ids)), self._timeout_s, lambda: False)

    def _forget(self, name: str) -> None:
        """On the loop."""
        row = self._node.now(lambda node: node.interest.registrations.rows.get(name))
        if row is not None:
            self._selective.drop(row.topic, name)

    def covered(self, key: str) -> dict[str, Sequences]:
        """The next sequence up to which the client's rows of each selective topic are here, by origin."""
        made = self._made.get(key)
        return self._node.look(lambda node: _covered(node, made), self._timeout_s) if made else {}

    def is_settled(self, key: str, state: ClientState) -> bool:
        """True if all rows that are known to exist and that the client wants are here, in every stream that it
        knows."""
        made = self._made.get(key)
        if not made:
            return True
        if any(time.monotonic() - made_at < SETTLE_S for made_at in made.values()):
            return False
        return self._node.look(lambda node: _is_settled(node, made, state), self._timeout_s)


def _registered(node: Node) -> list[str]:
    return [each for each in node.interest.registrations.rows if each.startswith((CLIENT_PREFIX, MAILBOX_PREFIX))]


def _key_of(registration: str) -> str:
    return registration.split("/", 2)[2]


def _covered(node: Node, registrations: Iterable[str]) -> dict[str, Sequences]:
    """On the loop."""
    rows = node.interest.registrations.rows
    return {
        rows[each].topic: {stream.origin.hex(): until for stream, until in node.selection.coverage(each).items()}
        for each in registrations
        if each in rows
    }


def _is_settled(node: Node, registrations: Iterable[str], state: ClientState) -> bool:
    """On the loop."""
    for each in registrations:
        row = node.interest.registrations.rows.get(each)
        if row is None or not node.selection.is_settled(each):
            return False
        ends = node.selection.coverage(each)
        for origin, position in state.frontier.get(row.topic, {}).items():
            if ends.get(StreamId(NodeId(bytes.fromhex(origin)), row.topic), 1) < position:
                return False
    return True
