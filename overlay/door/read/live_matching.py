"""Filtered tails at the end of a topic share the work: each new batch is read, decoded and matched once for all of
them, by whichever transport they are read.

A topic that has filtered tails has one `TopicMatcher`: a thread that reads what is new, asks one `ProfileIndex` who
wants which rows, and puts these into the inboxes of the tails. A tail that is level with its topic opens an inbox and
lives on what is put into it (`SharedMatches`). One whose client takes rows too slowly loses its inbox, and reads by
itself until it is level again. So nobody waits for a slow one, and an inbox is bounded. If a batch cannot be read or
rows are missing, all inboxes of the topic are lost, and each tail meets the problem by itself.

A selective topic has a matcher for each registration that tails see it by: these have different frontiers.

Rule: rows are put into an inbox before `handed_out` passes them, and a tail notes that position before it empties its
inbox. So what lies below the position that it noted, and matches, it has.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import pyarrow as pa

from m4cast.overlay.door.access.rights import Caller
from m4cast.overlay.door.fields import Frontier
from m4cast.overlay.door.frontiers import Frontiers
from m4cast.overlay.door.read.inboxes import Inbox, Letter, Turns
from m4cast.overlay.door.read.matching import Found, Numbers, Slice, column_names, examined, joined
from m4cast.overlay.door.read.pacing import Pacing
from m4cast.overlay.door.read.portions import PortionReader
from m4cast.overlay.door.read.stream_answer import TestedSpan
from m4cast.overlay.door.refusals import Refusal
from m4cast.overlay.door.rows.catalogue import Catalogue, StreamSpan
from m4cast.overlay.door.rows.summaries import FilteredColumns, known_summary
from m4cast.overlay.errors import StoreError
from m4cast.overlay.ids import StreamId
from m4cast.overlay.profiles import Condition, Matches, Profile, ProfileIndex, columns_of, may_match
from m4cast.overlay.store.store import SummarisedBatch

log = logging.getLogger("m4cast.door")

SLICE_ROWS = 65_536
"""Rows that are matched at once, unless a batch has more. More: a stop is noticed later. Guess."""
COLLECT_S = 0.05
COLLECT_BYTES_MIN, COLLECT_BYTES_MAX = 1 << 20, 16 << 20
LETTER_BYTES = 32 << 10
"""While there is more to match, matches are collected for so long, or up to a size that makes letters of about so many
bytes if all tails get one: a letter costs 0.1 ms however small it is. More: fewer letters, more latency under load.
Measured (`tests/bench/filters.py`)."""
SORTED_SHARE = 2
"""If all tails together want so many times the rows that were found, or fewer, these are sorted by tail before they are
divided. More: large copies where many tails want the same rows. Guess."""
SUMMARY_PROFILES = 16
"""Up to so many profiles are asked, one by one, if a batch can be passed over by its summary. More: the question costs
more than the rows, and somebody wants one of them. Guess."""
REST_S_MIN, REST_S_MAX = 0.01, 0.5
LETTER_S = 0.002
"""The pause until the next letters, and how much longer it is for each of the last ones. So handing out takes a
fraction of a core however many tails there are. Higher: more latency for topics with many filtered tails. Guess."""
REPORT_S = 60.0
"""The interval at which a tail reports the columns that it filters by; they count for longer than that. Guess."""


class CollectedMatches:
    """Matches of consecutive slices of one stream and schema, to be handed out together."""

    def __init__(self, schema: pa.Schema) -> None:
        self.until = 0
        """The first sequence after it."""
        self._schema = schema
        self._founds: list[Found] = []
        self._slots: list[Numbers] = []
        self._places: list[Numbers] = []
        """The slot of the profile in the index, and the number of the row among all that were found, for each match."""
        self._rows = 0
        self._bytes = 0
        """The size of what all tails get together."""
        self._ends_at = time.monotonic() + COLLECT_S

    def takes(self, schema: pa.Schema) -> bool:
        return bool(self._schema.equals(schema))

    def is_large(self, inboxes: int) -> bool:
        return self._bytes >= min(max(inboxes * LETTER_BYTES, COLLECT_BYTES_MIN), COLLECT_BYTES_MAX)

    def is_old(self) -> bool:
        return time.monotonic() >= self._ends_at

    def add(self, rows: Slice, matches: Matches[bytes]) -> None:
        """A slice, and which profiles want which of its rows."""
        is_wanted = rows.is_within(matches.rows)
        numbers, slots = matches.rows[is_wanted], matches.slots[is_wanted]
        if len(numbers):
            together, places = np.unique(numbers, return_inverse=True)
            found = rows.found(together, is_cut=True)
            self._founds.append(found)
            self._places.append(places + self._rows)
            self._slots.append(slots)
            self._rows += len(together)
            self._bytes += found.rows.nbytes * len(numbers) // len(together)
        self.until = rows.until

    def by_slot(self) -> Iterator[tuple[int, Found]]:
        """The slots of profiles in the index, each with its rows, in their order."""
        if not self._founds:
            return
        slots, places = np.concatenate(self._slots), np.concatenate(self._places)
        order = np.lexsort((places, slots))
        slots, places = slots[order], places[order]
        begins = np.flatnonzero(np.diff(slots, prepend=-1)).tolist()
        found = joined(self._founds)
        is_sorted = len(places) <= SORTED_SHARE * self._rows
        if is_sorted:
            found = found.some(places, in_order=False)
        for begin, end in zip(begins, [*begins[1:], len(slots)], strict=True):
            own = found.part(begin, end) if is_sorted else found.some(places[begin:end])
            yield int(slots[begin]), own


class TopicMatcher:
    """Matches what is new in one topic, on a thread of its own while there are inboxes."""

    def __init__(
        self, topic: str, portions: PortionReader, catalogue: Catalogue, frontiers: Frontiers, turns: Turns
    ) -> None:
        """Sequences between batches are passed over if `frontiers` are those of a registration."""
        self._topic = topic
        self._turns = turns
        self._portions = portions
        self._catalogue = catalogue
        self._frontiers = frontiers
        self._measured_s = 0.0
        """The CPU time that the thread had used when its cost was last divided."""
        self._lock = threading.Lock()
        """Guards all attributes below. Held while a slice is matched, so that an inbox gets all of a slice or
        nothing."""
        self._index: ProfileIndex[bytes] = ProfileIndex()
        self._names: Counter[str] = Counter()
        self._inboxes: dict[bytes, dict[Inbox, None]] = {}
        """The inboxes, by the id of the profile."""
        self._inbox_count = 0
        self._conditions: dict[bytes, Condition] = {}
        self._attached = 0
        """Rises with each profile that comes."""
        self.handed_out: Frontier = {}
        """Everything below it that matches was put into inboxes. It is replaced, never changed: no lock is needed."""
        self._keys: Mapping[int, bytes] = {}
        """The profiles in the index, by slot. A slot is never used again."""
        self._collected: dict[StreamId, CollectedMatches] = {}
        self._rests_until = 0.0
        self._runs = False

    def attach(self, inbox: Inbox) -> Frontier:
        """Returns from where on everything that matches is put into it. Streams that are not named: from 1 on."""
        profile = inbox.profiles[self._topic]
        with self._lock:
            if not self._runs:
                self._runs = True
                self.handed_out = self._frontiers.positions((self._topic,))
                threading.Thread(target=self._run, name="door-filters", daemon=True).start()
            sharing = self._inboxes.setdefault(profile.id, {})
            if not sharing:
                self._index.add(profile.id, profile)
                self._names.update(column_names(profile))
                self._conditions[profile.id] = profile.condition
                self._attached += 1
            sharing[inbox] = None
            self._inbox_count += 1
            return self._matched()

    def _matched(self) -> Frontier:
        """The positions up to which streams were matched, handed out or not."""
        return {**self.handed_out, **{stream: matches.until for stream, matches in self._collected.items()}}

    def detach(self, inbox: Inbox) -> None:
        with self._lock:
            self._detach(inbox)

    def _detach(self, inbox: Inbox) -> None:
        profile = inbox.profiles[self._topic]
        sharing = self._inboxes.get(profile.id, {})
        if inbox not in sharing:
            return  # it was lost
        del sharing[inbox]
        self._inbox_count -= 1
        if not sharing:
            del self._inboxes[profile.id]
            self._index.remove(profile.id)
            del self._conditions[profile.id]
            self._names.subtract(column_names(profile))
            self._names += Counter()  # without those that nobody reads

    def _run(self) -> None:
        try:
            self._measured_s = time.thread_time()
            while not self._frontiers.closed and self._goes_on():
                self._match_news()
        except Exception:  # a mistake of ours
            log.exception("the shared matching of topic %r failed: its tails read by themselves", self._topic)
            with self._lock:
                self._lose_all()
                self._runs = False

    def _goes_on(self) -> bool:
        with self._lock:
            self._runs = bool(self._inboxes)
            if not self._runs:
                self._collected.clear()
            return self._runs

    def _match_news(self) -> None:
        """Wait for new rows and match them, or hand out what waits for that."""
        with self._lock:
            at = self._matched()
            deadline = self._rests_until if self._collected else float("inf")
        for stream, beyond in self._frontiers.wait_beyond(at, (self._topic,), deadline).items():
            if beyond > at.get(stream, 1):
                self._advance(StreamSpan(stream, at.get(stream, 1), beyond))
        with self._lock:
            if self._collected and time.monotonic() >= self._rests_until:
                self._hand_out()

    def _advance(self, span: StreamSpan) -> None:
        with self._lock:
            attached = self._attached
        try:
            for stretch in self._portions.read(span, skip_missing=self._frontiers.has_gaps, rules_out=self._rules_out):
                if not stretch.portions and not self._pass_over(span.stream, stretch.until, attached):
                    return  # the next round reads on from here
                for _ in examined(stretch.portions, self._catalogue, self._collect, SLICE_ROWS):
                    if self._frontiers.closed:
                        return
        except (Refusal, StoreError):  # each tail meets it by itself
            with self._lock:
                self._lose_all()
                self.handed_out = {**self._frontiers.positions((self._topic,)), span.stream: span.next}

    def _rules_out(self, head: SummarisedBatch) -> bool:
        """True if, according to the batch's summary, no profile wants a row of it."""
        with self._lock:
            conditions = list(self._conditions.values())
        if head.summary is None or len(conditions) > SUMMARY_PROFILES:
            return False
        summary = known_summary(head.summary, head.next_sequence - head.first_sequence)
        return summary is not None and not any(may_match(condition, summary) for condition in conditions)

    def _pass_over(self, stream: StreamId, until: int, attached: int) -> bool:
        """Pass over the rows below `until`, which no tail wants. False: a profile was attached since summaries were
        asked."""
        with self._lock:
            if self._attached != attached:
                return False
            matches = self._collected.get(stream)
            if matches is None:
                self.handed_out = {**self.handed_out, stream: until}
            else:
                matches.until = until
            return True

    def _lose_all(self) -> None:
        for inbox in [inbox for sharing in self._inboxes.values() for inbox in sharing]:
            inbox.lose()
            self._detach(inbox)
        self._collected.clear()

    def _collect(self, rows: Slice) -> None:
        """Match a slice. What is found is handed out when the matcher is level with its topic, or after a moment: while
        there is much to match, each tail gets one letter for many slices."""
        with self._lock:
            found = self._match(rows)
            matches = self._collected.get(rows.stream)
            if matches is not None and not matches.takes(rows.schema):
                self._hand_out()
                matches = None
            if matches is None:
                matches = CollectedMatches(rows.schema)
            matches.add(rows, found)
            self._collected[rows.stream] = matches  # only now: a slice that is refused was not matched
            if matches.is_large(self._inbox_count) or (matches.is_old() and time.monotonic() >= self._rests_until):
                self._hand_out()

    def _hand_out(self) -> None:
        """Each letter costs its tail a message, so the more there are, the longer it is until the next ones. Tails that
        nothing matched are not woken: they wake by themselves before a certificate is due."""
        collected, self._collected = self._collected, {}
        got: list[Inbox] = []
        for stream, matches in collected.items():
            for slot, found in matches.by_slot():
                key = self._keys.get(slot)
                if key is not None:
                    got += self._put(key, Letter(stream, matches.until, found))
        self.handed_out = {**self.handed_out, **{stream: matches.until for stream, matches in collected.items()}}
        self._rests_until = time.monotonic() + min(max(len(got) * LETTER_S, REST_S_MIN), REST_S_MAX)
        self._share_cost()
        self._turns.wake(got)

    def _match(self, rows: Slice) -> Matches[bytes]:
        matches = self._index.match(rows.columns(self._names))
        self._keys = matches.keys
        return matches

    def _put(self, profile_id: bytes, letter: Letter) -> list[Inbox]:
        """Returns the inboxes that got it, or were full."""
        size = letter.found.rows.nbytes
        inboxes = list(self._inboxes[profile_id])
        for inbox in inboxes:
            if not inbox.put(letter, size):
                self._detach(inbox)
        return inboxes

    def _share_cost(self) -> None:
        now_s = time.thread_time()
        inboxes = [inbox for sharing in self._inboxes.values() for inbox in sharing]
        for inbox in inboxes:
            inbox.charge((now_s - self._measured_s) / len(inboxes))
        self._measured_s = now_s


