"""Where a sink stands: the node at which its key was moved last, whatever the order of `nodes` is today.

A sink publishes through the first of its nodes, and its key lives there. A list in another order must not publish a
micro-batch again that was published through another node, so the key has one home:

- Where the first node has no position of the key, all other listed nodes are asked, and all must answer: one that is
  away may be the home. Where it has one that this process has not left there itself, the others are asked, too, and
  those that are away are passed over: the key leaves no node without a mark.
- When a sink moves on to another node, the position at its old home gets a mark (`MOVED`) before anything is published
  through the new one. A position with a mark proves nothing but how far the sink was.

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
"""How long a node is waited for that may be the home; asked again until the sink's time is over. Guess."""
SINKS_MAX = 10_000

_left: dict[str, tuple[str, str | None]] = {}
"""By key, at which node and where this process has left it."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A key at one node."""

    node: str
    said: str | None
    """By the node; None if it does not know the key."""

    @property
    def position(self) -> str | None:
        return None if self.said is None else self.said.removesuffix(MOVED)

    @property
    def is_live(self) -> bool:
        return self.said is not None and not self.said.endswith(MOVED)


def home_of(channel: "Channel", key: str, here: Standing, query_id: str) -> Standing:
    """Where the key stands. `here` is what the first node says of it."""
    if here.is_live and _left.get(key) == (here.node, here.said):
        return here
    others = []
    for node in channel.nodes[1:]:
        try:
            others.append(Standing(node, channel.at(node, timeout_s=min(channel.timeout_s, ANSWER_S)).position(key)))
        except M4castError as error:
            if not here.is_live:
                raise _unknown(here, node, key, error) from error
            log.warning("whether sink %s has published through another node is not known: %s", key, error)
    return furthest([here, *others], query_id)


def note_left(key: str, node: str, position: str) -> None:
    """The next commit need not ask the other nodes, if it finds the key there."""
    if len(_left) >= SINKS_MAX:
        _left.clear()
    _left[key] = (node, position)


def furthest(standings: Iterable[Standing], query_id: str) -> Standing:
    """The one that this query moved last; else the first that is live, else that has a position, else the first."""

    def rank(standing: Standing) -> tuple[int, bool, bool]:
        query, _, batch = (standing.position or "").rpartition("/")
        is_own = query == query_id and batch.isdigit()
        return int(batch) if is_own else -1, standing.is_live, standing.said is not None

    return max(standings, key=rank)


def leave(home: Standing, channel: "Channel", key: str) -> None:
    """Mark the key at its old home, before it is moved at another node."""
    if home.is_live:
        channel.at(home.node).commit((), key=key, expect=home.said, next=f"{home.position}{MOVED}")


def _unknown(here: Standing, node: str, key: str, error: M4castError) -> M4castError:
    if isinstance(error, RefusedError) and error.code != "timeout":
        return error
    return UnreachableError(
        f"{here.node} has no position of sink {key!r}, so that this may have been published through {node}, which does "
        f"not answer ({error}); list {here.node} alone if it was not"
    )
