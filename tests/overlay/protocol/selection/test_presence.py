"""Presence, as selective topics see it: whom rows can be asked of, and whose rows are waited for."""

from m4cast.overlay.config import ClusterConfig, NodeConfig
from m4cast.overlay.ids import NodeId
from m4cast.overlay.profiles.profile import parse
from m4cast.overlay.protocol.effects import Recovered
from m4cast.overlay.protocol.interest.view import ABSENT_KEPT_MS, InterestView
from m4cast.overlay.protocol.roster.roster import SILENT_AFTER_BEACONS, Roster
from m4cast.overlay.protocol.selection.presence import Presence
from m4cast.overlay.protocol.selective.contract import keep_text
from m4cast.overlay.protocol.selective.demand import KEEPS_HASH
from m4cast.overlay.protocol.wire.interest import InterestItem, InterestKey
from m4cast.overlay.protocol.wire.selective import ROUTED_VERSION
from tests.overlay.protocol.stream_parts import context_of_m, entry, node_id

INTERVAL_MS = 5_000
SILENT_MS = SILENT_AFTER_BEACONS * INTERVAL_MS + 1
CLUSTER = ClusterConfig(beacon_interval_ms=INTERVAL_MS, beacon_ms_per_node=100)
A, B, ORIGIN = map(node_id, "abo")


class Place:
    """Node m, with nodes a and b, that have routed frames, and o, an origin."""

    def __init__(self) -> None:
        self.view = InterestView()
        context = context_of_m(NodeConfig(name="m", listen="m:7400"), CLUSTER)
        self.roster = Roster(context, Recovered(node_id("m"), incarnation=1))
        self.presence = Presence(self.roster, self.view)
        for name in "abo":
            self.beacon(name)

    def beacon(self, name: str, now_ms: int = 0, *, version: int = ROUTED_VERSION, leaving: bool = False) -> None:
        self.roster.heard(entry(name, counter=1 + now_ms, leaving=leaving), now_ms, version=version)

    def keep(self, keeper: NodeId, origin: NodeId) -> None:
        text = parse(keep_text(origin)).text
        item = InterestItem(KEEPS_HASH, 1, 1, 0, True, "sql", 1, text)
        self.view.add(keeper).items[InterestKey(KEEPS_HASH, 1)] = item


def test_a_node_without_routed_frames_is_present_and_not_asked() -> None:
    place = Place()
    place.beacon("old", version=ROUTED_VERSION - 1)
    assert place.presence.nodes() == [A, B, ORIGIN]
    assert list(place.presence.others(0)) == [A, B, ORIGIN, node_id("old")]
    assert place.presence.is_awaited(ORIGIN, 0), "it seems to be there, and cannot be asked yet"


def test_a_node_that_went_without_a_word_is_told_once_and_back_with_its_beacon() -> None:
    place = Place()
    place.beacon("a", SILENT_MS)
    assert place.presence.sweep(SILENT_MS) == [B, ORIGIN]
    assert place.presence.sweep(SILENT_MS) == []
    assert place.presence.nodes() == [A] == list(place.presence.others(SILENT_MS))
    place.beacon("b", SILENT_MS)
    place.presence.heard(B)
    assert place.presence.nodes() == [A, B]


def test_an_origin_is_awaited_until_it_left_or_was_away_for_long() -> None:
    place = Place()
    assert place.presence.is_awaited(ORIGIN, 0)
    away_ms = SILENT_MS + ABSENT_KEPT_MS
    for name in "ab":
        place.beacon(name, away_ms)
    assert not place.presence.is_awaited(ORIGIN, away_ms)
    place.beacon("o", away_ms)
    assert place.presence.is_awaited(ORIGIN, away_ms)
    place.beacon("o", away_ms + 1, leaving=True)
    assert not place.presence.is_awaited(ORIGIN, away_ms + 1)


def test_a_keeper_that_is_away_is_awaited_when_its_origin_is_not() -> None:
    place = Place()
    place.beacon("o", 1, leaving=True)
    place.keep(B, ORIGIN)
    place.roster.failed(B, 1, 1, 2)
    assert not place.presence.is_awaited(ORIGIN, 2), "by the view, it is there"
    place.view.gone[B] = 2
    assert place.presence.is_awaited(ORIGIN, 2)
    place.beacon("b", 3, leaving=True)
    assert not place.presence.is_awaited(ORIGIN, 3)


def test_an_origin_that_nobody_has_heard_of_is_awaited_for_a_while() -> None:
    place = Place()
    stranger = node_id("x")
    assert place.presence.is_awaited(stranger, 0)
    for name in "abo":
        place.beacon(name, ABSENT_KEPT_MS)
    assert not place.presence.is_awaited(stranger, ABSENT_KEPT_MS)
    assert not place.presence.is_awaited(node_id("m"), 0), "it is here itself"
