"""Roster: whose word counts, who is silent, and how seldom the silent are called."""

from random import Random

import pytest

from m4cast.overlay.config import ClusterConfig
from m4cast.overlay.protocol import roster as roster_module
from m4cast.overlay.protocol.effects import Output, RosterChanged
from m4cast.overlay.protocol.messages import ENTRIES_PER_MESSAGE, RosterEntry
from m4cast.overlay.protocol.neighbours import Neighbour, NeighbourTable
from m4cast.overlay.protocol.roster import PROBES_MAX, SILENT_AFTER_BEACONS, Roster
from m4cast.overlay.protocol.timers import Timers
from tests.overlay.protocol.stream_parts import contact, entry, node_id, take

INTERVAL_MS = 5_000
PATIENCE_MS = SILENT_AFTER_BEACONS * INTERVAL_MS
CLUSTER = ClusterConfig(beacon_interval_ms=INTERVAL_MS, beacon_ms_per_node=100)


class Book:
    """The roster of node m."""

    def __init__(self, *known: RosterEntry, seed: int = 1, cluster: ClusterConfig = CLUSTER) -> None:
        self.timers = Timers()
        self.out: list[Output] = []
        self.roster = Roster(entry("m", counter=0), known, cluster, self.timers, Random(seed), self.out)

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


def test_the_roster_is_bounded_but_those_in_it_are_still_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster_module, "ENTRIES_MAX", 3)
    book = Book()
    assert [book.roster.heard(entry(name), 0) for name in "abcd"] == [True, True, True, False]
    assert book.names() == "mabc"
    assert book.roster.heard(entry("c", counter=2), 0)
    assert book.roster.get(node_id("d")) is None


# ---- who is here


def test_who_has_left_is_not_expected() -> None:
    book = Book(entry("a"), entry("b"), entry("c", leaving=True))
    assert book.names() == "mab"
    assert book.roster.addresses() == [contact("a").address, contact("b").address]
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
    assert first == entry("m", counter=1)._replace(origin_batch=17, neighbours=neighbours)
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


def test_everybody_is_heard_while_nobody_who_stayed_is_silent() -> None:
    book = Book()
    assert book.roster.everybody_heard(10**9)
    book.roster.heard(entry("a"), 100)
    book.roster.heard(entry("b", leaving=True), 0)
    assert book.roster.everybody_heard(100 + PATIENCE_MS)
    assert not book.roster.everybody_heard(101 + PATIENCE_MS)


def test_who_is_beyond_is_known_has_not_left_and_is_no_neighbour() -> None:
    book = Book(*(entry(name) for name in "abc"), entry("d", leaving=True))
    table = NeighbourTable(node_id("m"), 4)
    assert {book.roster.address_beyond(table) for _ in range(50)} == {contact(name).address for name in "abc"}
    for name in "ac":
        table.neighbours[node_id(name)] = Neighbour(contact(name), 2, 1, 0)
    assert {book.roster.address_beyond(table) for _ in range(10)} == {contact("b").address}
    table.neighbours[node_id("b")] = Neighbour(contact("b"), 4, 1, 0)
    assert book.roster.address_beyond(table) is None


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
    assert book.roster.silent_address((), 1_000_000 + PATIENCE_MS) is None
    assert book.roster.silent_address((), 1_000_001 + PATIENCE_MS) == contact("a").address


def test_who_is_heard_or_has_left_is_not_called() -> None:
    book = Book()
    book.roster.heard(entry("a"), PATIENCE_MS)
    book.roster.heard(entry("b", leaving=True), 0)
    assert all(book.roster.silent_address((), PATIENCE_MS + 1) is None for _ in range(10))


def test_calls_to_a_silent_node_come_each_after_twice_the_time_and_end() -> None:
    book = Book()
    book.roster.heard(entry("a"), 0)
    called_ms = [
        now_ms for now_ms in range(0, PATIENCE_MS * 1_100, 1_000) if book.roster.silent_address((), now_ms) is not None
    ]
    assert called_ms == [(PATIENCE_MS << probe) + 1_000 for probe in range(PROBES_MAX)]


def test_a_node_that_is_heard_again_is_called_again_when_it_falls_silent_again() -> None:
    book = Book()
    book.roster.heard(entry("a"), 0)
    for _ in range(PROBES_MAX):
        assert book.roster.silent_address((), 10**9) is not None
    assert book.roster.silent_address((), 10**9) is None
    book.roster.heard(entry("a", counter=2), 10**9)
    assert book.roster.silent_address((), 10**9 + PATIENCE_MS + 1) is not None


def test_a_portal_that_nobody_here_is_may_be_in_another_component() -> None:
    book = Book()
    book.roster.heard(entry("a"), 0)
    book.roster.heard(entry("b", leaving=True), 0)
    known = tuple(contact(name).address for name in "mab")
    assert book.roster.silent_address(known, 0) is None
    assert {book.roster.silent_address((*known, "z:7400"), 0) for _ in range(20)} == {"z:7400"}


def test_all_who_are_silent_have_their_turn() -> None:
    book = Book()
    for name in "abc":
        book.roster.heard(entry(name), 0)
    called = {book.roster.silent_address(("z:7400",), 10**9) for _ in range(60)}
    assert called - {None} == {contact(name).address for name in "abcz"}


@pytest.mark.parametrize("others", [1, 10, 200])
def test_about_two_nodes_of_a_channel_ask_at_a_time(others: int) -> None:
    """Each node of the channel throws its own dice, once per beacon interval."""
    members = [entry(f"n{number}") for number in range(others)]
    asking = 0
    for seed in range(300):
        book = Book(*members, seed=seed)
        book.roster.start(0)
        book.roster.heard(entry("silent"), 0)
        for member in members:
            book.roster.heard(member._replace(counter=2), PATIENCE_MS)
        asking += book.roster.silent_address((), PATIENCE_MS + 1) is not None
    mean = asking / 300 * (others + 1)
    assert 1 <= mean <= 3
