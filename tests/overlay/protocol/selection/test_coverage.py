"""Coverage as readers hear of it: up to where a registration is covered, told when that changes and taken back when the
registration goes."""

from m4cast.overlay.ids import StreamId
from m4cast.overlay.profiles.profile import Profile, parse
from m4cast.overlay.protocol.effects import Append, Covered, Output, Want
from m4cast.overlay.protocol.selection.coverage import CoverageReports
from m4cast.overlay.protocol.wire.batch import Batch
from m4cast.overlay.protocol.wire.selective import CoverEntry, CoverStmt, Destination, ProfileText, RoutedFrame
from tests.overlay.protocol.selective.test_memory import FilteringNode
from tests.overlay.protocol.stream_parts import chain

A = ProfileText("sql", 1, parse("country = 'A'").text)


class Reported(FilteringNode):
    """A node with the registration `w`, of one country from the earliest rows on, of which all is on disk at once."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Output] = []
        self.reports = CoverageReports(self.me, self.machine, self.told)
        self._token = 100

    def hear(self, content: Batch | CoverStmt, stated_from: int = 0) -> None:
        frame = RoutedFrame(self.stream.origin, (Destination(self.me, stated_from, 1),), content)
        self.machine.received(frame, self.now_ms)
        for output in self.machine.take_outputs():
            if isinstance(output, Append):
                self.reports.report(self.machine.durable(output.token, self.now_ms))

    def state(self, first: int, following: int) -> None:
        self.hear(CoverStmt(self.stream.origin, (CoverEntry("t", first, following, 0),)))

    def register(self, version: int, *added: Want, removed: tuple[str, ...] = ()) -> None:
        self._token += 1
        self.machine.plan(self._token, version, added, removed)
        self.reports.report(self.machine.durable(self._token, 0))

    def covering(self, where: str | None, *, fits: bool = True) -> str | None:
        profile: Profile | None = None if where is None else parse(where)
        return self.reports.covering("t", profile, lambda want, begins, ends: fits)


def test_what_is_covered_is_told_once() -> None:
    node = Reported()
    (batch,) = chain(1, stream=node.stream)
    node.hear(batch, 1)
    assert node.told == [Covered(("w",), "t", {node.stream.origin: 2})]
    node.reports.report([node.stream])
    assert len(node.told) == 1, "it is no news"
    node.state(2, 5)
    assert node.told[1:] == [Covered(("w",), "t", {node.stream.origin: 5})]
    assert node.reports.of("w") == {node.stream: 5}
    assert node.reports.begins("w") == {node.stream: 1}


def test_rows_behind_a_hole_are_known_and_not_covered() -> None:
    node = Reported()
    node.state(1, 2)
    assert node.reports.is_settled("w")
    node.hear(chain(3, stream=node.stream)[2], 3)
    assert node.reports.of("w") == {node.stream: 2}
    assert not node.reports.is_settled("w")
    node.state(2, 3)
    assert node.reports.of("w") == {node.stream: 4}
    assert node.reports.is_settled("w")


def test_what_is_not_registered_is_covered_nowhere() -> None:
    node = Reported()
    node.state(1, 5)
    assert node.reports.of("x") == node.reports.begins("x") == {}
    assert not node.reports.is_settled("x")


def test_coverage_is_taken_back_when_its_registration_goes() -> None:
    node = Reported()
    node.state(1, 5)
    node.told.clear()
    node.reports.take_back()
    assert node.told == []
    node.register(2, removed=("w",))
    node.reports.take_back()
    assert node.told == [Covered(("w",), "t", {node.stream.origin: 1})]
    node.reports.take_back()
    assert len(node.told) == 1


def test_a_registration_covers_what_it_wants_and_less() -> None:
    node = Reported()
    assert node.covering("country = 'A'") is None
    node.register(2, Want("a", "t", A, 0, True))
    assert node.covering("country = 'A'") == "a"
    assert node.covering("country = 'A' AND n > 1") == "a"
    assert node.covering("country = 'B'") is None
    assert node.covering(None) is None
    assert node.covering("country = 'A'", fits=False) is None, "it begins too late"


def test_an_equal_registration_comes_before_a_wider_one() -> None:
    node = Reported()
    node.register(2, Want("all", "t", None, 0, True))
    node.register(3, Want("a", "t", A, 0, True))
    assert node.covering(None) == node.covering("country = 'B'") == "all"
    assert node.covering("country = 'A'") == "a"
    assert node.reports.covering("t", None, lambda want, begins, ends: True, but=("all",)) is None


def test_all_rows_of_an_own_stream_are_here() -> None:
    node = Reported()
    own = StreamId(node.me, "t")
    node.machine.speaking.open(own, 4, 0, 0)
    node.reports.own(own)
    assert node.told == [Covered(("w",), "t", {node.me: 4})]
    assert node.reports.of("w") == {own: 4} and node.reports.begins("w") == {own: 1}
