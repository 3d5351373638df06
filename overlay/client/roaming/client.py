"""A client of a channel: a key with profiles and a position, attached to one node at a time.

    with Client(["127.0.0.1:7401", "127.0.0.1:7402"], key="shop-7", credential=secret) as client:
        client.subscribe("orders", "price > 100")
        for rows in client.notifications():
            ...

A `Client` holds settings and its memory, and connects when it is asked to. It can be pickled: the copy continues from
the same position, and when it connects the original is told that it is over. A child that is forked after its parent
has used a channel is refused, as a `Channel` is.

When its access point is lost it attaches itself to the next of its nodes, and continues from what the application had:
each row is handed out once by one process. A process that starts anew continues from what was last acknowledged and
saved; or, with a file, from what was last acknowledged.

Errors are those of `Channel`. `client-elsewhere`: another process has connected with this key.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import pyarrow as pa

from m4cast.overlay.client.channel import Channel
from m4cast.overlay.client.doors import Doors
from m4cast.overlay.client.put_call import RowRange
from m4cast.overlay.client.roaming.client_file import ClientFile, new_credential, new_key
from m4cast.overlay.client.roaming.notifications import Notifications
from m4cast.overlay.client.tail import Start, start_of
from m4cast.overlay.errors import LocalProtocolError, M4castError, RefusedError, UnreachableError
from m4cast.overlay.protocol.clients.memory import ClientMemory, Dropped
from m4cast.overlay.protocol.clients.state import ClientProfile, json_of, state_of

log = logging.getLogger("m4cast.client")

ELSEWHERE = frozenset({"stopping", "busy", "store", "store-full", "timeout", "internal", "too-many", "leaving"})
"""Refusals to attach that another node may not make."""
OnRows = Callable[[pa.RecordBatch], object]


class Client:
    """The client `key`, through the doors at `nodes`, in the order in which they are tried. In place of nodes, a
    `Channel` may be given: it has the credentials of a connection.

    `credential`: its secret, of at least 16 characters. `file`: a path, where the library keeps key, credential,
    profiles and position; then `key` and `credential` may be left out. `exclude_own`: rows that this object published
    are not handed to it. `acknowledge`: "auto": rows count as done when the next ones are requested, or "manual": when
    `acknowledge` is called. `on_dropped` is called with what no node retains any longer; it is logged in any case.

    Other settings are those of `Channel`.
    """

    def __init__(
        self,
        nodes: str | Sequence[str] | Channel,
        *,
        key: str = "",
        credential: str = "",
        file: str | None = None,
        exclude_own: bool = False,
        acknowledge: str = "auto",
        on_dropped: Callable[[list[Dropped]], object] | None = None,
        **settings: Any,
    ) -> None:
        if acknowledge not in ("auto", "manual"):
            raise LocalProtocolError(f"acknowledge is {acknowledge!r}: must be auto or manual")
        self.channel = nodes if isinstance(nodes, Channel) else Channel(nodes, **settings)
        self._file = None if file is None else ClientFile(Path(file))
        self.memory = ClientMemory()
        kept = self._file.read() if self._file is not None and self._file.path.exists() else {}
        if kept.get("state") is not None:
            self.memory = ClientMemory(state_of(kept["state"]), int(kept.get("session", 0)))
        self.key: str = key or kept.get("key", "")
        self._credential: str = credential or kept.get("credential", "")
        if not self.key or not self._credential:
            raise LocalProtocolError("a client needs key and credential, or a file that has them: m4cast client new")
        self.exclude_own = exclude_own
        self.is_manual = acknowledge == "manual"
        self.on_dropped = on_dropped
        self.dropped: list[Dropped] = []
        """What was dropped so far: each may have had so many rows for this client, at most."""
        self.own: list[RowRange] = []
        """What this object published, as far as it may still be handed to it."""
        self.node: str | None = None
        """The access point that it is connected to; None: it is not."""
        self.connection = 0
        self.waiting_max = 0
        """How many rows there were from its position on when it connected, whether they match or not."""

    @staticmethod
    def new(
        nodes: str | Sequence[str] | Channel, *, key: str | None = None, file: str | None = None, **settings: Any
    ) -> "Client":
        """Create a client, with a random key unless one is given, and connect it. Its `credential` is random.

        >>> client = Client.new(["127.0.0.1:7401"], key="shop-7", file="shop-7.json")
        """
        client = Client(nodes, key=key or new_key(), credential=new_credential(), file=file, **settings)
        client.connect(create=True)
        return client

    @property
    def credential(self) -> str:
        return self._credential

    def __repr__(self) -> str:
        return f"Client({self.key!r}, {list(self.channel.nodes)})"

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the connection, which is this object's."""
        return {**self.__dict__, "node": None, "connection": 0}

    def __enter__(self) -> "Client":
        if self.node is None:
            self.connect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.disconnect()
        else:
            self.node = None  # what was not acknowledged is handed out again

    # ---- connecting

    def connect(self, *, create: bool = False, at: str | None = None) -> int:
        """Attach the client to the first node that answers, or to the one `at` an address. Returns how many rows there
        are from its position on, at most so many for it. `create`: make it, if nobody knows its key.

        A process without the client's memory gets it from its former access point, which has to be reachable. With a
        memory, of this object or of its file, it may be dead.
        """
        nodes = (at,) if at is not None else self._order()
        failures: list[M4castError] = []
        for node in nodes:
            try:
                self._attach(node, create=create)
            except UnreachableError as error:
                failures.append(error)
            except RefusedError as error:
                if error.code not in ELSEWHERE:
                    raise
                failures.append(error)
            else:
                return self.waiting_max
        raise next((error for error in failures if isinstance(error, RefusedError)), None) or UnreachableError(
            f"client {self.key!r}: no node could be asked: {'; '.join(map(str, failures))}"
        )

    def _order(self) -> tuple[str, ...]:
        """Its nodes, the one that it was connected to last."""
        nodes = self.channel.nodes
        if self.node not in nodes:
            return nodes
        at = nodes.index(self.node)
        return (*nodes[at + 1 :], *nodes[: at + 1])

    def _attach(self, node: str, *, create: bool) -> None:
        question: dict[str, Any] = {"key": self.key, "credential": self._credential, "create": create}
        has_memory = self.memory.session > 0
        if has_memory:
            question |= {"session": self.memory.session, "state": json_of(self.memory.state)}
        doors = self._doors(node)
        try:
            answer = doors.ask("client-connect", question)
        except RefusedError as error:
            if error.code not in ("client-elsewhere", "unknown-client") or has_memory:
                raise
            fetched = self._fetch(node, error)
            answer = doors.ask("client-connect", question | fetched | {"create": False})
        self.memory.session = answer["session"]
        if not has_memory:  # else it goes on from what was handed out, which need not be acknowledged
            self.memory.state = self.memory.ahead = state_of(answer["state"])
        self.node, self.connection = node, answer["connection"]
        self.waiting_max = answer["waiting_max"]
        self._write_file()

    def _fetch(self, node: str, refusal: RefusedError) -> dict[str, Any]:
        """The client's state, from its access point: by the door that `node` knows it by, else through any node."""
        known = [row["door"] for row in self.channel.at(node).clients(self.key) if row["door"]]
        for door in dict.fromkeys((*known, *self.channel.nodes)):
            try:
                question = {"key": self.key, "credential": self._credential}
                found: dict[str, Any] = self._doors(door).ask("client-state", question)
                return found
            except UnreachableError:
                continue
            except RefusedError as error:
                if error.code not in ("client-elsewhere", "unknown-client", *ELSEWHERE):
                    raise
        raise refusal

    def disconnect(self) -> None:
        """Save the position, and end the connection. Rows wait from here on."""
        if self.node is None:
            return
        try:
            self.save()
            self._doors(self.node).ask("client-disconnect", {"key": self.key, "connection": self.connection})
        finally:
            self.node = None

    def move(self, node: str) -> None:
        """Attach it to another node, from now on."""
        self.connect(at=node)

    def reconnect(self, error: M4castError) -> None:
        """After its access point is lost: somewhere else, or at the same if that is back. Tries for the channel's
        time-out."""
        deadline = time.monotonic() + self.channel.timeout_s
        log.info("client %s lost its access point %s: %s", self.key, self.node, error)
        while True:
            try:
                self.connect()
                return
            except (UnreachableError, RefusedError) as problem:
                passes = isinstance(problem, UnreachableError) or problem.code in ELSEWHERE
                if not passes or time.monotonic() >= deadline:
                    raise
                time.sleep(0.2)

    # ---- profiles

    def subscribe(
        self,
        topic: str,
        where: str | None = None,
        *,
        name: str = "default",
        language: str | None = None,
        start: Start = "latest",
    ) -> None:
        """Want the rows of a topic that satisfy `where` (docs/FILTERS.md), under a name. The profile of that name, if
        there is one, is replaced: it ends, and what it gave is not given again.

        `start`: "latest", "earliest", a time, or a frontier. If the topic has other profiles, "latest" means the
        client's position. An earlier start is filled: rows that these gave are not given again.

        What was handed out counts as acknowledged.

        >>> client.subscribe("orders", "price > 100", name="large", start="earliest")
        """
        at = self._connected()
        channel = self.channel.at(at)
        ends = channel.extents(topic, where=where or "", language=language or "sql").get(topic, {})
        here = {origin: until for origin, (_, until) in ends.items()}
        since = start_of(start)
        if since == "latest":
            begin = here
        elif since == "earliest":
            begin = {origin: low for origin, (low, _) in ends.items()}
        elif isinstance(since, dict):
            begin = since.get(topic, {})
        else:
            begin = channel.frontier(topic, at=since, where=where or "", language=language or "sql").get(topic, {})
        before = self.memory.ahead, self.memory.state
        self.memory.subscribe(ClientProfile(name, topic, where, language, dict(begin)), here)
        self._save_or_undo(before)

    def unsubscribe(self, name: str = "default") -> bool:
        """Give a profile up. Returns whether there was one of this name."""
        self._connected()
        if all(profile.name != name for profile in self.memory.ahead.profiles):
            return False
        before = self.memory.ahead, self.memory.state
        self.memory.unsubscribe(name)
        self._save_or_undo(before)
        return True

    @property
    def profiles(self) -> dict[str, tuple[str, str | None]]:
        """Topic and condition, by name."""
        return {profile.name: (profile.topic, profile.where) for profile in self.memory.ahead.profiles}

    def _save_or_undo(self, before: tuple[Any, Any]) -> None:
        try:
            self.save()
        except RefusedError:
            self.memory.ahead, self.memory.state = before
            raise

    # ---- rows

    def notifications(self, idle_s: float | None = None) -> Notifications:
        """The rows that match, as record batches with `_topic`, `_origin`, `_sequence` and `_published_at`, each once.
        The iterator waits for new rows; it ends when none arrives for `idle_s` (None: never).

        >>> for rows in client.notifications(idle_s=5):
        ...     print(rows.num_rows)
        """
        return Notifications(self, idle_s)

    def run(self, callback: OnRows, idle_s: float | None = None) -> None:
        """Call back with each record batch. It is acknowledged when the callback returns; an error of the callback
        ends it, and the batch is handed out again."""
        for rows in self.notifications(idle_s):
            callback(rows)

    def publish(self, topic: str, rows: Any, **settings: Any) -> list[RowRange]:
        """Publish rows, as `Channel.publish` does; with `exclude_own` they are not handed to this object."""
        ranges = self.channel.publish(topic, rows, **settings)
        if self.exclude_own:
            self.own.extend(ranges)
        return ranges

    def acknowledge(self) -> None:
        """The application is done with everything that was handed to it."""
        self.memory.acknowledge()
        self._write_file()

    @property
    def position(self) -> dict[str, Any]:
        """What was acknowledged, as JSON: an application that stores it with its results, and sets it when it starts
        anew, gets each row once."""
        return json_of(self.memory.state)

    @position.setter
    def position(self, position: dict[str, Any]) -> None:
        session = self.memory.session
        self.memory = ClientMemory(state_of(position), session)
        if self.node is not None:
            self.save()

    def save(self) -> None:
        """Save the acknowledged position at the access point, connecting anew if that is lost."""
        if not self.is_manual:
            self.acknowledge()
        question = {"key": self.key, "connection": self.connection, "state": json_of(self.memory.state)}
        try:
            self._doors(self._connected()).ask("client-save", question)
        except UnreachableError as error:
            self.reconnect(error)
        except RefusedError as error:
            if error.code not in ("not-connected", *ELSEWHERE):
                raise
            self.reconnect(error)

    # ---- others

    def finger(self, key: str) -> dict[str, Any] | None:
        """Where a client is attached, and whether it is `online`; see `Channel.finger`."""
        return self.channel.finger(key)

    def online(self, key: str) -> bool | None:
        """Whether a client is connected; None: unknown."""
        row = self.finger(key)
        return None if row is None else row["online"]

    def access_points(self) -> list[str]:
        """The doors of all nodes that are present: it can be attached to any of them."""
        return self.channel.access_points()

    # ---- parts of these

    def _connected(self) -> str:
        if self.node is None:
            raise LocalProtocolError(f"client {self.key!r} is not connected: call connect() first")
        return self.node

    def _doors(self, node: str) -> Doors:
        return replace(self.channel.doors, nodes=(node,))

    def _write_file(self) -> None:
        if self._file is not None:
            self._file.write(
                {
                    "key": self.key,
                    "credential": self._credential,
                    "nodes": list(self.channel.nodes),
                    "session": self.memory.session,
                    "state": json_of(self.memory.state),
                }
            )
