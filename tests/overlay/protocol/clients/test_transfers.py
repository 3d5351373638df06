"""Files by mail: whatever comes twice, late or in another order, the right bytes or a reason arrive."""

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from random import Random

import pytest

from m4cast.overlay.protocol.clients import transfers
from m4cast.overlay.protocol.clients.letters import MailMessage
from m4cast.overlay.protocol.clients.transfers import (
    TRANSFER_MS,
    FileDesk,
    FinishFile,
    OfferedFile,
    SendFile,
    TakeChunk,
    Transfer,
)


class Side:
    """One client: its desk, its files, and what it has put together. It may forget all but what it stored."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.desk = FileDesk(name)
        self.disk: dict[str, bytes] = {}
        self.parts: dict[str, dict[int, bytes]] = {}
        self.sent: list[MailMessage] = []

    def restart(self) -> None:
        kept = self.desk.to_json()
        self.desk = FileDesk(self.name)
        self.desk.restore(kept)

    def find(self, path: str) -> OfferedFile | None:
        content = self.disk.get(path)
        return None if content is None else OfferedFile(len(content), sha256(content).hexdigest())

    def take(self, message: MailMessage, now_ms: int = 0, stops_after: int | None = None) -> bool:
        """True if it was answered to the end: it may stop after so many messages of a file."""
        tasks, _ = self.desk.receive(message, self.find, now_ms)
        for task in tasks:
            match task:
                case MailMessage():
                    self.sent.append(task)
                case TakeChunk(transfer, number, content):
                    self.parts.setdefault(transfer.id, {})[number] = content
                case FinishFile(transfer):
                    parts = self.parts[transfer.id]
                    whole = b"".join(parts[number] for number in range(transfer.chunks))[: transfer.size]
                    self.sent.append(self.desk.finished(transfer, sha256(whole).hexdigest(), now_ms))
                    if transfer.state == "received":
                        self.disk[transfer.name] = whole
                case SendFile():
                    content = self.disk[self.desk.offers[task.message.name]]
                    read = chunks_of(content)
                    for count, each in enumerate(self.desk.messages_of(task, read, now_ms)):
                        if count == stops_after:
                            return False
                        self.sent.append(each)
        return True

    def outgoing(self) -> list[MailMessage]:
        sent, self.sent = self.sent, []
        return sent


def chunks_of(content: bytes) -> Callable[[int], bytes]:
    size = transfers.CHUNK_BYTES
    return lambda number: content[number * size : (number + 1) * size]


def pair(content: bytes = bytes(range(256)) * 6_000) -> tuple[Side, Side, Transfer]:
    """An owner that offers a file of three chunks, and a requester."""
    owner, requester = Side("owner"), Side("requester")
    owner.disk["/songs/song"] = content
    owner.desk.offers["song"] = "/songs/song"
    return owner, requester, Transfer("id", "owner", "song", ".", 0, 10_000_000)


def test_a_file_arrives_whatever_comes_twice_or_in_another_order() -> None:
    for seed in range(50):
        random = Random(seed)
        owner, requester, transfer = pair()
        asked = requester.desk.ask(transfer)
        for _ in range(3):
            owner.take(asked)
            messages = owner.outgoing()
            messages += random.sample(messages, len(messages) // 2)
            random.shuffle(messages)
            for each in messages:
                requester.take(each)
                if random.random() < 0.3:
                    requester.restart()
                    transfer = requester.desk.transfers["id"]
        assert transfer.state == "received"
        assert requester.disk["song"] == owner.disk["/songs/song"]


def test_an_owner_that_stops_goes_on_where_it_was() -> None:
    owner, requester, transfer = pair()
    asked = requester.desk.ask(transfer)
    assert not owner.take(asked, stops_after=2)
    first = owner.outgoing()
    owner.restart()
    assert owner.take(asked)  # it was not acknowledged, and is met again
    second = owner.outgoing()
    chunks = [each.number for each in (*first, *second) if each.kind == "file-chunk"]
    assert chunks == [0, 1, 2]
    for each in (*first, *second):
        requester.take(each)
    assert transfer.state == "received"
    (received,) = requester.outgoing()
    owner.take(received)
    assert owner.desk.uploads == {}


def test_lost_chunks_are_asked_for_again_and_no_others() -> None:
    owner, requester, transfer = pair()
    owner.take(requester.desk.ask(transfer))
    for each in owner.outgoing()[:2]:  # the first chunk, then retention
        requester.take(each)
    owner.take(requester.desk.ask_again(transfer, 5))
    again = owner.outgoing()
    assert [each.number for each in again if each.kind == "file-chunk"] == [1, 2]
    for each in again:
        requester.take(each)
    assert transfer.state == "received"


def test_a_file_that_changed_meanwhile_is_sent_anew() -> None:
    owner, requester, transfer = pair()
    owner.take(requester.desk.ask(transfer))
    for each in owner.outgoing()[:3]:
        requester.take(each)
    owner.disk["/songs/song"] = b"another song"
    owner.take(requester.desk.ask_again(transfer, 5))
    for each in owner.outgoing():
        requester.take(each)
    assert requester.disk["song"] == b"another song"


def test_a_wrong_checksum_is_a_failure_and_nothing_is_kept() -> None:
    owner, requester, transfer = pair()
    owner.take(requester.desk.ask(transfer))
    for each in owner.outgoing():
        requester.take(each if each.kind != "file-chunk" else replace(each, content=b"x"))
    assert (transfer.state, "song" in requester.disk) == ("failed", False)
    assert "checksum" in transfer.detail


@pytest.mark.parametrize(
    ("kind", "size", "number"),
    [
        ("file-begin", 1 << 50, None),
        ("file-begin", None, 1 << 40),
        ("file-chunk", 1 << 50, None),
        ("file-chunk", None, 1 << 40),
        ("file-chunk", None, -1),
    ],
)
def test_an_owner_that_sends_more_than_was_accepted_is_ignored(kind: str, size: int | None, number: int | None) -> None:
    owner, requester, transfer = pair()
    owner.take(requester.desk.ask(transfer))
    sent = next(each for each in owner.outgoing() if each.kind == kind)
    lie = replace(sent, size=sent.size if size is None else size, number=sent.number if number is None else number)
    requester.take(lie)
    assert (transfer.size, transfer.chunks, transfer.have, transfer.state) == (0, 0, [], "waiting")


def test_refusals_come_before_anything_is_sent() -> None:
    owner, requester, transfer = pair()
    transfer.accepts = len(owner.disk["/songs/song"]) - 1
    owner.take(requester.desk.ask(transfer))
    (refusal,) = owner.outgoing()
    requester.take(refusal)
    assert (transfer.state, "bytes" in transfer.detail) == ("refused", True)
    for reason in ("withdrawn", "deleted"):
        owner, requester, transfer = pair()
        if reason == "withdrawn":
            del owner.desk.offers["song"]
        else:
            del owner.disk["/songs/song"]
        owner.take(requester.desk.ask(transfer))
        (refusal,) = owner.outgoing()
        requester.take(refusal)
        assert (transfer.state, transfer.detail) == ("refused", "it is not offered any more")


def test_what_is_cancelled_or_old_is_not_sent_and_strangers_are_ignored() -> None:
    owner, requester, transfer = pair()
    asked = requester.desk.ask(transfer)
    cancelled = requester.desk.cancel(transfer, 1)
    assert cancelled is not None and requester.desk.cancel(transfer, 2) is None
    owner.take(cancelled)
    owner.take(asked)
    assert owner.outgoing() == []
    owner, requester, transfer = pair()
    owner.take(requester.desk.ask(transfer), now_ms=TRANSFER_MS + 1)
    assert owner.outgoing() == []
    requester.desk.expire(TRANSFER_MS + 1)
    assert transfer.state == "expired"
    owner, requester, transfer = pair()
    requester.desk.ask(transfer)
    requester.take(MailMessage("requester", "thief", "file-refused", "id", text="no"))
    assert transfer.state == "waiting"
