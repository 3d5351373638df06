"""A client of a channel: a key with profiles and a position, attached to one node at a time.

    with Client(["127.0.0.1:7500", "127.0.0.1:7501"], key="shop-7", credential=secret) as client:
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
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from m4cast.overlay.client.channel import Channel
from m4cast.overlay.client.credentials import resolved
from m4cast.overlay.client.doors import Doors
from m4cast.overlay.client.put_call import RowRange, joined_ranges
from m4cast.overlay.client.roaming.client_file import ClientFile, new_credential, new_key
from m4cast.overlay.client.roaming.mail import ClientMail, MailDesk
from m4cast.overlay.client.roaming.notifications import Notifications
from m4cast.overlay.client.roaming.planned import ClientPosition
from m4cast.overlay.client.roaming.resources import ClientResources
from m4cast.overlay.client.roaming.wanted import begin_of
from m4cast.overlay.client.tail import Start, start_of
from m4cast.overlay.errors import LocalProtocolError, M4castError, RefusedError, UnreachableError
from m4cast.overlay.protocol.clients.letters import mail_where
from m4cast.overlay.protocol.clients.memory import ClientMemory, Dropped
from m4cast.overlay.protocol.clients.packed_state import packed_of, state_from
from m4cast.overlay.protocol.clients.state import MAIL, ClientProfile, json_of, state_of

log = logging.getLogger("m4cast.client")

ELSEWHERE = frozenset({"stopping", "busy", "store", "store-full", "timeout", "internal", "too-many", "leaving"})
"""Refusals to attach that another node may not make."""
OWN_MAX = 1_000
"""Ranges of own rows that are remembered with `exclude_own`; rows that follow one another are one range. Older ones are
handed out after all. Guess."""
OnRows = Callable[[pa.RecordBatch], object]


class StateAwayError(UnreachableError):
    """The nodes that may have the client's state do not answer."""


