from xml.etree import ElementTree

from tests.bench.journey import Arrival, drawn

SVG = "{http://www.w3.org/2000/svg}"


def test_each_node_has_a_lane_and_a_line_from_its_sender() -> None:
    arrivals = [
        Arrival("n1", 0.0, 0, None, "published"),
        Arrival("n3", 2.0, 1, "n1", "pushed"),
        Arrival("n2", 3.0, 2, "n3", "pulled"),
    ]
    picture = ElementTree.fromstring(drawn(arrivals))
    texts = [each.text for each in picture.iter(f"{SVG}text")]
    assert [text for text in texts if text in ("n1", "n2", "n3")] == ["n1", "n3", "n2"], "in the order of arrival"
    assert {"published", "pushed over 1 link", "pulled over 2 links", "0 ms", "3 ms"} <= {*texts}
    places = [(each.get("cx"), each.get("cy")) for each in picture.iter(f"{SVG}circle")]
    lines = [each.get("d", "").split() for each in picture.iter(f"{SVG}path") if each.get("fill") == "none"]
    assert [((line[1], line[2]), (line[-2], line[-1])) for line in lines] == [
        (places[0], places[1]),
        (places[1], places[2]),
    ]
