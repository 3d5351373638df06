"""A run's canonical trace: what its nodes did, in bytes that no class of ours has a part in.

Messages are the bytes of their frames, appends the rows that the store writes for them, the rest is text. Timers and
traces are left out: they are nobody's business outside of a node. So the digest of a run stays as it is while classes,
rooms and the order of timers change, and is another one as soon as a node sends, writes, answers or reads anything
else, or in another order.

python -m tests.simulation.canonical            prints the digests of all seeds, as `canonical.json` has them
"""

import json
from collections.abc import Iterator
from pathlib import Path

import xxhash

from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.effects import (
    Append,
    Close,
    Delivered,
    Dial,
    KeyRemoved,
    Left,
    Output,
    Published,
    ReadRange,
    Refused,
    RolledBack,
    RosterChanged,
    Send,
    Staged,
    StageDone,
    Trace,
    WakeAt,
)
from m4cast.overlay.protocol.wire.batch import Batch, Skip, StoredPayload
from m4cast.overlay.protocol.wire.frame import encode
from m4cast.overlay.protocol.wire.messages import BeaconStmt
from m4cast.overlay.sim.campaign import run_seed
from m4cast.overlay.sim.places import Observer, Place
from m4cast.overlay.store.tables.deliveries import delivery_value
from m4cast.overlay.store.tables.former_parts import former_commit_key, former_part_key, former_part_value
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
            yield encode(message)
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
    """What the store writes, without the numbers that it gives to streams and payloads."""
    for stream, start in append.starts:
        yield b"start %d" % start + stream_key(stream)
    for stage_id in append.unstage:
        yield b"unstage " + stage_id.encode()
    for stage_id, staged in append.stage:
        yield b"stage " + stage_id.encode() + stage_value(staged, 0) + _content(staged)
    for batch in append.batches:
        yield b"batch" + stream_key(batch.stream) + _entry(batch)
    for batch in append.fills:
        yield b"fill" + stream_key(batch.stream) + _entry(batch)
    for batch in append.repairs:
        yield b"repair" + stream_key(batch.stream) + _entry(batch)
    for skip in append.skips:
        yield b"skip" + stream_key(skip.stream) + skip_value(skip)
    what: dict[tuple[StreamId, int], Batch | Skip] = {}
    what.update(((batch.stream, batch.first_sequence), batch) for batch in (*append.batches, *append.fills))
    what.update(((skip.stream, skip.first_sequence), skip) for skip in append.skips)
    for delivery in append.deliveries:
        delivered = what.get((delivery.stream, delivery.first_sequence))
        yield stream_key(delivery.stream) + delivery_value(delivery, 0, 0, delivered)
    for stream, owner in append.owners:
        yield b"owner " + owner.encode() + stream_key(stream)
    for key in append.drop:
        yield b"drop " + key.encode()
    for key, state in append.publishers:
        streams = b"".join(stream_key(each.stream) for each in state.ranges)
        yield key.encode() + publisher_value(state, [0] * len(state.ranges)) + streams
    for part in append.former_parts:
        yield former_part_key(part) + former_part_value(part)
    for commit in append.former_done:
        yield b"former" + former_commit_key(*commit)
    if append.up_ms:
        yield up_value(append.up_ms)


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
