"""Interest at the door: register what a client wants at this node, and show who wants what on the channel.

A registration belongs to the client that made it, and is named by its topic and condition. The view is read as it is,
with its revision: whoever waits for a change names the revision that it has seen, and gets the view as it is then. So a
slow client costs no memory, and misses no registration that was made again, since the epoch shows it.

Whoever follows changes names a cursor: which node, in which life, up to which revision. The door remembers the latest
changes of the view, for all followers together. One that lags further behind, or comes from another node, gets the view
as a whole and finds the difference itself.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from m4cast.overlay.door.access.rights import Caller, Rights
from m4cast.overlay.door.fields import Fields
from m4cast.overlay.door.frontiers import LOOK_S
from m4cast.overlay.door.node_handle import NodeHandle, waited
from m4cast.overlay.door.refusals import bad_request
from m4cast.overlay.door.requests import parse_filter, parsed_start
from m4cast.overlay.door.selected.activity import activity, name_of
from m4cast.overlay.door.selected.begins import Start, start_shown, wish_of
from m4cast.overlay.door.selected.costs import FilterCosts
from m4cast.overlay.door.selected.reader_registrations import READER_PREFIX
from m4cast.overlay.ids import NodeId
from m4cast.overlay.profiles import Profile
from m4cast.overlay.profiles.languages.canonical import readable
from m4cast.overlay.protocol.effects import (
    Covered,
    InterestChanged,
    Subscribe,
    Subscribed,
    TopicSpread,
    Unsubscribe,
)
from m4cast.overlay.protocol.node import Node
from m4cast.overlay.protocol.wire.interest import CLIENT_LANGUAGE, MAIL_HASH, InterestItem

WAIT_MS_MAX = 10_000
ITEMS_SHOWN_MAX = 10_000
"""Registrations in one answer."""
REMEMBERED_ITEMS_MAX = 10_000
"""Items of the changes that are remembered for followers."""
CURSOR_CHARS_MAX = 100


@dataclass(frozen=True, slots=True)
class WishRequest:
    """Asks for a registration, or to give it up."""

    topic: str
    profile: Profile | None
    start: Start = "latest"

    @property
    def name(self) -> str:
        return xxh3_64_hexdigest(f"{self.topic}\0{self.profile.text if self.profile else ''}".encode())


@dataclass(frozen=True, slots=True)
class InterestQuestion:
    """Asks for the view: of one topic or of all, at once or when it is another than the `seen` revision."""

    topic: str | None
    seen: int | None
    wait_ms: int
    costs: bool = False
    """True to include what the filters of this node's own registrations cost."""


@dataclass(frozen=True, slots=True)
class ChangesQuestion:
    """Asks for what changed after a cursor; an empty one: for all that is wanted."""

    topic: str | None
    after: str
    wait_ms: int


@dataclass(frozen=True, slots=True)
class ActiveQuestion:
    """Asks who knows of a registration, and waits until all do."""

    wish: WishRequest
    wait_ms: int
    system: bool = False
    """True to wait until the whole federation knows it."""


def parse_wish(fields: Fields) -> WishRequest:
    topic, start = fields.topic(), parsed_start(fields.get("start", "latest"), "start")
    if isinstance(start, dict) and not any(stream.topic == topic for stream in start):
        raise bad_request(f"start names no stream of topic {topic!r}: give a frontier of it, or start at earliest")
    return WishRequest(topic, parse_filter(fields), start)


def parse_active(fields: Fields) -> ActiveQuestion:
    wait_ms = fields.whole("wait_ms", 0, WAIT_MS_MAX) or 0
    return ActiveQuestion(parse_wish(fields), wait_ms, fields.flag("system"))


def parse_interest(fields: Fields) -> InterestQuestion:
    topic = fields.topic() if fields.has("topic") else None
    wait_ms = fields.whole("wait_ms", 0, WAIT_MS_MAX) or 0
    return InterestQuestion(topic, fields.whole("seen", 0, 2**62), wait_ms, fields.flag("costs"))


def parse_changes(fields: Fields) -> ChangesQuestion:
    topic = fields.topic() if fields.has("topic") else None
    after = fields.text("after", "") or ""
    if len(after) > CURSOR_CHARS_MAX:
        raise bad_request(f"after has {len(after)} characters: give a cursor of an earlier answer, or none")
    return ChangesQuestion(topic, after, fields.whole("wait_ms", 0, WAIT_MS_MAX) or 0)


