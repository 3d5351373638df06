"""Rows of clients travel with the interest of their access point, and last as registrations do."""

import pytest

from m4cast.overlay.config import NodeConfig
from m4cast.overlay.protocol.clients.access_point import SeenRow, seen_row, winner
from m4cast.overlay.protocol.effects import AnnounceClients, Append, ClientRow, Refused, Subscribed
from m4cast.overlay.protocol.interest.registrations import ANNOUNCED_MAX
from tests.overlay.protocol.interest.mesh import Member, Mesh, wish

DIGEST = b"d" * 16
TRIANGLE = [(1, 2), (2, 3), (1, 3)]


def row(session: int, *, covered: bool = True) -> ClientRow:
    return ClientRow(session, covered, 5, DIGEST)


def announce(member: Member, *rows: tuple[str, ClientRow | None], request: int = 1) -> None:
    member.interest.announce_clients(AnnounceClients(request, rows), 0)


def client_at(member: Member) -> SeenRow | None:
    """The place of the client, as this node sees it."""
    entries = member.interest.view.used()
    found = [seen_row(entry.node_id, item) for entry in entries for item in entry.items.values()]
    return winner(seen for each in found if each is not None for seen in [each[1]])


@pytest.mark.parametrize("keeps_ghost", [False, True])
@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_f10_the_later_session_counts_in_whichever_order_its_news_come(
    order: tuple[int, int], keeps_ghost: bool
) -> None:
    """The client leaves A, and connects at B; Z hears of it in both orders, and all end with: at B."""
    mesh = Mesh([(1, 3), (2, 3)])
    announce(mesh[1], ("k", row(1)))
    mesh.run()
    assert client_at(mesh[3]) == (mesh[1].node_id, row(1))
    announce(mesh[1], ("k", row(1) if keeps_ghost else None), request=2)
    announce(mesh[2], ("k", row(2)), request=2)
    news = {number: mesh[number].out() for number in (1, 2)}
    for number in order:
        for _, message in news[number]:
            mesh[3].take(mesh[number], message)
    assert client_at(mesh[3]) == (mesh[2].node_id, row(2))
    mesh.run()
    assert [client_at(mesh[number]) for number in (1, 2, 3)] == [(mesh[2].node_id, row(2))] * 3


def test_a_row_reaches_all_nodes_and_leaves_them() -> None:
    mesh = Mesh(TRIANGLE)
    announce(mesh[1], ("k", row(1)))
    mesh.run()
    assert mesh.views() == [{1: (3,)}] * 3
    announce(mesh[1], ("k", None))
    mesh.run()
    assert mesh.views() == [{1: ()}] * 3


def test_that_a_row_is_covered_now_is_seen_as_a_change() -> None:
    mesh = Mesh(TRIANGLE)
    announce(mesh[1], ("k", row(1, covered=False)))
    mesh.run()
    announce(mesh[1], ("k", row(1)))
    mesh.run()
    assert mesh.views() == [{1: (3,)}] * 3
    assert [[item.epoch for item in change.rejoined] for change in mesh[3].changes] == [[], [3]]


def test_the_same_row_again_sends_nothing() -> None:
    mesh = Mesh(TRIANGLE)
    announce(mesh[1], ("k", row(1)))
    mesh.run()
    copies = mesh.copies
    announce(mesh[1], ("k", row(1)), request=2)
    mesh.run()
    assert mesh.copies == copies
    assert mesh[1].answers[-1] == Subscribed(2, ())


def test_rows_and_registrations_last_over_a_restart() -> None:
    mesh = Mesh(TRIANGLE)
    announce(mesh[1], ("k", row(4)))
    mesh[1].subscribe(wish("a"))
    mesh.run()
    mesh[1].open(2)
    assert mesh[1].interest.clients.rows == {"k": row(4)}
    assert mesh[1].seen()[1] == mesh[2].seen()[1]
    mesh[1].out()
    assert not mesh[1].rolled_back


def test_a_row_that_cannot_be_stored_was_never_there() -> None:
    mesh = Mesh(TRIANGLE)
    member = mesh[1]
    announce(member, ("k", row(1)))
    mesh.run()
    member.is_disk_slow = True
    announce(member, ("k", row(2)), ("l", row(1)), request=7)
    member.out()
    (append,) = member.appends
    assert isinstance(append, Append)
    member.interest.failed(append.token, "full")
    member.out()
    assert member.interest.clients.rows == {"k": row(1)}
    assert member.answers[-1] == Refused(7, "store", "the registration could not be stored: full")
    member.is_disk_slow = False
    announce(member, ("l", row(1)), request=8)
    mesh.run()
    assert [len(view[1]) for view in mesh.views()] == [2, 2, 2]


def test_rows_do_not_count_towards_the_limits_of_a_topic() -> None:
    mesh = Mesh(TRIANGLE)
    announce(mesh[1], *((f"k{number}", row(1)) for number in range(ANNOUNCED_MAX + 1)))
    mesh.run()
    assert [len(view[1]) for view in mesh.views()] == [ANNOUNCED_MAX + 1] * 3


def test_a_node_takes_no_more_clients_than_it_may() -> None:
    member = Member(1, NodeConfig(registrations_max=2))
    announce(member, ("k", row(1)), ("l", row(1)))
    announce(member, ("m", row(1)), request=9)
    member.out()
    assert [(each.request, each.code) for each in member.answers if isinstance(each, Refused)] == [(9, "too-many")]
    announce(member, ("l", row(2)), request=10)
    member.out()
    assert member.answers[-1] == Subscribed(10, ())
