"""Holds: what an access point's clients still need of selective streams, told to whoever has the rows (H35).

A hold travels as an item of the interest, of the topic `_holds`, whose condition spells it out: nodes that keep a
stream, and its origin, retain its rows from there on, though the access point that needs them may be gone.
"""

from m4cast.overlay.ids import StreamId, node_id_of
from m4cast.overlay.profiles.languages.canonical import facts_of, facts_text

HOLDS_TOPIC = "_holds"
HOLDS_MAX = 512
"""Streams that a node tells of; the first by topic and origin. At most 1,024 items of a topic are announced."""


def hold_id(stream: StreamId) -> str:
    """The id of the registration that announces it."""
    return f"_hold/{stream.origin.hex()}/{stream.topic}"


def hold_text(stream: StreamId, first: int) -> str:
    return facts_text({"topic": stream.topic, "origin": stream.origin.hex(), "needed": first})


def hold_of(text: str) -> tuple[StreamId, int] | None:
    """The stream, and the first sequence that is needed; None: nothing that this program understands."""
    match facts_of(text):
        case {"topic": str(topic), "origin": str(origin), "needed": int(first), **others} if not others:
            node_id = node_id_of(origin)
            return None if node_id is None else (StreamId(node_id, topic), max(first, 1))
    return None
