"""Bounds the lines that peers can make a log grow by.

    the first LINES_FREE of a cause in an interval     written
    the rest                                           counted, and told in one line when the interval has ended

A cause is a text, as who has asked for what. Causes are bounded, too: above CAUSES_MAX the others are counted as one.
"""

from __future__ import annotations

import logging
from typing import Any

LINES_FREE = 10
INTERVAL_SECONDS = 10.0
CAUSES_MAX = 1_000
OTHERS = "others"


class LineLimit:
    """The lines of each cause in its present interval."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._begun_at: dict[str, float] = {}  # of the same causes, the oldest first

    def __len__(self) -> int:
        return len(self._counts)

    def permits(self, cause: str, now: float) -> bool:
        """Counts a line of ``cause`` at ``now``, in seconds. Returns whether it is to be written."""
        if cause not in self._counts:
            cause = cause if len(self._counts) < CAUSES_MAX else OTHERS
            self._begun_at.setdefault(cause, now)
        self._counts[cause] = self._counts.get(cause, 0) + 1
        return self._counts[cause] <= LINES_FREE

    def ended(self, now: float) -> list[tuple[str, int]]:
        """Forgets the intervals that have ended. Returns their causes with the counts of lines that were left out."""
        told: list[tuple[str, int]] = []
        while self._begun_at:
            cause, begun_at = next(iter(self._begun_at.items()))
            if now - begun_at < INTERVAL_SECONDS:
                break
            del self._begun_at[cause]
            left_out = self._counts.pop(cause) - LINES_FREE
            if left_out > 0:
                told.append((cause, left_out))
        return told


class LimitedLog:
    """A logger for lines that peers cause before anything is known of them."""

    def __init__(self, log: logging.Logger, what: str) -> None:
        """``what`` the lines tell of, for the lines with a count."""
        self._log = log
        self._what = what
        self._limit = LineLimit()

    def write(self, now: float, cause: str, level: int, message: str, *values: object, **options: Any) -> None:
        """Writes a line, unless ``cause`` has had its lines. ``now``: in seconds."""
        self.tell(now)
        if self._limit.permits(cause, now):
            self._log.log(level, message, *values, **options)

    def tell(self, now: float) -> None:
        """Writes how many lines were left out of the intervals that have ended."""
        for cause, count in self._limit.ended(now):
            self._log.warning("%s: %d more %s", cause, count, self._what)
