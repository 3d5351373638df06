"""The doors of a channel's nodes: who is asked, in which order, and what counts as an answer."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import pyarrow as pa
from pyarrow import flight

from m4cast.overlay.client.connections import connection, told
from m4cast.overlay.client.credentials import Credentials
from m4cast.overlay.errors import RefusedError, UnreachableError

T = TypeVar("T")
Call = Callable[[Any], T]
"""With a Flight client."""
Compression = Literal["lz4", "zstd"]

ASK_ANOTHER = frozenset({"behind", "busy", "internal", "missing", "not-ready", "stopping", "store", "unknown-topic"})
"""Refusals of a read that another node may not make."""
PATIENCE_S = 5
"""A node gives up first and says why; a call's own limit is for a node that does not answer at all. Guess."""


@dataclass(frozen=True, slots=True)
class Doors:
    nodes: tuple[str, ...]
    timeout_s: float
    credentials: Credentials
    compression: Compression | None = None
    """Of rows on their way, both ways."""

    def at(self, node: str, call: Call[T]) -> T:
        try:
            return call(connection(node, self.credentials))
        except pa.ArrowException as error:
            raise told(node, error) from None

    def first(self, call: Call[T]) -> T:
        """The answer of the access point: what is asked for changes one node, or is that node's own."""
        return self.at(self.nodes[0], call)

    def anywhere(self, call: Call[T]) -> T:
        """The answer of the first node that has one."""
        refused: RefusedError | None = None
        unreachable = []
        for node in self.nodes:
            try:
                return self.at(node, call)
            except UnreachableError as error:
                unreachable.append(str(error))
            except RefusedError as error:
                if error.code not in ASK_ANOTHER:
                    raise
                refused = refused or error
        raise refused or UnreachableError("; ".join(unreachable))

    def everywhere(self, call: Call[T]) -> dict[str, T]:
        """The answers of all nodes that can be reached, at least one; a refusal by one of them is raised at the end."""
        said: dict[str, T] = {}
        refused: RefusedError | None = None
        unreachable = []
        for node in self.nodes:
            try:
                said[node] = self.at(node, call)
            except UnreachableError as error:
                unreachable.append(str(error))
            except RefusedError as error:
                refused = refused or error
        if refused is not None:
            raise refused
        if not said:
            raise UnreachableError("; ".join(unreachable))
        return said

    # ---- actions

    def ask(self, action: str, question: object, patience_s: float = 0) -> Any:
        return self.anywhere(lambda client: self._act(client, action, question, patience_s))

    def ask_first(self, action: str, question: object, patience_s: float = 0) -> Any:
        return self.first(lambda client: self._act(client, action, question, patience_s))

    def ask_all(self, action: str, question: object) -> dict[str, Any]:
        return self.everywhere(lambda client: self._act(client, action, question, 0))

    def _act(self, client: Any, action: str, question: object, patience_s: float) -> Any:
        asked = flight.Action(action, json.dumps(question).encode())
        return json.loads(next(iter(client.do_action(asked, self.options(patience_s)))).body.to_pybytes())

    # ---- reads

    def read(self, client: Any, ticket: Mapping[str, object]) -> pa.Table:
        return self.open(client, ticket).read_all()

    def open(self, client: Any, ticket: Mapping[str, object]) -> Any:
        """A Flight reader of what is asked for."""
        return client.do_get(flight.Ticket(json.dumps(ticket).encode()), self.options(PATIENCE_S))

    def options(self, patience_s: float = 0) -> Any:
        return flight.FlightCallOptions(timeout=self.timeout_s + patience_s, write_options=self._written())

    def endless(self) -> Any:
        """Of a call without a limit of time."""
        return flight.FlightCallOptions(write_options=self._written())

    def _written(self) -> Any:
        return pa.ipc.IpcWriteOptions(compression=self.compression)