class LiveMatching:
    """The matchers of all topics that have filtered tails. Any thread may use it."""

    def __init__(self, portions: PortionReader, catalogue: Catalogue) -> None:
        self._portions = portions
        self._catalogue = catalogue
        self._matchers: dict[str, TopicMatcher] = {}
        """Matchers by topic; those of selective topics by topic and registration."""
        self._open: Counter[str] = Counter()
        """Inboxes of each, the lost ones included."""
        self._lock = threading.Lock()
        self._turns = Turns()

    def open(self, inbox: Inbox, seen: Frontiers) -> tuple[Mapping[str, TopicMatcher], Frontier]:
        """The matchers that put rows into the inbox of a tail with these frontiers, by their keys, and from where on
        everything that matches is put into it."""
        matchers: dict[str, TopicMatcher] = {}
        begins: Frontier = {}
        with self._lock:
            for topic in inbox.profiles:
                key, frontiers = seen.shared(topic)
                if key not in self._matchers:
                    self._matchers[key] = TopicMatcher(topic, self._portions, self._catalogue, frontiers, self._turns)
                self._open[key] += 1
                matchers[key] = self._matchers[key]
                begins |= matchers[key].attach(inbox)
        return matchers, begins

    def close(self, inbox: Inbox, matchers: Mapping[str, TopicMatcher]) -> None:
        with self._lock:
            for key, matcher in matchers.items():
                matcher.detach(inbox)
                self._open[key] -= 1
                if not self._open[key]:
                    del self._open[key], self._matchers[key]

    def end_turn(self, inbox: Inbox) -> None:
        """The tail of an open inbox has prepared what it sends: it is another one's turn."""
        self._turns.end(inbox)


