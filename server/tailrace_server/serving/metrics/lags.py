"""How far one consumer or replica is behind: in mutations, and in seconds by the oldest row that it lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace_server.partition.partition import Partition
    from tailrace_server.segment import Segment
    from tailrace_server.serving.metrics.first_rows import FirstRows


class Lag:
    """The lag of one name. Only its own methods change its fields."""

    __slots__ = ("_inside", "_oldest", "mutations", "nbytes", "streams")

    def __init__(self) -> None:
        self.mutations = self.nbytes = self.streams = 0
        self._oldest: int | None = None  # the timestamp of the oldest row that it lacks, as far as that is known
        # Places inside of segments, whose rows are read if they may be older: a lower bound, partition, seq, segment.
        self._inside: list[tuple[int, Partition, int, Segment]] = []

    def lacks(self, rows: FirstRows, partition: Partition, seq: int) -> None:
        """Notes that it lacks the rows of ``partition`` above ``seq``, or some of them."""
        found = rows.above(partition, seq)
        if found is None:
            return
        if found.segment is None:
            self._oldest = found.timestamp if self._oldest is None else min(found.timestamp, self._oldest)
        else:
            self._inside.append((found.timestamp, partition, seq, found.segment))

    def add(self, *, mutations: int = 0, nbytes: int = 0, streams: int = 0) -> None:
        """Adds to the sums."""
        self.mutations += mutations
        self.nbytes += nbytes
        self.streams += streams

    def join(self, other: Lag) -> None:
        """Adds another name's lag: both have one series."""
        self.add(mutations=other.mutations, nbytes=other.nbytes, streams=other.streams)
        if other._oldest is not None:
            self._oldest = other._oldest if self._oldest is None else min(other._oldest, self._oldest)
        self._inside += other._inside

    def places(self) -> list[tuple[int, Partition, int, Segment]]:
        """Returns the places in segments that may have an older row than is known, the lowest bound first."""
        oldest = self._oldest
        return sorted((each for each in self._inside if oldest is None or each[0] < oldest), key=_bound)

    def settle(self, rows: FirstRows) -> None:
        """Takes over the rows that were read. A row that was not counts by its lower bound."""
        for bound, partition, seq, _ in self._inside:
            found = rows.above(partition, seq)
            timestamp = bound if found is None else found.timestamp
            self._oldest = timestamp if self._oldest is None else min(timestamp, self._oldest)
        self._inside.clear()

    def seconds(self, now_us: int) -> float:
        """Returns the age of the oldest row that it lacks; 0 if it lacks none, or by a clock that went back."""
        return 0.0 if self._oldest is None else max(0, now_us - self._oldest) / 1e6


async def settle_all(lags: Iterable[Lag], rows: FirstRows) -> None:
    """Reads the rows that tell how old the lags are, the places that may be oldest first."""
    lags = list(lags)
    places = sorted((place for lag in lags for place in lag.places()), key=_bound)
    await rows.read([(partition, seq, segment) for _, partition, seq, segment in places])
    for lag in lags:
        lag.settle(rows)


def _bound(place: tuple[int, Partition, int, Segment]) -> int:
    return place[0]
