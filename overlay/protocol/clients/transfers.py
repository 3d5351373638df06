"""Files from one client to another, by mail: asked for, offered or refused, sent in chunks, put together.

    requester                         owner
    file-ask (name, first, at most) ->                 waits with the owner's mail until it connects, wherever that is
                                    <- file-refused    it is larger than asked for, or it is no longer offered
                                    <- file-begin      size, chunks, SHA-256
                                    <- file-chunk ...  at most 1 MB each
    file-received                   ->                 the whole is there, and has the right checksum
    file-cancel                     ->                 not wanted any more

The requester says how much it accepts when it asks, so a file that is too large is refused before anything is sent.
Every message may come twice, and chunks in any order. The owner remembers up to where it has sent a file, the requester
which chunks it has: either may stop at any moment and go on later. A file is only sent if its owner has offered it: by
the owner's own list, whatever anybody has published in its name.

States, as the requester sees them: `waiting` -> `sending` -> `received`; or `refused`, `failed`, `cancelled`,
`expired`. Reference: A12, A19, X40-X48 of the digest; D112 has the states.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from m4cast.overlay.protocol.clients.letters import (
    FILE_ASK,
    FILE_BEGIN,
    FILE_CANCEL,
    FILE_CHUNK,
    FILE_RECEIVED,
    FILE_REFUSED,
    MailMessage,
)
from m4cast.overlay.value import value

CHUNK_BYTES = 512 * 1_024
TRANSFER_MS = 7 * 24 * 3_600_000
"""The time for which a request waits for its owner."""
WAITING, SENDING, RECEIVED = "waiting", "sending", "received"
REFUSED, FAILED, CANCELLED, EXPIRED = "refused", "failed", "cancelled", "expired"
OVER = (RECEIVED, REFUSED, FAILED, CANCELLED, EXPIRED)
DONE_MAX = 100
"""Transfers that are over and still listed; files that are no longer asked for and still refused."""


@dataclass
class Transfer:
    """A file that was asked for."""

    id: str
    owner: str
    name: str
    folder: str
    """The folder in which the file is assembled, as the library names it."""
    asked_ms: int
    accepts: int
    """The maximum number of bytes."""
    state: str = WAITING
    detail: str = ""
    size: int = 0
    chunks: int = 0
    checksum: str = ""
    have: list[int] = field(default_factory=list)
    """The numbers of the chunks that are here, in order."""
    begun_ms: int = -1
    """The time at which the owner began to send, by its clock: what it began to send before that belongs to an older
    file."""

    @property
    def is_over(self) -> bool:
        return self.state in OVER

    def first_missing(self) -> int:
        for number, chunk in enumerate(self.have):
            if number != chunk:
                return number
        return len(self.have)


@dataclass
class Upload:
    """The progress of answering somebody's request."""

    asked_ms: int
    """The time at which the request was made: an earlier one, or the same again, is not new."""
    checksum: str
    next: int
    """The first chunk that was not sent yet."""
    is_cancelled: bool = False


@value
class OfferedFile:
    """A file as it is now."""

    size: int
    checksum: str


@value
class TakeChunk:
    """Write this chunk at its place in the file that is put together, durably."""

    transfer: Transfer
    number: int
    content: bytes


@value
class FinishFile:
    """All chunks are here: compare the checksum, and give the file its name."""

    transfer: Transfer


@value
class SendFile:
    """Send the chunks from this number on, and note each that was sent."""

    message: MailMessage
    file: OfferedFile
    first: int


Task = MailMessage | TakeChunk | FinishFile | SendFile


