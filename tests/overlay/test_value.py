from m4cast.overlay.value import value


@value
class Edge:
    near: str
    far: str
    weight: int = 1


def test_a_value_is_its_fields() -> None:
    assert Edge("a", "b") == Edge("a", "b", 1) != Edge("a", "b", 2)
    assert {Edge("a", "b"): "known"}[Edge("a", "b")] == "known"
    assert repr(Edge("a", "b")) == "Edge(near='a', far='b', weight=1)"


def test_a_value_has_no_room_for_more() -> None:
    assert not hasattr(Edge("a", "b"), "__dict__")
