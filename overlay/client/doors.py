"""The doors of a channel's nodes: which node is asked, in which order, for how long, and what counts as an answer.

With several nodes, each gets its share of the time, so that one that hangs does not use up all of it. Such a node is
asked last for a while.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import pyarrow as pa
from pyarrow import flight

from m4cast.overlay.client.connections import (
    answering_first,
    as_client_error,
    connection,
    greet,
    note_answer,
    note_silence,
)
from m4cast.overlay.client.credentials import Credentials
from m4cast.overlay.errors import LocalProtocolError, RefusedError, UnreachableError
from m4cast.overlay.refusals import PUBLISH_ELSEWHERE, READ_ELSEWHERE

T = TypeVar("T")
Call = Callable[[Any, float], T]
"""Called with a Flight client and the node's time limit in seconds."""
Compression = Literal["lz4", "zstd"]

SHARE_S = 5.0
"""The longest wait for a node that hangs while there are others, if there are many. Guess."""
PORT_MAX = 65_535
PATIENCE_S = 5
"""Time by which a client gives up later than its node, which says why. Guess."""


@dataclass(frozen=True, slots=True)
class Doors:
    nodes: tuple[str, ...]
    timeout_s: float
    credentials: Credentials
    compression: Compression | None = None
    """Compression of rows in transit, in both directions."""

    def at(self, node: str, call: Call[T], limit_s: float) -> T:
        try:
            answer = call(connection(node, self.credentials), limit_s)
        except pa.ArrowException as error:
            raise as_client_error(node, error) from None
        note_answer(node)
        return answer

    def first(self, call: Call[T]) -> T:
        """The answer of the access point; for calls that change that node or concern it alone."""
        return self.at(self.nodes[0], call, self.timeout_s)

    def anywhere(self, call: Call[T]) -> T:
        """The answer of the first node that has one; for reads, which may run at two nodes. Nodes that hang take
        `timeout_s` together at most."""
        late: RefusedError | None = None
        refused: RefusedError | None = None
        behind: str | None = None
        unreachable = []
        deadline = time.monotonic() + self.timeout_s
        nodes = answering_first(self.nodes)
        for number, node in enumerate(nodes):
            share_s = max((deadline - time.monotonic()) / (len(nodes) - number), self._share_s)
            try:
                return self.at(node, call, share_s)
            except UnreachableError as error:
                unreachable.append(str(error))
            except RefusedError as error:
                if error.code == "timeout":
                    late = late or error
                    if time.monotonic() >= deadline:
                        break  # it had more than its share: another one would not be quicker
                    note_silence(node)
                elif error.code in READ_ELSEWHERE:
                    refused = refused or error
                    behind = behind or (node if error.code == "behind" else None)
                else:
                    raise
        left_s = deadline - time.monotonic()
        if behind is not None and left_s > 0 and len(nodes) > 1:  # no other node has them: the time left is its own
            return self.at(behind, call, left_s)
        raise refused or late or UnreachableError("; ".join(unreachable))

    def somewhere(self, call: Call[T]) -> T:
        """The answer of the first node that accepts a publish without a key. At least once: if a connection breaks
        during the call, its node may have published rows that the next one receives as well. A node that does not
        answer the call itself in time is not left for another: its rows are probably published."""
        refused: RefusedError | None = None
        unreachable: list[UnreachableError] = []
        for node in answering_first(self.nodes):
            try:
                self.reach(node)
                return self.at(node, call, self.timeout_s)
            except UnreachableError as error:
                unreachable.append(error)
            except RefusedError as error:
                if error.code not in PUBLISH_ELSEWHERE:
                    raise
                refused = refused or error
        raise refused or _none_reached(unreachable)

    def reach(self, node: str) -> None:
        """Fails with `UnreachableError` if the node does not answer within its share of the time and there are others.
        A single node is not asked: the call itself will tell."""
        if len(self.nodes) == 1:
            return
        try:
            self.at(node, greet, self._share_s)
        except UnreachableError as error:
            raise UnreachableError(str(error), is_sent=False) from None
        except RefusedError as error:
            if error.code != "timeout":
                raise
            note_silence(node)
            raise UnreachableError(f"{node} does not answer", is_sent=False) from None

    def first_reached(self) -> str:
        """The first node that answers; for a publisher, which stays with it."""
        unreachable: list[UnreachableError] = []
        for node in answering_first(self.nodes):
            try:
                self.reach(node)
                return node
            except UnreachableError as error:
                unreachable.append(error)
        raise _none_reached(unreachable)

    def everywhere(self, call: Call[T]) -> dict[str, T]:
        """The answers of all nodes that answer, at least one. A refusal by one of them is raised at the end."""
        answers: dict[str, T] = {}
        late: RefusedError | None = None
        refused: RefusedError | None = None
        unreachable = []
        for node in answering_first(self.nodes):
            try:
                answers[node] = self.at(node, call, self._share_s)
            except UnreachableError as error:
                unreachable.append(str(error))
            except RefusedError as error:
                if error.code == "timeout":
                    late = late or error
                    note_silence(node)
                else:
                    refused = refused or error
        if refused is not None:
            raise refused
        if not answers:
            raise late or UnreachableError("; ".join(unreachable))
        return answers

    @property
    def _share_s(self) -> float:
        """The least time that a node gets: a call takes time, however many nodes are listed."""
        return max(self.timeout_s / len(self.nodes), min(self.timeout_s / 2, SHARE_S))

    def greet(self, client: Any, limit_s: float) -> None:
        """Check that the node answers, before a call of `anywhere` that may take longer than `limit_s`."""
        if len(self.nodes) > 1:
            greet(client, limit_s)

    # ---- actions

    def ask(self, action: str, question: object, patience_s: float = 0) -> Any:
        """`patience_s`: how much longer the answer may take than the node's first sign of life."""

        def act(client: Any, limit_s: float) -> Any:
            if patience_s:
                self.greet(client, limit_s)
            return self.act(client, limit_s + patience_s, action, question)

        return self.anywhere(act)

    def ask_first(self, action: str, question: object, patience_s: float = 0) -> Any:
        return self.first(lambda client, limit_s: self.act(client, limit_s + patience_s, action, question))

    def ask_all(self, action: str, question: object) -> dict[str, Any]:
        return self.everywhere(lambda client, limit_s: self.act(client, limit_s, action, question))

    def act(self, client: Any, limit_s: float, action: str, question: object) -> Any:
        asked = flight.Action(action, json.dumps(question).encode())
        return json.loads(next(iter(client.do_action(asked, self.options(limit_s)))).body.to_pybytes())

    # ---- reads

    def read(self, client: Any, limit_s: float, ticket: Mapping[str, object]) -> pa.Table:
        return self.open(client, limit_s, ticket).read_all()

    def open(self, client: Any, limit_s: float, ticket: Mapping[str, object]) -> Any:
        """A Flight reader of what the ticket requests."""
        return client.do_get(flight.Ticket(json.dumps(ticket).encode()), self.options(limit_s))

    def options(self, limit_s: float) -> Any:
        return flight.FlightCallOptions(timeout=limit_s, write_options=self._written())

    def endless(self) -> Any:
        """The options of a call without a time limit."""
        return flight.FlightCallOptions(write_options=self._written())

    def _written(self) -> Any:
        return pa.ipc.IpcWriteOptions(compression=self.compression)


