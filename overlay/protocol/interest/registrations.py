"""This node's registrations: what was asked for here, and which of it is announced.

Only maximal registrations are announced: one that another covers hangs below it (`under`), and is announced when that
one goes. Registrations that want the same rows share an epoch. An epoch is this node's incarnation, shifted, plus the
number of registrations that were given up before: a registration that was given up and made again has another one, so
whoever missed the time in between sees it as *rejoined*.

At most 1,024 registrations and 256 KiB of a topic are announced. Beyond that the node registers wider ones by itself,
which cover the others: the conditions on one column alone, if that leaves few enough, or every row. Rows that nobody
wants may then arrive, none is missed.

Registrations travel as hashes of topic and profile. Where two of this node have the same hashes by accident, the item
wants every row of the topic, and gets a new epoch whenever one of the two is given up.

Registrations of mailboxes are announced by the rows of their clients, and by nothing else.

Cost: a new registration is compared with all announced ones of its topic (about 20 us each, measured with two columns);
one that goes, what hung below it likewise.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from m4cast.overlay.errors import ConfigError
from m4cast.overlay.profiles.boxes import covers
from m4cast.overlay.profiles.condition import (
    ALWAYS,
    CANONICAL_BYTES_MAX,
    AllOf,
    Condition,
    FilterError,
    all_of,
    columns_of,
    text_of,
)
from m4cast.overlay.profiles.profile import SQL, SQL_VERSION, Profile, canonical_text, parse, profile_of, read
from m4cast.overlay.protocol.effects import Registration, Wish
from m4cast.overlay.protocol.wire.interest import MAILBOX_PREFIX, InterestItem, InterestKey

ANNOUNCED_MAX = 1_024
"""Registrations of one topic that are announced."""
ANNOUNCED_BYTES_MAX = 256 * 1_024
"""Bytes of their texts."""
NARROW_SHARE = 4
"""Wider ones are withdrawn when so few registrations are left: a quarter of the limits, so that one registration that
comes and goes does not change what all nodes hear."""
CONFIG_PREFIX = "_config/"
"""Ids of the registrations of the node's configuration."""
WIDE_PREFIX = "_wide/"
"""Ids of registrations that the node makes by itself. Clients' ids do not begin with an underscore."""
EPOCH_SHIFT = 32

Hash = Callable[[bytes], int]


class RowChange(NamedTuple):
    """A registration as it was before a change; None: there was none."""

    id: str
    before: Registration | None


@lru_cache(maxsize=16)  # whoever drives the node asks first, on a thread: these texts are people's, and take long
def config_wishes(subscribe: tuple[tuple[str, str], ...]) -> Mapping[str, Wish]:
    """Return the wishes that the node's configuration names, by the ids of the registrations."""
    wishes: dict[str, Wish] = {}
    for topic, where in subscribe:
        try:
            profile = parse(where) if where else None
        except FilterError as error:
            raise ConfigError(f"[[subscribe]] topic = {topic!r}, where = {where!r}: {error}") from None
        name = CONFIG_PREFIX + xxh3_64_hexdigest(f"{topic}\0{profile.text if profile else ''}".encode())
        wishes[name] = Wish(name, topic, profile)
    return wishes


