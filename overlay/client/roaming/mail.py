"""Mail, chat and files of a client: rows of the topic `_mail`, which go to the node of the client that they are for.

A message waits where the nodes keep it until its client reads its inbox, at whichever node that is. The inbox is a
profile of the client like others, with a position of its own: messages count as read when the next one is requested.
Messages of chats and files are answered by the library as they are met; who has offered files has to read its inbox,
or to `serve`, for others to get them.
"""

import hashlib
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import pyarrow as pa

from m4cast.overlay.client.roaming.notifications import Notifications
from m4cast.overlay.client.tables import sql_text
from m4cast.overlay.errors import LocalProtocolError, RefusedError
from m4cast.overlay.protocol.clients.chats import ChatDesk
from m4cast.overlay.protocol.clients.letters import FROM, TEXT, TO, MailMessage, checked
from m4cast.overlay.protocol.clients.state import MAIL
from m4cast.overlay.protocol.clients.transfers import (
    CHUNK_BYTES,
    FileDesk,
    FinishFile,
    OfferedFile,
    SendFile,
    TakeChunk,
    Transfer,
)

if TYPE_CHECKING:
    from m4cast.overlay.client.roaming.client import Client

SEEN_MAX = 10_000
"""Messages that are remembered, so that one that was sent twice is given once."""
READY_S = 0.1
"""Between two attempts to send while a node has not heard yet who keeps its rows."""
ACCEPTS_BYTES = 256 * 1_048_576
"""The maximum size of a file, unless the requester sets another one."""
_TYPES = {"number": pa.int64(), "size": pa.int64(), "sent_ms": pa.int64(), "content": pa.binary()}
_COLUMNS = {"to": TO, "sender": FROM}


class ReadMessage(NamedTuple):
    origin: str
    sequence: int
    message: MailMessage


class MailDesk:
    """The state of a client's mail, chats and files."""

    def __init__(self, me: str) -> None:
        self.chat = ChatDesk(me)
        self.files = FileDesk(me)
        self.raw: deque[ReadMessage] = deque()
        """Messages that were read, and not answered yet."""
        self.unread: deque[ReadMessage] = deque()
        """Messages for the user."""
        self.seen: OrderedDict[tuple[str, str, int], None] = OrderedDict()

    def is_new(self, message: MailMessage) -> bool:
        """True if the message is seen for the first time. Files have their own record of what was received before."""
        name = (message.id, message.kind, message.number)
        if message.kind.startswith("file-"):
            return True
        if name in self.seen:
            return False
        self.seen[name] = None
        if len(self.seen) > SEEN_MAX:
            self.seen.popitem(last=False)
        return True


