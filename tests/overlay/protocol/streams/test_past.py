"""True if a store is the latest word about its node's rows: who is asked, what counts as proof, and what is said."""

import pytest

from m4cast.overlay.config import NodeConfig
from m4cast.overlay.ids import Contact, NodeId, StreamId
from m4cast.overlay.protocol.calls import Call
from m4cast.overlay.protocol.effects import Dial, Recovered
from m4cast.overlay.protocol.holdings import Holdings
from m4cast.overlay.protocol.streams.past import ASKED_AT_ONCE, ASKED_MAX, Ask, Past
from m4cast.overlay.protocol.wire.messages import HELD_VERSION, HeldCall, HeldEntry, HeldResp, RosterEntry
from tests.overlay.protocol.stream_parts import contact, context_of_m, entry, node_id, of, sends, stream_id, take


class Asker:
    """Node m, restarted with a store that knows these nodes."""

    def __init__(self, *knew: RosterEntry, incarnation: int = 5, former: str = "", trust_store: bool = False) -> None:
        context = context_of_m(NodeConfig(listen="m:7400", trust_store=trust_store), incarnation=incarnation)
        self.out, self.calls = context.out, context.calls
        former_ids = tuple(map(node_id, former))
        recovered = Recovered(node_id("m"), incarnation, former_ids, roster=knew)
        self.past = Past(context, recovered, Holdings({}))
        self.past.start(10)

    def called(self) -> dict[str, Call]:
        """Those that were called since the last look, by name."""
        found = {}
        for dial in of(take(self.out), Dial):
            call = self.calls.get(dial.conn)
            assert call is not None and isinstance(call.purpose, Ask)
            found[dial.address.partition(":")[0]] = call
        return found

    def asked(self, call: Call, version: int = HELD_VERSION) -> list[HeldCall]:
        """It says hello; what it is asked then."""
        assert isinstance(call.purpose, Ask)
        call.peer, call.version = call.purpose.contact, version
        self.past.call_ready(call, 20)
        return [message for _, message in sends(take(self.out), HeldCall)]

    def answers(self, call: Call, *entries: HeldEntry, knew: bool = False, last: bool = True) -> None:
        self.past.answered(call, HeldResp(knew, 0, 0, entries, last), 30)

    def unreachable(self, call: Call) -> None:
        self.calls.lost(call.conn)
        self.past.connection_over(call.conn, 30)


def held(origin: NodeId, next_sequence: int = 5, topic: str = "t") -> HeldEntry:
    return HeldEntry(origin, topic, 1, next_sequence, next_sequence)


def test_a_new_store_needs_no_proof() -> None:
    asker = Asker(entry("a"), incarnation=1)
    assert asker.called() == {} and asker.past.why_unproven() is None


def test_a_store_that_knows_nobody_needs_none_either() -> None:
    asker = Asker(entry("a", leaving=True))
    assert asker.called() == {} and asker.past.why_unproven() is None


def test_an_operator_may_vouch_for_the_store() -> None:
    asker = Asker(entry("a"), trust_store=True)
    assert asker.called() == {} and asker.past.why_unproven() is None


def test_everybody_who_is_known_has_to_answer_or_be_out_of_reach() -> None:
    asker = Asker(entry("a"), entry("b"), entry("c", leaving=True))
    calls = asker.called()
    assert sorted(calls) == ["a", "b"]
    assert asker.asked(calls["a"]) == [HeldCall((node_id("m"),))]
    asker.answers(calls["a"], last=False)
    asker.answers(calls["a"])
    assert asker.past.why_unproven() == (
        "waiting for 1 other node to report what they hold of this node's rows: try again"
    )
    asker.unreachable(calls["b"])
    assert asker.past.why_unproven() is None and asker.past.proven_at_ms == 30


def test_without_a_word_of_somebody_who_knew_it_nothing_is_proven() -> None:
    asker = Asker(entry("a"), entry("b"))
    for call in asker.called().values():
        asker.unreachable(call)
    asker.past.met(contact("n"), 40)
    newcomer = asker.called()["n"]
    assert asker.asked(newcomer)
    asker.answers(newcomer)
    why = asker.past.why_unproven()
    assert why is not None and asker.past.lacks_proof
    assert why.startswith("no node that knew this one before can be reached")
    assert "start one of a at a:7400, b at b:7400" in why and "--trust-store" in why
    asker.past.met(contact("a"), 50)  # it is back
    back = asker.called()["a"]
    asker.asked(back)
    asker.answers(back)
    assert asker.past.why_unproven() is None


@pytest.mark.parametrize("word", ["knew", "rows", "exchange"])
def test_what_shows_that_a_node_knew_this_one(word: str) -> None:
    asker = Asker(entry("a"))
    asker.unreachable(asker.called()["a"])
    asker.past.met(contact("x" if word != "exchange" else "a"), 40)
    (call,) = asker.called().values()
    asker.asked(call)
    match word:
        case "knew":
            asker.answers(call, knew=True)
        case "rows":
            asker.answers(call, held(node_id("m")))
        case _:
            asker.past.exchanged(node_id("a"), 40)
            asker.unreachable(call)
    assert asker.past.why_unproven() is None


