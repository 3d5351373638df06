"""The interest machine against the fixtures and the checklist of docs/INTEREST.md (I1 to I35)."""

from dataclasses import replace
from itertools import combinations

import pytest

from m4cast.overlay.config import NodeConfig
from m4cast.overlay.config.settings import TopicFilter
from m4cast.overlay.errors import ConfigError, RemoteProtocolError
from m4cast.overlay.protocol.effects import (
    Append,
    InterestChanged,
    InterestSpanRecord,
    InterestStateRecord,
    Refused,
    RegistrationRecord,
    Subscribe,
    Subscribed,
    Unsubscribe,
)
from m4cast.overlay.protocol.interest import exchange
from m4cast.overlay.protocol.interest.registrations import EPOCH_SHIFT
from m4cast.overlay.protocol.interest.view import ABSENT_KEPT_MS
from m4cast.overlay.protocol.wire.control import from_avro, to_avro
from m4cast.overlay.protocol.wire.interest import (
    InterestAskStmt,
    InterestDigestStmt,
    InterestNewsStmt,
    InterestVersion,
    InterestVersionsStmt,
)
from tests.overlay.protocol.interest.mesh import InterestMessage, Member, Mesh, wish

E1 = 1 << EPOCH_SHIFT
"""The first epoch of the first incarnation."""
V8 = [(21 + i, 21 + (i + 1) % 8) for i in range(8)] + [(21 + i, 25 + i) for i in range(4)]
CUBE = [(21 + i, 21 + (i ^ bit)) for i in range(8) for bit in (1, 2, 4) if i < i ^ bit]


def test_one_change_reaches_all_in_as_many_rounds_as_the_graph_is_wide() -> None:
    """I-F1, I7: 15 copies in lock step, when nothing goes back to whom it came from; at most 17 = N(K - 1) + 1."""
    at_once = Mesh(V8)
    at_once[21].subscribe(wish("a"))
    assert at_once.run() == 2 + 1  # the last copies arrive at nodes that have it
    assert at_once.copies == 17
    mesh = Mesh(V8, interest_quiet_ms=3_600_000, interest_delay_ms=0)
    mesh[21].subscribe(wish("a"))
    assert mesh.run() <= 2 + 2
    assert mesh.copies == 15
    assert mesh.views() == [{21: (E1,)}] * 8
    mesh.copies = 0
    assert mesh.run() == 0
    assert mesh.copies == 0  # I8, I9: nothing is sent when nothing changes


@pytest.mark.parametrize(("edges", "rounds"), [(V8, 3), (CUBE, 4)], ids=["v8", "cube"])
def test_any_two_crashes_do_not_stop_a_change(edges: list[tuple[int, int]], rounds: int) -> None:
    """I4."""
    for crashed in combinations(range(22, 29), 2):
        mesh = Mesh(edges)
        for number in crashed:
            mesh.crash(number)
        mesh[21].subscribe(wish("a"))
        assert mesh.run() <= rounds + 1
        assert mesh.views() == [{21: (E1,)}] * 6


def test_a_hidden_leave_is_seen() -> None:
    """I-F2: the receiver hears of ts 1 and 3 only, and sees that the registration began anew."""
    mesh = Mesh([(1, 2)], interest_quiet_ms=3_600_000, interest_delay_ms=200)
    mesh[1].subscribe(wish("a"))
    mesh.run()
    mesh.tick(200)
    mesh.run()
    mesh[1].unsubscribe("a", now_ms=210)
    mesh.run(210)
    mesh[1].subscribe(wish("a"), now_ms=220)
    mesh.run(220)
    mesh.tick(410)
    mesh.run(410)
    first, second = mesh[2].changes
    assert [item.epoch for item in first.joined] == [E1]
    assert [item.epoch for item in second.rejoined] == [E1 + 1]
    assert (second.ts, second.joined, second.left) == (3, (), ())


