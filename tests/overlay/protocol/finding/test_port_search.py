"""Port search: depth by depth over all hosts, what fellow seekers save each other, and the shuffle of first ports."""

from collections import Counter
from random import Random

import pytest

from m4cast.overlay.config import PortalShuffle
from m4cast.overlay.protocol.finding.port_search import HEAD, PortSearch

ORDER = tuple(range(101, 113))


def search(depth: int = 12, hosts: str = "ab", shuffle: PortalShuffle = "off", seed: int = 1) -> PortSearch:
    made = PortSearch(tuple(hosts), ORDER[:depth], shuffle, Random(seed))
    made.begin()
    return made


def rest(searching: PortSearch) -> list[str]:
    """All addresses that it still goes through."""
    found = []
    while addresses := searching.next():
        found += addresses
    return found


def test_every_host_at_a_port_then_the_next_port() -> None:
    assert rest(search(3)) == ["a:101", "b:101", "a:102", "b:102", "a:103", "b:103"]


def test_it_ends_at_its_depth_and_a_new_round_begins_at_the_first_port() -> None:
    searching = search(2)
    rest(searching)
    assert searching.searched == 2
    assert searching.next() == []
    searching.begin()
    assert searching.searched == 0
    assert searching.next() == ["a:101", "b:101"]


def test_without_hosts_there_is_nothing_to_search() -> None:
    assert search(hosts="").next() == []
    assert search(hosts="").first_addresses == []
    assert search().first_addresses == ["a:101", "b:101"]


# ---- shared depth


def gone_through(searching: PortSearch, depths: int) -> None:
    for _ in range(depths + 1):  # a depth is done when the next one begins
        searching.next()
    assert searching.searched == depths


def test_8_heard_at_4_makes_9_the_next() -> None:
    searching = search()
    gone_through(searching, 4)
    searching.share(8)
    assert searching.next() == ["a:109", "b:109"]
    assert searching.searched == 8


def test_less_than_the_own_depth_says_nothing_new() -> None:
    searching = search()
    gone_through(searching, 4)
    searching.share(3)
    assert searching.next() == ["a:106", "b:106"]


def test_more_than_there_is_to_search_ends_the_search() -> None:
    searching = search(4)
    assert searching.next() == ["a:101", "b:101"]
    searching.share(60_000)
    assert searching.next() == []
    assert searching.searched == 4


def test_a_search_that_is_over_is_not_begun_by_a_fellow() -> None:
    searching = search()
    searching.stop()
    searching.share(3)
    assert searching.next() == [] and searching.searched == 0


# ---- the shuffle


@pytest.mark.parametrize("shuffle", ["first-8", "weighted"])
def test_the_first_ports_are_shuffled_the_others_are_not(shuffle: PortalShuffle) -> None:
    ports = [int(address[2:]) for address in rest(search(hosts="a", shuffle=shuffle))]
    assert sorted(ports[:HEAD]) == list(ORDER[:HEAD]) and ports[:HEAD] != list(ORDER[:HEAD])
    assert ports[HEAD:] == list(ORDER[HEAD:])


@pytest.mark.parametrize(
    ("shuffle", "shares"),
    [("off", [1.0]), ("first-8", [1 / 8] * 8), ("weighted", [0.5, 0.25, 0.125, 1 / 16, 1 / 32, 1 / 64, 1 / 128])],
)
def test_which_port_is_the_first(shuffle: PortalShuffle, shares: list[float]) -> None:
    firsts = Counter(search(hosts="a", shuffle=shuffle, seed=seed).next()[0] for seed in range(4_000))
    for port, share in zip(ORDER, shares, strict=False):
        assert firsts[f"a:{port}"] / 4_000 == pytest.approx(share, abs=0.02)


def test_what_is_taken_out_of_order_counts_when_all_before_it_is_done() -> None:
    searching = search(shuffle="first-8", hosts="a")
    depths = []
    told = [searching.searched]
    for _ in range(HEAD):
        depths.append(int(searching.next()[0][2:]) - 101)
        told.append(searching.searched)
    for done, searched in enumerate(told[1:]):
        finished = set(depths[:done])
        assert searched == next(depth for depth in range(HEAD + 1) if depth not in finished)


def test_a_fellow_saves_what_is_left_of_a_shuffled_beginning() -> None:
    searching = search(shuffle="first-8", hosts="a")
    searching.next()
    searching.share(HEAD)
    assert searching.next() == ["a:109"]
    assert searching.searched == HEAD
