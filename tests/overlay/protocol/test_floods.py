"""Floods: each search is new once, and the memory of them is bounded."""

from m4cast.overlay.config import NodeConfig
from m4cast.overlay.protocol.floods import Floods, first_search
from m4cast.overlay.protocol.wire.messages import HolderSearchStmt, PortSearchStmt
from tests.overlay.protocol.stream_parts import contact, context_of_m, stream_id

S = stream_id()


def port_search(requester: str, number: int, hops: int = 1) -> PortSearchStmt:
    return PortSearchStmt(contact(requester), number, hops, 5)


def test_a_search_is_new_once_whatever_way_its_copies_take() -> None:
    floods = Floods(context_of_m())
    assert floods.is_new(port_search("z", 1))
    assert not floods.is_new(port_search("z", 1, hops=3))
    assert floods.is_new(port_search("z", 2))
    assert floods.is_new(port_search("y", 1))


def test_searches_of_two_kinds_are_counted_apart() -> None:
    floods = Floods(context_of_m())
    assert floods.is_new(port_search("z", 1))
    assert floods.is_new(HolderSearchStmt(contact("z"), 1, *S, 7, 1, 3))


def test_a_node_never_passes_its_own_search_on() -> None:
    assert not Floods(context_of_m()).is_new(port_search("m", 1))


def test_the_memory_is_bounded_and_forgets_the_oldest() -> None:
    floods = Floods(context_of_m(NodeConfig(listen="m:7400", seen_searches_max=16)))
    for number in range(16):
        assert floods.is_new(port_search("z", number))
    assert not any(floods.is_new(port_search("z", number)) for number in range(16))
    assert floods.is_new(port_search("z", 16))
    assert len(floods._seen) == 16
    assert not floods.is_new(port_search("z", 1))
    assert floods.is_new(port_search("z", 0))


def test_a_restart_begins_with_numbers_that_were_never_used() -> None:
    assert first_search(3) > first_search(2) + 10**6
