"""Names of things: nodes, streams, addresses. Plain values, cheap to compare, the same in code and on the wire."""

from random import Random
from typing import NamedTuple, NewType

NodeId = NewType("NodeId", bytes)
"""128 random bits, made with a node's store. No address in it: a node may move."""

NODE_ID_BYTES = 16
TOPIC_BYTES_MAX = 200
_BASE32 = "abcdefghijklmnopqrstuvwxyz234567"


class StreamId(NamedTuple):
    """The rows of one origin under one topic: the unit of numbering, order, gaps and audits."""

    origin: NodeId
    topic: str


class Contact(NamedTuple):
    """A node and where it answers calls."""

    node_id: NodeId
    address: str


def new_node_id(random: Random) -> NodeId:
    return NodeId(random.randbytes(NODE_ID_BYTES))


def short_id(node_id: NodeId) -> str:
    """Four characters for people, as in `warsaw-1.k3f9`: enough to tell neighbours apart in a log line."""
    return "".join(_BASE32[byte % 32] for byte in node_id[:4])
