"""Files between two clients in the simulator: mail that comes twice and out of order, processes that die.

Each side has a mailbox, which gives a message again until it was answered to the end and acknowledged, and a desk that
is stored at moments. The owner withdraws and changes files, the requester asks, cancels, and asks again.
"""

from dataclasses import dataclass, field
from hashlib import sha256
from random import Random

from m4cast.overlay.protocol.clients import transfers
from m4cast.overlay.protocol.clients.letters import MailMessage
from m4cast.overlay.protocol.clients.transfers import FileDesk, FinishFile, OfferedFile, SendFile, TakeChunk, Transfer
from m4cast.overlay.sim.checkers import Violation

NAMES = ("song", "film", "gone")
CHUNK_BYTES = 5
"""The chunk size of the simulated files; small, so that there are many."""
STEPS, ROUNDS_MAX = 120, 400


@dataclass
class FileSide:
    name: str
    desk: FileDesk
    disk: dict[str, bytes] = field(default_factory=dict)
    parts: dict[str, dict[int, bytes]] = field(default_factory=dict)
    mail: list[MailMessage] = field(default_factory=list)
    """Messages that are not acknowledged yet."""

    def find(self, path: str) -> OfferedFile | None:
        content = self.disk.get(path)
        return None if content is None else OfferedFile(len(content), sha256(content).hexdigest())


class ExchangeWorld:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.owner, self.requester = (FileSide(name, FileDesk(name)) for name in ("owner", "requester"))
        self.versions: dict[str, list[bytes]] = {name: [] for name in NAMES}
        for name in NAMES[:2]:
            self.change(name)
        self.now_ms = 0
        self.serial = 0
        self.loses = True

    def change(self, name: str) -> None:
        content = self.random.randbytes(self.random.randint(1, 30))
        self.versions[name].append(content)
        self.owner.disk[name] = content
        self.owner.desk.offers[name] = name

    def ask(self) -> None:
        self.serial += 1
        accepts = self.random.choice((1_000, 1_000, 3))
        transfer = Transfer(f"id-{self.serial}", "owner", self.random.choice(NAMES), "", self.now_ms, accepts)
        self.send(self.requester.desk.ask(transfer))

    def send(self, message: MailMessage) -> None:
        """It arrives once or twice, before or after others. Chunks are so many that retention may remove some."""
        if self.loses and message.kind == "file-chunk" and self.random.random() < 0.1:
            return
        side = self.owner if message.to == "owner" else self.requester
        for _ in range(self.random.choice((1, 1, 2))):
            side.mail.insert(self.random.randint(max(len(side.mail) - 3, 0), len(side.mail)), message)

    def answer(self, side: FileSide, *, dies: bool) -> None:
        """Answer the first message; if the process dies on the way, what was stored before counts."""
        if not side.mail:
            return
        tasks, _ = side.desk.receive(side.mail[0], side.find, self.now_ms)
        for task in tasks:
            self._perform(side, task)
            if dies and self.random.random() < 0.5:
                self.restart(side)
                return  # the message was not acknowledged
        side.mail.pop(0)

    def _perform(self, side: FileSide, task: object) -> None:
        match task:
            case MailMessage():
                self.send(task)
            case TakeChunk(transfer, number, content):
                side.parts.setdefault(transfer.id, {})[number] = content
            case FinishFile(transfer):
                parts = side.parts[transfer.id]
                whole = b"".join(parts[number] for number in range(transfer.chunks))[: transfer.size]
                told = side.desk.finished(transfer, sha256(whole).hexdigest(), self.now_ms)
                if transfer.state == "received" and whole not in self.versions[transfer.name]:
                    raise Violation("files", f"{transfer.name} was received, and its owner never had that")
                self.send(told)
            case SendFile():
                content = side.disk[side.desk.offers[task.message.name]]

                def read(number: int) -> bytes:
                    return content[number * CHUNK_BYTES : (number + 1) * CHUNK_BYTES]

                for message in side.desk.messages_of(task, read, self.now_ms):
                    self.send(message)

    def restart(self, side: FileSide) -> None:
        stored = side.desk.to_json()
        side.desk = FileDesk(side.name)
        side.desk.restore(stored)


def run_exchange_seed(seed: int) -> list[str]:
    """One run; raises `Violation`. Returns the states in which the requests ended."""
    before, transfers.CHUNK_BYTES = transfers.CHUNK_BYTES, CHUNK_BYTES
    try:
        return _run(ExchangeWorld(seed))
    finally:
        transfers.CHUNK_BYTES = before


def _run(world: ExchangeWorld) -> list[str]:
    random = world.random
    for _ in range(STEPS):
        world.now_ms += 1
        chance, side = random.random(), random.choice((world.owner, world.requester))
        if chance < 0.08:
            world.ask()
        elif chance < 0.11:
            world.change(random.choice(NAMES[:2]))
        elif chance < 0.13:
            world.owner.desk.offers.pop(random.choice(NAMES), None)
        elif chance < 0.16 and world.requester.desk.transfers:
            transfer = random.choice(list(world.requester.desk.transfers.values()))
            message = world.requester.desk.cancel(transfer, world.now_ms)
            if message is not None:
                world.send(message)
        elif chance < 0.2:
            world.restart(side)
        else:
            world.answer(side, dies=random.random() < 0.2)
    return _calm_down(world)


def _calm_down(world: ExchangeWorld) -> list[str]:
    """No more losses: every request ends; who waits in vain asks again."""
    world.loses = False
    for _ in range(ROUNDS_MAX):
        world.now_ms += 1
        for side in (world.owner, world.requester):
            for _ in range(len(side.mail)):
                world.answer(side, dies=False)
        open_ones = [each for each in world.requester.desk.transfers.values() if not each.is_over]
        if not open_ones and not world.owner.mail and not world.requester.mail:
            break
        if not world.owner.mail and not world.requester.mail:
            for each in open_ones:
                world.send(world.requester.desk.ask_again(each, world.now_ms))
    else:
        raise Violation("liveness", "requests for files do not end")
    ended = list(world.requester.desk.transfers.values())
    if len(ended) != world.serial:
        raise Violation("files", f"{world.serial - len(ended)} requests were forgotten")
    for each in ended:
        if each.state == "failed":
            raise Violation("files", f"{each.name}: {each.detail}")
    return [each.state for each in ended]
