"""Finds the place at which a sink stands: the node at which its key was moved last, whatever the present order of
`nodes`.

A sink publishes through the first of its nodes, which stores its key. With `nodes` in another order, a micro-batch that
was published through another node must not be published again, so the key has one home:

- If the first node has no position for the key, all other listed nodes are asked, and all must answer: an unreachable
  one may be the home. If it has a position that this process did not set, the others are asked as well, and unreachable
  ones are ignored: a key never leaves a node without a mark.
- When a sink moves to another node, the position at its old home is marked (`MOVED`) before anything is published
  through the new one. A marked position only shows how far the sink was.

Limit: a node that is not listed is neither asked nor marked.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from m4cast.overlay.errors import M4castError, RefusedError, UnreachableError

if TYPE_CHECKING:
    from m4cast.overlay.client import Channel

log = logging.getLogger("m4cast.spark")

MOVED = " (moved)"
ANSWER_S = 5.0
"""Time to wait for a node that may be the home; retried until the sink's time-out. Guess."""
SINKS_MAX = 10_000

_left: dict[str, tuple[str, str | None]] = {}
"""The node and the position where this process left each key."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A key at one node."""

    node: str
    stored: str | None
    """The node's position, perhaps marked; None if it does not know the key."""

    @property
    def position(self) -> str | None:
        return None if self.stored is None else self.stored.removesuffix(MOVED)

    @property
    def is_live(self) -> bool:
        return self.stored is not None and not self.stored.endswith(MOVED)


def home_of(channel: "Channel", key: str, here: Standing, query_id: str) -> Standing:
    """Return the position of the key. `here` is the first node's answer."""
    if here.is_live and _left.get(key) == (here.node, here.stored):
        return here
    others = []
    for node in channel.nodes[1:]:
        try:
            others.append(Standing(node, channel.at(node, timeout_s=min(channel.timeout_s, ANSWER_S)).position(key)))
        except M4castError as error:
            if not here.is_live:
                raise _unknown(here, node, key, error) from error
            log.warning("cannot check whether sink %s has published through another node: %s", key, error)
    return furthest([here, *others], query_id)


def note_left(key: str, node: str, position: str) -> None:
    """Remember the position, so that the next commit need not ask the other nodes."""
    if len(_left) >= SINKS_MAX:
        _left.clear()
    _left[key] = (node, position)


def furthest(standings: Iterable[Standing], query_id: str) -> Standing:
    """The one that this query moved last; else the first live one, else the first with a position, else the first."""

    def rank(standing: Standing) -> tuple[int, bool, bool]:
        query, _, batch = (standing.position or "").rpartition("/")
        is_own = query == query_id and batch.isdigit()
        return int(batch) if is_own else -1, standing.is_live, standing.stored is not None

    return max(standings, key=rank)


def leave(home: Standing, channel: "Channel", key: str) -> None:
    """Mark the key at its old home, before it is moved at another node."""
    if home.is_live:
        channel.at(home.node).commit((), key=key, expect=home.stored, next=f"{home.position}{MOVED}")


def _unknown(here: Standing, node: str, key: str, error: M4castError) -> M4castError:
    if isinstance(error, RefusedError) and error.code != "timeout":
        return error
    return UnreachableError(
        f"{here.node} has no position for sink {key!r}, and {node}, through which it may have published, does not "
        f"answer ({error}); if it has never published through {node}, list {here.node} alone"
    )
