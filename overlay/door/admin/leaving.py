"""A node asked to go: at once in order (`shutdown`), with all others, or not before they have all its rows (`drain`).

A drain never loses a row that somebody was told is published: the node takes no more publishes, waits until enough
other nodes have all its own rows on disk, and only then leaves. If they have not in time, or the client went away, it
stays and takes publishes again.

Delivery records are at their node alone: those that were not ingested go with it. The answer says how many there are.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from m4cast.overlay.door.fields import Fields
from m4cast.overlay.door.node_handle import NodeHandle
from m4cast.overlay.door.refusals import Refusal, bad_request
from m4cast.overlay.protocol.effects import Drain, Leave, Shutdown
from m4cast.overlay.protocol.node import Node

LOOK_S = 0.05
COPIES_MAX = 64


@dataclass(frozen=True, slots=True)
class DrainRequest:
    copies: int | None
    """None: as many as there are neighbours."""
    timeout_s: float | None = None


def parse_drain(fields: Fields) -> DrainRequest:
    return DrainRequest(fields.whole("copies", 1, COPIES_MAX), fields.seconds("timeout_ms"))


def parse_channel(fields: Fields) -> str:
    return fields.required_text("channel", 'the name of the channel to shut down, "type/instance"')


class Leaving:
    def __init__(self, node: NodeHandle, timeout_s: float, delivery_range: Callable[[], tuple[int, int]]) -> None:
        self._node = node
        self._timeout_s = timeout_s
        self._delivery_range = delivery_range
        self._one_at_a_time = threading.Lock()

    def shutdown(self) -> dict[str, object]:
        self._node.tell(Leave())
        return {}

    def shutdown_channel(self, named: str, channel: str) -> dict[str, object]:
        """`named` by the client, which must know what it ends: this node's `channel`."""
        if named != channel:
            raise bad_request(f"this node is on the channel {channel!r}, not {named!r}: name the one to shut down")
        self._node.tell(Shutdown())
        return {}

    def drain(self, request: DrainRequest, is_cancelled: Callable[[], bool]) -> dict[str, object]:
        if not self._one_at_a_time.acquire(blocking=False):
            raise Refusal("busy", "this node is being drained already")
        try:
            self._check(request)
            self._node.tell(Drain(begin=True))
            try:
                copies = self._copied(request, is_cancelled)
            except BaseException:
                self._node.tell(Drain(begin=False))
                raise
            low, until = self._delivery_range()
            self._node.tell(Leave())
            return {"copies": copies, "delivery_records": until - low}
        finally:
            self._one_at_a_time.release()

    def _check(self, request: DrainRequest) -> None:
        """More copies than neighbours would be waited for in vain."""
        copies, neighbours, _ = self._node.look(_state, self._timeout_s)
        if copies is not None and neighbours and request.copies is not None and request.copies > neighbours:
            detail = (
                f"copies is {request.copies}, and this node has {neighbours} "
                f"neighbour{'' if neighbours == 1 else 's'}: ask for {neighbours} at most"
            )
            raise Refusal("too-few-nodes", detail)

    def _copied(self, request: DrainRequest, is_cancelled: Callable[[], bool]) -> int | None:
        """Wait until enough other nodes have all rows."""
        timeout_s = request.timeout_s or self._timeout_s
        deadline = time.monotonic() + timeout_s
        while True:
            copies, neighbours, is_idle = self._node.look(_state, self._timeout_s)
            if is_idle and copies is None:
                return None
            if is_idle and neighbours and copies is not None and copies >= (request.copies or neighbours):
                return copies
            if not neighbours:
                raise Refusal("alone", "no other node is linked to this one, nobody can take its rows over")
            if is_cancelled():
                raise Refusal("not-drained", "the client went away")
            if time.monotonic() > deadline:
                wanted = request.copies or neighbours
                detail = f"after {timeout_s:g} s {copies} of {wanted} other nodes have all rows; the node stays"
                raise Refusal("not-drained", f"{detail}: ask for fewer copies, or give it more time")
            time.sleep(LOOK_S)


def _state(node: Node) -> tuple[int | None, int, bool]:
    return node.publishing.copies(), len(node.membership.table.neighbours), node.publishing.is_idle()
