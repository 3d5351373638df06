"""A small store in which every table is in use, and a picture of all that can be read from it.

    python -m tests.overlay.store.kept_store     # writes kept_store.mdb.xz and kept_store.json again

The committed file was written before the store's code was rearranged. Later code has to read it as `kept_store.json`
describes it, and has to write the same bytes when it lives the same life. Write it again only with a new format
version, and then keep the old one beside it.
"""

import json
import lzma
import os
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import lmdb
import xxhash

from m4cast.overlay.ids import NodeId, StreamId
from m4cast.overlay.protocol.effects import (
    FormerPart,
    FormerPartRecord,
    PublisherRecord,
    PublisherState,
    Range,
    Recovered,
    Staged,
    UpTimeRecord,
)
from m4cast.overlay.protocol.publishing.ledger import kept
from m4cast.overlay.protocol.wire.batch import Batch, Delivery, How, Skip, SkipReason, StoredPayload
from m4cast.overlay.protocol.wire.frame import seal
from m4cast.overlay.protocol.wire.messages import RosterEntry
from m4cast.overlay.store.store import Store
from m4cast.overlay.store.tables.topics import Keep
from tests.overlay.protocol.append_parts import append_of
from tests.overlay.protocol.stream_parts import chain, entry, node_id, stream_id
from tests.overlay.store.store_parts import WAIT_S, from_stage, opened, synced

DATA = Path(__file__).with_suffix(".mdb.xz")
PICTURE = Path(__file__).with_suffix(".json")

NOW_MS = 1_790_000_000_000
LARGE_BYTES = 20_000
"""More than fits in a log entry."""
LONG_BYTES = 200
"""Of longer values a picture has the length and a checksum."""

FOREIGN = stream_id("a", "events")
LATE = stream_id("b", "events")
SKIPPED = stream_id("c", "events")
EMPTIED = "emptied"


def write_store(folder: Path) -> None:
    """Live a whole life in this folder, the same one each time."""
    with (
        patch.object(os, "urandom", lambda count: bytes(range(1, count + 1))),
        patch.object(time, "time_ns", lambda: NOW_MS * 1_000_000),
        opened(folder) as store,
    ):
        _live_first(store)
        store.take_new_identity()
        _live_again(store)
    _write_old_publisher(folder)


def _live_first(store: Store) -> None:
    """Under the first identity: published, staged, received, skipped, filled, trimmed."""
    me = store.recovered.node_id
    own = _timed(chain(3, stream=StreamId(me, "events"), rows=2))
    emptied = _timed(chain(2, stream=StreamId(me, EMPTIED)))
    payloads = [Staged("staged", 3, 2, b"s" * LARGE_BYTES), Staged("staged", 1, 2, b"small")]
    committed = _chained(StreamId(me, "staged"), payloads)
    first = PublisherState("17", (Range(own[0].stream, 1, 3),), me, 1, "alice", 100)
    synced(
        store,
        append_of(1, batches=tuple(own), deliveries=_published(own), owners=((own[0].stream, "alice"),), up_ms=1_000),
        append_of(2, batches=tuple(emptied), deliveries=_published(emptied), publishers=(("first", first),)),
        append_of(3, stage=(("s1", payloads[0]), ("s2", payloads[1]), ("aborted", Staged("staged", 1, 2, b"gone")))),
        append_of(
            4,
            batches=tuple(from_stage(batch) for batch in committed),
            deliveries=_published(committed),
            unstage=("s1", "s2"),
            publishers=(
                ("committed", PublisherState("a b", (Range(committed[0].stream, 1, 5),), me, 7, "bob", 200)),
                ("dropped", PublisherState("0", ())),
            ),
        ),
        append_of(5, unstage=("aborted",), drop=("dropped",)),
    )
    large = _timed(chain(3, stream=FOREIGN, size=LARGE_BYTES, rows=10))
    late = _timed([replace(batch, first_sequence=batch.first_sequence + 40) for batch in chain(2, stream=LATE)])
    skipped = _timed(chain(5, stream=SKIPPED, rows=2))
    skip = Skip(SKIPPED, 1, 8, SkipReason.EXPIRED, node_id("m"))
    synced(
        store,
        append_of(6, batches=tuple(large), deliveries=_received(large, How.PUSHED)),
        append_of(7, starts=((LATE, 41),), batches=tuple(late), deliveries=_received(late, How.PULLED)),
        append_of(8, skips=(skip,), deliveries=(Delivery(SKIPPED, 1, 8, 0, NOW_MS, 0, How.PULLED, None),)),
        append_of(9, batches=(skipped[4],), deliveries=_received(skipped[4:], How.PUSHED)),
        append_of(10, fills=(skipped[1],), deliveries=_received(skipped[1:2], How.FILLED)),
        append_of(11, repairs=(large[1],)),
        append_of(12, skips=(Skip(SKIPPED, 11, 12, SkipReason.FILTERED, me),)),
    )
    for schema_id in (1, 2**63 + 5):
        store.save_schema(schema_id, b"schema %d" % schema_id)
    for at_ms, heard in enumerate(_roster(), start=NOW_MS):
        store.save_roster(heard, at_ms)
    store.set_keep("events", Keep(bytes_max=50_000, age_ms_max=None))
    store.set_reader("reader", {FOREIGN: 11, LATE: 41}, NOW_MS + 60_000, (EMPTIED,), now_ms=NOW_MS)
    store.set_reader("expired", {}, NOW_MS - 1, ("staged",), now_ms=NOW_MS)
    store.empty(EMPTIED, NOW_MS).result(WAIT_S)
    store.trim(NOW_MS).result(WAIT_S)
    store.save_retention_clock(NOW_MS - 5).result(WAIT_S)