class InterestAdmin:
    """Any thread may use it. `topics` are those whose names this node knows."""

    def __init__(
        self, node: NodeHandle, topics: Callable[[], Iterable[str]], costs: FilterCosts, timeout_s: float
    ) -> None:
        self._node = node
        self._topics = topics
        self._costs = costs
        self._timeout_s = timeout_s
        self.selected: Callable[[object], None] = lambda output: None
        """Also hears of changes, and of what concerns selective topics."""
        self._changed = threading.Condition()
        self._latest: deque[InterestChanged] = deque()
        """The latest changes of the view: all after the first of them."""
        self._latest_items = 0

    def watch(self, output: object) -> None:
        """Runs on the loop, when the view has changed."""
        if isinstance(output, Covered | TopicSpread):
            self.selected(output)
        elif isinstance(output, InterestChanged):
            self.selected(output)
            with self._changed:
                self._latest.append(output)
                self._latest_items += _size(output)
                while self._latest_items > REMEMBERED_ITEMS_MAX and len(self._latest) > 1:
                    self._latest_items -= _size(self._latest.popleft())
                self._changed.notify_all()

    def subscribe(self, asked: WishRequest, caller: Caller) -> dict[str, object]:
        caller.rights.require_topics("subscribe", (asked.topic,))
        wish = wish_of(f"{caller.name}/{asked.name}", asked.topic, asked.profile, asked.start)
        request = self._node.request(lambda number: Subscribe(number, (wish,), owner=caller.name))
        answer = waited(request, self._timeout_s, caller.is_cancelled)
        assert isinstance(answer, Subscribed)
        return {"id": wish.id, "epoch": answer.epochs[0]}

    def unsubscribe(self, asked: WishRequest, caller: Caller) -> dict[str, object]:
        caller.rights.require_topics("subscribe", (asked.topic,))
        each = f"{caller.name}/{asked.name}"
        known = self._node.look(lambda node: each in node.interest.registrations.rows, self._timeout_s)
        request = self._node.request(lambda number: Unsubscribe(number, (each,), owner=caller.owner))
        waited(request, self._timeout_s, caller.is_cancelled)
        return {"id": each, "removed": known}

    def active(self, asked: ActiveQuestion, caller: Caller) -> dict[str, object]:
        """Return the nodes that have confirmed a registration of this client."""
        caller.rights.require_topics("subscribe", (asked.wish.topic,))
        each = f"{caller.name}/{asked.wish.name}"
        found = activity(self._node, each, asked.wait_ms, self._timeout_s, caller, system=asked.system)
        if found is None:
            raise bad_request(f"{asked.wish.topic!r} is not registered here by this client with that filter: subscribe")
        return found

    def view(self, question: InterestQuestion, caller: Caller) -> dict[str, object]:
        deadline = time.monotonic() + question.wait_ms / 1000
        while True:
            found = self._node.look(lambda node: _view(node, question.topic), self._timeout_s)
            left_s = deadline - time.monotonic()
            if found["revision"] != question.seen or left_s <= 0 or caller.is_cancelled():
                named = self._named(found, caller.rights)
                return self._with_costs(named, caller) if question.costs else named
            with self._changed:
                self._changed.wait(min(left_s, LOOK_S))

    def _with_costs(self, view: dict[str, object], caller: Caller) -> dict[str, object]:
        """Each own registration with its `cost`: null if its topic is broadcast, or may not be read whole."""
        own = view["own"]
        assert isinstance(own, list)
        rights = caller.rights
        readable = [
            each["id"] for each in own if rights.may("read", each["topic"]) and rights.filter_of(each["topic"]) is None
        ]
        costs = self._costs.of(readable, caller)
        return {**view, "own": [{**each, "cost": costs.get(each["id"])} for each in own]}

    def changes(self, question: ChangesQuestion, caller: Caller) -> dict[str, object]:
        """Return the changes after the cursor, or everything if the cursor is not known."""
        deadline = time.monotonic() + question.wait_ms / 1000
        while True:
            life, revision = self._node.look(_life, self._timeout_s)
            named, _, seen = question.after.rpartition("/")
            since = int(seen) if named == life and seen.isascii() and seen.isdigit() else None
            if since is None or (latest := self._after(since, revision)) is None:
                whole = self._named(
                    self._node.look(lambda node: _view(node, question.topic), self._timeout_s), caller.rights
                )
                return self._whole(whole, life)
            left_s = deadline - time.monotonic()
            if latest or left_s <= 0 or caller.is_cancelled():
                until = latest[-1].revision if latest else revision
                return {
                    "cursor": f"{life}/{until}",
                    "is_whole": False,
                    "changes": self._listed(latest, question, caller),
                }
            with self._changed:
                self._changed.wait(min(left_s, LOOK_S))

    def _after(self, since: int, revision: int) -> list[InterestChanged] | None:
        """The changes after a revision; None: they are not remembered."""
        with self._changed:
            latest = [change for change in self._latest if change.revision > since]
        is_known = since == revision or (latest and latest[0].revision == since + 1)
        return latest if is_known else None

    def _whole(self, view: dict[str, object], life: str) -> dict[str, object]:
        if view["has_more"]:
            detail = f"there are more than {ITEMS_SHOWN_MAX} registrations: name a topic to follow"
            raise bad_request(detail)
        registrations = view["registrations"]
        assert isinstance(registrations, list)
        joined = [{"kind": "joined", **each} for each in registrations]
        return {"cursor": f"{life}/{view['revision']}", "is_whole": True, "changes": joined}

    def _listed(
        self, latest: list[InterestChanged], question: ChangesQuestion, caller: Caller
    ) -> list[dict[str, object]]:
        ids = {change.node_id for change in latest}
        nodes = self._node.look(lambda node: {each: name_of(node, each) for each in ids}, self._timeout_s)
        names = {xxh3_64_intdigest(topic.encode()): topic for topic in self._topics()}
        if question.topic is not None:
            names[xxh3_64_intdigest(question.topic.encode())] = question.topic
        listed = []
        for each in (shown for change in latest for shown in _shown_change(change, nodes[change.node_id])):
            topic = names.get(each["topic_hash"])
            is_asked = question.topic in (None, topic)
            if is_asked and _may_see(topic, caller.rights):
                listed.append({**each, "topic": topic, "topic_hash": f"{each['topic_hash']:016x}"})
        return listed

    def _named(self, found: dict[str, object], rights: Rights) -> dict[str, object]:
        """The view with names of topics, where they are known, and without those that the client may not see."""
        registrations = found["registrations"]
        own = found["own"]
        assert isinstance(registrations, list)
        assert isinstance(own, list)
        names = {xxh3_64_intdigest(topic.encode()): topic for topic in self._topics()}
        names.update({xxh3_64_intdigest(each["topic"].encode()): each["topic"] for each in own})
        shown = []
        for each in registrations:
            topic = names.get(each["topic_hash"])
            if _may_see(topic, rights):
                shown.append({**each, "topic": topic, "topic_hash": f"{each['topic_hash']:016x}"})
        mine = [each for each in own if _may_see(each["topic"], rights)]
        has_more = len(shown) > ITEMS_SHOWN_MAX
        return {**found, "registrations": shown[:ITEMS_SHOWN_MAX], "own": mine[:ITEMS_SHOWN_MAX], "has_more": has_more}


