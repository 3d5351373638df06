"""A reader that follows topics through the doors of all nodes, whatever happens to them."""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from m4cast.overlay.client import Channel, Frontier


class Follower(threading.Thread):
    """Every stream's rows must come once and in order, from 1 on. `error` is what ended it too early."""

    def __init__(self, channel: Channel, topics: Sequence[str]) -> None:
        super().__init__(name="follow", daemon=True)
        self.rows = 0
        self.error: BaseException | None = None
        self._next: dict[tuple[str, str], int] = {}
        self._tail = channel.tail(topics, {})

    def run(self) -> None:
        try:
            for batch in self._tail:
                self._take(batch)
        except BaseException as error:
            self.error = error

    def _take(self, batch: pa.RecordBatch) -> None:
        (topic,), (origin,) = (batch[name].unique().to_pylist() for name in ("_topic", "_origin"))
        first = self._next.get((topic, origin), 1)
        came: np.ndarray[Any, Any] = batch["_sequence"].to_numpy()
        wanted = np.arange(first, first + batch.num_rows)
        assert np.array_equal(came, wanted), f"{topic} of {origin}: {came[0]} to {came[-1]} came, {first} was next"
        self._next[topic, origin] = first + batch.num_rows
        self.rows += batch.num_rows

    def lacking(self, end: Frontier) -> str:
        """The rows before `end` that have not arrived yet; empty when all have."""
        if self.error is not None:
            raise self.error
        for topic, origins in end.items():
            for origin, upto in origins.items():
                if (has := self._next.get((topic, origin), 1)) < upto:
                    return f"{topic} of {origin} was followed to {has}, not {upto}"
        return ""

    def close(self) -> None:
        self._tail.close()
        self.join(60)
        if self.error is not None:
            raise self.error
