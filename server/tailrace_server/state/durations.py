"""Counts durations by size, cheaply enough for each request: a search in a tuple and two additions. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

# Upper bounds in seconds: of requests and fsyncs, and of work on whole segments.
REQUEST_BOUNDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
WORK_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


class Durations:
    """Durations, counted by the first of ``bounds`` that is not below them. Only its own methods change its fields.

    One thread at a time adds. Another may read: it sees each duration in the counts and in ``seconds``, perhaps not in
    both yet.
    """

    __slots__ = ("_bounds", "_counts", "seconds")

    def __init__(self, bounds: Sequence[float] = REQUEST_BOUNDS) -> None:
        """``bounds``: in seconds, rising."""
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)  # the last one: above all bounds
        self.seconds = 0.0  # the sum of all durations

    def add(self, seconds: float) -> None:
        """Counts a duration."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self.seconds += seconds

    def counts(self) -> list[tuple[float | None, int]]:
        """Returns each bound with the number of durations up to it; None, the last one, is no bound."""
        found, total = [], 0
        for bound, count in zip((*self._bounds, None), self._counts, strict=True):
            total += count
            found.append((bound, total))
        return found