class ClientMail:
    """The part of a `Client` that is about other clients, and writes to them."""

    desk: MailDesk

    def _self(self) -> "Client":
        return cast("Client", self)

    # ---- others

    def finger(self, key: str) -> dict[str, Any] | None:
        """Return where a client is attached, and whether it is `online`; see `Channel.finger`."""
        return self._self().channel.finger(key)

    def online(self, key: str) -> bool | None:
        """Return whether a client is connected; None: unknown."""
        row = self.finger(key)
        return None if row is None else row["online"]

    def access_points(self) -> list[str]:
        """The doors of all nodes that are present: it can be attached to any of them."""
        return self._self().channel.access_points()

    # ---- mail

    def send(self, to: str | Sequence[str], text: str, *, content: bytes = b"") -> str:
        """Send a message to one client or to several, by key. It waits for them, wherever they connect. Returns its id.

        `RefusedError` with the code `unknown-client` names those that nobody knows; then nothing is sent.

        >>> client.send("shop-8", "the lamps have arrived")
        '5f0c...'
        """
        keys = [to] if isinstance(to, str) else list(to)
        if not keys:
            raise LocalProtocolError("to is empty: name the key of a client")
        name, now_ms, me = secrets.token_hex(16), _now_ms(), self._self().key
        messages = [MailMessage(each, me, TEXT, name, text=text, content=content, sent_ms=now_ms) for each in keys]
        self._post(messages)
        return name

    def inbox(self, idle_s: float | None = None) -> Iterator[MailMessage]:
        """The messages for this client, from those on that it has not read, each once. It waits for new ones, and ends
        when none comes for `idle_s` (None: never). Chats and files are answered meanwhile.

        >>> for message in client.inbox(idle_s=1):
        ...     print(message.sender, message.text)
        """
        while (message := self._next(idle_s)) is not None:
            yield message

    def serve(self, idle_s: float | None = None) -> None:
        """Answer who asks for files or for a chat, until no message comes for `idle_s` (None: for ever). Messages for
        the user stay in the inbox."""
        while self._met(idle_s):
            pass

    def _acknowledge_mail(self) -> None:
        """Count the messages that were handed out as read."""
        unread: dict[str, int] = {}
        for each in (*self.desk.unread, *self.desk.raw):
            unread[each.origin] = min(each.sequence, unread.get(each.origin, each.sequence))
        self._self().memory.acknowledge(mail=True, unread=unread)

    # ---- chat

    def chat(self, partner: str, timeout_s: float = 30) -> bool:
        """Ask another client for a chat, and wait for its answer. Returns whether it accepted: a client that is in a
        chat, does not read its inbox or is not connected does not.

        >>> if client.chat("shop-8"):
        ...     client.say("are you there?")
        """
        row = self._self().finger(partner)
        if row is None:
            raise _unknown(partner)
        if row["online"] is False:
            return False
        chat = self.desk.chat
        self._post([chat.ask(partner, secrets.token_hex(16), _now_ms())])
        deadline = time.monotonic() + timeout_s
        while chat.partner == partner and not chat.is_open and time.monotonic() < deadline:
            self._met(max(deadline - time.monotonic(), 0.001))
        if chat.partner == partner and not chat.is_open:
            self.end_chat()
        return chat.partner == partner

    def say(self, text: str) -> None:
        """Say something in the chat that is under way. What the partner says is in the inbox (`chat-text`)."""
        self._post([self.desk.chat.say(text, _now_ms())])

    def end_chat(self) -> None:
        """End the chat that is under way, or give up asking for one."""
        message = self.desk.chat.end(_now_ms())
        if message is not None:
            self._post([message])

    # ---- files

    def offer(
        self,
        path: str,
        topic: str = "resources",
        *,
        title: str | None = None,
        author: str | None = None,
        acks: int | None = None,
    ) -> str:
        """Offer a file: publish what it is as a resource, and send it to whoever asks. Its content stays here until
        then. Returns its name.

        >>> client.offer("thesis.pdf", title="P2P-DIET", author="Stratos Idreos")
        'thesis.pdf'
        """
        file = Path(path)
        if not file.is_file():
            raise LocalProtocolError(f"{path}: there is no such file: correct the path")
        self._open_mail()
        self._self().publish_resource(topic, file.name, file=path, title=title, author=author, acks=acks)
        self.desk.files.offers[file.name] = str(file.resolve())
        self._self()._keep_file()
        return file.name

    def withdraw(self, name: str, topic: str = "resources", *, acks: int | None = None) -> bool:
        """Offer a file no longer. The file itself is not touched. Returns whether it was offered."""
        was_offered = self.desk.files.offers.pop(name, None) is not None
        self._self()._keep_file()
        self._self().remove_resource(topic, name, acks=acks)
        return was_offered

    def fetch(
        self,
        owner: str,
        name: str,
        topic: str = "resources",
        *,
        folder: str = ".",
        accepts_bytes: int = ACCEPTS_BYTES,
        timeout_s: float = 60,
        confirm: Callable[[dict[str, Any]], bool] | None = None,
    ) -> Path:
        """Get a file that a client offers, which has to be connected and to read its inbox. `confirm` is asked before
        anything is requested, with what the owner published about it. Returns the path of the file.

        `RefusedError`: `owner-offline` (ask for a `rendezvous`), `unknown-resource`, `not-confirmed`, or
        `file-refused` with the owner's reason.

        >>> client.fetch("shop-8", "thesis.pdf", folder="downloads")
        PosixPath('downloads/thesis.pdf')
        """
        found = self._resource(topic, owner, name)
        if found is None:
            detail = f"client {owner!r} offers no {name!r} under topic {topic!r}: it does not exist, or not any more"
            raise RefusedError("unknown-resource", detail)
        if self._self().online(owner) is not True:
            detail = f"client {owner!r} is not connected: arrange a rendezvous, and get the file when it has been back"
            raise RefusedError("owner-offline", detail)
        if confirm is not None and not confirm(found):
            raise RefusedError("not-confirmed", f"{name!r} of client {owner!r} was not requested")
        transfer = self.desk.files.transfers[self.rendezvous(owner, name, folder=folder, accepts_bytes=accepts_bytes)]
        deadline = time.monotonic() + timeout_s
        while not transfer.is_over and time.monotonic() < deadline:
            self._met(max(deadline - time.monotonic(), 0.001))
        if not transfer.is_over:
            detail = (
                f"client {owner!r} has not sent {name!r} within {timeout_s:g} s ({transfer.state}): it stays "
                f"requested, see transfers(), or cancel {transfer.id}"
            )
            raise RefusedError("timeout", detail)
        if transfer.state != "received":
            raise RefusedError("file-refused", f"{name!r} of client {owner!r}: {transfer.state}: {transfer.detail}")
        return Path(transfer.folder) / name

    def _resource(self, topic: str, owner: str, name: str) -> dict[str, Any] | None:
        """Return what a client published under a name, if that stands."""
        try:
            found = self._self().resources(topic, f"_owner = {sql_text(owner)} AND _name = {sql_text(name)}")
        except RefusedError as error:
            if error.code != "unknown-topic":
                raise
            return None
        return next(iter(found.to_pylist()), None)

    def rendezvous(self, owner: str, name: str, *, folder: str = ".", accepts_bytes: int = ACCEPTS_BYTES) -> str:
        """Ask for a file of a client that may be away: the request waits for it, and the file for this client. Returns
        the id of the transfer; `transfers` says how it stands.

        >>> client.rendezvous("shop-8", "thesis.pdf", folder="downloads")
        '81d0...'
        """
        if name != Path(name).name or name.startswith(".") or not name.isprintable():
            raise LocalProtocolError(f"{name!r} is not the plain name of a file: ask for one as its owner published it")
        target = Path(folder).resolve()
        if not target.is_dir():
            raise LocalProtocolError(f"{folder}: there is no such folder: make it first")
        if (target / name).exists():
            raise LocalProtocolError(f"{target / name} exists: choose another folder, or remove it")
        under_way = [each for each in self.desk.files.transfers.values() if not each.is_over]
        if any((each.folder, each.name) == (str(target), name) for each in under_way):
            raise LocalProtocolError(f"{target / name} is under way: choose another folder, or cancel that transfer")
        self._open_mail()
        transfer = Transfer(secrets.token_hex(16), owner, name, str(target), _now_ms(), accepts_bytes)
        self._post([self.desk.files.ask(transfer)])
        self._self()._keep_file()
        return transfer.id

    def transfers(self) -> list[dict[str, Any]]:
        """The files that were requested: `id owner name state detail size chunks have folder ...`, the oldest first.
        Read the inbox, or `serve`, to learn what has come since."""
        self.desk.files.expire(_now_ms())
        return [dict(vars(each)) for each in self.desk.files.transfers.values()]

    def cancel_transfer(self, transfer_id: str) -> bool:
        """Give a request up. Returns whether it was under way."""
        transfer = self._transfer(transfer_id)
        message = self.desk.files.cancel(transfer, _now_ms())
        if message is not None:
            self._post([message])
            _part(transfer).unlink(missing_ok=True)
            self._self()._keep_file()
        return message is not None

    def resume_transfer(self, transfer_id: str) -> None:
        """Ask for the chunks of a file that are lacking, if some were lost on their way."""
        self._post([self.desk.files.ask_again(self._transfer(transfer_id), _now_ms())])
        self._self()._keep_file()

    def _transfer(self, transfer_id: str) -> Transfer:
        transfer = self.desk.files.transfers.get(transfer_id)
        if transfer is None:
            raise LocalProtocolError(f"there is no transfer {transfer_id!r}: see transfers()")
        return transfer

    # ---- reading

    def _next(self, idle_s: float | None) -> MailMessage | None:
        while not self.desk.unread:
            if not self._met(idle_s):
                return None
        return self.desk.unread.popleft().message

    def _met(self, idle_s: float | None) -> bool:
        """Read a message and answer it, if one comes; whether one came."""
        client, desk = self._self(), self.desk
        if not desk.raw:
            self._open_mail()
            client._acknowledge_mail()
            with_mail = Notifications(client, idle_s, mail=True)
            rows = next(with_mail, None)
            if rows is not None:
                desk.raw.extend(map(_read_message, rows.to_pylist()))
            with_mail.close()  # saves what was acknowledged
            if rows is None:
                return False
        self._answer(desk.raw[0])
        desk.raw.popleft()
        return True

    def _answer(self, read: ReadMessage) -> None:
        desk, message = self.desk, read.message
        if not desk.is_new(message):
            return
        shown = True
        if message.kind.startswith("chat-"):
            answers, shown = desk.chat.receive(message, _now_ms())
            self._post(answers, known=True)
        elif message.kind.startswith("file-"):
            tasks, shown = desk.files.receive(message, _offered, _now_ms())
            for task in tasks:
                self._perform(task)
            self._self()._keep_file()
        if shown:
            desk.unread.append(read)

    def _perform(self, task: object) -> None:
        files = self.desk.files
        match task:
            case MailMessage():
                self._post([task], known=True)
            case SendFile():
                path = Path(files.offers[task.message.name])
                for message in files.messages_of(task, lambda number: _chunk(path, number), _now_ms()):
                    self._post([message], known=True)
                    self._self()._keep_file()
            case TakeChunk(transfer, number, content):
                with _part(transfer).open("r+b" if _part(transfer).exists() else "w+b") as file:
                    file.seek(number * CHUNK_BYTES)
                    file.write(content)
            case FinishFile(transfer):
                part = _part(transfer)
                with part.open("r+b") as file:
                    file.truncate(transfer.size)
                told = files.finished(transfer, _checksum(part), _now_ms())
                if transfer.state == "received":
                    part.replace(part.with_name(transfer.name))
                else:
                    part.unlink()
                self._post([told], known=True)

    # ---- sending

    def _open_mail(self, to: Sequence[str] = ()) -> None:
        """Make mail possible, and have an inbox; refuse keys that nobody knows."""
        client = self._self()
        answer = client._access_point().ask("client-mail", client._signed({"to": list(to)}))
        if MAIL not in client.memory.ahead.topics:
            client._subscribe_mail(answer["lows"])
        if answer["unknown"]:
            raise _unknown(*answer["unknown"])

    def _post(self, messages: Sequence[MailMessage], *, known: bool = False) -> None:
        """`known`: it answers somebody, who may have gone since."""
        if not messages:
            return
        client = self._self()
        table = table_of_messages([checked(each) for each in messages])
        if not known:
            self._open_mail([each.to for each in messages])
        channel, acks = client._at_access_point(), 1
        deadline = time.monotonic() + client.channel.timeout_s
        while True:
            try:
                channel.publish(MAIL, table, acks=acks)
                return
            except RefusedError as error:
                if error.code == "too-few-nodes" and acks:
                    acks = 0  # the node is alone
                    continue
                if error.code != "not-ready" or time.monotonic() > deadline:
                    raise
            time.sleep(READY_S)