def test_a_neighbour_is_asked_on_its_link_and_one_of_an_older_version_says_what_it_has_there() -> None:
    asker = Asker(entry("a"), entry("b"))
    asker.called()
    for conn, name in ((2, "a"), (4, "b")):
        asker.past.linked(Call(conn, None, peer=contact(name), version=HELD_VERSION if name == "a" else 1))
    assert [conn for conn, _ in sends(take(asker.out), HeldCall)] == [2]


def test_a_node_of_an_older_version_is_not_waited_for() -> None:
    asker = Asker(entry("a"), entry("b"))
    calls = asker.called()
    assert asker.asked(calls["a"], version=HELD_VERSION - 1) == []
    asker.asked(calls["b"])
    asker.answers(calls["b"])
    assert asker.past.why_unproven() is None


def test_whoever_is_heard_of_meanwhile_is_asked_once() -> None:
    asker = Asker(entry("a"))
    first = asker.called()["a"]
    asker.past.heard_of(contact("b"), 20)
    asker.past.heard_of(contact("b"), 20)
    second = asker.called()
    assert list(second) == ["b"]
    asker.asked(first)
    asker.answers(first)
    assert asker.past.why_unproven() is not None
    asker.unreachable(second["b"])
    asker.past.heard_of(contact("b"), 20)
    assert asker.called() == {}


def test_so_many_are_asked_and_so_many_at_once() -> None:
    asker = Asker(*(entry(f"n{number}") for number in range(ASKED_MAX + 10)))
    count = 0
    while calls := asker.called():
        assert len(calls) <= ASKED_AT_ONCE
        count += len(calls)
        for call in calls.values():
            asker.unreachable(call)
    assert count == ASKED_MAX


def test_what_others_have_of_former_streams_is_known_while_they_are_there() -> None:
    asker = Asker(entry("a"), entry("b"), incarnation=1, former="f")
    calls = asker.called()
    (question,) = asker.asked(calls["a"])
    assert question == HeldCall((node_id("m"), node_id("f")))
    asker.answers(calls["a"], held(node_id("f"), 9))
    asker.asked(calls["b"])
    asker.answers(calls["b"], held(node_id("f"), 5), held(node_id("f"), 7, "u"), held(node_id("m"), 3))
    t, u = stream_id("f", "t"), stream_id("f", "u")
    assert asker.past.former_streams(lambda _: False) == {t: 9, u: 7}
    assert asker.past.former_streams(lambda gone: gone == node_id("a")) == {t: 5, u: 7}
    assert asker.past.former_at(node_id("a")) == {StreamId(node_id("f"), "t"): 9}
    assert asker.past.why_unproven() is None


def test_what_a_node_said_before_counts_until_it_says_otherwise_or_cannot_be_reached() -> None:
    asker = Asker(entry("a"), incarnation=1, former="f")
    call = asker.called()["a"]
    asker.asked(call)
    asker.answers(call, held(node_id("f"), 9), last=False)
    asker.answers(call, held(node_id("f"), 7, "u"))
    assert len(asker.past.former_at(node_id("a"))) == 2
    asker.past.ask_again(contact("a"), 50)
    call = asker.called()["a"]
    asker.asked(call)
    asker.answers(call, held(node_id("f"), 7, "u"))  # it crashed and lost the others
    assert asker.past.former_at(node_id("a")) == {stream_id("f", "u"): 7}
    asker.past.ask_again(contact("a"), 60)
    asker.unreachable(asker.called()["a"])
    assert asker.past.former_at(node_id("a")) == {}


def test_who_could_not_say_anything_is_asked_again_while_there_is_no_proof() -> None:
    asker = Asker(entry("a"))
    asker.unreachable(asker.called()["a"])
    asker.past.met(contact("n"), 40)
    call = asker.called()["n"]
    asker.asked(call)
    asker.answers(call)
    assert asker.past.lacks_proof
    asker.past.ask_all_again([contact("n")], 50)
    call = asker.called()["n"]
    asker.asked(call)
    asker.answers(call, held(node_id("m")))  # rows of this node have come there meanwhile
    assert asker.past.why_unproven() is None


def test_former_identities_are_nobody_to_ask() -> None:
    asker = Asker(entry("f"), incarnation=1, former="f")
    assert asker.called() == {} and asker.past.why_unproven() is None


def test_nor_is_a_node_that_had_this_ones_address() -> None:
    """Its store is gone, and this one has taken its place."""
    asker = Asker(entry("w")._replace(address=contact("m").address))
    asker.past.heard_of(Contact(node_id("v"), contact("m").address), 10)
    assert asker.called() == {} and asker.past.why_unproven() is None
