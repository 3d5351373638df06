"""The node at which a sink stands, from what the nodes report of its key."""

from m4cast.spark_connector.sink.standing import MOVED, Standing, furthest


def at(node: str, said: str | None) -> Standing:
    return Standing(node, said)


def test_the_query_stands_where_it_published_last() -> None:
    assert furthest([at("n1", None), at("n2", "q/5")], "q").node == "n2"
    assert furthest([at("n1", "q/5"), at("n2", "q/10")], "q").node == "n2"
    assert furthest([at("n1", f"q/5{MOVED}"), at("n2", "q/6")], "q").node == "n2"
    assert furthest([at("n1", "q/6"), at("n2", f"q/5{MOVED}")], "q").node == "n1"


def test_a_mark_is_not_of_the_position() -> None:
    moved = at("n1", f"q/5{MOVED}")
    assert (moved.position, moved.is_live) == ("q/5", False)
    assert (at("n1", "q/5").position, at("n1", "q/5").is_live) == ("q/5", True)
    assert (at("n1", None).position, at("n1", None).is_live) == (None, False)


def test_a_position_of_its_own_counts_before_that_of_another_query() -> None:
    assert furthest([at("n1", "p/9"), at("n2", "q/0")], "q").node == "n2"
    assert furthest([at("n1", None), at("n2", "p/9")], "q").position == "p/9", "so that it is refused"
    assert furthest([at("n1", None), at("n2", None)], "q").node == "n1"
