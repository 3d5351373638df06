"""The passive list: who is remembered, who is forgotten, and when an absent node is called."""

from itertools import pairwise
from random import Random

from m4cast.overlay.ids import Contact, NodeId
from m4cast.overlay.protocol.neighbours import Neighbour, NeighbourTable
from m4cast.overlay.protocol.roster.passive_list import PassiveList, retry_ms
from tests.overlay.protocol.stream_parts import contact, node_id


def made(names: str = "", passive_max: int = 100, seed: int = 1) -> PassiveList:
    passive = PassiveList(node_id("m"), passive_max, Random(seed))
    for name in names:
        passive.meet(contact(name), 0)
    return passive


def addresses(names: str) -> list[str]:
    return [contact(name).address for name in names]


def test_everybody_who_is_met_is_remembered_once_but_oneself() -> None:
    passive = made("abamb")
    assert passive.addresses() == addresses("ab")


def test_the_latest_address_counts() -> None:
    passive = made("ab")
    passive.meet(Contact(node_id("a"), "elsewhere:1"), 5)
    assert passive.addresses() == ["elsewhere:1", contact("b").address]


def test_who_has_left_is_forgotten() -> None:
    passive = made("abcd")
    for name in "bdx":
        passive.forget(node_id(name))
    assert passive.addresses() == addresses("ac")
    passive.meet(contact("b"), 0)
    assert sorted(passive.addresses()) == addresses("abc")


def test_a_full_list_forgets_somebody_at_random_for_a_new_one() -> None:
    kept: dict[str, int] = {}
    for seed in range(200):
        passive = made(passive_max=10, seed=seed)
        for number in range(40):
            passive.meet(contact(f"n{number}"), 0)
        assert len(passive.addresses()) == 10
        for address in passive.addresses():
            kept[address] = kept.get(address, 0) + 1
    assert len(kept) == 40, "old and new ones"


def test_an_empty_passive_list_remembers_no_node() -> None:
    passive = made("abc", passive_max=0)
    assert passive.addresses() == []


def test_who_is_beyond_is_no_neighbour() -> None:
    passive = made("abc")
    table = NeighbourTable(node_id("m"), 4)
    assert {passive.beyond(table) for _ in range(50)} == {contact(name) for name in "abc"}
    for name in "ac":
        table.neighbours[node_id(name)] = Neighbour(contact(name), 2, 1, 0)
    assert {passive.beyond(table) for _ in range(10)} == {contact("b")}
    table.neighbours[node_id("b")] = Neighbour(contact("b"), 4, 1, 0)
    assert passive.beyond(table) is None


def test_only_the_absent_are_called_and_all_have_their_turn() -> None:
    passive = made("abc")

    def absence_ms(node: NodeId, met_at_ms: int, now_ms: int) -> int:
        return 0 if node == node_id("b") else 1_000

    called = [passive.absent(absence_ms, 1_000) for _ in range(3)]
    assert called[2] is None
    assert {called[0], called[1]} == {contact("a"), contact("c")}


def test_an_absent_node_is_called_often_at_first_then_every_half_minute_then_rarely() -> None:
    passive = made("a")
    calls = [
        now_ms
        for now_ms in range(0, 24 * 3_600_000, 1_000)
        if passive.absent(lambda node, met_at_ms, now_ms: now_ms, now_ms) is not None
    ]
    gaps = {now_ms: now_ms - before_ms for before_ms, now_ms in pairwise(calls)}
    assert sum(now_ms < 60_000 for now_ms in calls) > 10
    assert all(gap <= 31_000 for now_ms, gap in gaps.items() if now_ms < 3_600_000)
    assert all(gap >= 30_000 for now_ms, gap in gaps.items() if now_ms > 3_600_000)
    assert calls[-1] - calls[-2] > 600_000
    assert len(calls) < 600


def test_waiting_grows_without_a_step_back() -> None:
    waits = [retry_ms(absence_ms) for absence_ms in range(0, 10_000_000, 1_000)]
    assert waits == sorted(waits)
