"""Registrations of clients on selective topics, made at their access point: rows arrive even while a client is absent.

Clients have one registration for each selective topic of their profiles, from the earliest rows on; those that want the
same rows share it, and it goes with the last of them. A client's mail is registered without being announced: the
client's row in the interest says as much to other nodes (PROTOCOL.md, 21.6). So that registration is made after the
row, and anew in each session: what others say about rows counts for it from the version on that the row came with.
"""

import threading
import time
from collections.abc import Iterable, Mapping

from xxhash import xxh3_64_hexdigest

from m4cast.overlay.door.access.rights import Caller
from m4cast.overlay.door.node_handle import NodeHandle, NodeRequest, waited
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.requests import parse_condition
from m4cast.overlay.door.selected.reads import SelectiveReads
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
        """Over the fields below."""
        self._made: dict[str, tuple[str, ...]] = {}
        """The registrations of each client that has some."""
        self._users: dict[str, dict[str, None]] = {}
        """The clients of each registration."""
        self._made_at: dict[str, float] = {}
        """The time at which each was made, on the monotonic clock."""
        self.unclaimed: dict[str, None] = {}
        """Registrations from before the node started, of clients that have not been looked at since."""
        for each in node.now(_registered):
            if each.startswith(MAILBOX_PREFIX):
                self._made_at[each] = 0.0
                self._use(each.split("/", 2)[2], (each,))
            else:
                self.unclaimed[each] = None

    def is_wanted(self, state: ClientState) -> bool:
        """True if the client wants rows of selective topics."""
        return bool(self.selective(state))

    def selective(self, state: ClientState) -> tuple[str, ...]:
        """The selective topics that the client wants rows of."""
        return tuple(self._selective.chosen(state.topics))

    def keep(self, clients: Mapping[str, tuple[int, ClientState]], owner: str) -> None:
        """Register what each of these clients, of this session, wants, and nothing else in its name."""
        self._keep({key: self._wishes(key, session, state) for key, (session, state) in clients.items()}, owner)

    def claim(self, key: str, state: ClientState) -> None:
        """A client that was here before the node started goes on using what is registered for it. With its turn."""
        wished = {each: wish for each, wish in self._wishes(key, 0, state).items() if each.startswith(CLIENT_PREFIX)}
        boxes = [each for each in self._made.get(key, ()) if each.startswith(MAILBOX_PREFIX)]
        self._keep({key: wished}, "", (*boxes,))

    def claimed(self) -> None:
        """All clients have claimed what is theirs: what is left is given up."""
        with self._lock:
            unused, self.unclaimed = self.unclaimed, {}
            asked = self._give_up(unused)
        self._await(asked)

    def drop(self, key: str) -> None:
        """The client is no longer attached here: before its row is withdrawn."""
        with self._lock:
            asked = self._give_up(self._use(key, ()))
        self._await(asked)

    def _keep(self, wishes: Mapping[str, Mapping[str, Wish]], owner: str, also: tuple[str, ...] = ()) -> None:
        """`also`: registrations that are there, and that these clients go on using."""
        added: dict[str, Wish] = {}
        unused: dict[str, None] = {}
        with self._lock:  # also while the node is asked: others may use and give up the same
            for key, wished in wishes.items():
                added |= {each: wish for each, wish in wished.items() if each not in self._made_at}
                unused |= self._use(key, (*wished, *also))
            asked = self._give_up(unused)
            if added:
                asked.append(self._node.request(lambda number: Subscribe(number, tuple(added.values()), owner=owner)))
        try:
            self._await(asked)
        except Refusal:
            with self._lock:
                for each in added:
                    self._made_at.pop(each, None)  # whoever wants it next asks again
            raise

    def _use(self, key: str, ids: tuple[str, ...]) -> dict[str, None]:
        """Replace the registrations that the client uses. Returns those that nobody uses any longer. The caller holds
        the lock."""
        unused: dict[str, None] = {}
        for each in self._made.pop(key, ()):
            self._users[each].pop(key, None)
            if each not in ids and not self._users[each]:
                unused[each] = None
                del self._users[each]
                self._made_at.pop(each, None)
        if ids:
            self._made[key] = ids
            for each in ids:
                self.unclaimed.pop(each, None)
                self._made_at.setdefault(each, time.monotonic())
                self._users.setdefault(each, {})[key] = None
        return unused

    def _give_up(self, names: Iterable[str]) -> list[NodeRequest]:
        """Give up these registrations. The caller holds the lock."""
        ids = tuple(names)
        if not ids:
            return []
        for each in ids:
            self._node.later(lambda name=each: self._forget(name))  # type: ignore[misc]  # a lambda with a default
        return [self._node.request(lambda number: Unsubscribe(number, ids))]

    def _await(self, asked: Iterable[NodeRequest]) -> None:
        for each in asked:
            waited(each, self._timeout_s, lambda: False)

    def _wishes(self, key: str, session: int, state: ClientState) -> dict[str, Wish]:
        wishes = {}
        for topic in self._selective.chosen(state.topics):
            profiles = [parse_condition(each.where, each.language) for each in state.profiles if each.topic == topic]
            profile = widened(profiles)
            name = f"{MAILBOX_PREFIX}{session}/{key}"
            if topic != MAIL or "/" in key:  # a device has its client's mail, which its own row does not announce
                name = CLIENT_PREFIX + xxh3_64_hexdigest(f"{topic}\0{profile.text}".encode())
            wishes[name] = Wish(name, topic, profile, earliest=True)
        return wishes

    def _forget(self, name: str) -> None:
        """Runs on the loop."""
        row = self._node.now(lambda node: node.interest.registrations.rows.get(name))
        if row is not None:
            self._selective.drop(row.topic, name)

    def covered(self, key: str) -> dict[str, Sequences]:
        """The next sequence up to which the client's rows of each selective topic are here, by origin."""
        made = self._made.get(key)
        return self._node.look(lambda node: _covered(node, made), self._timeout_s) if made else {}

    def settled(self, keys: Iterable[str]) -> dict[str, dict[str, Sequences]]:
        """Those of these clients whose rows of selective topics have all arrived, as far as rows are known to exist,
        with the next sequence of each stream."""
        now = time.monotonic()
        with self._lock:
            made = {key: self._made.get(key, ()) for key in keys}
            ready = {each for ids in made.values() for each in ids if now - self._made_at.get(each, now) >= SETTLE_S}
        ends: dict[str, dict[str, Sequences]] = {}
        if ready:
            ends = self._node.look(lambda node: _settled(node, ready), self._timeout_s)
        return {
            key: {topic: origins for each in ids for topic, origins in ends[each].items()}
            for key, ids in made.items()
            if all(each in ends for each in ids)
        }


def has_arrived(state: ClientState, ends: Mapping[str, Sequences]) -> bool:
    """True if these ends are not before the client's position, in every stream that it knows."""
    return all(
        origins.get(origin, 1) >= position
        for topic, origins in ends.items()
        for origin, position in state.frontier.get(topic, {}).items()
    )


def _registered(node: Node) -> list[str]:
    return [each for each in node.interest.registrations.rows if each.startswith((CLIENT_PREFIX, MAILBOX_PREFIX))]


def _covered(node: Node, registrations: Iterable[str]) -> dict[str, Sequences]:
    """Runs on the loop."""
    rows = node.interest.registrations.rows
    found: dict[str, Sequences] = {}
    for each in registrations:
        if each in rows:
            ends = node.selection.coverage(each) | node.publishing.broadcast(rows[each].topic)
            found[rows[each].topic] = {stream.origin.hex(): until for stream, until in ends.items()}
    return found


def _settled(node: Node, registrations: Iterable[str]) -> dict[str, dict[str, Sequences]]:
    """Runs on the loop: what is covered of each registration that is settled."""
    rows = node.interest.registrations.rows
    return {each: _covered(node, (each,)) for each in registrations if each in rows and node.selection.is_settled(each)}
