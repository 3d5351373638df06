"""Refusals: peers and clients that were turned away, counted by reason, and logged now and then."""

import logging
import time
from collections import Counter

log = logging.getLogger("m4cast.node")

LOG_INTERVAL_S = 1.0
"""Refusals for one reason are logged at most this often: a refused peer must not be able to fill the log."""


class Refusals:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """Refusals by reason; docs/SECURITY.md lists the reasons."""
        self._logged_s: dict[str, float] = {}

    def add(self, reason: str, detail: str) -> None:
        self.counts[reason] += 1
        now_s = time.monotonic()
        if now_s - self._logged_s.get(reason, -LOG_INTERVAL_S) >= LOG_INTERVAL_S:
            self._logged_s[reason] = now_s
            log.warning("refused (%s, %d so far): %s", reason, self.counts[reason], detail)
