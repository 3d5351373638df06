"""Control messages about interest: which rows each node wants (PROTOCOL.md, section 16)."""

from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from m4cast.overlay.ids import NodeId
from m4cast.overlay.value import value

INTEREST_VERSION = 3
"""The first protocol version that has these messages. Nodes of older versions do not pass them on."""
CLIENT_LANGUAGE = "client"
"""The language of items that are rows of the client table (PROTOCOL.md, 21.2)."""
MAIL_TOPIC, MAIL_TO = "_mail", "_to"
"""The topic of mail, and the column with the key of the client that a row is for."""
MAILBOX_PREFIX = "_mailbox/"
"""Ids of the registrations of clients' mail, which nothing but the rows of these clients announces."""
MAIL_HASH = xxh3_64_intdigest(MAIL_TOPIC.encode())
"""The topic of these items."""


class InterestItem(NamedTuple):
    """A registration as it is announced: topic and profile by hash, the condition as text."""

    topic_hash: int
    """XXH3-64 of the topic's name."""
    profile_hash: int
    """XXH3-64 of the profile's canonical text; 0: every row."""
    epoch: int
    """Another one than before: the registration was given up in between, and begins anew."""
    since_ms: int
    """The time at which it was registered, by the clock of its node."""
    earliest: bool
    """It begins with the earliest rows that are kept, not with those published since."""
    language: str
    version: int
    text: str
    """The condition in this language; empty: every row."""


class InterestKey(NamedTuple):
    """The key of an item within an entry."""

    topic_hash: int
    profile_hash: int


class InterestVersion(NamedTuple):
    """The version of a node's interest entry at the sender, and its number of items."""

    node_id: NodeId
    incarnation: int
    ts: int
    digest: int
    items: int


# ---- messages


@value
class InterestDigestStmt:
    """Digests of the sender's interest view in buckets of nodes; the receiver answers with its versions in those that
    differ. Sent at link-up by whoever has a view, and by whoever is sent one."""

    digests: tuple[int, ...]


@value
class InterestVersionsStmt:
    """The versions that the sender has in the buckets that differed; `last` is the end mark."""

    entries: tuple[InterestVersion, ...]
    last: bool


@value
class InterestAskStmt:
    """Please send me this node's entry: I have this version of it (zeros: none)."""

    node_id: NodeId
    incarnation: int
    ts: int
    digests: tuple[int, ...]
    """The digests of what the sender has, in buckets of items; empty: the receiver is to send its entry whole."""


@value
class InterestNewsStmt:
    """A node's interest entry, or how it differs from an earlier version.

    `buckets` 0: a difference from the base version; equal to it and without items: the sender has this version. 1: the
    entry whole. More: in the buckets that are listed, of so many, the entry has these items; the others are as in the
    base version."""

    node_id: NodeId
    incarnation: int
    ts: int
    digest: int
    """The digest of all items of the entry."""
    base_incarnation: int
    base_ts: int
    buckets: int
    replaced: tuple[int, ...]
    joined: tuple[InterestItem, ...]
    left: tuple[InterestKey, ...]
    more: bool
    """The next message goes on with this entry, which is applied when all of it has arrived."""