def table_of_messages(messages: Sequence[MailMessage]) -> pa.Table:
    columns = {}
    for each in fields(MailMessage):
        values = [getattr(message, each.name) for message in messages]
        columns[_COLUMNS.get(each.name, each.name)] = pa.array(values, _TYPES.get(each.name, pa.string()))
    return pa.table(columns)


def message_of(row: dict[str, Any]) -> MailMessage:
    return MailMessage(**{each.name: row[_COLUMNS.get(each.name, each.name)] for each in fields(MailMessage)})


def _read_message(row: dict[str, Any]) -> ReadMessage:
    return ReadMessage(row["_origin"], row["_sequence"], message_of(row))


def _offered(path: str) -> OfferedFile | None:
    file = Path(path)
    try:
        return OfferedFile(file.stat().st_size, _checksum(file)) if file.is_file() else None
    except OSError:
        return None


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _chunk(path: Path, number: int) -> bytes:
    with path.open("rb") as file:
        file.seek(number * CHUNK_BYTES)
        return file.read(CHUNK_BYTES)


def _part(transfer: Transfer) -> Path:
    return Path(transfer.folder) / f"{transfer.name}.{transfer.id[:8]}.part"


def _unknown(*keys: str) -> RefusedError:
    listed = ", ".join(map(repr, keys))
    return RefusedError(
        "unknown-client",
        f"no client is known under the key {listed}: check it; a client is known once it has connected",
    )


def _now_ms() -> int:
    return int(time.time() * 1000)
