"""A web door with low limits, and its refusals."""

from m4cast.overlay.door.web.limits import WebLimits
from tests.overlay.door.web.doors import Answer

ORIGIN = "https://console.example"
NARROW = WebLimits(
    connections_max=64,
    asking_ms=300,
    head_bytes_max=4_000,
    body_bytes_max=200_000,
    bodies_bytes_max=400_000,
    body_idle_ms=300,
    body_bytes_per_s=10_000_000,
)


def refused(answer: Answer, status: int, code: str, *words: str) -> None:
    assert (answer.status, answer.json["code"]) == (status, code), answer.body
    for word in words:
        assert word in answer.json["detail"]
