"""Interest at the door: register what a client wants at this node, and show who wants what on the channel.

A registration belongs to the client that made it, and is named by its topic and condition. The view is read as it is,
with its revision: whoever waits for a change names the revision that it has seen, and gets the view as it is then. So a
slow client costs no memory, and misses no registration that was made again, since the epoch shows it.
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from m4cast.overlay.door.access.rights import Caller, Rights
from m4cast.overlay.door.fields import Fields
from m4cast.overlay.door.frontiers import LOOK_S
from m4cast.overlay.door.node_handle import NodeHandle, waited
from m4cast.overlay.door.refusals import bad_request
from m4cast.overlay.door.requests import parse_filter
from m4cast.overlay.profiles import Profile
from m4cast.overlay.protocol.effects import InterestChanged, Subscribe, Subscribed, Unsubscribe, Wish
from m4cast.overlay.protocol.node import Node
from m4cast.overlay.protocol.wire.interest import CLIENT_LANGUAGE

WAIT_MS_MAX = 10_000
ITEMS_SHOWN_MAX = 10_000
"""Registrations in one answer."""


@dataclass(frozen=True, slots=True)
class WishRequest:
    """Asks for a registration, or to give it up."""

    topic: str
    profile: Profile | None
    earliest: bool = False

    @property
    def name(self) -> str:
        return xxh3_64_hexdigest(f"{self.topic}\0{self.profile.text if self.profile else ''}".encode())


@dataclass(frozen=True, slots=True)
class InterestQuestion:
    """Asks for the view: of one topic or of all, at once or when it is another than the `seen` revision."""

    topic: str | None
    seen: int | None
    wait_ms: int


def parse_wish(fields: Fields) -> WishRequest:
    start = fields.text("start", "latest")
    if start not in ("earliest", "latest"):
        raise bad_request(f"start must be earliest or latest, not {start!r}")
    return WishRequest(fields.topic(), parse_filter(fields), earliest=start == "earliest")


def parse_interest(fields: Fields) -> InterestQuestion:
    topic = fields.topic() if fields.has("topic") else None
    wait_ms = fields.whole("wait_ms", 0, WAIT_MS_MAX) or 0
    return InterestQuestion(topic, fields.whole("seen", 0, 2**62), wait_ms)


class InterestAdmin:
    """Any thread may use it. `topics` are those whose names this node knows."""

    def __init__(self, node: NodeHandle, topics: Callable[[], Iterable[str]], timeout_s: float) -> None:
        self._node = node
        self._topics = topics
        self._timeout_s = timeout_s
        self._changed = threading.Condition()

    def watch(self, output: object) -> None:
        """On the loop: the view has changed."""
        if isinstance(output, InterestChanged):
            with self._changed:
                self._changed.notify_all()

    def subscribe(self, asked: WishRequest, caller: Caller) -> dict[str, object]:
        caller.rights.require_topics("subscribe", (asked.topic,))
        wish = Wish(f"{caller.name}/{asked.name}", asked.topic, asked.profile, asked.earliest)
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

    def view(self, question: InterestQuestion, caller: Caller) -> dict[str, object]:
        deadline = time.monotonic() + question.wait_ms / 1000
        while True:
            found = self._node.look(lambda node: _view(node, question.topic), self._timeout_s)
            left_s = deadline - time.monotonic()
            if found["revision"] != question.seen or left_s <= 0 or caller.is_cancelled():
                return self._named(found, caller.rights)
            with self._changed:
                self._changed.wait(min(left_s, LOOK_S))

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
    return rights.may("read", topic) or rights.may("subscribe", topic)


def _view(node: Node, topic: str | None) -> dict[str, object]:
    """On the loop."""
    wanted = None if topic is None else xxh3_64_intdigest(topic.encode())
    interest, registrations = node.interest, []
    for entry in interest.view.used():
        known = node.roster.own if entry.node_id == node.me.node_id else node.roster.get(entry.node_id)
        for item in entry.items.values():
            if item.language != CLIENT_LANGUAGE and (wanted is None or item.topic_hash == wanted):
                registrations.append(
                    {
                        "node_id": entry.node_id.hex(),
                        "node": known.name if known is not None else "",
                        "topic_hash": item.topic_hash,
                        "where": item.text,
                        "language": item.language,
                        "epoch": item.epoch,
                        "since_ms": item.since_ms,
                        "start": "earliest" if item.earliest else "latest",
                    }
                )
    own = [
        {
            "id": each,
            "topic": row.topic,
            "where": row.text,
            "owner": row.owner,
            "since_ms": row.since_ms,
            "is_announced": not row.under,
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