def _may_see(topic: str | None, rights: Rights) -> bool:
    if topic is None:
        return rights.admin or rights.may_all("read")
    return rights.may_see(topic)


def _size(change: InterestChanged) -> int:
    return 1 + len(change.joined) + len(change.left) + len(change.rejoined)


def _life(node: Node) -> tuple[str, int]:
    """Runs on the loop: which node this is, in which incarnation, and the revision of its view."""
    return f"{node.me.node_id.hex()}/{node.roster.own.incarnation}", node.interest.view.revision


def _shown_item(node_id: NodeId, name: str, item: InterestItem) -> dict[str, Any]:
    return {
        "node_id": node_id.hex(),
        "node": name,
        "topic_hash": item.topic_hash,
        "profile_hash": f"{item.profile_hash:016x}",
        "where": readable(item.text),
        "language": item.language,
        "epoch": item.epoch,
        "since_ms": item.since_ms,
        "start": "earliest" if item.earliest else "latest",
    }


def _shown_change(change: InterestChanged, name: str) -> Iterator[dict[str, Any]]:
    """Without the rows of clients."""
    for key in change.left:
        if key.topic_hash == MAIL_HASH:
            continue
        gone = {"topic_hash": key.topic_hash, "profile_hash": f"{key.profile_hash:016x}"}
        yield {"kind": "left", "node_id": change.node_id.hex(), "node": name, **gone}
    for kind, items in (("rejoined", change.rejoined), ("joined", change.joined)):
        for item in (item for item in items if item.language != CLIENT_LANGUAGE):
            yield {"kind": kind, **_shown_item(change.node_id, name, item)}


def _view(node: Node, topic: str | None) -> dict[str, object]:
    """Runs on the loop."""
    wanted = None if topic is None else xxh3_64_intdigest(topic.encode())
    interest, registrations = node.interest, []
    for entry in interest.view.used():
        name = name_of(node, entry.node_id)
        for item in entry.items.values():
            if item.language != CLIENT_LANGUAGE and (wanted is None or item.topic_hash == wanted):
                registrations.append(_shown_item(entry.node_id, name, item))
    own = [
        {
            "id": each,
            "topic": row.topic,
            "where": row.text,
            "owner": row.owner,
            "since_ms": row.since_ms,
            "start": start_shown(row),
            "is_announced": not row.under,
            "is_reader": each.startswith(READER_PREFIX),
        }
        for each, row in interest.registrations.rows.items()
        if topic is None or row.topic == topic
    ]
    return {
        "node_id": node.me.node_id.hex(),
        "revision": interest.view.revision,
        "registrations": registrations,
        "own": own,
    }