def _live_again(store: Store) -> None:
    """Under the identity after a rollback, with parts of former commits."""
    me, former = store.recovered.node_id, store.recovered.former_ids[0]
    own = _timed(chain(2, stream=StreamId(me, "events"), size=100))
    emptied = _timed(chain(2, stream=StreamId(me, EMPTIED)))
    nowhere = Range(StreamId(former, "never held"), 5, 9)
    parts = [FormerPart(former, batch, part, "first", "18", nowhere) for batch, part in ((9, 0), (9, 1), (12, 2))]
    synced(
        store,
        append_of(1, batches=tuple(own), deliveries=_published(own), former_parts=tuple(parts)),
        append_of(
            2, former_done=((former, 12, 2),), publishers=(("second", PublisherState("19", (nowhere,), former, 9)),)
        ),
        append_of(
            3, stage=(("waiting", Staged("events", 4, 1, b"w" * 500)), ("large", Staged("x", 1, 1, b"x" * 20_000)))
        ),
        append_of(4, up_ms=2_000),
        append_of(5, batches=tuple(emptied), deliveries=_published(emptied)),
    )
    store.empty(EMPTIED, NOW_MS).result(WAIT_S)


def _timed(batches: list[Batch]) -> list[Batch]:
    """Batches as published a second apart."""
    timed: list[Batch] = []
    for at, batch in enumerate(batches):
        previous = timed[-1].checksum if timed else batch.previous_checksum
        published_at_ms = NOW_MS - 100_000 + 1_000 * at
        timed.append(seal(replace(batch, published_at_ms=published_at_ms, previous_checksum=previous, checksum=0)))
    return timed


def _chained(stream: StreamId, payloads: list[Staged]) -> list[Batch]:
    batches: list[Batch] = []
    for staged in payloads:
        [batch] = chain(1, stream=stream, rows=staged.row_count, after=batches[-1] if batches else None)
        content = {"payload": staged.payload, "schema_id": staged.schema_id, "publisher": "committed", "position": "1"}
        batches.append(seal(replace(batch, **content, checksum=0)))  # type: ignore[arg-type] # by its fields' names
    assert all(
        kept(staged).payload == from_stage(batch).payload for staged, batch in zip(payloads, batches, strict=True)
    )
    return batches


def _published(batches: list[Batch]) -> tuple[Delivery, ...]:
    return tuple(
        Delivery(b.stream, b.first_sequence, b.last_sequence, b.published_at_ms, NOW_MS + 1, 0, How.PUBLISHED, None)
        for b in batches
    )


