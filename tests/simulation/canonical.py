"""A run's canonical trace: what its nodes did, in bytes that no class of ours has a part in.

Messages are the bytes of their frames, appends the rows that the store writes for them, the rest is text. Timers and
traces are left out: they are nobody's business outside of a node. So the digest of a run stays as it is while classes,
rooms and the order of timers change, and is another one as soon as a node sends, writes, answers or reads anything
else, or in another order. The latest protocol version, a constant of the program that every hello repeats, is written
down as it was in version 2: a new version may not change what nodes do that do not use it.

python -m tests.simulation.canonical            prints the digests of all seeds, as `canonical.json` has them
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import xxhash

from m4cast.overlay.protocol.effects import (
    Append,
    AppendBatch,
    AppendSkip,
    Close,
    Delivered,
    Dial,
    DropStaged,
    FillSkip,
    FormerPartRecord,
    KeyRemoved,
    Left,
    Output,
    Published,
    PublisherRecord,
    ReadRange,
    Refused,
    RepairBatch,
    RolledBack,
    RosterChanged,
    Send,
    SetOwner,
    Staged,
    StageDone,
    StagePayload,
    StartStream,
    Trace,
    UpTimeRecord,
    WakeAt,
)
from m4cast.overlay.protocol.wire.batch import Batch, StoredPayload
from m4cast.overlay.protocol.wire.frame import encode
from m4cast.overlay.protocol.wire.messages import BeaconStmt, Hello
from m4cast.overlay.protocol.wire.routed import encode_routed
from m4cast.overlay.protocol.wire.selective import RoutedFrame
from m4cast.overlay.sim.campaign import run_seed
from m4cast.overlay.sim.places import Observer, Place
from m4cast.overlay.store.table import NUMBER_BYTES
from m4cast.overlay.store.tables.deliveries import delivery_value
from m4cast.overlay.store.tables.former_parts import former_part_key, former_part_value
from m4cast.overlay.store.tables.log import entry_value
from m4cast.overlay.store.tables.meta import up_value
from m4cast.overlay.store.tables.publishers import publisher_value
from m4cast.overlay.store.tables.skips import skip_value
from m4cast.overlay.store.tables.stage import stage_value
from m4cast.overlay.store.tables.streams import stream_key

FIXTURE = Path(__file__).with_suffix(".json")
SEEDS = range(100)


class Recorder(Observer):
    """Digests what the nodes of a world put out, in order."""

    def __init__(self) -> None:
        self._digest = xxhash.xxh3_128()

    def output(self, place: Place, output: Output) -> None:
        for piece in pieces(output):
            self._digest.update(len(piece).to_bytes(8, "little"))
            self._digest.update(piece)
        self._digest.update(place.address.encode())

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def pieces(output: Output) -> Iterator[bytes]:
    match output:
        case Send(conn, message):
            yield b"send %d" % conn
            if isinstance(message, RoutedFrame):
                yield encode_routed(message)
            else:
                yield encode(replace(message, version_max=2) if isinstance(message, Hello) else message)
        case Append():
            yield b"append %d" % output.token
            yield from rows(output)
        case Dial(conn, address):
            yield f"dial {conn} {address}".encode()
        case Close(conn):
            yield b"close %d" % conn
        case ReadRange(token, stream, first, following, bytes_max):
            yield f"read {token} {first} {following} {bytes_max}".encode() + stream_key(stream)
        case StageDone(request) | KeyRemoved(request, _):
            yield b"done %d" % request
        case Published(request, ranges):
            places = [(each.stream.origin.hex(), each.stream.topic, each.first_sequence) for each in ranges]
            yield f"published {request} {places} {[each.next_sequence for each in ranges]}".encode()
        case Refused(request, code, _):
            yield f"refused {request} {code}".encode()
        case Delivered(what):
            yield f"delivered {what.first_sequence} {what.last_sequence}".encode() + stream_key(what.stream)
        case RosterChanged(entry):
            yield encode(BeaconStmt(entry, 1))
        case RolledBack():
            yield b"rolled back"
        case Left():
            yield b"left"
        case Trace() | WakeAt():
            return


def rows(append: Append) -> Iterator[bytes]:
    """The writes of the store, without the numbers that it gives to streams and payloads, kind by kind."""
    for start in append.of(StartStream):
        yield b"start %d" % start.first_sequence + stream_key(start.stream)
    for write in append.writes:
        if isinstance(write, AppendBatch | DropStaged) and write.stage_id is not None:
            yield b"unstage " + write.stage_id.encode()
    for staged in append.of(StagePayload):
        yield b"stage " + staged.stage_id.encode() + stage_value(staged.staged, 0) + _content(staged.staged)
    for appended in append.of(AppendBatch):
        yield b"batch" + stream_key(appended.batch.stream) + _entry(appended.batch)
    for filled in append.of(FillSkip):
        yield b"fill" + stream_key(filled.batch.stream) + _entry(filled.batch)
    for repaired in append.of(RepairBatch):
        yield b"repair" + stream_key(repaired.batch.stream) + _entry(repaired.batch)
    for skipped in append.of(AppendSkip):
        yield b"skip" + stream_key(skipped.skip.stream) + skip_value(skipped.skip)
    for write in append.writes:
        if isinstance(write, AppendBatch | FillSkip | AppendSkip) and write.delivery is not None:
            what = write.skip if isinstance(write, AppendSkip) else write.batch
            yield stream_key(write.delivery.stream) + delivery_value(write.delivery, 0, 0, what)
    for owned in append.of(SetOwner):
        yield b"owner " + owned.owner.encode() + stream_key(owned.stream)
    yield from _records(append)


def _records(append: Append) -> Iterator[bytes]:
    publishers = append.of(PublisherRecord)
    for record in publishers:
        if record.content is None:
            yield b"drop " + record.key.encode()
    for record in publishers:
        if record.content is not None:
            streams = b"".join(stream_key(each.stream) for each in record.content.ranges)
            value = publisher_value(record.content, [0] * len(record.content.ranges))
            yield record.key.encode() + value + streams
    parts = append.of(FormerPartRecord)
    for part in parts:
        if part.content is not None:
            yield former_part_key(part.key) + former_part_value(part.content)
    commits = dict.fromkeys(former_part_key(part.key)[:-NUMBER_BYTES] for part in parts if part.content is None)
    for commit in commits:
        yield b"former" + commit
    for up in append.of(UpTimeRecord):
        assert up.content is not None
        yield up_value(up.content)


def _entry(batch: Batch) -> bytes:
    return entry_value(batch, 1 if isinstance(batch.payload, StoredPayload) else 0, 0, 0)


def _content(staged: Staged) -> bytes:
    return b"" if isinstance(staged.payload, StoredPayload) else bytes(staged.payload)


def digest(seed: int) -> str:
    recorder = Recorder()
    run_seed(seed, observers=(recorder,))
    return recorder.hexdigest()


if __name__ == "__main__":
    print(json.dumps({str(seed): digest(seed) for seed in SEEDS}, indent=0))
