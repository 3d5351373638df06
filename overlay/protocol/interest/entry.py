"""A node's interest entry: its announced items under a version, their digests, and the latest changes.

Versions are ordered by (incarnation, ts, digest). Only the node itself makes new ones, so the digest decides only
between two lives of a store that was copied, and makes all nodes agree even then. A digest is the exclusive-or over the
items of an XXH3-64 of each: it changes with one item without a look at the others.

The latest changes are kept, so that a neighbour that has an earlier version is sent the difference. One that has a
version from before them compares digests of buckets of items instead (`bucket_digests`).
"""

import struct
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.effects import InterestChanged
from m4cast.overlay.protocol.wire.interest import InterestItem, InterestKey

CHANGES_MAX = 64
"""Changes that an entry remembers; guess. A neighbour that was away for longer compares buckets."""
CHANGED_ITEMS_MAX = 1_024
"""Items in these changes."""
ITEMS_PER_BUCKET = 16
BUCKETS_MAX = 1_024
BUCKETED_ITEMS_MIN = 64
"""Smaller entries are sent whole: that costs less than the digests."""
ENTRY_ITEMS_MAX = 200_000
"""Items of one entry that a node accepts."""

_KEY = struct.Struct("<QQ")
_ITEM = struct.Struct("<QQQQ?I")
_VERSION = struct.Struct("<QQQ")


class EntryVersion(NamedTuple):
    """The version of an entry: the greater is the newer."""

    incarnation: int
    ts: int
    digest: int


NO_VERSION = EntryVersion(0, 0, 0)


class EntryChange(NamedTuple):
    """The change of an entry from one version to the next."""

    base: EntryVersion
    joined: tuple[InterestItem, ...]
    """New items, and those that replace others."""
    left: tuple[InterestKey, ...]


class ViewDifference(NamedTuple):
    """The effect of a change for users of the view."""

    joined: tuple[InterestItem, ...]
    left: tuple[InterestKey, ...]
    rejoined: tuple[InterestItem, ...]


def key_of(item: InterestItem) -> InterestKey:
    return InterestKey(item.topic_hash, item.profile_hash)


def item_digest(item: InterestItem) -> int:
    fields = _ITEM.pack(item.topic_hash, item.profile_hash, item.epoch, item.since_ms, item.earliest, item.version)
    return xxh3_64_intdigest(fields + item.language.encode() + b"\0" + item.text.encode())


def items_digest(items: Iterable[InterestItem]) -> int:
    digest = 0
    for item in items:
        digest ^= item_digest(item)
    return digest


def bucket_of(key: InterestKey, buckets: int) -> int:
    return xxh3_64_intdigest(_KEY.pack(*key)) % buckets


class InterestEntry:
    __slots__ = ("_changed_items", "_changes", "heard_at_ms", "items", "node_id", "version")

    def __init__(self, node_id: NodeId, version: EntryVersion = NO_VERSION) -> None:
        self.node_id = node_id
        self.version = version
        self.items: dict[InterestKey, InterestItem] = {}
        self.heard_at_ms = 0
        """The time at which the present version was applied here."""
        self._changes: deque[EntryChange] = deque()
        """The latest, oldest first; each begins where the one before it ends."""
        self._changed_items = 0

    def changed_by(self, difference: "ViewDifference", revision: int, *, present: bool) -> InterestChanged:
        """The change as users of the view see it."""
        return InterestChanged(
            node_id=self.node_id,
            incarnation=self.version.incarnation,
            ts=self.version.ts,
            revision=revision,
            joined=difference.joined,
            left=difference.left,
            rejoined=difference.rejoined,
            present=present,
        )

    def digest(self) -> int:
        """Return the digest of this version as a part of a view."""
        return xxh3_64_intdigest(self.node_id + _VERSION.pack(*self.version))

    # ---- changing

    def digest_after(self, joined: Iterable[InterestItem], left: Iterable[InterestKey]) -> int:
        """The digest of the items as they would be after this change."""
        digest, gone = self.version.digest, set[InterestKey]()
        for key in left:
            if key in self.items and key not in gone:
                gone.add(key)
                digest ^= item_digest(self.items[key])
        for item in joined:
            key = key_of(item)
            if key in self.items and key not in gone:
                gone.add(key)
                digest ^= item_digest(self.items[key])
            digest ^= item_digest(item)
        return digest

    def change(
        self, version: EntryVersion, joined: tuple[InterestItem, ...], left: tuple[InterestKey, ...]
    ) -> ViewDifference:
        """Take the next version, and say what that means."""
        new, again = [], []
        gone = [key for key in left if self.items.pop(key, None) is not None]
        for item in joined:
            key = key_of(item)
            before = self.items.get(key)
            if before is None:
                new.append(item)
            elif before.epoch != item.epoch:
                again.append(item)
            self.items[key] = item
        if self.version != NO_VERSION:  # the first version has no difference: it is sent whole
            self._remember(EntryChange(self.version, joined, left))
        self.version = version
        return ViewDifference(tuple(new), tuple(gone), tuple(again))

    def replace(self, version: EntryVersion, items: dict[InterestKey, InterestItem]) -> ViewDifference:
        """Take a version of which all items are known."""
        joined = tuple(item for key, item in items.items() if self.items.get(key) != item)
        left = tuple(key for key in self.items if key not in items)
        return self.change(version, joined, left)

    def _remember(self, change: EntryChange) -> None:
        self._changes.append(change)
        self._changed_items += len(change.joined) + len(change.left)
        while self._changes and (len(self._changes) > CHANGES_MAX or self._changed_items > CHANGED_ITEMS_MAX):
            oldest = self._changes.popleft()
            self._changed_items -= len(oldest.joined) + len(oldest.left)

    # ---- sending

    def difference(self, base: EntryVersion) -> EntryChange | None:
        """Return the difference of this version from an earlier one; None if that is not remembered."""
        if base == self.version:
            return EntryChange(base, (), ())
        changed: dict[InterestKey, InterestItem | None] = {}
        for change in reversed(self._changes):
            for item in change.joined:
                changed.setdefault(key_of(item), item)
            for key in change.left:
                changed.setdefault(key, None)
            if change.base == base:
                joined = tuple(item for item in changed.values() if item is not None)
                return EntryChange(base, joined, tuple(key for key, item in changed.items() if item is None))
        return None

    def base_of(self, incarnation: int, ts: int) -> EntryVersion | None:
        """The remembered version with these numbers."""
        for change in self._changes:
            if (change.base.incarnation, change.base.ts) == (incarnation, ts):
                return change.base
        return None

    def last_base(self) -> EntryVersion | None:
        """The version before this one, if it is remembered."""
        return self._changes[-1].base if self._changes else None

    def bucket_count(self) -> int:
        """Return the number of buckets of items to compare; 0: the entry is small enough to be sent whole."""
        if len(self.items) < BUCKETED_ITEMS_MIN:
            return 0
        buckets = ITEMS_PER_BUCKET
        while buckets < BUCKETS_MAX and buckets * ITEMS_PER_BUCKET < len(self.items):
            buckets *= 2
        return buckets

    def bucket_digests(self, buckets: int) -> tuple[int, ...]:
        digests = [0] * buckets
        for key, item in self.items.items():
            digests[bucket_of(key, buckets)] ^= item_digest(item)
        return tuple(digests)

    def in_buckets(self, wanted: set[int], buckets: int) -> Iterator[InterestItem]:
        return (item for key, item in self.items.items() if bucket_of(key, buckets) in wanted)