def test_leaves_of_others_do_not_touch_a_registration() -> None:
    """I-F3, I14: what is registered again, or is not there, changes nothing."""
    mesh = Mesh([(1, 2)])
    mesh[1].subscribe(wish("a", "A"))
    mesh[1].subscribe(wish("b", "B"))
    mesh[1].unsubscribe("b")
    mesh[1].subscribe(wish("a", "A"))
    mesh[1].unsubscribe("b")
    mesh.run()
    assert mesh[2].seen() == {1: (E1,)}
    assert mesh[2].version_of(mesh[1]) == (1, 3)
    assert [bool(change.rejoined) for change in mesh[2].changes] == [False] * len(mesh[2].changes)
    assert len(mesh[1].answers) == 5


def test_older_news_is_dropped() -> None:
    """I-F4 and I20."""
    mesh = Mesh([(1, 2)])
    mesh[1].subscribe(wish("a"))
    mesh.run()
    first = mesh.sent[-1][2]
    mesh[1].subscribe(wish("b", "u"))
    mesh.run()
    mesh[2].take(mesh[1], first)
    assert mesh[2].version_of(mesh[1]) == (1, 2)
    assert mesh[2].out() == []


def test_a_difference_that_does_not_fit_is_repaired_by_one_question() -> None:
    """I23: ts 5 is held and a difference from 6 to 7 arrives."""
    mesh = Mesh([(1, 2)])
    mesh[1].subscribe(wish("a"))
    mesh.run()
    mesh[1].subscribe(wish("b", "u"))
    lost = mesh[1].out()
    assert len(lost) == 1
    mesh[1].subscribe(wish("c", "v"))
    mesh.run()
    asked = [message for _, _, message in mesh.sent if isinstance(message, InterestAskStmt)]
    assert [(ask.incarnation, ask.ts) for ask in asked] == [(1, 1)]
    assert mesh.agree()
    assert mesh[2].version_of(mesh[1]) == (1, 3)


def test_a_new_neighbour_gets_what_it_lacks_and_passes_on_only_that() -> None:
    """I-F6, I15: node 2 knows 90 of 100 entries, and its neighbour 3 the same."""
    mesh = Mesh([(1, 2), (2, 3)])
    others = {number: Member(number, NodeConfig()) for number in range(100, 200)}
    for number, other in others.items():
        other.subscribe(wish("a", f"t{number}"))
        other.out()
        for member in (mesh[1], mesh[2], mesh[3]) if number < 190 else (mesh[1],):
            entry = member.interest.view.add(other.node_id)
            own = other.interest.view.entries[other.node_id]
            entry.change(own.version, tuple(own.items.values()), ())
            member.interest.is_active = True
    mesh.cut(2, 3)
    mesh.join(2, 3)
    mesh.run()
    mesh.sent.clear()
    mesh.cut(1, 2)
    mesh.join(1, 2)
    mesh.run()
    passed_on = [message for one, to, message in mesh.sent if (one, to) == (2, 3)]
    assert len(passed_on) == 10
    assert all(isinstance(message, InterestNewsStmt) for message in passed_on)
    assert mesh.agree()


def test_equal_views_cost_two_messages_each_way() -> None:
    mesh = Mesh([(1, 2)])
    mesh[1].subscribe(*[wish(f"r{i}", f"t{i}") for i in range(1_000)])
    mesh.run()
    mesh.cut(1, 2)
    mesh.copies = mesh.bytes = 0
    mesh.join(1, 2)
    mesh.run()
    assert mesh.copies == 4
    assert mesh.bytes < 1_300


def test_ten_of_many_registrations_that_differ_cost_their_buckets() -> None:
    """A neighbour that was away for longer than changes are remembered compares digests inside the entry."""
    mesh = Mesh([(1, 2)])
    mesh[1].subscribe(*[wish(f"r{i}", f"t{i}") for i in range(10_000)])
    mesh.run()
    mesh.cut(1, 2)
    mesh[1].unsubscribe(*[f"r{i}" for i in range(5)])
    for i in range(70):  # more changes than are remembered
        mesh[1].subscribe(wish("x", f"u{i}"))
    mesh[1].subscribe(*[wish(f"n{i}", f"n{i}") for i in range(4)])
    mesh.run()
    mesh.bytes = 0
    mesh.join(1, 2)
    mesh.run()
    assert mesh.agree()
    assert mesh.bytes < 64_000


