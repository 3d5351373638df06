"""Descriptors: which topics are selective, how many keepers they want, and which columns they are routed by.

A descriptor travels with the interest: as an item of the topic `_topics` whose condition spells it out. Whoever made it
announces it, and whoever publishes on the topic, so that it is known while it matters. Whoever hears of one writes it
down. The greater version (counter, node id) wins. It decides for streams that begin later, and for nothing else: each
batch says itself how its stream spreads.
"""

from m4cast.overlay.ids import node_id_of
from m4cast.overlay.profiles.languages.canonical import facts_of, facts_text
from m4cast.overlay.protocol.effects import TopicDescriptor
from m4cast.overlay.protocol.wire.selective import KEEPERS_MAX

TOPICS_TOPIC = "_topics"
ROUTE_BY_MAX = 4
COUNTER_END = 10**18
"""Counters have at most 18 digits."""


def descriptor_id(topic: str) -> str:
    """The id of the registration that announces it."""
    return f"_topic/{topic}"


def descriptor_text(made: TopicDescriptor) -> str:
    return facts_text(
        {
            "topic": made.topic,
            "spread": "selective",
            "keepers": made.keepers,
            "route_by": ",".join(made.route_by),
            "counter": made.counter,
            "node": made.node_id.hex(),
        }
    )


def descriptor_of(text: str) -> TopicDescriptor | None:
    """Parse the text of an item; None if this program does not understand it."""
    match facts_of(text):
        case {
            "topic": str(topic),
            "spread": "selective",
            "keepers": int(keepers),
            "route_by": str(columns),
            "counter": int(counter),
            "node": str(node),
            **others,
        } if not others and 0 <= keepers <= KEEPERS_MAX and 0 <= counter < COUNTER_END:
            node_id = node_id_of(node)
            route_by = tuple(columns.split(",")) if columns else ()
            return None if node_id is None else TopicDescriptor(topic, keepers, route_by, counter, node_id)
    return None


def is_newer(made: TopicDescriptor, known: TopicDescriptor | None) -> bool:
    return known is None or (made.counter, made.node_id) > (known.counter, known.node_id)
