"""Receipts of a sink: one small file for each successful commit, in a folder of the user's choice.

The driver writes it after the node's commit and before Spark's: if the driver dies in between, the micro-batch is
replayed, the node returns the ranges of the first commit, and the receipt is written then. A file appears whole or not
at all, and a replay writes the same name again. `m4cast.schemas.receipt` defines its content.
"""

import os
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from m4cast.schemas.receipt import Receipt, ReceiptStream
from m4cast.spark_connector.errors import ConnectorError

if TYPE_CHECKING:
    from m4cast.overlay.client import RowRange


def receipt_of(
    sink_id: str,
    position: str,
    batch_id: int | None,
    query_id: str | None,
    ranges: Iterable["RowRange"],
    bytes_by_topic: Mapping[str, int],
) -> Receipt:
    # A commit numbers the batches of a topic consecutively, so its ranges of a stream form one range.
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for rows in ranges:
        first, until = found.get((rows.topic, rows.origin), (rows.first, rows.next))
        found[rows.topic, rows.origin] = min(first, rows.first), max(until, rows.next)
    streams = tuple(
        ReceiptStream(topic, origin, first, until - 1, until - first, bytes_by_topic.get(topic, 0))
        for (topic, origin), (first, until) in found.items()
    )
    return Receipt(sink_id, query_id, batch_id, position, datetime.now(UTC), streams)


def keep(receipt: Receipt, uri: str) -> None:
    """Write the receipt. A failure fails the commit, so that a restart of the query writes it."""
    from pyarrow import fs

    text = receipt.to_json().encode()
    try:
        files, folder = fs.FileSystem.from_uri(uri)
        if isinstance(files, fs.LocalFileSystem):
            _keep_here(Path(folder), receipt.file_name, text)
        else:  # an object becomes visible when its stream is closed
            files.create_dir(folder, recursive=True)
            with files.open_output_stream(f"{folder}/{receipt.file_name}") as stream:
                stream.write(text)
    except (OSError, ValueError) as error:
        problem = f"{receipt.position} is published, but its receipt could not be written to {uri} ({error})"
        fix = "correct receipts and restart the query, which writes it"
        raise ConnectorError("M4CAST_RECEIPT", problem, fix) from error


def _keep_here(folder: Path, name: str, text: bytes) -> None:
    """Sync the file to disk before it gets its name."""
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f".{name}.{uuid.uuid4().hex}"
    try:
        with new.open("wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        new.replace(folder / name)
    finally:
        new.unlink(missing_ok=True)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