def test_a_large_entry_travels_in_bounded_messages_and_is_applied_whole() -> None:
    """I16, H14."""
    mesh = Mesh([(1, 2)])
    mesh[1].subscribe(*[wish(f"r{i}", f"t{i}") for i in range(5_000)])
    mesh.run()
    news = [message for _, _, message in mesh.sent if isinstance(message, InterestNewsStmt)]
    assert max(len(message.joined) for message in news) == 256
    assert len(mesh[2].changes) == 1
    assert len(mesh[2].changes[0].joined) == 5_000
    # The link is lost in the middle: nothing of it is applied.
    third = Member(3, NodeConfig())
    third.link(mesh[1])
    for message in news[1:-1]:
        third.take(mesh[1], message)
    assert third.seen() == {}
    with pytest.raises(RemoteProtocolError, match="of another entry before the end"):
        third.take(mesh[1], replace(news[1], ts=9))


def test_threshold_and_delay() -> None:
    """I-F7: threshold 3, delay 200 ms, never at once."""
    settings = {"interest_changes_max": 3, "interest_delay_ms": 200, "interest_quiet_ms": 3_600_000}
    mesh = Mesh([(1, 2)], **settings)
    for now_ms in (0, 10, 20):
        assert mesh.copies == 0
        mesh[1].subscribe(wish(f"r{now_ms}", f"t{now_ms}"), now_ms=now_ms)
        mesh.run(now_ms)
    assert mesh.copies == 1
    mesh[1].subscribe(wish("d", "d"), now_ms=1_000)
    mesh.run(1_000)
    mesh[1].unsubscribe("d", now_ms=1_010)  # both in one exchange: the entry travels once, two versions later
    mesh.run(1_010)
    mesh.tick(1_199)
    mesh.run(1_199)
    assert mesh.copies == 1
    mesh.tick(1_200)
    mesh.run(1_200)
    assert mesh.copies == 2
    assert mesh[2].version_of(mesh[1]) == (1, 5)


def test_after_a_quiet_time_a_change_goes_at_once() -> None:
    mesh = Mesh([(1, 2)], interest_quiet_ms=100, interest_delay_ms=500)
    mesh[1].subscribe(wish("a"), now_ms=1_000)
    mesh.run(1_000)
    assert mesh.copies == 1
    mesh[1].subscribe(wish("b", "u"), now_ms=1_050)
    mesh.run(1_050)
    assert mesh.copies == 1


def test_news_leaves_when_it_is_durable() -> None:
    """H3: else a crash would use a version again, for something else."""
    mesh = Mesh([(1, 2)])
    mesh[1].is_disk_slow = True
    mesh[1].subscribe(wish("a"), request=7)
    assert mesh[1].out() == []
    assert mesh[1].answers == []
    mesh[1].subscribe(wish("a"), request=8)  # nothing new, and not durable either
    assert mesh[1].out() == []
    mesh[1].write(mesh[1].appends.pop())
    assert [type(message) for _, message in mesh[1].out()] == [InterestNewsStmt]
    assert mesh[1].answers == [Subscribed(7, (E1,)), Subscribed(8, (E1,))]


def test_a_failed_append_leaves_everything_as_it_was() -> None:
    mesh = Mesh([(1, 2)])
    mesh[1].subscribe(wish("a", where="x > 1"))
    mesh.run()
    mesh[1].is_disk_slow = True
    mesh[1].subscribe(wish("b"), request=3)  # covers a
    mesh[1].unsubscribe("a", request=4)
    mesh[1].out()
    tokens = [append.token for append in mesh[1].appends]
    mesh[1].interest.failed(tokens[0], "disk full")
    mesh[1].out()
    assert {(each.request, each.code) for each in mesh[1].answers if isinstance(each, Refused)} == {
        (3, "store"),
        (4, "store"),
    }
    assert list(mesh[1].interest.registrations.rows) == ["a"]
    assert mesh[1].interest.registrations.rows["a"].under == ""
    mesh[1].is_disk_slow = False
    mesh[1].subscribe(wish("c", "u"))
    mesh.run()
    assert mesh.agree()
    assert mesh[2].version_of(mesh[1]) == (1, 2)


