"""Names of things: nodes, streams, addresses. Plain values, cheap to compare, the same in code and on the wire."""

from random import Random
from typing import NamedTuple, NewType

NodeId = NewType("NodeId", bytes)
"""128 random bits, created with a node's store. They contain no address, because a node may move. The last half is the
node's lineage, which it keeps when it takes a new id after a rollback."""

NODE_ID_BYTES = 16
_LINEAGE_AT = 8
TOPIC_BYTES_MAX = 200
_BASE32 = "abcdefghijklmnopqrstuvwxyz234567"


class StreamId(NamedTuple):
    """The rows of one origin under one topic: the unit of numbering, order, gaps and audits."""

    origin: NodeId
    topic: str


class Contact(NamedTuple):
    """A node, and the address where it accepts calls."""

    node_id: NodeId
    address: str


def new_node_id(random: Random) -> NodeId:
    return NodeId(random.randbytes(NODE_ID_BYTES))


def node_id_of(written: str) -> NodeId | None:
    """The id that was written in lower-case hexadecimal digits; None: this is none."""
    is_hex = len(written) == 2 * NODE_ID_BYTES and all(each in "0123456789abcdef" for each in written)
    return NodeId(bytes.fromhex(written)) if is_hex else None


def heir_of(node_id: NodeId, now_ms: int, random_bytes: bytes) -> NodeId:
    """A new id for the node that had this one: four random bytes, the time in seconds, and the lineage. If an old copy
    of the store is restored again, the node recognises by the lineage what it published under ids that this copy does
    not know, and by the time in which order."""
    seconds = (now_ms // 1_000) & 0xFFFF_FFFF
    return NodeId(random_bytes[:4] + seconds.to_bytes(4, "big") + node_id[_LINEAGE_AT:])


def is_of_lineage(node_id: NodeId, other: NodeId) -> bool:
    """True if both are ids of one node."""
    return node_id[_LINEAGE_AT:] == other[_LINEAGE_AT:]


def taken_at_s(node_id: NodeId) -> int:
    """Return the time at which an id that `heir_of` made was taken, in seconds."""
    return int.from_bytes(node_id[4:_LINEAGE_AT], "big")


def short_id(node_id: NodeId) -> str:
    """Four characters for people, as in `warsaw-1.k3f9`: enough to distinguish neighbours in a log line."""
    return "".join(_BASE32[byte % 32] for byte in node_id[:4])
