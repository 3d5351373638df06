"""Descriptors: which topics are selective, how many keepers they want, and which columns they are routed by.

A descriptor travels with the interest: as an item of the topic `_topics` whose condition spells it out. Whoever made it
announces it, and whoever publishes on the topic, so that it is known while it matters. Whoever hears of one writes it
down. The greater version (counter, node id) wins. It decides for streams that begin later, and for nothing else: each
batch says itself how its stream spreads.
"""

import re

from m4cast.overlay.ids import NODE_ID_BYTES, NodeId
from m4cast.overlay.protocol.effects import TopicDescriptor
from m4cast.overlay.protocol.wire.selective import KEEPERS_MAX

TOPICS_TOPIC = "_topics"
ROUTE_BY_MAX = 4
_TEXT = re.compile(
    r"topic = '((?:[^']|'')+)' AND spread = 'selective' AND keepers = (\d) AND route_by = '((?:[^']|'')*)' "
    r"AND counter = (\d{1,18}) AND node = '([0-9a-f]+)'"
)


def descriptor_id(topic: str) -> str:
    """The id of the registration that announces it."""
    return f"_topic/{topic}"


def descriptor_text(made: TopicDescriptor) -> str:
    topic, columns = made.topic.replace("'", "''"), ",".join(made.route_by).replace("'", "''")
    return (
        f"topic = '{topic}' AND spread = 'selective' AND keepers = {made.keepers} AND route_by = '{columns}' "
        f"AND counter = {made.counter} AND node = '{made.node_id.hex()}'"
    )


def descriptor_of(text: str) -> TopicDescriptor | None:
    """Parse the text of an item; None if this program does not understand it."""
    found = _TEXT.fullmatch(text)
    if found is None:
        return None
    topic, keepers, columns, counter, node_id = found.groups()
    if int(keepers) > KEEPERS_MAX or len(node_id) != 2 * NODE_ID_BYTES:
        return None
    route_by = tuple(columns.replace("''", "'").split(",")) if columns else ()
    node = NodeId(bytes.fromhex(node_id))
    return TopicDescriptor(topic.replace("''", "'"), int(keepers), route_by, int(counter), node)


def is_newer(made: TopicDescriptor, known: TopicDescriptor | None) -> bool:
    return known is None or (made.counter, made.node_id) > (known.counter, known.node_id)
