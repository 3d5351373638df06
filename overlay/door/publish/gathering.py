"""Gathering: small publishes of JSON rows become batches on the node's own loop, without a thread.

A `Gatherer` takes rows of one topic, schema and number of acks, of any clients. Rows that find fewer than
`UNANSWERED_MAX` batches unanswered are sent at once; else they gather until one is answered or `GATHER_S` have passed:
the disk and the neighbours set the pace, and however many rows arrive one by one, the channel has a bounded number of
batches to handle. Publishes of a connection keep their order, and each gets its own range.

What may take long stays on the threads: a topic's first publish, which compares its schema with all that is known,
opens a gatherer. Only rows that have exactly its columns, with values of plain types that Arrow takes as they are
written, are gathered: whatever is wrong with others is said by the threads. It closes when it was not used for a while,
so that it does not hold on to a schema.

Cost: a publish is two passes over its values; validation of types, encoding, the request and the answer are done once
for all that are gathered. `tests/bench/web.py` watches it.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from types import NoneType
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import types

from m4cast.overlay.door.node_handle import NodeHandle, timed_out
from m4cast.overlay.door.publish.coalescing import FEW_BYTES_MAX, Encoder
from m4cast.overlay.door.quotas import ByteQuota
from m4cast.overlay.door.refusals import Refusal, internal, stopping
from m4cast.overlay.net.driver import Answer
from m4cast.overlay.protocol.effects import Publish, Published, Range, Refused

GATHERERS_MAX = 256
"""Open at a time. Other topics are published by the threads. Guess."""
UNUSED_S = 1.0
"""After so long without rows a gatherer closes. Higher: a topic that was deleted keeps its types for longer. Guess."""
UNANSWERED_MAX = 1
"""Rows are sent at once while fewer batches than this are unanswered. Higher: rows wait less while there is CPU to
spare, and every node has more batches to handle; with 2, nothing changed beyond the noise on a machine with other
load."""
GATHER_S = 0.002
"""The longest time for which rows gather while batches are unanswered. Shorter than `linger_ms`: no thread has to be
woken for it. Higher: fewer batches, later rows. Guess."""
EXACT_MAX = 1 << 53
"""Integers up to this are doubles without rounding."""
LONG_MIN = float(1 << 63)
"""Doubles from this on may be what a parser made of an integer beyond 64 bits: they are read again, exactly."""
COLUMNS_MAX = 64
"""Rows with more columns are left to the threads: Arrow takes 5 us for a column, however few its rows (measured)."""
PUBLISHES_MAX = 256
"""Publishes that gather: each is told its share of the range, which takes about 2 us (measured)."""
VALUES_MAX = 16 << 10
"""Values that gather: rows by columns. Arrow takes 50 ns for each (measured)."""

Outcome = Range | Refusal
Row = dict[str, Any]


class PlainColumns:
    """The columns of a schema whose values can be taken from parsed JSON as they are."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        found = [_plain_type(field.type) for field in schema]
        self._types = [(field.name, plain) for field, plain in zip(schema, found, strict=True) if plain is not None]
        self.are_plain = len(self._types) == len(found) <= COLUMNS_MAX
        self.has_doubles = any(types.is_float64(field.type) for field in schema)

    def fit(self, rows: Sequence[Row]) -> list[list[Any]] | None:
        """The values by column; None unless every row has exactly these columns, and values that Arrow takes."""
        width = len(self._types)
        if not {width}.issuperset(map(len, rows)):
            return None
        columns: list[list[Any]] = []
        try:
            for name, (kinds, takes) in self._types:
                column = [row[name] for row in rows]
                if not kinds.issuperset(map(type, column)) or not takes(column):
                    return None
                columns.append(column)
        except KeyError:
            return None
        return columns

    def rows(self, publishes: Sequence[list[list[Any]]]) -> pa.RecordBatch:
        """Combine what `fit` returned for some publishes into one record batch."""
        arrays = []
        for at, field in enumerate(self._schema):
            values = publishes[0][at] if len(publishes) == 1 else list(chain.from_iterable(p[at] for p in publishes))
            arrays.append(pa.array(values, field.type))
        return pa.record_batch(arrays, schema=self._schema)


