"""The topics of a source while some of its nodes are away."""

import logging
from typing import cast

import pytest

from m4cast.overlay.client import Channel
from m4cast.overlay.errors import UnreachableError
from m4cast.spark_connector.options import Access, ReadOptions
from m4cast.spark_connector.source import topics
from m4cast.spark_connector.source.topics import SourceTopics


class Partly:
    """A channel of two nodes, of which some are away."""

    nodes = ("h:1", "h:2")

    def __init__(self) -> None:
        self.away: set[str] = set()

    def at(self, node: str, *, timeout_s: float) -> "OneNode":
        return OneNode(node, is_away=node in self.away)


class OneNode:
    def __init__(self, node: str, *, is_away: bool) -> None:
        self._node = node
        self._is_away = is_away

    def topics(self) -> list[str]:
        if self._is_away:
            raise UnreachableError(f"{self._node}: connection refused")
        return ["orders"]


def test_a_node_that_is_away_is_reported_once_and_again_after_its_return(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    channel = Partly()
    monkeypatch.setattr(topics, "_AWAY", set())
    monkeypatch.setattr(SourceTopics, "channel", lambda self: cast(Channel, channel))

    def looked() -> int:
        """The number of warnings when the topics are listed, by a plan of its own."""
        caplog.clear()
        options = ReadOptions(Access(Partly.nodes, timeout_ms=5_000), topic_pattern=".*")
        with caplog.at_level(logging.WARNING, "m4cast.spark"):
            assert SourceTopics(options).names() == ("orders",)
        return len(caplog.records)

    assert looked() == 0
    channel.away.add("h:2")
    assert [looked() for _ in range(3)] == [1, 0, 0]
    channel.away.clear()
    assert looked() == 0
    channel.away.add("h:2")
    assert looked() == 1
    assert "node h:2 cannot be reached: until it answers, reads go on without it" in caplog.text