def _none_reached(errors: Sequence[UnreachableError]) -> UnreachableError:
    return UnreachableError("; ".join(map(str, errors)), is_sent=any(error.is_sent for error in errors))


def nodes_of(given: object) -> tuple[str, ...]:
    """The doors that a user gives: a list of `host:port`, or text separated by commas."""
    listed: object = given.split(",") if isinstance(given, str) else given
    if not isinstance(listed, Sequence) or not all(isinstance(node, str) for node in listed):
        raise LocalProtocolError(f"nodes is {given!r}: give host:port, several as a list or separated by commas")
    nodes = tuple(node.strip() for node in listed if node.strip())
    if not nodes:
        raise LocalProtocolError(f"nodes is {given!r}, which names no node: give host:port, as in 127.0.0.1:7500")
    for node in nodes:
        _check_address(node)
    return nodes


def _check_address(node: str) -> None:
    host, colon, port = node.rpartition(":")
    host = host.rpartition("://")[2]
    if not colon or not host or (host.startswith("[") and not host.endswith("]")):
        raise LocalProtocolError(f"node {node!r} has no port: give host:port, as in 127.0.0.1:7500")
    if ":" in host and not host.startswith("["):
        raise LocalProtocolError(f"node {node!r}: an IPv6 address needs brackets, as in [::1]:7500")
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= PORT_MAX):
        raise LocalProtocolError(
            f"node {node!r}: {port!r} is not a port: give host:port, the port from 1 to {PORT_MAX}"
        )