def test_a_store_that_was_rolled_back_is_noticed() -> None:
    """I24, H10: another node has a newer entry of this one; or another one of the same version."""
    mesh = Mesh([(1, 2)])
    mesh[1].subscribe(wish("a"))
    mesh.run()
    old = {kind: dict(rows) for kind, rows in mesh[1].disk.items()}
    mesh[1].subscribe(wish("b", "u"))
    mesh.run()
    mesh.cut(1, 2)
    mesh[1].disk = old
    mesh[1].open(1)
    mesh.join(1, 2)
    mesh.run()
    assert "has this node's interest of version 1.2" in mesh[1].rolled_back
    mesh[1].rolled_back = ""
    mesh.cut(1, 2)
    mesh[1].subscribe(wish("c", "v"))  # the same version, and something else
    mesh[1].out()
    mesh.join(1, 2)
    mesh.run()
    assert "has this node's interest of version 1.2" in mesh[1].rolled_back


def test_a_restart_keeps_the_entry_and_a_new_identity_announces_it_anew() -> None:
    """I19."""
    mesh = Mesh([(1, 2)])
    mesh[1].subscribe(wish("a"))
    mesh.run()
    mesh.cut(1, 2)
    mesh[1].open(2)
    mesh.join(1, 2)
    mesh.run()
    assert mesh[2].seen() == {1: (E1,)}
    assert mesh[2].version_of(mesh[1]) == (1, 1)
    heir = Member(9, NodeConfig())
    heir.disk = mesh[1].disk
    heir.open(0)
    assert heir.version_of(heir) == (0, 1)
    assert heir.seen() == {9: (E1,)}


def test_a_departed_nodes_entry_is_not_used_until_it_returns_and_is_forgotten_in_the_end() -> None:
    """I17, I18, I21, H11: and a stale entry that arrives meanwhile is not used either."""
    mesh = Mesh([(1, 2), (2, 3)])
    mesh[1].subscribe(wish("a"))
    mesh.run()
    whole = [message for one, _, message in mesh.sent if one == 2][-1]
    for member in (mesh[2], mesh[3]):
        member.interest.departed(mesh[1].node_id, 1_000)
        member.interest.departed(mesh[1].node_id, 2_000)
    mesh.run()
    assert mesh[3].seen() == {}
    assert [change.present for change in mesh[3].changes] == [True, False]
    mesh[3].interest.returned(mesh[1].node_id, 3_000)
    mesh.run()
    assert mesh[3].seen() == {1: (E1,)}
    mesh[3].interest.departed(mesh[1].node_id, 4_000)
    mesh[3].interest.sweep(lambda node_id, since_ms: False, 4_000 + ABSENT_KEPT_MS)
    assert mesh[3].interest.view.entries == {}
    mesh[3].gone[mesh[1].node_id] = None
    mesh[3].take(mesh[2], whole, 700_000)
    assert mesh[3].seen() == {}
    assert list(mesh[3].interest.view.entries) == [mesh[1].node_id]


def test_who_joined_while_a_node_was_away_hears_of_it_when_it_returns() -> None:
    mesh = Mesh([(1, 2), (2, 3)])
    mesh[1].subscribe(wish("a"))
    mesh.cut(2, 3)
    mesh.run()
    mesh[2].interest.departed(mesh[1].node_id, 1_000)
    mesh.join(2, 3)
    mesh.run()
    assert mesh[3].interest.view.entries == {}
    mesh[2].interest.returned(mesh[1].node_id, 2_000)
    mesh.run()
    assert mesh[3].seen() == {1: (E1,)}


def test_silent_nodes_are_found() -> None:
    mesh = Mesh([(1, 2)])
    mesh[1].subscribe(wish("a"))
    mesh.run()
    mesh[2].interest.sweep(lambda node_id, since_ms: True, 60_000)
    assert mesh[2].seen() == {}
    mesh[1].interest.sweep(lambda node_id, since_ms: True, 60_000)
    assert mesh[1].seen() == {1: (E1,)}  # never itself


def test_a_blocked_link_gets_the_latest_later() -> None:
    """I29, X11."""
    mesh = Mesh([(1, 2)])
    mesh[1].subscribe(wish("a"))
    mesh.run()
    mesh[1].interest.blocked(2, True)
    for i in range(50):
        mesh[1].subscribe(wish(f"r{i}", f"t{i}"))
        assert mesh[1].out() == []
    assert len(mesh[1].interest.exchange.links[mesh[2].node_id].news) == 1
    mesh[1].interest.blocked(2, False)
    assert mesh.run() == 1
    assert mesh.agree()


