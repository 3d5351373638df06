"""Many clients at once: their profiles as one request, so that thousands take few writes and announcements.

Each client is done or refused by itself, and the answer says which. A profile that is there already, under its name,
changes nothing: a request may be repeated. What is done is durable, and announced, before it is answered.
"""

import json
import threading
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from m4cast.overlay.door.access.rights import Caller
from m4cast.overlay.door.clients.client_lease import ClientLease
from m4cast.overlay.door.clients.client_requests import digest_of, parse_client_key, parse_credential
from m4cast.overlay.door.clients.client_table import rows_of
from m4cast.overlay.door.clients.client_wants import ClientWants, require_profiles
from m4cast.overlay.door.clients.waiting import waiting_of
from m4cast.overlay.door.fields import Fields, checked_topic
from m4cast.overlay.door.frontiers import Frontiers
from m4cast.overlay.door.node_handle import NodeHandle, until_written, waited
from m4cast.overlay.door.refusals import Refusal, bad_request
from m4cast.overlay.errors import LocalProtocolError
from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.clients.access_point import Attachment, AttachRefusal, AttachRequest, SeenRow, attach
from m4cast.overlay.protocol.clients.state import (
    PROFILES_MAX,
    ClientProfile,
    ClientState,
    Sequences,
    json_of,
    state_of,
)
from m4cast.overlay.protocol.effects import AnnounceClients, ClientRow
from m4cast.overlay.protocol.node import Node
from m4cast.overlay.store.store import Store

SHOWN_MAX = 1_000
PROFILE_SHOWN = ("name", "topic", "where", "language", "begin")
CLIENTS_MAX = 500
"""The most clients in one request. More: fewer calls; other calls about clients wait longer."""
WISH_FIELDS = ("key", "credential", "profiles")
PROFILE_FIELDS = ("name", "topic", "where", "language")


@dataclass(frozen=True, slots=True)
class ClientWish:
    key: str
    credential: str
    profiles: tuple[ClientProfile, ...]
    """Their begins are not known yet."""


@dataclass(frozen=True, slots=True)
class ManyRequest:
    wishes: tuple[ClientWish | tuple[str, Refusal], ...]
    """A client that was asked for wrongly is its key, and what is wrong."""
    earliest: bool
    """New profiles begin with the rows that are retained; otherwise with those that come from now on."""


def parse_many(fields: Fields) -> ManyRequest:
    clients = fields.get("clients", [])
    if not isinstance(clients, list) or not 1 <= len(clients) <= CLIENTS_MAX:
        raise bad_request(f"clients must be a list of 1 to {CLIENTS_MAX} {{{', '.join(WISH_FIELDS)}}}")
    keys = [each.get("key") if isinstance(each, dict) else None for each in clients]
    if not all(isinstance(key, str) for key in keys) or len(set(keys)) < len(keys):
        raise bad_request("each of clients must have a key of its own, as text")
    start = fields.text("start", "latest")
    if start not in ("latest", "earliest"):
        raise bad_request(f"start is {start!r}: must be latest or earliest")
    return ManyRequest(tuple(_wish(each) for each in clients), start == "earliest")


def _wish(written: dict[str, object]) -> ClientWish | tuple[str, Refusal]:
    try:
        fields = Fields.of(written)
        fields.refuse_unknown("a client", WISH_FIELDS)
        profiles = fields.get("profiles", [])
        if not isinstance(profiles, list) or not 1 <= len(profiles) <= PROFILES_MAX:
            raise bad_request(f"profiles must be a list of 1 to {PROFILES_MAX}")
        found = tuple(_profile(each) for each in profiles)
        return ClientWish(parse_client_key(fields), parse_credential(fields), found)
    except Refusal as refusal:
        return str(written["key"]), refusal


def _profile(written: object) -> ClientProfile:
    if not isinstance(written, dict):
        raise bad_request(f"a profile must be {{{', '.join(PROFILE_FIELDS)}}}")
    fields = Fields.of(written)
    fields.refuse_unknown("a profile", PROFILE_FIELDS)
    name = fields.required_text("name", "the profile's name")
    topic = checked_topic(fields.required_text("topic", "the profile's topic"))
    return ClientProfile(name, topic, fields.text("where", None), fields.text("language", None), {})


