"""A door that does not keep its word: it takes a record batch, says what it is told to say, and ends the call as if all
were well."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from pyarrow import flight


class _Forgetful(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow ships no types
    def __init__(self, acks: Sequence[bytes]) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self._acks = acks

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        next(iter(reader), None)
        for ack in self._acks:
            writer.write(ack)


@contextmanager
def forgetful(acks: Sequence[bytes]) -> Iterator[str]:
    """Its address."""
    with _Forgetful(acks) as server:
        yield f"127.0.0.1:{server.port}"
