"""The access point's half: who may attach, under which session, which connection lives, and when to let a client go.

The rows of the client table come from the interest view; states are in the node's store, and are handed in by whoever
has read them. So an absent client costs its row and nothing else.

    attach          decides what becomes of a request to attach (PROTOCOL.md, 21.3)
    renewed         whether that begins a session although the access point is the same
    is_superseded   whether another node's row is the client's now: its connection here is over
    lets_go         whether, besides, that row is covered: row and state here can go (21.4)

Reference: A8, A9, A22, X22-X25, X29 of the digest; H33, H34 of the design.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from m4cast.overlay.ids import NodeId
from m4cast.overlay.protocol.clients.state import ClientState
from m4cast.overlay.protocol.effects import ClientRow
from m4cast.overlay.protocol.wire.interest import CLIENT_LANGUAGE, InterestItem
from m4cast.overlay.value import value


class SeenRow(NamedTuple):
    """A row of the client table, as the view has it."""

    node_id: NodeId
    row: ClientRow


@value
class AttachRequest:
    """A client that asks to be attached."""

    digest: bytes
    """The digest of its credential."""
    session: int
    """The last that its library knows; 0: none."""
    state: ClientState | None
    """The state that its library brought."""
    create: bool
    follows: bool = False
    """It is a member of a group: it goes where the group is, as long as that node is there."""


@value
class AttachRefusal:
    code: str
    elsewhere: NodeId | None = None
    """The node that has the client."""


@value
class Attachment:
    """The client is attached under this session, with this state."""

    session: int
    state: ClientState
    is_new: bool
    """The row has to be announced: the access point has changed."""


def seen_row(node_id: NodeId, item: InterestItem) -> tuple[str, SeenRow] | None:
    """The key and the row that an item is; None: it is a registration, or nothing that this node understands."""
    if item.language != CLIENT_LANGUAGE or item.version != 1:
        return None
    key, _, digest = item.text.rpartition(" ")
    try:
        row = ClientRow(item.epoch >> 1, bool(item.epoch & 1), item.since_ms, bytes.fromhex(digest))
    except ValueError:
        return None
    return key, SeenRow(node_id, row)


def winner(rows: Iterable[SeenRow]) -> SeenRow | None:
    """The client's row, of all those of its key."""
    return max(rows, key=rank, default=None)


def rank(seen: SeenRow) -> tuple[int, NodeId]:
    return seen.row.session, seen.node_id


def attach(
    asked: AttachRequest, me: NodeId, rows: Iterable[SeenRow], here: ClientState | None
) -> Attachment | AttachRefusal:
    """`rows`: those of the key in the view, the own one included; `here`: the state that is stored at this node."""
    greatest = winner(rows)
    if greatest is not None and greatest.row.digest != asked.digest:
        return AttachRefusal("bad-credential")
    if asked.follows and greatest is not None and greatest.node_id != me:
        return AttachRefusal("client-elsewhere", greatest.node_id)
    if greatest is not None and greatest.node_id == me and greatest.row.session >= asked.session:
        state = asked.state or here
        if state is not None:
            return Attachment(greatest.row.session, state, is_new=False)
    known = max(asked.session, greatest.row.session if greatest is not None else 0)
    if asked.state is not None and (known or asked.create):
        return Attachment(known + 1, asked.state, is_new=True)
    if greatest is not None and greatest.node_id != me:
        return AttachRefusal("client-elsewhere", greatest.node_id)
    if asked.create:
        return Attachment(known + 1, ClientState(), is_new=True)
    return AttachRefusal("unknown-client")


def renewed(found: Attachment, own: ClientRow | None) -> Attachment:
    """This attachment in the next session, if this node's row says that nothing is lacking: the library brought an
    older state, of which rows are lacking here. Former access points that have them hold them for that session."""
    if found.is_new or own is None or not own.covered:
        return found
    return replace(found, session=found.session + 1, is_new=True)


def is_superseded(own: SeenRow, other: SeenRow) -> bool:
    return rank(other) > rank(own)


def lets_go(own: SeenRow, other: SeenRow) -> bool:
    return is_superseded(own, other) and other.row.covered