def with_profiles(
    state: ClientState, profiles: tuple[ClientProfile, ...], ends: Mapping[str, tuple[Sequences, Sequences]]
) -> ClientState:
    """The state with these profiles; the same if it has them. `ends`: by topic, where it begins for them, and where it
    ends."""
    known = {each.name: (each.topic, each.where, each.language) for each in state.profiles}
    for each in profiles:
        if known.get(each.name) != (each.topic, each.where, each.language):
            begin, here = ends[each.topic]
            begun = ClientProfile(each.name, each.topic, each.where, each.language, dict(begin))
            state = state.subscribed(begun, here)
    try:
        state_of(json_of(state))  # its limits
    except LocalProtocolError as error:
        raise bad_request(str(error)) from None
    return state


class ManyClients:
    """The part of `ClientAdmin` that is about many clients at once."""

    _store: Store
    _node: NodeHandle
    _frontiers: Frontiers
    _timeout_s: float
    _turns: list[threading.Lock]
    _lock: threading.Lock
    _lease: ClientLease
    _wants: ClientWants

    @abstractmethod
    def _turn_number(self, key: str) -> int: ...
    @abstractmethod
    def _is_online(self, key: str) -> bool: ...
    @abstractmethod
    def _check_device(self, key: str, credential: str) -> None: ...
    @abstractmethod
    def _refusal(self, key: str, found: object) -> Refusal: ...
    @abstractmethod
    def _settle_soon(self, keys: Iterable[str]) -> None: ...
    @abstractmethod
    def _start(self) -> None: ...

    def subscribe_all(self, asked: ManyRequest, caller: Caller) -> dict[str, object]:
        """Profiles of many clients, which are created if nobody has them."""
        wishes = [each for each in asked.wishes if isinstance(each, ClientWish)]
        keys = [each.key for each in wishes]
        done: dict[str, tuple[int, ClientState]] = {}
        answers: list[dict[str, object]] = []
        rows: list[tuple[str, ClientRow]] = []
        with ExitStack() as turns:
            for turn in sorted({self._turn_number(key) for key in keys}):
                turns.enter_context(self._turns[turn])
            me, seen = self._node.look(lambda node: _rows_of_all(node, keys), self._timeout_s)
            ends = self._ends({profile.topic for wish in wishes for profile in wish.profiles})
            begins = {topic: (low if asked.earliest else here, here) for topic, (low, here) in ends.items()}
            for wish in asked.wishes:
                try:
                    if not isinstance(wish, ClientWish):
                        raise wish[1]
                    before, found = self._found(wish, me, seen[wish.key], caller)
                    state = with_profiles(found.state, wish.profiles, begins)
                    if found.is_new:
                        rows.append((wish.key, self._row(wish, found.session, state)))
                    if found.is_new or state != before:
                        done[wish.key] = found.session, state
                    answers.append({"key": wish.key, "created": found.is_new, "changed": state != before})
                except Refusal as refusal:
                    key = wish.key if isinstance(wish, ClientWish) else wish[0]
                    answers.append({"key": key, "code": refusal.code, "detail": refusal.detail})
            self._keep_all(done, rows, caller)
        return {"clients": answers}

    def profiles(self, after: str, caller: Caller) -> dict[str, object]:
        """The profiles of the clients that are attached here, by key."""
        shown: list[dict[str, object]] = []
        last: str | None = None
        for key, kept in self._store.clients.all(after):
            if len(shown) >= SHOWN_MAX:
                return {"profiles": shown, "next": last}
            last = key
            if caller.rights.may_client(key):
                profiles = json.loads(kept)["state"]["profiles"]
                shown += [{"key": key, **{name: each[name] for name in PROFILE_SHOWN}} for each in profiles]
        return {"profiles": shown, "next": None}

    def _waiting(self, key: str) -> list[dict[str, object]] | None:
        """Return what waits here for a client, by profile; None if it has just gone."""
        kept = self._store.clients.get(key)
        if kept is None:
            return None
        state = state_of(json.loads(kept)["state"])
        ends: dict[str, Sequences] = {}
        covered = self._wants.covered(key)
        plain = (topic for topic in state.topics if topic not in covered)
        for stream, until in self._frontiers.positions(plain).items():
            ends.setdefault(stream.topic, {})[stream.origin.hex()] = until
        return waiting_of(state, {**ends, **covered})

    def _found(
        self, wish: ClientWish, me: NodeId, rows: list[SeenRow], caller: Caller
    ) -> tuple[ClientState | None, Attachment]:
        """The state of a client that is here, and what it becomes; refused if it is elsewhere, or connected."""
        caller.rights.require_client(wish.key)
        require_profiles(wish.key, ClientState(wish.profiles), caller)
        self._check_device(wish.key, wish.credential)
        with self._lock:
            if self._is_online(wish.key):
                detail = (
                    f"client {wish.key!r} is connected, so only its own process changes its profiles: subscribe there"
                )
                raise Refusal("client-connected", detail)
        kept = self._store.clients.get(wish.key)
        here = None if kept is None else state_of(json.loads(kept)["state"])
        digest = digest_of(wish.key, wish.credential)
        found = attach(AttachRequest(digest, 0, None, create=True), me, rows, here)
        if isinstance(found, AttachRefusal):
            raise self._refusal(wish.key, found)
        return here, found

    def _row(self, wish: ClientWish, session: int, state: ClientState) -> ClientRow:
        digest = digest_of(wish.key, wish.credential)
        return ClientRow(session, not self._wants.is_wanted(state), self._node.clock_ms(), digest)

    def _ends(self, topics: Iterable[str]) -> dict[str, tuple[Sequences, Sequences]]:
        """Return where the streams of each topic begin and end here."""
        found: dict[str, tuple[Sequences, Sequences]] = {topic: ({}, {}) for topic in topics}
        streams = self._frontiers.positions(tuple(sorted(found)))
        lows = self._store.lows(streams)
        for stream, until in streams.items():
            low, here = found[stream.topic]
            low[stream.origin.hex()], here[stream.origin.hex()] = lows.get(stream, 1), until
        return found

    def _keep_all(
        self, states: Mapping[str, tuple[int, ClientState]], rows: list[tuple[str, ClientRow]], caller: Caller
    ) -> None:
        """Durable first, then leased, then announced, as for a single client."""
        writes = [self._store.clients.put(key, self._written(state)) for key, (_, state) in states.items()]
        for write in writes:
            until_written(write, self._timeout_s)
        for _, state in states.values():
            self._lease.include(state)
        if rows:
            asked = self._node.request(lambda number: AnnounceClients(number, tuple(rows)))
            try:
                waited(asked, self._timeout_s, caller.is_cancelled)
            except Refusal:
                self._discard_unannounced([key for key, _ in rows])
                raise
            self._start()
        wanting = {key: client for key, client in states.items() if self._wants.is_wanted(client[1])}
        if wanting:
            self._wants.keep(wanting, caller.name)
            self._settle_soon(wanting)

    def _discard_unannounced(self, keys: Sequence[str]) -> None:
        """A state without a row is nobody's. Rows whose announcement was not waited for may be there all the same."""
        rows = self._node.look(lambda node: node.interest.clients.rows.keys() & set(keys), self._timeout_s)
        for key in keys:
            if key not in rows:
                self._store.clients.remove(key)

    def _written(self, state: ClientState) -> bytes:
        fields = {"state": json_of(state), "seen_ms": self._node.clock_ms()}
        return json.dumps(fields, separators=(",", ":")).encode()


def _rows_of_all(node: Node, keys: list[str]) -> tuple[NodeId, dict[str, list[SeenRow]]]:
    return node.me.node_id, {key: rows_of(node, key)[1] for key in keys}