def test_questions_on_a_blocked_link_are_answered_later() -> None:
    mesh = Mesh([(1, 2)])
    mesh[1].subscribe(*[wish(f"r{i}", f"t{i}") for i in range(300)])
    mesh[1].interest.blocked(2, True)
    mesh[1].out()
    mesh[2].context.out.clear()
    ask = InterestAskStmt(mesh[1].node_id, 0, 0, ())
    mesh[1].take(mesh[2], ask)
    assert mesh[1].out() == []
    mesh[1].interest.blocked(2, False)
    mesh.run()
    assert mesh.agree()


def test_a_neighbour_cannot_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "VIEW_ENTRIES_MAX", 3)
    mesh = Mesh([(1, 2)])
    mesh[1].subscribe(wish("a"))
    mesh.run()
    listed = tuple(InterestVersion(Member(number, NodeConfig()).node_id, 1, 1, 7, 1) for number in range(10, 14))
    with pytest.raises(RemoteProtocolError, match="interest of more than 3 nodes"):
        mesh[1].take(mesh[2], InterestVersionsStmt(listed, last=True))
    mesh[1].interest.blocked(2, True)
    *first, last = [InterestAskStmt(each.node_id, 0, 0, ()) for each in listed]
    for ask in first:
        mesh[1].take(mesh[2], ask)
    with pytest.raises(RemoteProtocolError, match="more than 3 questions"):
        mesh[1].take(mesh[2], last)


def test_who_asks_a_neighbour_that_is_lost_asks_another() -> None:
    mesh = Mesh([(1, 3), (2, 3)])
    for number in (1, 2):
        other = Member(9, NodeConfig())
        other.subscribe(*[wish(f"r{i}", f"t{i}") for i in range(300)])
        other.out()
        own = other.interest.view.entries[other.node_id]
        mesh[number].interest.view.add(own.node_id).change(own.version, tuple(own.items.values()), ())
        mesh.cut(number, 3)
        mesh[number].interest.is_active = True
        mesh.join(number, 3)
    sends: list[tuple[int, int, InterestMessage]] = []
    for _ in range(3):  # digests, digests, versions: 3 has asked one of the two
        sends = [(number, to, message) for number in (1, 2, 3) for to, message in mesh[number].out()]
        for number, to, message in sends:
            mesh[to].take(mesh[number], message)
    asked = [to for to, message in mesh[3].out() if isinstance(message, InterestAskStmt)] or [
        to for _, to, message in sends if isinstance(message, InterestAskStmt)
    ]
    assert len(asked) == 1
    mesh.crash(asked[0])
    mesh.run()
    assert len(mesh[3].seen()[9]) == 300


def test_malformed_news_changes_nothing() -> None:
    """I35: it costs its sender the link."""
    mesh = Mesh([(1, 2)])
    mesh[1].subscribe(wish("a"))
    mesh.run()
    news = mesh.sent[-1][2]
    assert isinstance(news, InterestNewsStmt)
    for wrong in (replace(news, digest=7, ts=2), replace(news, joined=news.joined * 2, ts=2)):
        with pytest.raises(RemoteProtocolError, match="the digest is not that of the items"):
            mesh[2].take(mesh[1], wrong)
    with pytest.raises(RemoteProtocolError, match="has 3 digests, not 64"):
        mesh[2].take(mesh[1], InterestDigestStmt((1, 2, 3)))
    assert mesh[2].version_of(mesh[1]) == (1, 1)


def test_a_difference_with_another_digest_is_asked_for_whole() -> None:
    mesh = Mesh([(1, 2)])
    mesh[1].subscribe(wish("a"))
    mesh.run()
    mesh[1].subscribe(wish("b", "u"))
    ((_, news),) = mesh[1].out()
    assert isinstance(news, InterestNewsStmt)
    mesh[2].take(mesh[1], replace(news, joined=()))
    mesh.run()
    assert mesh.agree()


