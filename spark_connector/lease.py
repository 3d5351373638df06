"""A stream's lease: rows that it has not read yet are kept for it, at every node that can be reached.

The lease is held from the start of the micro-batch that is under way, and renewed on a thread of its own in the
process that Spark keeps for the offsets, so also during a long micro-batch. It outlives the query by its length, which
is the time there is for a restart. A lease that cannot be had is told in the log and stops nothing: what was lost
shows when it is read.
"""

import logging
import threading

from m4cast.overlay.errors import M4castError
from m4cast.spark_connector.access import channel_of
from m4cast.spark_connector.offsets import Frontier
from m4cast.spark_connector.options import Access

log = logging.getLogger("m4cast.spark")

RENEWALS = 3
"""In the time of a lease, so that two may fail."""


class ReaderLease:
    def __init__(self, access: Access, reader: str, lease_ms: int) -> None:
        self._channel = channel_of(access)
        self._reader = reader
        self._ttl_s = lease_ms / 1000
        self._from: tuple[Frontier, tuple[str, ...]] = ({}, ())
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._renew_always, name="m4cast-lease", daemon=True)

    def hold(self, frontier: Frontier, topics: tuple[str, ...]) -> None:
        """Keep rows from here on, from the next renewal on; the first is now."""
        self._from = (frontier, topics)
        if not self._thread.is_alive():
            self._renew()
            self._thread.start()

    def close(self) -> None:
        """Renew it no more: it lasts as long as it lasts."""
        self._is_over.set()

    def _renew(self) -> None:
        frontier, topics = self._from
        try:
            self._channel.lease(self._reader, frontier, topics=topics, ttl_s=self._ttl_s)
        except M4castError as error:
            log.warning("reader %s: rows may not be kept for it: %s", self._reader, error)

    def _renew_always(self) -> None:
        while not self._is_over.wait(self._ttl_s / RENEWALS):
            self._renew()
