"""Reads of selective streams for other nodes: the batches that are here, whatever lies between them."""

from collections.abc import Callable
from contextlib import AbstractContextManager

from m4cast.overlay.errors import StoreError
from m4cast.overlay.ids import StreamId
from m4cast.overlay.protocol.effects import Damaged, ReadSelected, SelectedRead
from m4cast.overlay.protocol.wire.batch import Batch
from m4cast.overlay.store.table import ReadTxn, Tables, place_key, place_of
from m4cast.overlay.store.tables.log import LOG, checksums_of, entry_of
from m4cast.overlay.store.tables.skips import SKIPS, last_sequence_of
from m4cast.overlay.store.tables.streams import read_stream


class SelectedReads:
    """May be used by any thread."""

    def __init__(
        self,
        tables: Tables,
        read: Callable[[], AbstractContextManager[ReadTxn]],
        batch: Callable[[memoryview, int, ReadTxn], Batch],
        damage: Callable[[StreamId, int], Damaged],
        report: Callable[[Damaged], None],
    ) -> None:
        """`batch` decodes an entry, given the number of its payload. `damage` describes a batch that cannot be
        read, by its first sequence, and `report` is told of it."""
        self._tables = tables
        self._read = read
        self._batch = batch
        self._damage = damage
        self._report = report

    def read(self, asked: ReadSelected) -> SelectedRead:
        """Read at least one batch if there is one, then up to `bytes_max`. A batch that cannot be read ends the
        answer."""
        first, until = asked.first_sequence, asked.next_sequence
        found: list[Batch] = []
        checksum, size, damaged = 0, 0, 0
        with self._read() as txn, txn.cursor(self._tables[LOG]) as cursor:
            record = read_stream(asked.stream, self._tables, txn)
            if record is None:
                return SelectedRead(asked.token, (), until, 1, 0)
            # From the last entry that begins before `first`, which may end there, or be of another stream.
            is_there = cursor.prev() if cursor.set_range(place_key(record.number, first)) else cursor.last()
            is_there = is_there or cursor.first()
            while is_there:
                number, begins = place_of(cursor.key())
                if (number, begins) >= (record.number, asked.next_sequence):
                    break
                entry = entry_of(cursor.value())
                if number == record.number and begins + entry.row_count == first:
                    checksum = checksums_of(cursor.value())[0]
                elif number == record.number and begins + entry.row_count > first:
                    size += entry.payload_bytes
                    if found and size > asked.bytes_max:
                        until = begins
                        break
                    try:
                        found.append(self._batch(cursor.value(), entry.payload_number, txn))
                    except StoreError:
                        until = damaged = begins
                        break
                is_there = cursor.next()
            low = max(record.low, self._skipped(record.number, txn))
        if damaged:
            self._report(self._damage(asked.stream, damaged))
        return SelectedRead(asked.token, tuple(found), max(until, first), low, checksum)

    def _skipped(self, number: int, txn: ReadTxn) -> int:
        """The end of the last skip of the stream with this number; 1: it has none."""
        with txn.cursor(self._tables[SKIPS]) as cursor:
            is_there = cursor.prev() if cursor.set_range(place_key(number + 1, 0)) else cursor.last()
            if not is_there or place_of(cursor.key())[0] != number:
                return 1
            return last_sequence_of(cursor.value()) + 1
