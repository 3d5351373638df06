"""GES's profile graph: fixture F9, matching by A10, and G31-G37, G44."""

from itertools import product
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from m4cast.overlay.errors import LocalProtocolError
from m4cast.overlay.profiles import segment
from m4cast.overlay.profiles.graph import ANY, ChangeId, ProfileGraph

EVENTS = [(1, 1, 1), (1, 1, 2), (1, 2, 1), (1, 1, 3), (2, 1, 1), (1, 2, 2)]


def events(rows: list[tuple[Any, ...]], names: str = "ABC") -> pa.RecordBatch:
    return pa.record_batch({name: pa.array([row[at] for row in rows], pa.int64()) for at, name in enumerate(names)})


def f9() -> ProfileGraph[str]:
    graph: ProfileGraph[str] = ProfileGraph("ABC")
    changes = [
        ("n1", {"A": 1, "B": 1, "C": 1}),
        ("n2", {"A": 1, "B": 1, "C": 2}),
        ("n3", {"A": 1, "C": 1}),
        ("n1", {"A": 1, "B": 1}),
    ]
    for number, (unit, constraints) in enumerate(changes):
        assert graph.add(ChangeId("x", number), unit, constraints)
    return graph


def test_f9_edges_and_matches() -> None:
    graph = f9()
    assert graph.edges() == {
        ("1",): {"n1": 2, "n2": 1, "n3": 1},
        ("1", "1"): {"n1": 2, "n2": 1},
        ("1", "*"): {"n3": 1},
        ("1", "1", "1"): {"n1": 1},
        ("1", "1", "2"): {"n2": 1},
        ("1", "*", "1"): {"n3": 1},
    }
    assert graph.match(events(EVENTS)) == [["n1", "n3"], ["n1", "n2"], ["n3"], ["n1"], [], []]


def test_f9_after_n1_withdraws_both() -> None:
    graph = f9()
    graph.remove(ChangeId("x", 4), "n1", {"A": 1, "B": 1, "C": 1})
    graph.remove(ChangeId("x", 5), "n1", {"A": 1, "B": 1})
    edges = graph.edges()
    assert edges["1",] == {"n2": 1, "n3": 1} and edges["1", "1"] == {"n2": 1} and ("1", "1", "1") not in edges


def test_a_repeated_change_alters_nothing() -> None:
    graph = f9()
    before = graph.edges()
    assert not graph.add(ChangeId("x", 0), "n1", {"A": 1, "B": 1, "C": 1})
    assert not graph.remove(ChangeId("x", 3), "n1", {"A": 1, "B": 1})
    assert graph.edges() == before
    assert graph.add(ChangeId("y", 0), "n1", {"A": 1, "B": 1, "C": 1}), "another origin's change is another"


def test_unset_earlier_attributes_become_any() -> None:
    graph: ProfileGraph[str] = ProfileGraph("ABC")
    graph.add(ChangeId("x", 0), "n", {"C": 1})
    assert list(graph.edges()) == [("*",), ("*", "*"), ("*", "*", "1")]
    graph.add(ChangeId("x", 1), "n", {"A": ANY, "B": ANY, "C": 1})
    assert graph.edges()["*", "*", "1"] == {"n": 2}


def test_halves_of_two_profiles_make_no_destination() -> None:
    graph: ProfileGraph[str] = ProfileGraph("AB")
    graph.add(ChangeId("x", 0), "n", {"A": 1, "B": 2})
    graph.add(ChangeId("x", 1), "n", {"A": 3, "B": 4})
    assert graph.match(events([(1, 4), (3, 2), (1, 2)], "AB")) == [[], [], ["n"]]


def test_an_event_must_have_every_attribute_that_is_named() -> None:
    graph: ProfileGraph[str] = ProfileGraph("AB")
    graph.add(ChangeId("x", 0), "n", {"A": ANY, "B": 1})
    graph.add(ChangeId("x", 1), "m", {"A": 1, "B": ANY})
    assert graph.match(events([(None, 1), (1, None), (1, 1)], "AB")) == [[], [], ["m", "n"]]


def test_a_withdrawal_that_overtakes_its_profile_ends_right() -> None:
    graph: ProfileGraph[str] = ProfileGraph("A")
    graph.remove(ChangeId("x", 1), "n", {"A": 1})
    assert graph.edges() == {} and graph.match(events([(1,)], "A")) == [[]]
    graph.add(ChangeId("x", 0), "n", {"A": 1})
    assert graph.edges() == {} and len(graph) == 0
    graph.add(ChangeId("x", 2), "n", {"A": 1})
    graph.remove(ChangeId("y", 1), "m", {"A": 1})
    assert graph.match(events([(1,)], "A")) == [["n"]], "m is owed a profile and gets nothing"
    assert graph.edges() == {("1",): {"n": 1}}


def test_matching_equals_evaluating_every_profile_and_all_withdrawn_is_empty() -> None:
    random = Random(3)
    graph: ProfileGraph[str] = ProfileGraph("ABCD")
    held: list[tuple[str, dict[str, Any]]] = []
    numbers = iter(range(10_000))
    batch = events(list(product(range(3), repeat=4)), "ABCD")
    for step in range(60):
        if held and random.random() < 0.4:
            unit, constraints = held.pop(random.randrange(len(held)))
            graph.remove(ChangeId("x", next(numbers)), unit, constraints)
        else:
            named = random.sample("ABCD", random.randint(1, 4))
            constraints = {name: random.choice([ANY, 0, 1, 2]) for name in named}
            held.append((f"u{random.randrange(5)}", constraints))
            graph.add(ChangeId("x", next(numbers)), *held[-1])
        if step % 10:
            continue
        expected = [
            sorted({unit for unit, asked in held if all(wanted in (ANY, row[name]) for name, wanted in asked.items())})
            for row in batch.to_pylist()
        ]
        assert graph.match(batch) == expected
    for unit, constraints in held:
        graph.remove(ChangeId("x", next(numbers)), unit, constraints)
    assert len(graph) == 0 and graph.edges() == {} and graph.match(batch) == [[]] * batch.num_rows


def test_what_a_row_reaches_does_not_grow_with_profiles_that_share_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[int] = []
    expand = segment._expanded

    def counted(*arguments: Any) -> segment.Pairs:
        pairs = expand(*arguments)
        reached.append(len(pairs.rows))
        return pairs

    monkeypatch.setattr(segment, "_expanded", counted)
    for profiles in (10, 1_000):
        graph: ProfileGraph[int] = ProfileGraph("ABCD")
        for number in range(profiles):
            graph.add(ChangeId("x", number), number, {"A": 1, "B": 1, "C": 1, "D": number})
        assert graph.match(events([(1, 1, 1, 5)], "ABCD")) == [[5]]
    assert reached == [1, 1]


@pytest.mark.parametrize("constraints", [{}, {"Z": 1}, {"A": None}])
def test_constraints_that_mean_nothing_are_refused(constraints: dict[str, Any]) -> None:
    graph: ProfileGraph[str] = ProfileGraph("A")
    with pytest.raises(LocalProtocolError, match="constraint"):
        graph.add(ChangeId("x", 0), "n", constraints)
    assert graph.add(ChangeId("x", 0), "n", {"A": 1}), "a refusal changes nothing"


def test_attributes_are_named_once() -> None:
    with pytest.raises(LocalProtocolError, match="each once"):
        ProfileGraph("AA")
