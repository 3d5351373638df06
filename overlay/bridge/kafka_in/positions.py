"""Positions: how far a partition was carried, as the access point stores it, and where to continue.

A position is `OFFSET@TOPIC-ID/PROCESS` with the next offset to read. It contains Kafka's id of the topic, because a
topic that is deleted and created again has other records under the same offsets. A counter after the id (`#1`) rises
each time records are found to be gone, so that a position never has two meanings. It contains the process that wrote
it, because the node treats a second commit to the same position as a repeat of the first: two bridges of one name that
read the same records would not notice each other.
"""

import hashlib
from dataclasses import dataclass
from typing import Literal, NamedTuple

from m4cast.overlay.errors import M4castError

KEY_BYTES_MAX = 200


@dataclass(frozen=True, slots=True)
class Position:
    offset: int
    topic_id: str
    losses: int = 0
    process: str = ""

    def __str__(self) -> str:
        return f"{self.offset}@{self.topic_id}" + (f"#{self.losses}" if self.losses else "") + f"/{self.process}"

    @classmethod
    def parse(cls, text: str) -> "Position":
        offset, at, rest = text.partition("@")
        rest, _, process = rest.partition("/")
        topic_id, _, losses = rest.partition("#")
        if not offset.isdecimal() or not at or not topic_id or (losses and not losses.isdecimal()):
            raise M4castError(f"position {text!r} was not written by a bridge: give the bridge another name")
        return cls(int(offset), topic_id, int(losses or 0), process)


class Beginning(NamedTuple):
    """The offset to read from. `loss` describes what is gone; empty if nothing is."""

    position: Position
    loss: str = ""


def key_of(bridge: str, topic: str, partition: int) -> str:
    """The publisher key of one partition."""
    key = f"kafka-in/{bridge}/{topic}/{partition}"
    if len(key.encode()) > KEY_BYTES_MAX:  # Kafka's names may be longer than a key
        key = f"kafka-in/{bridge}/{hashlib.sha256(topic.encode()).hexdigest()}/{partition}"
    return key


def beginning(
    stored: Position | None, topic_id: str, low: int, end: int, start: Literal["earliest", "latest"]
) -> Beginning:
    """The first offset to read. `low` and `end`: the first offset that Kafka keeps, and the next one to be written."""
    if stored is None:
        return Beginning(Position(low if start == "earliest" else end, topic_id))
    losses = stored.losses + 1
    if stored.topic_id != topic_id:
        loss = f"was deleted and created again: old records from offset {stored.offset} were not carried and are gone"
        return Beginning(Position(low, topic_id, losses), loss)
    if stored.offset < low:
        loss = f"no longer keeps offsets {stored.offset} to {low - 1}, which were not carried"
        return Beginning(Position(low, topic_id, losses), loss)
    if stored.offset > end:
        loss = f"was truncated: offsets {end} to {stored.offset - 1}, which were carried, no longer exist"
        return Beginning(Position(end, topic_id, losses), loss)
    return Beginning(stored)