class PlainType(NamedTuple):
    """The values that a column of some type takes without changing them."""

    kinds: frozenset[type]
    """Types of parsed JSON."""
    takes: Callable[[list[Any]], bool]
    """Tells if such a column takes these values. One that Arrow refuses would refuse all that is gathered with it."""


def _plain_type(type_: pa.DataType) -> PlainType | None:
    """None: not plain."""
    if types.is_integer(type_):
        return PlainType(frozenset((int, NoneType)), _whole_numbers(type_))
    if types.is_float64(type_):
        return PlainType(frozenset((float, int, NoneType)), _are_doubles)
    if types.is_string(type_):
        return PlainType(frozenset((str, NoneType)), _are_utf8)
    if types.is_boolean(type_):
        return PlainType(frozenset((bool, NoneType)), lambda _: True)
    return None


def _whole_numbers(type_: pa.DataType) -> Callable[[list[Any]], bool]:
    bits = type_.bit_width
    least, most = (-(1 << bits - 1), (1 << bits - 1) - 1) if types.is_signed_integer(type_) else (0, (1 << bits) - 1)

    def are_within(values: list[Any]) -> bool:
        present = [each for each in values if each is not None]
        return not present or (least <= min(present) and max(present) <= most)

    return are_within


def _are_doubles(values: list[Any]) -> bool:
    present = [each for each in values if each is not None]
    return max(map(abs, present), default=0) <= EXACT_MAX or not any(
        abs(each) > EXACT_MAX if type(each) is int else abs(each) >= LONG_MIN for each in present
    )


def _are_utf8(values: list[Any]) -> bool:
    """False: there is half a surrogate pair, as JSON may write it."""
    try:
        "".join(filter(None, values)).encode()
    except UnicodeEncodeError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class GatheredRows:
    """One publish: its values by column, and whom to tell how it ended."""

    columns: list[list[Any]]
    count: int
    size: int
    client: str
    tell: Callable[[Outcome], None]