class SharedMatches:
    """The shared matching as one tail uses it, once that is level: an open inbox, of which the tail takes what it sees.
    Used by one thread at a time; whoever opens it closes it."""

    def __init__(
        self,
        live: LiveMatching,
        profiles: Mapping[str, Profile],
        seen: Frontiers,
        columns: FilteredColumns,
        pacing: Pacing,
        ring: Callable[[], None] | None = None,
    ) -> None:
        """`seen`: the frontiers as the tail sees them."""
        self._live = live
        self._seen = seen
        self._columns = columns
        self._pacing = pacing
        self._profiles = profiles
        self.inbox = Inbox(profiles, ring)
        self._hidden: dict[StreamId, None] = {}
        """Streams of which something was dropped, since the tail does not see them."""
        self._reported_at = float("-inf")
        self._matchers, begins = live.open(self.inbox, seen)
        self.begins, self.is_level = begins, True
        """The positions from which on the inbox has everything that the tail wants; it reads by itself what precedes
        them. A tail that is not level does not see that far."""
        if seen.hides_streams:
            now = seen.positions(profiles)
            self.begins = self._visible(begins, now)
            self.is_level = all(begin <= now[stream] for stream, begin in self.begins.items())

    def _visible(self, positions: Frontier, seen: Frontier) -> Frontier:
        self._hidden.update((stream, None) for stream in positions if stream not in seen)
        return {stream: until for stream, until in positions.items() if stream in seen}

    def close(self) -> None:
        self._live.close(self.inbox, self._matchers)

    def end_turn(self) -> None:
        """The tail has prepared what it sends."""
        self._live.end_turn(self.inbox)

    def pay(self, caller: Caller) -> None:
        """Charge the caller with its share of the matching. Waits, if that exceeds its budget."""
        self._pacing.pay(caller, self.inbox.take_cpu_s())

    def report_columns(self) -> None:
        """Publishers summarise the columns that readers filter by. Once in a while."""
        if time.monotonic() >= self._reported_at + REPORT_S:
            self._reported_at = time.monotonic()
            for topic, profile in self._profiles.items():
                self._columns.filtered(topic, columns_of(profile.condition))

    def look_again(self, seen: Frontiers) -> bool:
        """Let the tail see these frontiers from now on. False: they are others than those that are matched for it."""
        self._seen = seen
        return all(seen.shared(topic)[0] in self._matchers for topic in self._profiles)

    def take(self, at: Callable[[StreamId], int]) -> Iterator[tuple[StreamId, TestedSpan]] | None:
        """The spans that were tested since, from the positions `at` on, which the tail moves at each step; at most one
        full inbox. None: the inbox is lost."""
        positions: Frontier = {}
        for matcher in self._matchers.values():
            positions |= matcher.handed_out  # before the inbox is emptied: see above
        letters = self.inbox.take()
        if letters is None:
            return None
        if self._seen.hides_streams:
            seen = self._seen.positions(self._profiles)
            self._visible({letter.stream: letter.until for letter in letters}, seen)
            positions = self._visible(positions, seen)
            if any(stream in seen for stream in self._hidden):
                return None  # it sees more now than what was kept for it
        return self._steps(letters, positions, at)

    def _steps(
        self, letters: list[Letter], positions: Frontier, at: Callable[[StreamId], int]
    ) -> Iterator[tuple[StreamId, TestedSpan]]:
        for letter in letters:
            first = at(letter.stream)
            if letter.until > first and letter.stream not in self._hidden:
                found = letter.rows_from(first)
                yield letter.stream, TestedSpan(until=letter.until, rows=letter.until - first, found=found)
        for stream, until in positions.items():
            first = at(stream)
            if until > first:
                yield stream, TestedSpan(until=until, rows=until - first, found=None)
