"""A pipelined writer without async."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from tailrace.batch import Batches, Ready
from tailrace.block import Block
from tailrace.model import Delete, Level, Put, Resolved, VersionRange
from tailrace.requests.lane import Lane, random_producer_id
from tailrace.requests.outcome import WriterOutcome

if TYPE_CHECKING:
    from tailrace.blocking.client import Client


class Writer:
    """Batches rows by partition and pipelines them; ``Feed.writer`` makes one. Leaving waits for every answer.

    The first error is raised by the next call and on leaving. A batch is sent when it is full, and by ``flush``.
    """

    def __init__(
        self,
        client: Client,
        feed: Resolved,
        *,
        level: Level,
        batch_bytes: int,
        batch_rows: int,
        in_flight_bytes: int,
        timeout: float | None,
    ) -> None:
        self._client = client
        self._feed = feed
        self._level = level
        self._in_flight_bytes_max = in_flight_bytes
        self._timeout = timeout
        self._batches = Batches(feed.partitions, batch_bytes, batch_rows)
        self._lanes: dict[int, Lane] = {}
        self._outcome = WriterOutcome()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.flush()

    def put(self, key: bytes, value: bytes) -> None:
        """Adds a row; waits where too much is in flight. Raises TypeError, ValueError, TooLarge for a bad row."""
        self._outcome.check()
        ready = self._batches.add(key, value)
        if ready is not None:
            self._ship([ready])

    def delete(self, key: bytes) -> None:
        """Adds a deletion; as ``put``."""
        self._outcome.check()
        ready = self._batches.add(key, None)
        if ready is not None:
            self._ship([ready])

    def write(self, changes: Sequence[Put | Delete]) -> None:
        """Adds many rows; nothing is added where one of them is bad."""
        self._outcome.check()
        self._ship(self._batches.add_all(changes))

    def flush(self) -> dict[int, VersionRange]:
        """Sends what is batched and waits until all is acknowledged; gives the versions since the last ``flush``."""
        self._ship(self._batches.take_all())
        self._client.link.run_until(lambda: self._outcome.settled, None)
        return self._outcome.take_written()

    def send(self, block: Block) -> None:
        """Sends a block of one partition, for who has made it himself; waits where too much is in flight."""
        self._outcome.check()
        partition = block.header.partition
        lane = self._lanes.get(partition)
        if lane is None:
            lane = Lane(self._feed.feed_id, partition, random_producer_id, self._outcome.lost)
            self._lanes[partition] = lane
        done = self._outcome.expect(block.nbytes)
        self._client.session.write(lane, block, self._level, done, self._client.deadline(self._timeout))
        self._client.link.push()
        self._client.link.run_until(lambda: self._outcome.has_room(self._in_flight_bytes_max), None)
        self._outcome.check()

    def _ship(self, ready: list[Ready]) -> None:
        for batch in ready:
            self.send(batch.encode())
