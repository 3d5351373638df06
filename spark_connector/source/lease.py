"""A stream's lease: every reachable node keeps the rows that the stream has not read yet.

The lease covers rows from the start of the current micro-batch. A thread renews it in the process that Spark keeps for
offsets, so it also lasts through a long micro-batch. It outlives the query by its duration, which leaves time for a
restart. A lease that cannot be obtained is logged and stops nothing: lost rows are detected when they are read.
"""

import logging
import threading

from m4cast.overlay.errors import M4castError
from m4cast.spark_connector.access import channel_of
from m4cast.spark_connector.offsets import Frontier
from m4cast.spark_connector.options import Access
from m4cast.spark_connector.source_filter import SourceFilter

log = logging.getLogger("m4cast.spark")

RENEWALS = 3
"""Renewals within the duration of a lease, so that two may fail."""


class ReaderLease:
    def __init__(self, access: Access, reader: str, lease_ms: int, row_filter: SourceFilter | None = None) -> None:
        """`row_filter`: what it reads of selective topics, whose nodes fetch no more."""
        self._channel = channel_of(access)
        self._reader = reader
        self._ttl_s = lease_ms / 1000
        self._where = {} if row_filter is None else {"where": row_filter.text, "language": row_filter.language}
        self._from: tuple[Frontier, tuple[str, ...]] = ({}, ())
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._keep_renewing, name="m4cast-lease", daemon=True)

    def hold(self, frontier: Frontier, topics: tuple[str, ...]) -> None:
        """Keep rows from this frontier on. The first call takes effect now, later ones with the next renewal."""
        self._from = (frontier, topics)
        if not self._thread.is_alive():
            self._renew()
            self._thread.start()

    def close(self) -> None:
        """Stop renewing it: it expires by itself."""
        self._closed.set()

    def _renew(self) -> None:
        frontier, topics = self._from
        try:
            self._channel.lease(self._reader, frontier, topics=topics, ttl_s=self._ttl_s, **self._where)
        except M4castError as error:
            log.warning("reader %s: the nodes may not keep its rows: %s", self._reader, error)

    def _keep_renewing(self) -> None:
        while not self._closed.wait(self._ttl_s / RENEWALS):
            self._renew()