def test_nodes_of_older_versions_are_sent_nothing() -> None:
    one, old = Member(1, NodeConfig()), Member(2, NodeConfig())
    one.link(old, version=2)
    one.subscribe(wish("a"))
    assert one.out() == []
    with pytest.raises(RemoteProtocolError, match="not in the protocol version"):
        one.take(old, InterestDigestStmt((0,) * 64))


def test_a_node_without_wants_sends_nothing() -> None:
    """A channel without registrations pays nothing."""
    mesh = Mesh(V8)
    assert mesh.run() == 0
    assert not any(member.interest.is_active for member in mesh.members.values())
    assert all(member.context.timers.next_at() is None for member in mesh.members.values())
    mesh[21].unsubscribe("a")  # of what is not there
    assert mesh.run() == 0


def test_registrations_of_the_configuration() -> None:
    """I27: they follow the file."""
    config = NodeConfig(subscribe=(TopicFilter("t", "x > 1"), TopicFilter("u")))
    one = Member(1, config)
    one.out()
    assert sorted(row.topic for row in one.interest.registrations.rows.values()) == ["t", "u"]
    one.open(2)
    assert one.out() == []
    assert one.version_of(one) == (1, 1)
    one.config = NodeConfig(subscribe=(TopicFilter("u"),))
    one.open(3)
    one.out()
    assert [row.topic for row in one.interest.registrations.rows.values()] == ["u"]
    assert one.version_of(one) == (3, 2 << 32), "versions of each life are apart"
    with pytest.raises(ConfigError, match=r"\[\[subscribe\]\] topic = 't', where = 'x >': "):
        Member(2, NodeConfig(subscribe=(TopicFilter("t", "x >"),)))


def test_only_so_many_registrations_are_kept_and_others_give_up_their_own() -> None:
    one = Member(1, NodeConfig(registrations_max=2))
    one.interest.subscribe(Subscribe(1, (wish("a"), wish("b", "u")), owner="ann"), 0)
    one.interest.subscribe(Subscribe(2, (wish("c", "v"),), owner="ann"), 0)
    one.interest.unsubscribe(Unsubscribe(3, ("a",), owner="bob"), 0)
    one.interest.unsubscribe(Unsubscribe(4, ("a",), owner="ann"), 0)
    one.out()
    codes = [(each.request, each.code) for each in one.answers if isinstance(each, Refused)]
    assert codes == [(2, "too-many"), (3, "forbidden")]
    assert list(one.interest.registrations.rows) == ["b"]


def test_names_travel_as_eight_bytes() -> None:
    """I25: the ratio is measured by tests/bench/interest.py."""
    sizes = []
    for topic in ("t", "t" * 200):
        mesh = Mesh([(1, 2)])
        mesh[1].subscribe(wish("a", topic))
        mesh.run()
        _, data = to_avro(mesh.sent[-1][2])
        assert from_avro(131, data) == mesh.sent[-1][2]
        sizes.append(len(data))
    assert sizes[0] == sizes[1]


def test_changes_come_once_and_in_order() -> None:
    """I28, over a triangle, where each node hears everything twice."""
    mesh = Mesh([(1, 2), (2, 3), (1, 3)])
    for i in range(20):
        mesh[1].subscribe(wish(f"r{i % 4}", f"t{i % 3}"))
        if i % 3 == 0:
            mesh[1].unsubscribe(f"r{i % 4}")
        mesh.run()
    for number in (2, 3):
        versions = [change.ts for change in mesh[number].changes]
        assert versions == sorted(set(versions))
        held: dict[object, object] = {}
        for change in mesh[number].changes:
            _replay(held, change)
        assert held == mesh[number].interest.view.entries[mesh[1].node_id].items


def _replay(held: dict[object, object], change: InterestChanged) -> None:
    for key in change.left:
        del held[key]
    for item in (*change.joined, *change.rejoined):
        held[item.topic_hash, item.profile_hash] = item


def test_one_append_has_registrations_and_version() -> None:
    one = Member(1, NodeConfig())
    one.is_disk_slow = True
    one.subscribe(wish("a"), wish("b", "u"))
    one.out()
    (append,) = one.appends
    assert isinstance(append, Append)
    assert [type(write) for write in append.writes] == [
        RegistrationRecord,
        RegistrationRecord,
        InterestStateRecord,
        InterestSpanRecord,
        InterestSpanRecord,
    ]
