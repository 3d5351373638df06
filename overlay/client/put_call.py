"""A DoPut call: sends rows and receives acknowledgements."""

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from pyarrow import flight

from m4cast.overlay.client.tables import batches_of
from m4cast.overlay.errors import LocalProtocolError, M4castError, RefusedError, UnreachableError


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows `first .. next - 1` of a stream, as written by a publish."""

    topic: str
    origin: str
    first: int
    next: int


def joined_ranges(ranges: Iterable[RowRange]) -> list[RowRange]:
    """The same with those that follow one another as one."""
    found: list[RowRange] = []
    for each in ranges:
        last = found[-1] if found else None
        if last is not None and (last.topic, last.origin, last.next) == (each.topic, each.origin, each.first):
            found[-1] = replace(last, next=each.next)
        else:
            found.append(each)
    return found


def put(
    client: Any, command: dict[str, object], table: pa.Table, batch_bytes: int, options: Any
) -> tuple[list[RowRange], list[str], bool]:
    """The ranges that it wrote, or the stage ids, or whether rows were restored that the node did not have; once all
    rows are acknowledged: in Flight, a call that broke off may look like one that ended."""
    descriptor = flight.FlightDescriptor.for_command(json.dumps(command).encode())
    writer, acks = client.do_put(descriptor, table.schema, options)
    ranges: list[RowRange] = []
    stage_ids: list[str] = []
    is_restored = False
    acked: int | None = None  # a commit without rows is acknowledged as well
    try:
        for batch in batches_of(table, batch_bytes):
            writer.write_batch(batch)
        writer.done_writing()
        while (written := acks.read()) is not None:
            ack = json.loads(written.to_pybytes())
            if "error" in ack:
                raise RefusedError(ack["error"]["code"], ack["error"]["detail"])
            acked = ack["rows"]
            _add(ranges, [RowRange(**rows) for rows in ack.get("ranges", ())])
            stage_ids = ack.get("stage_ids", stage_ids)
            is_restored = ack.get("restored", is_restored)
    except pa.ArrowException:
        writer.close()  # raises the node's own error, if it sent one
        raise
    except RefusedError:
        with suppress(pa.ArrowException):  # the same error; a writer that stays open would print it
            writer.close()
        raise
    writer.close()
    if acked != table.num_rows:
        raise unacknowledged(acked or 0, table.num_rows)
    return ranges, stage_ids, is_restored


def nothing_published(error: M4castError) -> M4castError:
    """The error of a publish, with a note that nothing was published if that is certain."""
    if isinstance(error, UnreachableError) and not error.is_sent:
        return UnreachableError(f"{error}; nothing was published", is_sent=False)
    return error


def unacknowledged(acked: int, sent: int) -> RefusedError:
    detail = (
        f"the call ended after {acked} of {sent} rows were acknowledged. The others may be published: repeat the call "
        "with the same key and positions, or look for the rows"
    )
    return RefusedError("unacknowledged", detail)


def move(key: str | None, expect: str | int | None, next_: str | int | None) -> dict[str, object]:
    """The fields that move a key. Positions are text; an int is written as its digits."""
    if key is None:
        if expect is not None or next_ is not None:
            raise LocalProtocolError("expect and next are positions of a key: set key, too")
        return {}
    return {"key": key, "expect": _position(expect), "next": _position(next_)}


def _position(position: str | int | None) -> str | None:
    return None if position is None else str(position)


def _add(ranges: list[RowRange], more: list[RowRange]) -> None:
    for rows in more:
        last = ranges[-1] if ranges else None
        if last is not None and (last.topic, last.origin, last.next) == (rows.topic, rows.origin, rows.first):
            ranges[-1] = RowRange(last.topic, last.origin, last.first, rows.next)
        else:
            ranges.append(rows)
