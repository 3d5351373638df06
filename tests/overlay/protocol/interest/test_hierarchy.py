"""The hierarchy of profiles against the fixtures F4 and F5 of P2P-DIET: what a node announces, and what it withdraws.

In the digest's words: an item that joins is D9, one that joins because its cover went is D10, one that leaves is D11.
"""

from random import Random

import pyarrow as pa

from m4cast.overlay.config import NodeConfig
from m4cast.overlay.profiles import mask, parse
from m4cast.overlay.protocol.effects import Wish
from tests.overlay.protocol.interest.mesh import Member

F4 = {
    1: "title contains peer",
    2: "type = mp3",
    3: "size < 1000",
    4: "title contains peer AND load",
    5: "title contains peer AND network",
    6: "title contains peer AND network AND scale",
    7: "title contains peer AND network; type = pdf",
    8: "type = mp3; author contains tull",
    9: "size < 500",
    10: "200 < size < 400",
    11: "title contains peer OR event",
}
PROFILES = {number: parse(text, "diet") for number, text in F4.items()}
RESOURCES = [
    ({"type": "pdf", "title": "Peer network overview", "author": None, "size": 676318}, [1, 5, 7, 11], [11]),
    ({"type": "doc", "title": "event based systems", "author": None, "size": 676318}, [11], [11]),
    (
        {"type": "mp3", "title": "peer load", "author": "Jethro Tull", "size": 300},
        [1, 2, 3, 4, 8, 9, 10, 11],
        [2, 3, 11],
    ),
]
"""Each with its receivers, and the announced profiles that it matches: a D14 for each of these in the thesis."""


class Announcer:
    """A node, and what it sends about its registrations."""

    def __init__(self, profiles: dict[int, str]) -> None:
        self.member = Member(1, NodeConfig())
        self.texts = {parse(text, "diet").text: number for number, text in profiles.items()}
        self.by_key: dict[object, int] = {}

    def add(self, number: int, text: str) -> tuple[list[int], list[int]]:
        self.member.subscribe(Wish(str(number), "t", parse(text, "diet"), earliest=False))
        return self.sent()

    def remove(self, number: int) -> tuple[list[int], list[int]]:
        self.member.unsubscribe(str(number))
        return self.sent()

    def sent(self) -> tuple[list[int], list[int]]:
        """The items that joined, and those that left."""
        self.member.changes.clear()
        self.member.out()
        joined, left = [], []
        for change in self.member.changes:
            for item in change.joined:
                number = self.by_key[item.topic_hash, item.profile_hash] = self.texts[item.text]
                joined.append(number)
            left += [self.by_key[key.topic_hash, key.profile_hash] for key in change.left]
        return sorted(joined), sorted(left)

    def announced(self) -> list[int]:
        (entry,) = self.member.interest.view.used()
        return sorted(self.texts[item.text] for item in entry.items.values())


def test_f4_arrivals_are_announced_unless_they_are_covered() -> None:
    node = Announcer(F4)
    sent = {number: node.add(number, text) for number, text in F4.items()}
    assert {number: each for number, each in sent.items() if each != ([], [])} == {
        1: ([1], []),
        2: ([2], []),
        3: ([3], []),
        11: ([11], [1]),
    }
    assert node.announced() == [2, 3, 11]


def test_f4_in_any_order_the_same_are_announced() -> None:
    order = list(F4)
    for seed in range(20):
        Random(seed).shuffle(order)
        node = Announcer(F4)
        for number in order:
            node.add(number, F4[number])
        assert node.announced() == [2, 3, 11], order


def test_f4_removals_promote_what_no_other_covers() -> None:
    node = Announcer(F4)
    for number, text in F4.items():
        node.add(number, text)
    assert node.remove(11) == ([1], [11])
    assert node.remove(1) == ([4, 5], [1])
    assert node.remove(5) == ([6, 7], [5])
    assert node.remove(9) == ([], [])
    assert node.announced() == [2, 3, 4, 6, 7]


def test_f4_resources_have_these_receivers_and_cross_once() -> None:
    """The thesis sends a D14 for each announced profile that matches (1, 1 and 3). Here a batch is wanted or not: it
    crosses once for all of them, since an origin looks for one of the node's items that matches."""
    node = Announcer(F4)
    for number, text in F4.items():
        node.add(number, text)
    for resource, receivers, announced in RESOURCES:
        row = pa.RecordBatch.from_pylist([resource])
        matching = [number for number, profile in PROFILES.items() if mask(profile.condition, row)[0]]
        assert matching == receivers
        assert [number for number in node.announced() if number in matching] == announced
        assert bool(announced) == bool(receivers), "what somebody wants crosses, and nothing else"
    nobody = pa.RecordBatch.from_pylist([{"type": "txt", "title": "tables", "author": None, "size": 5000}])
    assert not any(mask(PROFILES[number].condition, nobody)[0] for number in node.announced())


def test_f4_covered_arrivals_send_nothing() -> None:
    """Each of 4 to 10 asks for what stands in the thesis (D12): here its begin and its fill are the reader's."""
    node = Announcer(F4)
    sent = [node.add(number, text) for number, text in F4.items()]
    assert [number for number, each in zip(F4, sent, strict=True) if each == ([], [])] == [4, 5, 6, 7, 8, 9, 10]


def test_f5_nothing_is_announced_that_a_second_one_covers() -> None:
    profiles = {1: "title contains peer", 2: "type = pdf", 3: "title contains peer; type = pdf"}
    node = Announcer(profiles)
    assert [node.add(number, text) for number, text in profiles.items()] == [([1], []), ([2], []), ([], [])]
    assert node.remove(1) == ([], [1])
    assert node.remove(2) == ([3], [2])