def _received(batches: list[Batch], how: How) -> tuple[Delivery, ...]:
    return tuple(
        Delivery(b.stream, b.first_sequence, b.last_sequence, b.published_at_ms, NOW_MS + 2, 3, how, node_id("n"))
        for b in batches
    )


def _roster() -> list[RosterEntry]:
    """One node that restarted, one that left, one that is there."""
    return [
        entry("n", 1),
        _with_neighbours(entry("n", 2, 5), ("m", "o")),
        entry("m", 3),
        entry("m", 3, 9, leaving=True),
        entry("o", origin_batch=77),
    ]


def _with_neighbours(heard: RosterEntry, names: tuple[str, ...]) -> RosterEntry:
    return heard._replace(neighbours=tuple(node_id(name) for name in names), site="north", door="n:7500")


def _write_old_publisher(folder: Path) -> None:
    """A publisher key as version 3 wrote it: position, origin and origin batch, and nothing about owner or use."""
    with lmdb.open(str(folder), max_dbs=32) as env:
        publishers = env.open_db(b"publishers", create=False)
        value = (2).to_bytes(2, "little") + node_id("me") + (8).to_bytes(8, "little") + b"33"
        with env.begin(write=True) as txn:
            txn.put(b"version 3", value, db=publishers)


# ---- the picture


def picture(folder: Path) -> dict[str, Any]:
    """All that can be read through the store, as JSON has it."""
    with opened(folder) as store:
        everything = {
            "recovered": _recovered(store.recovered),
            "streams": {_name(stream): _stream(store, stream) for stream in store.held()},
            "stream_count": store.stream_count(),
            "deliveries": [
                [
                    record.number,
                    record.incarnation,
                    *_delivery(record.delivery),
                    None if record.reason is None else record.reason.name,
                    record.origin_batch,
                    record.payload_bytes,
                    record.checksum,
                ]
                for record in store.read_deliveries(0, 1_000)
            ],
            "delivery_range": store.delivery_range(),
            "publishers": [[key, _publisher(state)] for key, state in store.publishers("", 1_000)],
            "publishers from d on": [key for key, _ in store.publishers("d", 2)],
            "roster": [
                [_roster_entry(span.entry), span.from_ms, span.to_ms, span.reason] for span in store.roster_spans()
            ],
            "schemas": {str(each): _bytes(store.schema(each) or b"") for each in (1, 2, 2**63 + 5)},
            "keeps": {
                topic: [keep.bytes_max, keep.age_ms_max, keep.hold_bytes_max, keep.hold_ms_max]
                for topic, keep in store.keeps().items()
            },
            "readers": {
                name: {
                    "frontier": {_name(stream): at for stream, at in reader.frontier.items()},
                    "topics": sorted(reader.topics),
                    "lease_until_ms": reader.lease_until_ms,
                    "cuts": [[_name(cut.stream), *cut[1:]] for cut in reader.cuts],
                }
                for name, reader in store.readers().items()
            },
            "retention_clock_ms": store.retention_clock_ms(),
            "oldest_ms": store.oldest_ms(),
            "check": _check(store),
        }
        plain: dict[str, Any] = json.loads(json.dumps(everything))
        return plain


def _recovered(recovered: Recovered) -> dict[str, Any]:
    return {
        "node_id": recovered.node_id.hex(),
        "incarnation": recovered.incarnation,
        "former_ids": [former.hex() for former in recovered.former_ids],
        "origin_batch": recovered.origin_batch,
        "up_ms": recovered.of(UpTimeRecord).get("", 0),
        "streams": {
            _name(stream): {
                "low": held.low,
                "next": held.next,
                "last_checksum": held.last_checksum,
                "skips": [[s.first_sequence, s.last_sequence, s.reason.name, s.by.hex()] for s in held.skips],
                "owner": held.owner,
                "last_published_ms": held.last_published_ms,
            }
            for stream, held in recovered.streams.items()
        },
        "publishers": {key: _publisher(state) for key, state in recovered.of(PublisherRecord).items()},
        "staged": {
            stage_id: [each.topic, each.row_count, each.schema_id, *_stored(each)]
            for stage_id, each in recovered.staged.items()
        },
        "former_parts": [
            [part.origin.hex(), part.first_batch, part.part, part.key, part.position, _range(part.rows)]
            for part in recovered.of(FormerPartRecord).values()
        ],
        "roster": [_roster_entry(heard) for heard in recovered.roster],
    }


