"""The exchange of interest with neighbours: what each of them has, what it is sent, and what it is asked for.

At link-up both ends compare digests of their views, list the versions that they have where these differ, and ask for
what is newer; the last list is the end mark. Afterwards changes travel as news: a difference from the version that the
neighbour is known to have, or the whole entry. A difference that does not fit what is held is repaired by one question.

Nothing is sent back to whom it came from, and nothing twice: `known` has, per link, the version that the neighbour has.
What waits for a link is a set of nodes, so several changes of one entry travel once, as the latest, and a link that is
blocked needs no more memory than the view.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from m4cast.overlay.errors import RemoteProtocolError
from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.effects import Output, Send
from m4cast.overlay.protocol.interest.entry import (
    ENTRY_ITEMS_MAX,
    NO_VERSION,
    EntryChange,
    EntryVersion,
    InterestEntry,
)
from m4cast.overlay.protocol.interest.view import VIEW_BUCKETS, VIEW_ENTRIES_MAX, InterestView, view_bucket
from m4cast.overlay.protocol.wire.interest import (
    InterestAskStmt,
    InterestDigestStmt,
    InterestItem,
    InterestKey,
    InterestNewsStmt,
    InterestVersion,
    InterestVersionsStmt,
)
from m4cast.overlay.protocol.wire.messages import ENTRIES_PER_MESSAGE

T = TypeVar("T")

ITEMS_PER_MESSAGE = 256
KEYS_PER_MESSAGE = 1_024
ASKED_ITEMS_MAX = 16_384
"""Items asked for on one link and not received yet; guess. It bounds what an answer adds to the sender's queue."""


@dataclass(slots=True)
class InterestLink:
    conn: int
    known: dict[NodeId, EntryVersion] = field(default_factory=dict)
    """Versions that the neighbour has: it sent them, or was sent them."""
    news: dict[NodeId, bool] = field(default_factory=dict)
    """Entries that the next exchange sends. True: only that there is this version; who lacks it asks."""
    is_blocked: bool = False
    has_sent_digest: bool = False
    is_complete: bool = False
    """The neighbour's end mark has arrived."""
    wanted: dict[NodeId, InterestVersion] = field(default_factory=dict)
    """The entries that the neighbour has and this node has not requested from it yet."""
    asked: dict[NodeId, int] = field(default_factory=dict)
    """The entries that were requested from it, with the number of items that are expected."""
    owed: dict[NodeId, InterestAskStmt] = field(default_factory=dict)
    """The requests of the neighbour that arrived while the link was blocked."""
    parts: list[InterestNewsStmt] = field(default_factory=list)
    """An entry of which more is to come."""

    def learn(self, node_id: NodeId, version: EntryVersion) -> None:
        """The neighbour says that it has this version."""
        if node_id not in self.known and len(self.known) >= VIEW_ENTRIES_MAX:
            raise RemoteProtocolError(f"interest of more than {VIEW_ENTRIES_MAX} nodes")
        self.known[node_id] = max(version, self.known.get(node_id, version))


def version_of(stmt: InterestNewsStmt | InterestVersion) -> EntryVersion:
    return EntryVersion(stmt.incarnation, stmt.ts, stmt.digest)