def chunks_of(size: int) -> int:
    """Return the number of chunks in which a file of this size is sent."""
    return max(-(-size // CHUNK_BYTES), 1)


class FileDesk:
    """The files of one client, both ways."""

    def __init__(self, me: str) -> None:
        self._me = me
        self.offers: dict[str, str] = {}
        """Name -> path: what it sends to whoever asks."""
        self.transfers: dict[str, Transfer] = {}
        """The requests that this client made, by id."""
        self.uploads: dict[str, Upload] = {}
        """The uploads, by the id of somebody else's request."""

    # ---- what it asks for

    def ask(self, transfer: Transfer) -> MailMessage:
        self.transfers[transfer.id] = transfer
        return self._asked(transfer, transfer.asked_ms)

    def ask_again(self, transfer: Transfer, now_ms: int) -> MailMessage:
        """Ask for what is lacking."""
        transfer.state = WAITING
        return self._asked(transfer, now_ms)

    def _asked(self, transfer: Transfer, now_ms: int) -> MailMessage:
        return MailMessage(
            to=transfer.owner,
            sender=self._me,
            kind=FILE_ASK,
            id=transfer.id,
            name=transfer.name,
            number=transfer.first_missing(),
            size=transfer.accepts,
            checksum=transfer.checksum,
            sent_ms=now_ms,
        )

    def cancel(self, transfer: Transfer, now_ms: int) -> MailMessage | None:
        """None: it is over."""
        if transfer.is_over:
            return None
        transfer.state = CANCELLED
        return MailMessage(transfer.owner, self._me, FILE_CANCEL, transfer.id, name=transfer.name, sent_ms=now_ms)

    def expire(self, now_ms: int) -> None:
        for transfer in self.transfers.values():
            if transfer.state == WAITING and now_ms - transfer.asked_ms > TRANSFER_MS:
                transfer.state, transfer.detail = EXPIRED, "its owner did not connect in time"
        over = [each for each, transfer in self.transfers.items() if transfer.is_over]
        for each in over[: max(len(over) - DONE_MAX, 0)]:
            del self.transfers[each]

    def finished(self, transfer: Transfer, checksum: str, now_ms: int) -> MailMessage:
        """All chunks are together, and this is their checksum: what to tell the owner."""
        if checksum == transfer.checksum:
            transfer.state = RECEIVED
            return MailMessage(transfer.owner, self._me, FILE_RECEIVED, transfer.id, name=transfer.name, sent_ms=now_ms)
        transfer.state, transfer.detail = FAILED, "its checksum is not that of the owner's file: ask for it again"
        return MailMessage(transfer.owner, self._me, FILE_CANCEL, transfer.id, name=transfer.name, sent_ms=now_ms)

    # ---- messages

    def receive(
        self, message: MailMessage, find: Callable[[str], OfferedFile | None], now_ms: int
    ) -> tuple[list[Task], bool]:
        """Return the tasks that follow from a message about a file, in order, and whether it is of interest to the
        user. `find` looks up a path."""
        match message.kind:
            case "file-ask":
                return self._serve(message, find, now_ms), False
            case "file-cancel":
                self.uploads[message.id] = Upload(message.sent_ms, "", 0, is_cancelled=True)
                self._forget()
                return [], False
            case "file-received":
                return [], self.uploads.pop(message.id, None) is not None
        transfer = self.transfers.get(message.id)
        if transfer is None or transfer.is_over or message.sender != transfer.owner:
            return [], False
        if message.kind == "file-refused":
            transfer.state, transfer.detail = REFUSED, message.text
            return [], True
        return self._take(transfer, message)

    def _serve(self, message: MailMessage, find: Callable[[str], OfferedFile | None], now_ms: int) -> list[Task]:
        known = self.uploads.get(message.id)
        is_old = known is not None and (known.is_cancelled or message.sent_ms < known.asked_ms)
        if is_old or now_ms - message.sent_ms > TRANSFER_MS:
            return []
        path = self.offers.get(message.name)
        file = None if path is None else find(path)
        if file is None:
            return [self._refusal(message, "it is not offered any more", now_ms)]
        if file.size > message.size:
            detail = f"it has {file.size} bytes, and at most {message.size} are accepted"
            return [self._refusal(message, detail, now_ms)]
        first = message.number if message.checksum in ("", file.checksum) else 0
        if known is not None and (known.asked_ms, known.checksum) == (message.sent_ms, file.checksum):
            first = max(first, known.next)
        self.uploads[message.id] = Upload(message.sent_ms, file.checksum, first)
        self._forget()
        return [SendFile(message, file, first)]

    def _refusal(self, message: MailMessage, detail: str, now_ms: int) -> MailMessage:
        return MailMessage(
            message.sender, self._me, FILE_REFUSED, message.id, text=detail, name=message.name, sent_ms=now_ms
        )

    def messages_of(self, sending: SendFile, read: Callable[[int], bytes], now_ms: int) -> Iterator[MailMessage]:
        """The messages that carry a file; one that was taken is sent before the next is asked for."""
        asked, file = sending.message, sending.file
        count = chunks_of(file.size)
        common = {"to": asked.sender, "sender": self._me, "id": asked.id, "name": asked.name, "size": file.size}
        common["checksum"] = file.checksum
        yield MailMessage(**common, kind=FILE_BEGIN, number=count, sent_ms=now_ms)  # type: ignore[arg-type]  # the fields are those of a message
        for number in range(sending.first, count):
            yield MailMessage(**common, kind=FILE_CHUNK, number=number, content=read(number), sent_ms=now_ms)  # type: ignore[arg-type]  # as above
            self.uploads[asked.id].next = number + 1

    def _forget(self) -> None:
        while len(self.uploads) > DONE_MAX:
            del self.uploads[next(iter(self.uploads))]

    def _take(self, transfer: Transfer, message: MailMessage) -> tuple[list[Task], bool]:
        """An owner that sends more than was accepted, or chunks that the file does not have, is not listened to."""
        tasks: list[Task] = []
        if message.size > transfer.accepts:
            return [], False
        if message.kind == "file-begin":
            if message.sent_ms < transfer.begun_ms or message.number != chunks_of(message.size):
                return [], False
            self._is_of(transfer, message)
            transfer.begun_ms = message.sent_ms
            transfer.size, transfer.chunks, transfer.checksum = message.size, message.number, message.checksum
            transfer.state = SENDING
        elif message.kind == "file-chunk" and message.number not in transfer.have:
            if not 0 <= message.number < chunks_of(message.size) or len(message.content) > CHUNK_BYTES:
                return [], False
            if message.sent_ms < transfer.begun_ms and message.checksum != transfer.checksum:
                return [], False  # of the file as it was before
            self._is_of(transfer, message)
            tasks.append(TakeChunk(transfer, message.number, message.content))
            transfer.have = sorted((*transfer.have, message.number))
        is_whole = bool(transfer.chunks) and transfer.have[: transfer.chunks] == list(range(transfer.chunks))
        return ([*tasks, FinishFile(transfer)] if is_whole else tasks), is_whole or message.kind == "file-begin"

    def _is_of(self, transfer: Transfer, message: MailMessage) -> None:
        """The message is of the file as it is now: if that has changed, what is here is of another one."""
        if transfer.checksum not in ("", message.checksum):
            transfer.have, transfer.chunks = [], 0
        transfer.checksum = message.checksum

    # ---- as JSON

    def to_json(self) -> dict[str, Any]:
        return {
            "offers": self.offers,
            "transfers": [vars(each) for each in self.transfers.values()],
            "uploads": {each: vars(upload) for each, upload in self.uploads.items()},
        }

    def restore(self, written: dict[str, Any]) -> None:
        self.offers = dict(written.get("offers", {}))
        self.transfers = {each["id"]: Transfer(**each) for each in written.get("transfers", [])}
        self.uploads = {each: Upload(**upload) for each, upload in written.get("uploads", {}).items()}
