"""Logs the progress of a start that reads a long journal."""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger("tailrace.server")

# Seconds between two lines of the log: a shorter start logs none.
PROGRESS_SECONDS = 1.0


class Progress:
    """One pass over a journal. ``what`` is the verb for the log, ``clock`` returns monotonic seconds."""

    def __init__(self, what: str, total_bytes: int, clock: Callable[[], float]) -> None:
        self._what = what
        self._total_bytes = total_bytes
        self._clock = clock
        self._bytes = self._records = 0
        self._told_at = clock()

    def add(self, nbytes: int, records: int) -> None:
        """Notes that ``nbytes`` more, with ``records``, are done; logs a line from time to time."""
        self._bytes += nbytes
        self._records += records
        now = self._clock()
        if now - self._told_at >= PROGRESS_SECONDS:
            self._told_at = now
            log.info(
                "%s the journal: %s of %s MiB, %s records",
                *(self._what, self._bytes >> 20, self._total_bytes >> 20, f"{self._records:,}"),
            )
