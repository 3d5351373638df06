"""A door whose node stops while it is asked: calls under way are cancelled, as a Flight server does that shuts down."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyarrow import flight


class _Stopping(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow ships no types
    def __init__(self, answers: dict[str, bytes]) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._answers = answers

    def do_action(self, context: Any, action: Any) -> Iterator[bytes]:
        if action.type not in self._answers:
            raise flight.FlightCancelledError("CANCELLED")
        yield self._answers.pop(action.type)


@contextmanager
def stopping(**answers: bytes) -> Iterator[str]:
    """Its address. It answers each of these actions once; all other calls are cancelled."""
    with _Stopping(answers) as server:
        yield f"127.0.0.1:{server.port}"
