"""Refusals: a stable code word, and a detail that names the thing and the fix."""

import logging

from m4cast.overlay.refusals import REFUSALS

log = logging.getLogger("m4cast.door")


class Refusal(Exception):
    """Raised anywhere in the door. The transport turns it into an error of its own."""

    def __init__(self, code: str, detail: str) -> None:
        assert code in REFUSALS, f"refusal {code!r} is not in the table of overlay/refusals.py: add it there"
        super().__init__(code, detail)
        self.code = code
        self.detail = detail


def bad_request(detail: str) -> Refusal:
    return Refusal("bad-request", detail)


def stopping() -> Refusal:
    return Refusal("stopping", "this node is stopping: ask another one, or this one when it is back")


def gone() -> Refusal:
    return Refusal("cancelled", "the client has disconnected")


def internal(error: Exception) -> Refusal:
    """The refusal for a bug of ours, or for memory or threads that the system denies. The error is logged."""
    log.error("unexpected error in the door", exc_info=error)
    return Refusal("internal", f"{type(error).__name__}: see the node's log")


def as_json(refusal: Refusal) -> dict[str, str]:
    return {"code": refusal.code, "detail": refusal.detail}
