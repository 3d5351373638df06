"""Roster: whose word counts, who is silent or failed, and for how long."""

import pytest

from m4cast.overlay.config import ClusterConfig, NodeConfig
from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.calls import ABSENT_PATIENCE_MS
from m4cast.overlay.protocol.effects import Recovered, RosterChanged
from m4cast.overlay.protocol.roster import roster as roster_module
from m4cast.overlay.protocol.roster.roster import SILENT_AFTER_BEACONS, Roster
from m4cast.overlay.protocol.wire.messages import ENTRIES_PER_MESSAGE, RosterEntry
from tests.overlay.protocol.stream_parts import contact, context_of_m, entry, node_id, of, take

INTERVAL_MS = 5_000
PATIENCE_MS = SILENT_AFTER_BEACONS * INTERVAL_MS
CLUSTER = ClusterConfig(beacon_interval_ms=INTERVAL_MS, beacon_ms_per_node=100)


class Book:
    """The roster of node m."""

    def __init__(self, *known: RosterEntry, seed: int = 1, cluster: ClusterConfig = CLUSTER) -> None:
        context = context_of_m(NodeConfig(name="m", listen="m:7400"), cluster, seed=seed)
        self.timers, self.out = context.timers, context.out
        self.roster = Roster(context, Recovered(node_id("m"), incarnation=1, roster=known))

    def names(self) -> str:
        return "".join(each.name for each in self.roster.entries())


# ---- whose word counts


@pytest.mark.parametrize(
    ("incarnation", "counter", "news"),
    [(2, 6, True), (3, 1, True), (3, 6, True), (2, 5, False), (2, 4, False), (1, 9, False)],
)
def test_the_newest_word_wins(incarnation: int, counter: int, news: bool) -> None:
    book = Book()
    old, new = entry("a", 2, 5), entry("a", incarnation, counter)
    assert book.roster.heard(old, 0)
    assert book.roster.heard(new, 1) is news
    assert book.roster.get(node_id("a")) == (new if news else old)


def test_own_word_from_outside_does_not_count() -> None:
    book = Book()
    assert not book.roster.heard(entry("m", 9, 9), 0)
    assert book.roster.own.incarnation == 1
    assert book.roster.population() == 1
    assert Book(entry("m", 9, 9)).roster.population() == 1


def test_what_changed_is_told_and_what_only_repeats_is_not() -> None:
    book = Book()
    for word, changed in [
        (entry("a", 1, 1), True),
        (entry("a", 1, 2), False),
        (entry("a", 1, 3)._replace(origin_batch=7, neighbours=(node_id("b"),)), False),
        (entry("a", 1, 4)._replace(address="elsewhere:1"), True),
        (entry("a", 2, 0)._replace(address="elsewhere:1"), True),
        (entry("a", 2, 1, leaving=True)._replace(address="elsewhere:1"), True),
        (entry("a", 1, 9), False),
    ]:
        book.roster.heard(word, 0)
        assert take(book.out) == ([RosterChanged(word)] if changed else [])


def test_second_hand_word_is_taken_but_is_no_news() -> None:
    book = Book()
    assert not book.roster.heard(entry("a"), 0, second_hand=True)
    assert take(book.out) == [RosterChanged(entry("a"))]
    assert book.roster.hears(node_id("a"), 0), "it had no time to speak yet"
    assert not book.roster.heard(entry("a"), 1)


def test_a_node_that_was_replaced_before_this_one_started_states_no_version() -> None:
    book = Book()
    for name in "ab":
        book.roster.heard(entry(name), 0, second_hand=True)
    book.roster.heard(entry("c"), 0, version=3)
    assert book.roster.unable(4) == ["a", "b", "c"]
    book.roster.heard(entry("d")._replace(address=entry("a").address), 0, second_hand=True)
    assert book.roster.unable(4) == ["a", "b", "c", "d"], "which of the two is there is not known"
    book.roster.heard(entry("d", counter=2)._replace(address=entry("a").address), 0, version=4)
    book.roster.heard(entry("b")._replace(node_id=node_id("n"), address=book.roster.own.address), 0, second_hand=True)
    assert book.roster.unable(4) == ["b", "c"]


