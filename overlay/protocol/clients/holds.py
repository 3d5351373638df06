"""Holds: what an access point's clients still need of selective streams, told to whoever has the rows (H35).

A hold travels as an item of the interest, of the topic `_holds`, whose condition spells it out: nodes that keep a
stream, and its origin, retain its rows from there on, though the access point that needs them may be gone.
"""

import re

from m4cast.overlay.ids import NODE_ID_BYTES, NodeId, StreamId

HOLDS_TOPIC = "_holds"
HOLDS_MAX = 512
"""Streams that a node tells of; the first by topic and origin. At most 1,024 items of a topic are announced."""
_TEXT = re.compile(r"topic = '((?:[^']|'')+)' AND origin = '([0-9a-f]+)' AND needed = (\d{1,18})")


def hold_id(stream: StreamId) -> str:
    """The id of the registration that announces it."""
    return f"_hold/{stream.origin.hex()}/{stream.topic}"


def hold_text(stream: StreamId, first: int) -> str:
    topic = stream.topic.replace("'", "''")
    return f"topic = '{topic}' AND origin = '{stream.origin.hex()}' AND needed = {first}"


def hold_of(text: str) -> tuple[StreamId, int] | None:
    """The stream, and the first sequence that is needed; None: nothing that this program understands."""
    found = _TEXT.fullmatch(text)
    if found is None or len(found[2]) != 2 * NODE_ID_BYTES:
        return None
    return StreamId(NodeId(bytes.fromhex(found[2])), found[1].replace("''", "'")), max(int(found[3]), 1)