class Registrations:
    def __init__(
        self, rows: dict[str, Registration], hash_of: Hash = xxh3_64_intdigest, *, hierarchy: bool = True
    ) -> None:
        """`hierarchy`: False if registrations that are added cover equal ones alone."""
        self.rows: dict[str, Registration] = {}
        self._hash = hash_of
        self._hierarchy = hierarchy
        self._ids_of_topic: dict[str, dict[str, None]] = {}
        self._announced_of_topic: dict[str, dict[str, None]] = {}
        self._ids_of_key: dict[InterestKey, dict[str, None]] = {}
        self._below: dict[str, dict[str, None]] = {}
        self._conditions: dict[str, Condition | None] = {}
        self._journal: list[RowChange] = []
        for each, row in rows.items():
            self._set(each, row)

    # ---- the rows and what is found by them

    def _set(self, each: str, row: Registration | None) -> None:
        before = self.rows.pop(each, None)
        if each.startswith(MAILBOX_PREFIX):
            if row is not None:
                self.rows[each] = row
            return
        if before is not None:
            _drop(self._ids_of_topic, before.topic, each)
            _drop(self._ids_of_key, self.key(before), each)
            if before.under:
                _drop(self._below, before.under, each)
            else:
                _drop(self._announced_of_topic, before.topic, each)
            if row is None or row.canonical != before.canonical:
                self._conditions.pop(each, None)
        if row is not None:
            self.rows[each] = row
            self._ids_of_topic.setdefault(row.topic, {})[each] = None
            self._ids_of_key.setdefault(self.key(row), {})[each] = None
            if row.under:
                self._below.setdefault(row.under, {})[each] = None
            else:
                self._announced_of_topic.setdefault(row.topic, {})[each] = None

    def _put(self, each: str, row: Registration | None) -> None:
        self._journal.append(RowChange(each, self.rows.get(each)))
        self._set(each, row)

    def take_journal(self) -> list[RowChange]:
        """Return the changes since the last call."""
        journal, self._journal = self._journal, []
        return journal

    def undo(self, journal: list[RowChange]) -> None:
        """Put everything back as it was before these changes."""
        for change in reversed(journal):
            self._set(change.id, change.before)

    def key(self, row: Registration) -> InterestKey:
        return self._key(row.topic, row.canonical)

    def _key(self, topic: str, canonical: str) -> InterestKey:
        return InterestKey(self._hash(topic.encode()), self._hash(canonical.encode()) if canonical else 0)

    # ---- changing

    def replaces(self, wish: Wish) -> bool:
        """True if something else is registered under the id of this wish."""
        row = self.rows.get(wish.id)
        return row is not None and not _is_granted(wish, row)

    def add(self, wish: Wish, owner: str, epoch: int, since_ms: int) -> None:
        """Take a wish; nothing changes if just this is registered under its id already."""
        before = self.rows.get(wish.id)
        if before is not None:
            if _is_granted(wish, before):
                return
            self._take_out(wish.id, epoch)
        canonical = _canonical(wish)
        equal = "" if wish.id.startswith(MAILBOX_PREFIX) else self._equal(wish.topic, canonical)
        profile = wish.profile if canonical else None
        row = Registration(
            topic=wish.topic,
            language=profile.language if profile else "",
            version=profile.version if profile else 0,
            text=profile.written if profile else "",
            canonical=canonical,
            owner=owner,
            epoch=self.rows[equal].epoch if equal else epoch,
            since_ms=since_ms,
            earliest=wish.earliest,
            under="",
            from_ms=wish.from_ms,
            positions=wish.positions,
        )
        self._put(wish.id, row)
        if wish.id.startswith(MAILBOX_PREFIX):
            return
        if profile is not None:
            self._conditions[wish.id] = profile.condition
        if equal:  # many may want the same: they are not compared with everything
            while self.rows[equal].under:
                equal = self.rows[equal].under
            self._put(wish.id, replace(row, under=equal))
        else:
            self._place(wish.id)
        if not wish.id.startswith(WIDE_PREFIX):
            self._fit(wish.topic, epoch, since_ms)

    def remove(self, each: str, epoch: int, since_ms: int) -> None:
        """Give a registration up."""
        topic = self.rows[each].topic
        self._take_out(each, epoch)
        self._narrow(topic, epoch)
        self._fit(topic, epoch, since_ms)

    def configured(self) -> list[str]:
        """Those that the node's configuration named when they were made."""
        return [each for each in self.rows if each.startswith(CONFIG_PREFIX)]

    def renew(self, ids: Iterable[str], epoch: int) -> None:
        """Give these another epoch: for others they were given up and made again."""
        for each in ids:
            self._put(each, replace(self.rows[each], epoch=epoch))

    def _take_out(self, each: str, epoch: int) -> None:
        """`epoch` is for others that have the same hashes by accident."""
        row = self.rows[each]
        self._put(each, None)
        self._uncover(each)
        for other in list(self._ids_of_key.get(self.key(row), ())):
            same = self.rows[other]
            if (same.topic, same.canonical) != (row.topic, row.canonical):
                self._put(other, replace(same, epoch=epoch))

    def _equal(self, topic: str, canonical: str) -> str:
        for each in self._ids_of_key.get(self._key(topic, canonical), ()):
            if (self.rows[each].topic, self.rows[each].canonical) == (topic, canonical):
                return each
        return ""

    def _place(self, each: str) -> None:
        """Hang it below one that covers it, or those that it covers below it."""
        row = self.rows[each]
        announced = [other for other in self._announced(row.topic) if other != each]
        for other in announced:
            if self._covers(other, each):
                self._put(each, replace(row, under=other))
                return
        for other in announced:
            if self._covers(each, other):
                self._put(other, replace(self.rows[other], under=each))

    def _uncover(self, gone: str) -> None:
        below = list(self._below.get(gone, ()))
        for each in below:
            self._put(each, replace(self.rows[each], under=""))
        for each in below:
            self._place(each)

    def _announced(self, topic: str) -> Iterator[str]:
        return iter(self._announced_of_topic.get(topic, ()))

    def _covers(self, wide: str, narrow: str) -> bool:
        one, other = self.rows[wide].canonical, self.rows[narrow].canonical
        if not self._hierarchy and not wide.startswith(WIDE_PREFIX):
            return one == other
        if not one or one == other:
            return True
        if not other:
            return False
        condition, inner = self._condition(wide), self._condition(narrow)
        return condition is not None and inner is not None and covers(condition, inner)

    def _condition(self, each: str) -> Condition | None:
        """None: a canonical text that this program does not understand (any more)."""
        if each not in self._conditions:
            try:
                self._conditions[each] = read(self.rows[each].canonical).condition
            except FilterError:
                self._conditions[each] = None
        return self._conditions[each]

    # ---- wider ones

    def _fit(self, topic: str, epoch: int, since_ms: int) -> None:
        """Register wider ones while too much of the topic is announced."""
        texts = [len(self.rows[each].canonical) for each in self._announced(topic)]
        if len(texts) <= ANNOUNCED_MAX and sum(texts) <= ANNOUNCED_BYTES_MAX:
            return
        has_wider = any(each.startswith(WIDE_PREFIX) for each in self._ids_of_topic[topic])
        for number, profile in enumerate([None] if has_wider else self._wider(topic)):
            name = "all" if profile is None else str(number)
            self.add(Wish(f"{WIDE_PREFIX}{topic}/{name}", topic, profile), "", epoch, since_ms)

    def _wider(self, topic: str) -> list[Profile | None]:
        """Profiles that together cover all that are announced: as many as may be, on one column."""
        conditions = [self._condition(each) for each in self._announced(topic)]
        best: dict[str, Condition] = {}
        first = conditions[0]
        for column in () if first is None else columns_of(first):
            projected: dict[str, Condition] = {}
            for condition in conditions:
                wide = None if condition is None else _on_column(condition, column)
                if wide is None:
                    projected.clear()
                    break
                projected[text_of(wide)] = wide
            size = sum(len(text) for text in projected)
            fits = len(projected) <= ANNOUNCED_MAX // 2 and size <= ANNOUNCED_BYTES_MAX // 2
            if fits and len(projected) > len(best):
                best = projected
        return [profile_of(condition, CANONICAL_BYTES_MAX) for condition in best.values()] or [None]

    def _narrow(self, topic: str, epoch: int) -> None:
        """Withdraw the wider ones when few registrations are left."""
        ids = self._ids_of_topic.get(topic, {})
        wider = [each for each in ids if each.startswith(WIDE_PREFIX)]
        texts = [len(self.rows[each].canonical) for each in ids if not each.startswith(WIDE_PREFIX)]
        if len(texts) <= ANNOUNCED_MAX // NARROW_SHARE and sum(texts) <= ANNOUNCED_BYTES_MAX // NARROW_SHARE:
            for each in wider:
                self._take_out(each, epoch)

    # ---- announcing

    def item(self, key: InterestKey) -> InterestItem | None:
        """Return what is announced under this key; None: nothing."""
        rows = [row for each in self._ids_of_key.get(key, ()) if not (row := self.rows[each]).under]
        if not rows:
            return None
        first = min(rows, key=lambda row: (row.since_ms, row.epoch))
        text = canonical_text(first.canonical) if all(row.canonical == first.canonical for row in rows) else ""
        return InterestItem(
            topic_hash=key.topic_hash,
            profile_hash=key.profile_hash,
            epoch=max(row.epoch for row in rows),
            since_ms=first.since_ms,
            earliest=any(row.reaches_back for row in rows),
            language=SQL if text else "",
            version=SQL_VERSION if text else 0,
            text=text,
        )

    def items(self) -> list[InterestItem]:
        """All that is announced."""
        return [item for key in self._ids_of_key if (item := self.item(key)) is not None]


def _canonical(wish: Wish) -> str:
    return "" if wish.profile is None or wish.profile.condition == ALWAYS else wish.profile.text


def _is_granted(wish: Wish, row: Registration) -> bool:
    begin = (row.earliest, row.from_ms, row.positions)
    return (row.topic, row.canonical) == (wish.topic, _canonical(wish)) and begin == (
        wish.earliest,
        wish.from_ms,
        wish.positions,
    )


def _on_column(condition: Condition, column: tuple[str, ...]) -> Condition | None:
    """A wider condition on this column alone; None: there is none but every row."""
    parts = condition.parts if isinstance(condition, AllOf) else (condition,)
    on_column = [part for part in parts if columns_of(part) == (column,)]
    return all_of(on_column) if on_column else None


def _drop(index: "dict[str, dict[str, None]] | dict[InterestKey, dict[str, None]]", key: object, each: str) -> None:
    ids = index[key]  # type: ignore[index]  # the key fits the index that it is of
    del ids[each]
    if not ids:
        del index[key]  # type: ignore[arg-type]