class Gatherer:
    """Used on the loop. `timeout_s`: how long an answer may take; `held`: what it holds at the door until it closes."""

    def __init__(
        self,
        encode: Encoder,
        acks: int,
        node: NodeHandle,
        quota: ByteQuota,
        timeout_s: float,
        held: ExitStack,
    ) -> None:
        self.columns = PlainColumns(encode.schema)
        self.held = held
        self.is_used = True
        """True if it was used since `Gathering` last looked."""
        self._encode = encode
        self._acks = acks
        self._node = node
        self._quota = quota
        self._timeout_s = timeout_s
        self._gathered: list[GatheredRows] = []
        self._gathered_bytes = 0
        self._gathered_values = 0
        self._bytes_max = min(FEW_BYTES_MAX, encode.batch_bytes_max // 2)
        self._unanswered = 0
        self._due: asyncio.Handle | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self._encode.topic, self._acks

    @property
    def is_idle(self) -> bool:
        return not self._gathered and not self._unanswered

    def add(self, rows: GatheredRows) -> bool:
        """Send them with the next batch. False: the quota is exhausted, and nothing was done."""
        if not self._quota.try_take(rows.client, rows.size):
            return False
        self.is_used = True
        self._gathered.append(rows)
        self._gathered_bytes += rows.size
        self._gathered_values += rows.count * len(rows.columns)
        if (
            len(self._gathered) >= PUBLISHES_MAX
            or self._gathered_values >= VALUES_MAX
            or self._gathered_bytes >= self._bytes_max
        ):
            self.flush()
        elif self._due is None:
            loop = asyncio.get_running_loop()
            if self._unanswered >= UNANSWERED_MAX:
                self._due = loop.call_later(GATHER_S, self.flush)
            else:
                self._due = loop.call_soon(self.flush)  # after all that has arrived by now
        return True

    def flush(self) -> None:
        """Send what has gathered."""
        if self._due is not None:
            self._due.cancel()
            self._due = None
        if self._gathered:
            taken, self._gathered = self._gathered, []
            self._gathered_bytes = self._gathered_values = 0
            self._send(taken)

    def _send(self, taken: list[GatheredRows]) -> None:
        """Publish all as one batch; if that is refused, each half by itself, so that a good publish is not refused with
        a bad one."""
        try:
            staged = self._encode(self.columns.rows([each.columns for each in taken]))
            first = taken[0].client
            answer = self._node.request_here(lambda n: Publish(n, (staged,), (), self._acks, first))
        except Exception as error:
            if len(taken) > 1 and not self._node.is_stopped:
                half = len(taken) // 2
                self._send(taken[:half])
                self._send(taken[half:])
            else:
                self._tell(taken, error if isinstance(error, Refusal) else internal(error))
            return
        self._unanswered += 1
        late = asyncio.get_running_loop().call_later(self._timeout_s, answer.cancel)
        answer.add_done_callback(lambda answer: self._answered(taken, answer, late))

    def _answered(self, taken: list[GatheredRows], answer: "asyncio.Future[Answer]", late: asyncio.TimerHandle) -> None:
        self._unanswered -= 1
        if answer.cancelled():
            self._tell(taken, stopping() if self._node.is_stopped else timed_out(self._timeout_s))
        else:
            match answer.result():
                case Published(_, (whole,)):
                    self._tell(taken, whole)
                case Refused(_, code, detail):
                    self._tell(taken, Refusal(code, detail))
                case other:
                    raise AssertionError(f"{other} is no answer to a publish")
        late.cancel()
        if self._unanswered < UNANSWERED_MAX:
            self.flush()

    def _tell(self, taken: list[GatheredRows], outcome: Outcome) -> None:
        """Each publish its share of the range, or why there is none."""
        first = outcome.first_sequence if isinstance(outcome, Range) else 0
        sizes: Counter[str] = Counter()
        for each in taken:
            sizes[each.client] += each.size
        for client, size in sizes.items():
            self._quota.give_back(client, size)
        for each in taken:
            if isinstance(outcome, Range):
                each.tell(Range(outcome.stream, first, first + each.count))
                first += each.count
            else:
                each.tell(outcome)


class Gathering:
    """The gatherers of a door, by topic and acks. Used on the loop, unless it says otherwise."""

    def __init__(self, later: Callable[[Callable[[], object]], object]) -> None:
        """`later` runs something on the loop, from any thread."""
        self._later = later
        self._gatherers: dict[tuple[str, int], Gatherer] = {}
        self._look: asyncio.TimerHandle | None = None

    def find(self, topic: str, acks: int) -> Gatherer | None:
        return self._gatherers.get((topic, acks))

    def opened(self, gatherer: Gatherer) -> None:
        """Use it from now on, unless there is one. Callable from any thread."""
        self._later(lambda: self._open(gatherer))

    def close(self) -> None:
        """Stop: the node ends. Callable from any thread."""
        self._later(self._close_all)

    def _open(self, gatherer: Gatherer) -> None:
        if gatherer.key in self._gatherers or len(self._gatherers) >= GATHERERS_MAX:
            self._let_go(gatherer)
            return
        self._gatherers[gatherer.key] = gatherer
        if self._look is None:
            self._look = asyncio.get_running_loop().call_later(UNUSED_S, self._close_unused)

    def _close_unused(self) -> None:
        for key, gatherer in list(self._gatherers.items()):
            if gatherer.is_idle and not gatherer.is_used:
                del self._gatherers[key]
                self._let_go(gatherer)
            gatherer.is_used = False
        loop = asyncio.get_running_loop()
        self._look = loop.call_later(UNUSED_S, self._close_unused) if self._gatherers else None

    def _close_all(self) -> None:
        if self._look is not None:
            self._look.cancel()
        for gatherer in self._gatherers.values():
            gatherer.flush()
            self._let_go(gatherer)
        self._gatherers.clear()

    def _let_go(self, gatherer: Gatherer) -> None:
        """Runs on a thread, because others may hold the locks for long."""
        asyncio.get_running_loop().run_in_executor(None, gatherer.held.close)