def test_the_roster_is_bounded_but_those_in_it_are_still_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster_module, "ENTRIES_MAX", 3)
    book = Book()
    assert [book.roster.heard(entry(name), 0) for name in "abcd"] == [True, True, True, True]
    assert book.names() == "mabc"
    assert book.roster.heard(entry("c", counter=2), 0)
    assert book.roster.get(node_id("d")) is None


def test_what_there_is_no_room_for_is_news_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is passed on, since others may have room; a second time, and it would go round for ever."""
    monkeypatch.setattr(roster_module, "ENTRIES_MAX", 1)
    monkeypatch.setattr(roster_module, "PASSED_ON_MAX", 2)
    book = Book(entry("a"))
    assert book.roster.heard(entry("x", counter=5), 0)
    assert [book.roster.heard(entry("x", counter=counter), 0) for counter in (5, 5, 4, 6, 6)] == [
        False,
        False,
        False,
        True,
        False,
    ]
    assert not book.roster.heard(entry("y"), 0, second_hand=True), "that is nobody's beacon"
    assert [book.roster.heard(entry(name), 0) for name in "yzyz"] == [True, True, False, False]
    assert len(book.roster._passed_on) == 2
    assert take(book.out) == []


def test_who_left_longest_ago_makes_room_and_nobody_who_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster_module, "ENTRIES_MAX", 4)
    book = Book(entry("a"), entry("b"), entry("c"), entry("d"))
    book.roster.failed(node_id("d"), 1, 1, 0)
    for name in "cb":
        book.roster.heard(entry(name, counter=2, leaving=True), 0)
    known = []
    for name in "wxyz":
        assert book.roster.heard(entry(name), 0)
        known.append("".join(each.name for each in book.roster.members()))
    assert known == ["mabdw", "madwx", "mawxy", "mawxy"]
    assert book.roster.population() == 5


def test_who_came_back_does_not_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster_module, "ENTRIES_MAX", 2)
    book = Book(entry("a", leaving=True), entry("b"))
    book.roster.failed(node_id("b"), 1, 1, 0)
    book.roster.heard(entry("a", incarnation=2), 0)
    book.roster.heard(entry("b", counter=2), 0)
    book.roster.heard(entry("c"), 0)
    assert book.names() == "mab"


def test_a_store_that_remembers_too_many_does_not_make_the_roster_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster_module, "ENTRIES_MAX", 2)
    book = Book(entry("a", leaving=True), entry("b"), entry("c"), entry("d"))
    assert book.names() == "mbc"


# ---- who is here


def test_who_has_left_is_not_expected() -> None:
    book = Book(entry("a"), entry("b"), entry("c", leaving=True))
    assert book.names() == "mab"
    assert book.roster.population() == 3
    for name in "ab":
        book.roster.heard(entry(name, counter=2, leaving=True), 0)
    assert book.names() == "m"
    assert book.roster.population() == 1
    book.roster.heard(entry("a", incarnation=2), 0)
    assert book.names() == "ma", "it came back"


def test_who_has_left_is_remembered_so_that_its_old_word_does_not_bring_it_back() -> None:
    book = Book()
    book.roster.heard(entry("a", 1, 5, leaving=True), 0)
    assert not book.roster.heard(entry("a", 1, 4), 1)
    assert book.names() == "m"


def test_a_newcomer_is_told_as_many_as_a_message_takes_this_node_first() -> None:
    book = Book(*(entry(f"n{number}") for number in range(ENTRIES_PER_MESSAGE - 1)))
    assert len(book.roster.entries()) == ENTRIES_PER_MESSAGE
    book.roster.heard(entry("one-more"), 0)
    told = book.roster.entries()
    assert len(told) == len(set(told)) == ENTRIES_PER_MESSAGE
    assert told[0] == book.roster.own
    assert book.roster.population() == ENTRIES_PER_MESSAGE + 1


# ---- my own beacons


def test_the_interval_grows_with_the_population() -> None:
    intervals = []
    for others in (0, 48, 49, 50, 99):
        book = Book(*(entry(f"n{number}") for number in range(others)))
        intervals.append(book.roster.interval_ms())
    assert intervals == [5_000, 5_000, 5_000, 5_100, 10_000]
    flat = Book(*(entry(f"n{n}") for n in range(99)), cluster=ClusterConfig(beacon_ms_per_node=0))
    assert flat.roster.interval_ms() == 5_000


def test_a_beacon_says_what_is_new_and_sets_the_time_of_the_next() -> None:
    book = Book()
    neighbours = (node_id("a"), node_id("b"))
    first = book.roster.beacon(17, neighbours, leaving=False, now_ms=1_000)
    assert first == entry("m", counter=1)._replace(door="127.0.0.1:7500", origin_batch=17, neighbours=neighbours)
    due_ms = book.timers.next_at()
    assert due_ms is not None
    assert 1_000 + INTERVAL_MS * 3 // 4 <= due_ms <= 1_000 + INTERVAL_MS
    second = book.roster.beacon(17, neighbours, leaving=True, now_ms=due_ms)
    assert second == first._replace(counter=2, leaving=True)
    assert book.roster.own == second
    assert book.roster.entries()[0] == second


def test_beacons_tell_the_interval_in_which_the_next_is_to_be_expected() -> None:
    book = Book(*(entry(f"n{number}") for number in range(99)))
    word = book.roster.beacon(0, (), leaving=False, now_ms=0)
    assert word.beacon_interval_ms == 10_000
    due_ms = book.timers.next_at()
    assert due_ms is not None
    assert 7_500 <= due_ms <= 10_000


def test_beacons_of_nodes_that_started_together_drift_apart() -> None:
    due = set()
    for seed in range(20):
        book = Book(seed=seed)
        book.roster.beacon(0, (), leaving=False, now_ms=0)
        due.add(book.timers.next_at())
    assert len(due) > 10


# ---- silence


def test_a_node_is_heard_until_three_beacons_did_not_come() -> None:
    book = Book()
    book.roster.heard(entry("a"), 100)
    assert book.roster.hears(node_id("a"), 100 + PATIENCE_MS)
    assert not book.roster.hears(node_id("a"), 101 + PATIENCE_MS)
    assert not book.roster.hears(node_id("b"), 0)
    book.roster.heard(entry("a", counter=2), 101 + PATIENCE_MS)
    assert book.roster.hears(node_id("a"), 101 + 2 * PATIENCE_MS)


def expected(book: Book, now_ms: int) -> list[tuple[NodeId, int, bool]]:
    return [(each.contact.node_id, each.heard_at_ms, each.is_heard) for each in book.roster.expected(now_ms)]


def test_whoever_has_not_left_is_expected_and_heard_while_its_own_beacons_come() -> None:
    book = Book()
    assert expected(book, 10**9) == []
    book.roster.heard(entry("a"), 100)
    book.roster.heard(entry("b", leaving=True), 0)
    assert expected(book, 100 + PATIENCE_MS) == [(node_id("a"), 100, True)]
    assert expected(book, 101 + PATIENCE_MS) == [(node_id("a"), 100, False)]


def test_what_a_store_or_another_node_says_of_a_node_is_not_its_own_word() -> None:
    book = Book(entry("a"))
    book.roster.start(50)
    book.roster.heard(entry("b"), 60, second_hand=True)
    assert expected(book, 70) == [(node_id("a"), 50, False), (node_id("b"), 60, False)]
    book.roster.heard(entry("a", counter=2), 80)
    book.roster.heard(entry("a", counter=3), 90, second_hand=True)
    assert expected(book, 90)[0] == (node_id("a"), 90, True)


def test_a_node_that_was_known_in_an_earlier_life_is_remembered_as_such() -> None:
    book = Book(entry("a", 3, 5))
    assert book.roster.knew(node_id("a"), 4) and not book.roster.knew(node_id("a"), 3)
    book.roster.heard(entry("a", 4, 1), 0)
    assert book.roster.knew(node_id("a"), 4)
    book.roster.heard(entry("b", 4, 1), 0)
    assert not book.roster.knew(node_id("b"), 4) and not book.roster.knew(node_id("c"), 9)


def test_a_node_that_left_or_failed_or_is_unknown_has_gone() -> None:
    book = Book()
    book.roster.heard(entry("a", 3, 5), 0)
    assert not book.roster.has_gone(node_id("a"))
    book.roster.failed(node_id("a"), 3, 5, 0)
    book.roster.heard(entry("b", leaving=True), 0)
    assert all(book.roster.has_gone(node_id(name)) for name in "abc")


def test_those_that_are_silent_have_left_or_failed_are_not_in_hearing() -> None:
    """Unlike the population, which is all that may come back."""
    book = Book()
    assert book.roster.in_hearing(0) == 1
    for name in "abcd":
        book.roster.heard(entry(name, leaving=name == "c"), 100)
    book.roster.failed(node_id("d"), 1, 1, 200)
    assert (book.roster.in_hearing(200), book.roster.population()) == (3, 3)
    book.roster.heard(entry("a", counter=2), 300)
    assert (book.roster.in_hearing(101 + PATIENCE_MS), book.roster.population()) == (2, 3)


@pytest.mark.parametrize(("its_interval_ms", "counted_ms"), [(20_000, 20_000), (0, INTERVAL_MS), (100, INTERVAL_MS)])
def test_patience_goes_by_the_nodes_own_interval_but_not_below_the_clusters(
    its_interval_ms: int, counted_ms: int
) -> None:
    book = Book()
    book.roster.heard(entry("a", beacon_interval_ms=its_interval_ms), 0)
    assert book.roster.hears(node_id("a"), 3 * counted_ms)
    assert not book.roster.hears(node_id("a"), 3 * counted_ms + 1)


def test_those_known_from_the_store_have_time_to_speak() -> None:
    book = Book(entry("a"))
    book.roster.start(1_000_000)
    assert book.roster.hears(node_id("a"), 1_000_000)
    assert absence(book, "a", 1_000_000 + PATIENCE_MS) == 0
    assert absence(book, "a", 1_000_001 + PATIENCE_MS) == 1


# ---- absence


def absence(book: Book, name: str, now_ms: int, met_at_ms: int = 0) -> int:
    return book.roster.absent_for(node_id(name), met_at_ms, now_ms)


def test_who_is_heard_or_has_left_is_not_absent() -> None:
    book = Book()
    book.roster.heard(entry("a"), PATIENCE_MS)
    book.roster.heard(entry("b", leaving=True), 0)
    assert absence(book, "a", 2 * PATIENCE_MS) == absence(book, "b", 10**9) == 0
    assert absence(book, "a", 2 * PATIENCE_MS + 7) == 7


def test_who_was_met_and_sends_no_beacon_is_absent_after_three() -> None:
    book = Book()
    assert absence(book, "x", 1_000 + PATIENCE_MS, met_at_ms=1_000) == 0
    assert absence(book, "x", 1_005 + PATIENCE_MS, met_at_ms=1_000) == 5


def test_unmatched_portals_are_unknown() -> None:
    book = Book()
    book.roster.heard(entry("a"), 0)
    book.roster.heard(entry("b", leaving=True), 0)
    known = tuple(contact(name).address for name in "mab")
    assert book.roster.unknown(known) == []
    assert book.roster.unknown((*known, "z:7400")) == ["z:7400"]


# ---- the word that a node failed


def test_a_word_that_a_node_failed_counts_at_once_and_is_news_once() -> None:
    book = Book()
    book.roster.heard(entry("a", 3, 5), 0)
    assert book.roster.population() == 2
    assert book.roster.failed(node_id("a"), 3, 5, 100)
    assert not book.roster.hears(node_id("a"), 100)
    assert expected(book, 100) == [(node_id("a"), 0, False)]
    assert book.roster.population() == 1
    assert absence(book, "a", 130) == 30
    assert not book.roster.failed(node_id("a"), 3, 5, 200)


@pytest.mark.parametrize("later", [(3, 6), (4, 0)])
def test_a_later_beacon_refutes_it_whichever_comes_first(later: tuple[int, int]) -> None:
    book = Book()
    book.roster.heard(entry("a", 3, 5), 0)
    assert book.roster.failed(node_id("a"), 3, 5, 100)
    assert book.roster.heard(entry("a", *later), 200)
    assert book.roster.hears(node_id("a"), 200)
    assert book.roster.population() == 2
    assert not book.roster.failed(node_id("a"), 3, 5, 300), "an old word is no news"
    assert book.roster.hears(node_id("a"), 300)


def test_nobody_fails_who_is_not_known_or_has_left() -> None:
    book = Book()
    book.roster.heard(entry("b", leaving=True), 0)
    assert not book.roster.failed(node_id("a"), 9, 9, 0)
    assert not book.roster.failed(node_id("b"), 9, 9, 0)


def test_a_new_neighbour_is_told_who_may_come_back_and_is_not_heard() -> None:
    book = Book(entry("a"))
    book.roster.start(0)
    for each in (entry("b"), entry("c"), entry("d", leaving=True), entry("e")):
        book.roster.heard(each, 0)
    book.roster.failed(node_id("b"), 1, 1, 1)
    book.roster.heard(entry("e", counter=2), PATIENCE_MS)

    def told(at_ms: int) -> str:
        return "".join(each.name for each in book.roster.absentees(at_ms))

    assert told(1) == "ab", "what is known from the store alone, and what failed"
    assert told(PATIENCE_MS + 1) == "abc"
    assert told(ABSENT_PATIENCE_MS) == "e"


def test_an_absent_node_is_news_once_and_its_own_word_refutes_it() -> None:
    book = Book()
    book.roster.heard(entry("a"), 0)
    absent = (entry("a", counter=9), entry("b"), entry("c", leaving=True), entry("m", counter=9))
    assert book.roster.take_absent(absent, 5) == (entry("b"),)
    assert book.roster.take_absent(absent, 6) == ()
    assert (book.roster.population(), book.roster.has_gone(node_id("b"))) == (2, True)
    assert [(each.contact.node_id, each.heard_at_ms, each.is_heard) for each in book.roster.expected(7)][1:] == [
        (node_id("b"), 5, False)
    ]
    assert of(book.out, RosterChanged)[-1] == RosterChanged(entry("b"))
    assert book.roster.heard(entry("b", counter=2), 8)
    assert not book.roster.has_gone(node_id("b"))


def test_the_graph_is_what_those_who_are_heard_told_last() -> None:
    book = Book()
    first = entry("a")._replace(neighbours=tuple(map(node_id, "mbcdx")))
    book.roster.heard(first, 0)
    book.roster.heard(entry("b"), PATIENCE_MS)
    book.roster.heard(entry("c", leaving=True), PATIENCE_MS)
    book.roster.heard(entry("d"), PATIENCE_MS)
    book.roster.failed(node_id("d"), 9, 9, PATIENCE_MS)
    assert book.roster.graph(PATIENCE_MS) == {node_id("a"): tuple(map(node_id, "mbx")), node_id("b"): ()}
    assert list(book.roster.graph(PATIENCE_MS + 1)) == [node_id("b")]


def test_changes_of_the_graph_are_counted_and_nothing_else() -> None:
    book = Book()
    counts = []
    for counter, neighbours, leaving in ((1, "b", False), (2, "b", False), (3, "bc", False), (4, "bc", True)):
        told = entry("a", 1, counter, leaving=leaving)._replace(neighbours=tuple(map(node_id, neighbours)))
        book.roster.heard(told, 0)
        counts.append(book.roster.changes)
    assert [after - before for before, after in zip([0, *counts], counts, strict=False)] == [1, 0, 1, 1]