class Exchange:
    def __init__(self, view: InterestView, out: list[Output]) -> None:
        self.links: dict[NodeId, InterestLink] = {}
        self._view = view
        self._out = out

    # ---- links

    def link_up(self, node_id: NodeId, conn: int) -> None:
        link = self.links[node_id] = InterestLink(conn)
        if self._view.entries:
            self._send_digest(link)

    def link_down(self, node_id: NodeId, conn: int) -> None:
        link = self.links.get(node_id)
        if link is not None and link.conn == conn:
            del self.links[node_id]
            if link.asked:
                self.ask_all()  # others may have what it was asked for

    def compare(self) -> None:
        """Compare views with all neighbours with whom that was not done: each answers with an end mark."""
        for link in self.links.values():
            if not link.has_sent_digest:
                self._send_digest(link)

    def _send_digest(self, link: InterestLink) -> None:
        link.has_sent_digest = True
        self._send(link, InterestDigestStmt(self._view.digests()))

    def _send(
        self,
        link: InterestLink,
        message: InterestDigestStmt | InterestVersionsStmt | InterestAskStmt | InterestNewsStmt,
    ) -> None:
        self._out.append(Send(link.conn, message))

    def on_digest(self, link: InterestLink, stmt: InterestDigestStmt) -> None:
        if len(stmt.digests) != VIEW_BUCKETS:
            raise RemoteProtocolError(f"InterestDigestStmt has {len(stmt.digests)} digests, not {VIEW_BUCKETS}")
        if not link.has_sent_digest:
            self._send_digest(link)
        differs = [mine != theirs for mine, theirs in zip(self._view.digests(), stmt.digests, strict=True)]
        for entry in self._view.used():
            if not differs[view_bucket(entry.node_id)]:
                link.known[entry.node_id] = entry.version
        versions = [
            InterestVersion(entry.node_id, *entry.version, len(entry.items)) for entry in self._view.in_buckets(differs)
        ]
        pages = _pages(versions, ENTRIES_PER_MESSAGE) or [()]
        for number, page in enumerate(pages, start=1):
            self._send(link, InterestVersionsStmt(page, last=number == len(pages)))

    def on_versions(self, link: InterestLink, stmt: InterestVersionsStmt) -> None:
        for listed in stmt.entries:
            link.learn(listed.node_id, version_of(listed))
            if version_of(listed) > self._held(listed.node_id):
                link.wanted[listed.node_id] = listed
        link.is_complete = link.is_complete or stmt.last
        self.ask_all()

    def _held(self, node_id: NodeId) -> EntryVersion:
        entry = self._view.entries.get(node_id)
        return entry.version if entry is not None else NO_VERSION

    # ---- asking

    def want(self, link: InterestLink, stmt: InterestNewsStmt, *, whole: bool = False) -> None:
        """The neighbour has a newer version, and its difference does not fit what is held here."""
        link.wanted[stmt.node_id] = InterestVersion(stmt.node_id, *version_of(stmt), 1)
        self._ask(link, whole=whole)

    def ask_all(self) -> None:
        for link in self.links.values():
            if link.wanted:
                self._ask(link)

    def _ask(self, link: InterestLink, *, whole: bool = False) -> None:
        """Ask for what is newer at the neighbour, unless another one was asked for it."""
        for node_id, listed in list(link.wanted.items()):
            if link.asked and sum(link.asked.values()) + listed.items > ASKED_ITEMS_MAX:
                return
            if version_of(listed) <= self._held(node_id):
                del link.wanted[node_id]
            elif not any(node_id in other.asked for other in self.links.values()):
                del link.wanted[node_id]
                link.asked[node_id] = listed.items
                self._send(link, self._question(node_id, whole=whole))

    def _question(self, node_id: NodeId, *, whole: bool) -> InterestAskStmt:
        entry = self._view.entries.get(node_id)
        if entry is None or whole:
            return InterestAskStmt(node_id, 0, 0, ())
        buckets = entry.bucket_count()
        digests = entry.bucket_digests(buckets) if buckets else ()
        return InterestAskStmt(node_id, entry.version.incarnation, entry.version.ts, digests)

    # ---- answering

    def on_ask(self, link: InterestLink, ask: InterestAskStmt) -> None:
        if link.is_blocked:
            if ask.node_id not in link.owed and len(link.owed) >= VIEW_ENTRIES_MAX:
                raise RemoteProtocolError(f"more than {VIEW_ENTRIES_MAX} questions about interest at a time")
            link.owed[ask.node_id] = ask
        else:
            self._answer(link, ask)

    def ready(self, link: InterestLink) -> None:
        """The link is not blocked any longer: send what waited, no more than a neighbour may ask for at a time."""
        if link.news:
            self.send_link_news(link)
        items = 0
        while link.owed and items <= ASKED_ITEMS_MAX:
            ask = link.owed.pop(next(iter(link.owed)))
            entry = self._view.entries.get(ask.node_id)
            items += len(entry.items) if entry is not None else 1
            self._answer(link, ask)

    def _answer(self, link: InterestLink, ask: InterestAskStmt) -> None:
        entry = self._view.entries.get(ask.node_id)
        if entry is None:
            self._send(link, _news(InterestEntry(ask.node_id), NO_VERSION))
            return
        base = entry.base_of(ask.incarnation, ask.ts)
        difference = entry.difference(base) if base is not None else None
        if (ask.incarnation, ask.ts) >= entry.version[:2] and not ask.digests:
            self._send(link, _news(entry, entry.version))  # nothing newer here
        elif difference is not None:
            self._send_difference(link, entry, difference)
        elif ask.digests:
            self._send_buckets(link, entry, ask)
        else:
            self._send_whole(link, entry)
        link.known[ask.node_id] = entry.version

    def _send_difference(self, link: InterestLink, entry: InterestEntry, change: EntryChange) -> None:
        joined, left = _pages(change.joined, ITEMS_PER_MESSAGE), _pages(change.left, KEYS_PER_MESSAGE)
        pages = max(len(joined), len(left), 1)
        for page in range(pages):
            stmt = _news(
                entry,
                change.base,
                joined=joined[page] if page < len(joined) else (),
                left=left[page] if page < len(left) else (),
                more=page + 1 < pages,
            )
            self._send(link, stmt)

    def _send_whole(self, link: InterestLink, entry: InterestEntry) -> None:
        pages = _pages(entry.items.values(), ITEMS_PER_MESSAGE) or [()]
        for number, page in enumerate(pages, start=1):
            self._send(link, _news(entry, NO_VERSION, buckets=1, joined=page, more=number < len(pages)))

    def _send_buckets(self, link: InterestLink, entry: InterestEntry, ask: InterestAskStmt) -> None:
        count = len(ask.digests)
        mine = entry.bucket_digests(count)
        replaced = tuple(number for number in range(count) if mine[number] != ask.digests[number])
        base = EntryVersion(ask.incarnation, ask.ts, 0)
        pages = _pages(entry.in_buckets(set(replaced), count), ITEMS_PER_MESSAGE) or [()]
        if count == 1 or len(pages) * ITEMS_PER_MESSAGE > len(entry.items):
            self._send_whole(link, entry)
            return
        for number, page in enumerate(pages, start=1):
            more = number < len(pages)
            self._send(link, _news(entry, base, buckets=count, replaced=replaced, joined=page, more=more))

    # ---- news

    def mark(self, node_id: NodeId, *, mention: bool = False) -> None:
        """The entry is news for all neighbours that are not known to have it."""
        entry = self._view.entries[node_id]
        for link in self.links.values():
            if link.known.get(node_id) != entry.version:
                link.news[node_id] = mention and link.news.get(node_id, True)

    def forget(self, node_id: NodeId) -> None:
        """The node is gone: others may forget its entry."""
        for link in self.links.values():
            link.known.pop(node_id, None)
            link.news.pop(node_id, None)

    def send_news(self) -> None:
        for link in self.links.values():
            if link.news and not link.is_blocked:
                self.send_link_news(link)

    def send_link_news(self, link: InterestLink) -> None:
        news, link.news = link.news, {}
        for node_id, mention in news.items():
            entry = self._view.entries.get(node_id)
            known = link.known.get(node_id)
            if entry is None or (known is not None and known >= entry.version):
                continue
            self._send_entry(link, entry, known, mention=mention)

    def _send_entry(
        self, link: InterestLink, entry: InterestEntry, known: EntryVersion | None, *, mention: bool
    ) -> None:
        difference = None
        if known is not None or len(entry.items) > ITEMS_PER_MESSAGE:
            base = known if known is not None and entry.difference(known) is not None else entry.last_base()
            difference = None if base is None else entry.difference(base)
        if mention:
            self._send(link, _news(entry, entry.version))
            return
        if difference is not None and len(difference.joined) + len(difference.left) <= len(entry.items):
            self._send_difference(link, entry, difference)
        elif len(entry.items) <= ITEMS_PER_MESSAGE:
            self._send_whole(link, entry)
        else:
            self._send(link, _news(entry, entry.version))
            return
        link.known[entry.node_id] = entry.version

    # ---- receiving

    def assemble(self, link: InterestLink, stmt: InterestNewsStmt) -> list[InterestNewsStmt] | None:
        """All parts of an entry; None while more is to come."""
        parts = link.parts
        if parts and _head(parts[0]) != _head(stmt):
            raise RemoteProtocolError("InterestNewsStmt of another entry before the end of the one before it")
        parts.append(stmt)
        if sum(len(part.joined) for part in parts) > ENTRY_ITEMS_MAX:
            raise RemoteProtocolError(f"InterestNewsStmt: an entry with more than {ENTRY_ITEMS_MAX} items")
        if stmt.more:
            return None
        link.parts = []
        link.asked.pop(stmt.node_id, None)
        return parts


