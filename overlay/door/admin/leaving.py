"""A node's departure on request: at once (`shutdown`), with the whole channel, or once others have its rows (`drain`).

A drain never loses an acknowledged row: the node accepts no more publishes, waits until enough other nodes have all its
own rows on disk, and only then leaves. If they do not have them in time, or the client disconnects, it stays and
accepts publishes again.

Delivery records exist at their node alone: those that were not ingested are lost with it. The answer says how many.
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
        self._node.notify(Leave())
        return {}

    def shutdown_channel(self, named: str, channel: str) -> dict[str, object]:
        """The client has `named` the channel as a confirmation: it must be this node's `channel`."""
        if named != channel:
            raise bad_request(f"this node is on the channel {channel!r}, not {named!r}: name the one to shut down")
        self._node.notify(Shutdown())
        return {}

    def drain(self, request: DrainRequest, is_cancelled: Callable[[], bool]) -> dict[str, object]:
        if not self._one_at_a_time.acquire(blocking=False):
            raise Refusal("busy", "this node is being drained already: wait for that")
        try:
            self._check(request)
            self._node.notify(Drain(begin=True))
            try:
                copies = self._copied(request, is_cancelled)
            except BaseException:
                self._node.notify(Drain(begin=False))
                raise
            low, until = self._delivery_range()
            self._node.notify(Leave())
            return {"copies": copies, "delivery_records": until - low}
        finally:
            self._one_at_a_time.release()

    def _check(self, request: DrainRequest) -> None:
        """Refuse more copies than neighbours, which would never be reached."""
        copies, neighbours, _ = self._node.look(_state, self._timeout_s)
        if copies is not None and neighbours and request.copies is not None and request.copies > neighbours:
            detail = (
                f"copies is {request.copies}, but this node has {neighbours} "
                f"neighbour{'' if neighbours == 1 else 's'}: ask for {neighbours} at most"
            )
            raise Refusal("too-few-nodes", detail)

    def _copied(self, request: DrainRequest, is_cancelled: Callable[[], bool]) -> int | None:
        """Wait until enough other nodes have all rows. Returns how many; None: the node has no rows."""
        timeout_s = request.timeout_s or self._timeout_s
        deadline = time.monotonic() + timeout_s
        while True:
            copies, neighbours, is_drained = self._node.look(_state, self._timeout_s)
            if is_drained and copies is None:
                return None
            if is_drained and neighbours and copies is not None and copies >= (request.copies or neighbours):
                return copies
            if not neighbours:
                raise Refusal(
                    "alone",
                    "no other node is linked to this one, so that none can take over its rows: wait for a neighbour",
                )
            if is_cancelled():
                raise Refusal("not-drained", "the client disconnected; the node stays")
            if time.monotonic() > deadline:
                wanted = request.copies or neighbours
                detail = f"after {timeout_s:g} s {copies} of {wanted} other nodes have all rows; the node stays"
                if not is_drained:
                    detail = f"after {timeout_s:g} s rows of selective topics, or publishes, still wait for other nodes"
                raise Refusal("not-drained", f"{detail}: ask for fewer copies, or give it more time")
            time.sleep(LOOK_S)


def _state(node: Node) -> tuple[int | None, int, bool]:
    return node.publishing.copies(), len(node.membership.table.neighbours), node.is_drained()
