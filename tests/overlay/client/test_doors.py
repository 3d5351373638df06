"""Choice of nodes, time limits, and reports when not all answer; without any node."""

from collections.abc import Callable

import pytest

from m4cast.overlay.client import Channel, connections, doors
from m4cast.overlay.client.credentials import Credentials
from m4cast.overlay.client.doors import Doors
from m4cast.overlay.errors import RefusedError, UnreachableError
from tests.overlay.client.hanging import Clock
from tests.overlay.client.stopping import stopping

NODES = ("a:1", "b:1", "c:1")


def hangs(limit_s: float) -> RefusedError:
    return RefusedError("timeout", "did not answer")


def is_away(limit_s: float) -> UnreachableError:
    return UnreachableError("is away")


def knows_no_topic(limit_s: float) -> RefusedError:
    return RefusedError("unknown-topic", "?")


class NodeRequest:
    """Three nodes with 30 s for all, that answer with their names unless told otherwise; who was asked for how long."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.clock = Clock(patch, doors, connections)
        self.doors = Doors(NODES, 30.0, Credentials())
        self.how: dict[str, Callable[[float], Exception]] = {}
        self.takes_s: dict[str, float] = {}
        """What a node that hangs is given, if that is not its limit."""
        self.limits: list[tuple[str, int]] = []
        patch.setattr(connections, "_silent_until", {})
        patch.setattr(Doors, "at", lambda _, node, call, limit_s: self._at(node, limit_s))

    def _at(self, node: str, limit_s: float) -> str:
        self.limits.append((node, round(limit_s)))
        how = self.how.get(node)
        if how is None:
            return node
        if how is hangs:
            self.clock.skipped_s += self.takes_s.get(node, limit_s)
        raise how(limit_s)

    def anywhere(self) -> str:
        self.limits.clear()
        return self.doors.anywhere(lambda client, limit_s: "")

    def everywhere(self) -> dict[str, str]:
        self.limits.clear()
        return self.doors.everywhere(lambda client, limit_s: "")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> NodeRequest:
    return NodeRequest(monkeypatch)


def test_one_that_hangs_is_waited_for_for_its_share_and_then_asked_last(asked: NodeRequest) -> None:
    asked.how["a:1"] = hangs
    assert asked.anywhere() == "b:1"
    assert asked.limits == [("a:1", 10), ("b:1", 10)]
    asked.how["b:1"] = is_away
    assert asked.anywhere() == "c:1"
    assert [node for node, _ in asked.limits] == ["b:1", "c:1"]
    del asked.how["a:1"]
    asked.clock.skipped_s += connections.ASK_LAST_S
    assert asked.anywhere() == "a:1", "it is asked first again after a while"


def test_all_that_hang_take_the_whole_time_together(asked: NodeRequest) -> None:
    asked.how = dict.fromkeys(NODES, hangs)
    with pytest.raises(RefusedError, match="timeout"):
        asked.anywhere()
    assert asked.limits == [("a:1", 10), ("b:1", 10), ("c:1", 10)]


def test_those_that_fail_at_once_leave_their_time_to_the_others(asked: NodeRequest) -> None:
    asked.how = {"a:1": is_away, "b:1": is_away}
    assert asked.anywhere() == "c:1"
    assert asked.limits == [("a:1", 10), ("b:1", 15), ("c:1", 30)]


def test_a_lagging_node_is_waited_for_when_no_other_has_the_rows(asked: NodeRequest) -> None:
    asked.how = {"a:1": lambda limit_s: RefusedError("behind", "not yet"), "b:1": is_away, "c:1": is_away}
    with pytest.raises(RefusedError, match="behind"):
        asked.anywhere()
    assert asked.limits == [("a:1", 10), ("b:1", 15), ("c:1", 30), ("a:1", 30)]


def test_a_share_is_long_enough_for_a_call_however_many_nodes_are_listed(asked: NodeRequest) -> None:
    asked.doors = Doors(tuple(f"n{number}:1" for number in range(30)), 30.0, Credentials())
    asked.how["n0:1"] = hangs
    assert asked.anywhere() == "n1:1"
    assert asked.limits == [("n0:1", 5), ("n1:1", 5)]
    asked.everywhere()
    assert {limit for _, limit in asked.limits} == {5}


def test_what_takes_longer_than_the_whole_time_is_not_asked_of_all(asked: NodeRequest) -> None:
    """A read of many rows has more than a share, once its node has answered: the node is well, the time too short."""
    asked.how["a:1"] = hangs
    asked.takes_s["a:1"] = 35
    with pytest.raises(RefusedError, match="timeout"):
        asked.anywhere()
    assert asked.limits == [("a:1", 10)]
    del asked.how["a:1"]
    assert asked.anywhere() == "a:1"


def test_the_most_specific_failure_is_raised(asked: NodeRequest) -> None:
    asked.how = {"a:1": is_away, "b:1": hangs, "c:1": knows_no_topic}
    with pytest.raises(RefusedError, match="unknown-topic"):
        asked.anywhere()
    asked.how["c:1"] = is_away
    with pytest.raises(RefusedError, match="timeout"):
        asked.anywhere()
    with pytest.raises(RefusedError, match="timeout"):
        asked.everywhere()
    asked.how["b:1"] = is_away
    with pytest.raises(UnreachableError):
        asked.anywhere()
    with pytest.raises(UnreachableError):
        asked.everywhere()


def test_of_all_those_are_enough_that_answer(asked: NodeRequest) -> None:
    asked.how = {"a:1": hangs, "b:1": is_away}
    assert asked.everywhere() == {"c:1": "c:1"}
    assert asked.limits == [("a:1", 10), ("b:1", 10), ("c:1", 10)]
    asked.how["b:1"] = knows_no_topic
    with pytest.raises(RefusedError, match="unknown-topic"):
        asked.everywhere()


def test_a_node_that_stops_during_a_call_is_unreachable_and_may_have_done_what_was_asked() -> None:
    with stopping() as node, pytest.raises(UnreachableError, match=f"{node} stopped during the call") as caught:
        Channel(node).status()
    assert caught.value.is_sent