class Client(ClientResources, ClientMail):
    """The client `key`, through the doors at `nodes`, in the order in which they are tried. In place of nodes, a
    `Channel` may be given: it has the credentials of a connection.

    `credential`: its secret, of at least 16 characters, or better a reference to it, `env:NAME` or `file:PATH`.
    `file`: a path, where the library keeps key, credential, profiles and position; then `key` and `credential` may be
    left out. `exclude_own`: rows that this object published, or one before it with the same file, are not handed to it.
    `acknowledge`: "auto": rows count as done when the next ones are requested, or "manual": when `acknowledge` is
    called. `on_dropped` is called with what no node retains any longer; it is logged in any case.

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
        kept = {} if self._file is None else self._file.kept(key, credential)
        if kept.get("state") is not None:
            self.memory = ClientMemory(state_of(kept["state"]), int(kept.get("session", 0)))
        self.key: str = key or kept.get("key", "")
        self._credential: str = credential or kept.get("credential", "")
        if not self.key or not self._credential:
            raise LocalProtocolError("a client needs key and credential, or a file that has them: m4cast client new")
        self.desk = MailDesk(self.key)
        self.desk.files.restore(kept.get("files", {}))
        self.writers = {}
        self.exclude_own = exclude_own
        self.is_manual = acknowledge == "manual"
        self.on_dropped = on_dropped
        self.dropped: list[Dropped] = []
        """The drops so far, each with the maximum number of rows that may have been meant for this client."""
        self.own = [RowRange(**each) for each in kept.get("own", [])]
        """The rows that this client published and that are not acknowledged: those that are not handed to it."""
        self.node: str | None = None
        """The access point that it is connected to; None: it is not."""
        self.connection = 0
        self.version = 0
        """The version of the group's positions that a member of a group has learned."""
        self.waiting_max = 0
        """The number of rows from its position on when it connected, whether they match or not."""

    follows = False
    """True if it moves to the node where the client was attached by another process."""

    @staticmethod
    def new(
        nodes: str | Sequence[str] | Channel, *, key: str | None = None, file: str | None = None, **settings: Any
    ) -> "Client":
        """Create a client, with a random key unless one is given, and connect it. Its `credential` is random, so a
        client of this key that exists, or its file, is refused.

        >>> client = Client.new(["127.0.0.1:7500"], key="shop-7", file="shop-7.json")
        """
        if file is not None:
            ClientFile(Path(file)).require_none()
        client = Client(nodes, key=key or new_key(), credential=new_credential(), file=file, **settings)
        try:
            client.connect(create=True)
        except RefusedError as error:
            detail = f"client {client.key!r} exists: open it with its credential or its file, or choose another key"
            raise RefusedError(error.code, detail) if error.code == "bad-credential" else error from None
        return client

    @property
    def credential(self) -> str:
        """The secret that the client proves its key with."""
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

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is None:
            self.disconnect()
        else:
            self.node = None
            self.memory.rewind()  # what was not acknowledged is handed out again

    # ---- connecting

    def connect(self, *, create: bool = False, at: str | None = None) -> int:
        """Attach the client to the first node that answers, or to the one `at` an address. Returns how many rows there
        are from its position on, at most so many for it. `create`: make it, if nobody knows its key.

        A process without the client's memory gets it from its former access point, which has to be reachable. With a
        memory, of this object, of its file, or a `position` that was set before, it may be dead, and its disk deleted.
        """
        nodes = (at,) if at is not None else self._order()
        failures: list[M4castError] = []
        for node in nodes:
            try:
                self._attach(node, create=create)
            except StateAwayError:
                raise  # another node could not be told the state either
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
        question: dict[str, Any] = {**self._who(), "create": create, "short": True}
        has_memory = self.memory.session > 0
        if has_memory:
            question |= {"session": self.memory.session, "state": packed_of(self.memory.state)}
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
            self.memory.state = self.memory.ahead = state_from(answer["state"])
        self.node, self.connection = node, answer["connection"]
        self.waiting_max = answer["waiting_max"]
        self._keep_file()

    def _fetch(self, node: str, refusal: RefusedError) -> dict[str, Any]:
        """The client's state, from its access point: by the door that `node` knows it by, else through any node."""
        known = [row["door"] for row in self.channel.at(node).clients(self.key) if row["door"]]
        silent: list[str] = []
        for door in dict.fromkeys((*known, *self.channel.nodes)):
            try:
                found: dict[str, Any] = self._doors(door).ask("client-state", {**self._who(), "short": True})
                return found
            except UnreachableError as error:
                silent.append(str(error))
            except RefusedError as error:
                if error.code in ELSEWHERE:
                    silent.append(f"{door}: {error}")
                elif error.code not in ("client-elsewhere", "unknown-client"):
                    raise
        if silent:
            detail = (
                f"client {self.key!r}: no node that answers has its state, and these do not answer: "
                f"{'; '.join(silent)}. Connect when they are back, or with the client's file or a position that was "
                "kept"
            )
            raise StateAwayError(detail)
        raise refusal

    def saved(self) -> ClientPosition:
        """Return the state that its access point has, without connecting: profiles and the position that was saved
        last."""
        failures: list[M4castError] = []
        for node in self.channel.nodes:
            try:
                refusal = RefusedError("unknown-client", f"no node that answers has client {self.key!r}: check the key")
                return ClientPosition.of(self._fetch(node, refusal))
            except StateAwayError:
                raise
            except UnreachableError as error:
                failures.append(error)
        raise failures[0]

    def continue_from(self, position: ClientPosition) -> None:
        """Forget what this object knows, and connect with this position, or save it where it is connected."""
        self.memory = ClientMemory(position.state, max(position.session, self.memory.session))
        if self.node is None:
            self.connect()
        else:
            self.save()

    def device(self, name: str, *, file: str | None = None, **settings: Any) -> "Client":
        """Another device of this client: connected, with a position of its own, and the mail of the client. Its key is
        that of the client, a slash, and its name. A new one has the client's profiles, and begins where the client is;
        later changes are each one's own.

        >>> phone = client.device("phone", file="phone.json")
        """
        key = f"{self.key}/{name}"
        if "/" in self.key or not name:
            raise LocalProtocolError(
                f"{key!r} cannot be a device: call device() on a client that is not a device itself, with a name"
            )
        is_new = next(self._at_access_point().clients(key), None) is None
        other = Client(self.channel, key=key, credential=self._credential, file=file, **settings)
        is_new = is_new and not other.memory.session
        other.connect(create=is_new, at=self.node if is_new else None)
        if is_new:
            state = self.memory.state.unsubscribed(MAIL)
            other.memory = ClientMemory(replace(state, fills=()), other.memory.session)
            other.save()
        return other

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

    def regroup(self) -> None:
        """Learn what other processes of this client have done; see `GroupMember`."""

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
        client's position. An earlier start is filled: rows that these gave are not given again. Of a table, "standing"
        begins with the rows that stand, and goes on with those that come.

        Nothing is acknowledged by it. Rows of the profile that is replaced are not handed out again, whether they were
        acknowledged or not.

        >>> client.subscribe("orders", "price > 100", name="large", start="earliest")
        """
        if topic == MAIL:
            raise LocalProtocolError(f"topic {MAIL!r} is mail: read it with inbox()")
        standing = start == "standing"
        self._add_profile(
            ClientProfile(name, topic, where, language, {}, standing=standing), "earliest" if standing else start
        )

    def _subscribe_mail(self, lows: dict[str, int]) -> None:
        """Have an inbox, from the first message on that is retained."""
        before = self.memory.ahead, self.memory.state
        self.memory.subscribe(ClientProfile(MAIL, MAIL, mail_where(self.key), None, {}), lows)
        self._save_or_undo(before)

    def _add_profile(self, wanted: ClientProfile, start: Start) -> None:
        begin, here = begin_of(wanted, start_of(start), self._at_access_point())
        if start == "latest":
            begin = self.memory.latest(wanted.topic, here)
        before = self.memory.ahead, self.memory.state
        self.memory.subscribe(replace(wanted, begin=begin), here)
        self._save_or_undo(before)

    def unsubscribe(self, name: str = "default") -> bool:
        """Give a profile up, and what it gave that is not acknowledged. Returns whether there was one of this name."""
        self._connected_node()
        if all(profile.name != name for profile in self.memory.ahead.profiles):
            return False
        before = self.memory.ahead, self.memory.state
        self.memory.unsubscribe(name)
        self._save_or_undo(before)
        return True

    @property
    def profiles(self) -> dict[str, tuple[str, str | None]]:
        """Topic and condition, by name."""
        profiles = self.memory.ahead.profiles
        return {profile.name: (profile.topic, profile.where) for profile in profiles if profile.topic != MAIL}

    def _save_or_undo(self, before: tuple[Any, Any]) -> None:
        try:
            self._save_acknowledged()
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
        with self.notifications(idle_s) as notifications:
            for rows in notifications:
                callback(rows)

    def publish(self, topic: str, rows: Any, **settings: Any) -> list[RowRange]:
        """Publish rows, as `Channel.publish` does; with `exclude_own` they are not handed to this object."""
        ranges = self.channel.publish(topic, rows, **settings)
        if self.exclude_own:
            self.own = joined_ranges([*self.own, *ranges])[-OWN_MAX:]
            self._keep_file()
        return ranges

    def acknowledge(self) -> None:
        """The application is done with everything that was handed to it."""
        self._acknowledge_mail()
        self._acknowledge_rows()
        self._keep_file()

    def _acknowledge_rows(self) -> None:
        """Acknowledge rows, but not mail. The caller writes the file."""
        self.memory.acknowledge()
        state = self.memory.state
        self.own = [each for each in self.own if each.next > state.needs(each.topic, each.origin)]

    @property
    def position(self) -> dict[str, Any]:
        """The acknowledged position, with the profiles and the session, as JSON: an application that stores it with its
        results, and sets it when it restarts, gets each row once. Set it before `connect`: then the client needs
        nothing from its former access point."""
        return {**json_of(self.memory.state), "session": self.memory.session}

    @position.setter
    def position(self, position: dict[str, Any]) -> None:
        written = dict(position)
        session = written.pop("session", 1)  # earlier versions left it out; who has a position was attached once
        if not isinstance(session, int) or session < 0:
            raise LocalProtocolError(f"the session of a position is {session!r}: set what client.position was")
        self.memory = ClientMemory(state_of(written), max(session, self.memory.session))
        if self.node is not None:
            self.save()

    def save(self) -> None:
        """Save the acknowledged position at the access point, connecting anew if that is lost. If rows are not
        acknowledged by hand, the application is done with what it was handed."""
        if not self.is_manual:
            self.acknowledge()
        self._save_acknowledged()

    def _save_acknowledged(self) -> None:
        """Save the position whatever the application has in hand, and acknowledge nothing."""
        self._keep_file()
        try:
            self._save()
        except UnreachableError as error:
            self.reconnect(error)
        except RefusedError as error:
            passes = error.code in ELSEWHERE or error.code == "not-connected"
            if not passes and not (self.follows and error.code == "client-elsewhere"):
                raise
            self.reconnect(error)

    def _save(self) -> None:
        self._access_point().ask("client-save", self._signed({"state": json_of(self.memory.state)}))

    # ---- parts of these

    def _who(self) -> dict[str, Any]:
        return {"key": self.key, "credential": resolved(self._credential, "credential")}

    def _connected_node(self) -> str:
        """The door of its access point."""
        if self.node is None:
            raise LocalProtocolError(f"client {self.key!r} is not connected: call connect() first")
        return self.node

    def _at_access_point(self) -> Channel:
        """The channel, through its access point alone."""
        return self.channel.at(self._connected_node())

    def _access_point(self) -> Doors:
        return self._doors(self._connected_node())

    def _signed(self, question: dict[str, Any]) -> dict[str, Any]:
        """A question of this connection of the client."""
        return {"key": self.key, "connection": self.connection, **question}

    def _doors(self, node: str) -> Doors:
        return replace(self.channel.doors, nodes=(node,))

    def _keep_file(self) -> None:
        """Write its file, if it has one."""
        if self._file is not None:
            self._file.write(
                {
                    "key": self.key,
                    "credential": self._credential,
                    "nodes": list(self.channel.nodes),
                    "session": self.memory.session,
                    "state": json_of(self.memory.state),
                    "files": self.desk.files.to_json(),
                    "own": [asdict(each) for each in self.own],
                }
            )