def _stream(store: Store, stream: StreamId) -> dict[str, Any]:
    held = store.held()[stream]
    low, following = store.streams()[stream]
    sequences = range(low, following + 1)
    times_ms = range(NOW_MS - 101_000, NOW_MS - 95_000, 500)
    batches = [found for at in sequences for found in store.read_kept(stream, at, at + 1, 1)]
    return {
        "low and next": [low, following],
        "held": [held.number, held.low, held.next, held.last_checksum, held.log_bytes, held.batches, held.owner],
        "lows": store.lows([stream])[stream],
        "batches": [[_batch(found.batch), found.received_at_ms, found.hops] for found in batches],
        "read_range": [[each.first_sequence for each in store.read_range(stream, at, 10**9, 1)] for at in sequences],
        "following": [store.following(stream, at) for at in sequences],
        "locate": [store.locate(stream, at) for at in sequences],
        "schema_runs": store.schema_runs(stream, low, following),
        "sequence_at": [store.sequence_at(stream, at_ms) for at_ms in times_ms],
    }


def _check(store: Store) -> dict[str, Any]:
    seen = store.check()
    return {
        "problems": seen.problems,
        "counts": [seen.streams, seen.batches, seen.rows, seen.bytes, seen.skips, seen.staged, seen.payloads],
    }


def _batch(batch: Batch) -> dict[str, Any]:
    return {
        "incarnation": batch.incarnation,
        "rows": [batch.first_sequence, batch.row_count],
        "origin_batch": batch.origin_batch,
        "schema_id": batch.schema_id,
        "published_at_ms": batch.published_at_ms,
        "publisher": [batch.publisher, batch.position, batch.part, batch.parts],
        "checksums": [batch.previous_checksum, batch.checksum],
        "payload": _bytes(bytes(batch.content)),
    }


def _delivery(delivery: Delivery) -> list[Any]:
    sender = None if delivery.sender is None else delivery.sender.hex()
    return [_name(delivery.stream), *delivery[1:6], delivery.how.name, sender]


def _publisher(state: PublisherState) -> list[Any]:
    ranges = [_range(rows) for rows in state.ranges]
    return [state.position, ranges, state.origin.hex(), state.origin_batch, state.owner, state.used_ms]


def _stored(staged: Staged) -> list[int]:
    assert isinstance(staged.payload, StoredPayload)
    return [len(staged.payload), staged.payload.checksum]


def _range(rows: Range) -> list[Any]:
    return [_name(rows.stream), rows.first_sequence, rows.next_sequence]


def _roster_entry(heard: RosterEntry) -> dict[str, Any]:
    fields = heard._asdict()
    return {**fields, "node_id": heard.node_id.hex(), "neighbours": [each.hex() for each in heard.neighbours]}


def _name(stream: StreamId) -> str:
    return f"{NodeId(stream.origin).hex()} {stream.topic}"


def _bytes(content: bytes) -> str:
    return content.hex() if len(content) <= LONG_BYTES else f"{len(content)} bytes, {xxhash.xxh3_64_hexdigest(content)}"


# ---- the file itself


def tables(folder: Path) -> dict[str, dict[str, str]]:
    """Every table as its bytes, without the store's code."""
    found: dict[str, dict[str, str]] = {}
    with lmdb.open(str(folder), max_dbs=32, readonly=True) as env:
        with env.begin() as txn:
            names = [bytes(name) for name, _ in txn.cursor()]
        for name in names:
            table = env.open_db(name, create=False)
            with env.begin() as txn:
                rows = dict(txn.cursor(table))
            found[name.decode()] = {key.hex(): _bytes(value) for key, value in rows.items()}
    return found


def unpack(folder: Path) -> None:
    """A copy of the committed store."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "data.mdb").write_bytes(lzma.decompress(DATA.read_bytes()))


def _write_fixture(folder: Path) -> None:
    write_store(folder)
    DATA.write_bytes(lzma.compress((folder / "data.mdb").read_bytes(), preset=9))
    facts = {"tables": tables(folder), "picture": picture(folder)}
    PICTURE.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        _write_fixture(Path(temporary))