def _head(stmt: InterestNewsStmt) -> tuple[object, ...]:
    return (
        stmt.node_id,
        stmt.incarnation,
        stmt.ts,
        stmt.digest,
        stmt.base_incarnation,
        stmt.base_ts,
        stmt.buckets,
        stmt.replaced,
    )


def _news(
    entry: InterestEntry,
    base: EntryVersion,
    *,
    buckets: int = 0,
    replaced: tuple[int, ...] = (),
    joined: tuple[InterestItem, ...] = (),
    left: tuple[InterestKey, ...] = (),
    more: bool = False,
) -> InterestNewsStmt:
    return InterestNewsStmt(
        node_id=entry.node_id,
        incarnation=entry.version.incarnation,
        ts=entry.version.ts,
        digest=entry.version.digest,
        base_incarnation=base.incarnation,
        base_ts=base.ts,
        buckets=buckets,
        replaced=replaced,
        joined=joined,
        left=left,
        more=more,
    )


def _pages(values: Iterable[T], size: int) -> list[tuple[T, ...]]:
    rest = iter(values)
    return list(iter(lambda: tuple(islice(rest, size)), ()))


def joined_of(parts: list[InterestNewsStmt]) -> Iterator[InterestItem]:
    return (item for part in parts for item in part.joined)


def left_of(parts: list[InterestNewsStmt]) -> Iterator[InterestKey]:
    return (key for part in parts for key in part.left)
