"""A pipelined writer without async."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from tailrace.batch import Batches, Ready, check_value
from tailrace.block import Block
from tailrace.errors import Unreachable
from tailrace.model import Delete, Level, Put, Resolved, VersionRange
from tailrace.requests.lane import Lane, random_producer_id
from tailrace.requests.outcome import WriterOutcome

if TYPE_CHECKING:
    from tailrace.blocking.client import Client
    from tailrace.blocking.feed import Feed


class Writer:
    """Batches rows by partition and pipelines them; ``Feed.writer`` makes one. Leaving waits for every answer.

    A batch is sent when it is full, and by ``flush``. The first error is raised by the next call and on leaving, and
    by every call from then on: make another writer. An exception in the body leaves as itself, what is batched is then
    dropped, and what is under way may or may not be written.
    """

    def __init__(
        self,
        client: Client,
        feed: Feed,
        resolved: Resolved,
        *,
        level: Level,
        batch_bytes: int,
        batch_rows: int,
        in_flight_bytes: int,
        timeout: float | None,
    ) -> None:
        self._client = client
        self._feed = feed
        self._feed_id = resolved.feed_id
        self._level = level
        self._in_flight_bytes_max = in_flight_bytes
        self._timeout = timeout
        self._batches = Batches(resolved.partitions, batch_bytes, batch_rows)
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
        self._check()
        if value is None:
            check_value(value)  # to a batch it would be a deletion
        ready = self._batches.add(key, value)
        if ready is not None:
            self._ship([ready])

    def delete(self, key: bytes) -> None:
        """Adds a deletion; as ``put``."""
        self._check()
        ready = self._batches.add(key, None)
        if ready is not None:
            self._ship([ready])

    def write(self, changes: Sequence[Put | Delete]) -> None:
        """Adds many rows; nothing is added where one of them is bad."""
        self._check()
        self._ship(self._batches.add_all(changes))

    def flush(self, *, timeout: float | None = None) -> dict[int, VersionRange]:
        """Sends what is batched and waits until all is acknowledged; gives the versions since the last ``flush``.

        ``timeout``: seconds; raises Unreachable after them, and what has no answer yet stays under way: call again.
        """
        deadline = None if timeout is None else self._client.deadline(timeout)
        self._check()
        self._ship(self._batches.take_all())
        if not self._client.run_until(lambda: self._outcome.settled, deadline):
            raise Unreachable(
                f"{self._outcome.unanswered} blocks have no answer after {timeout:g} s", outcome="unknown"
            )
        self._check()
        return self._outcome.take_written()

    def send(self, block: Block) -> None:
        """Sends a block of one partition, for who has made it himself; waits where too much is in flight."""
        self._check()
        partition = block.header.partition
        lane = self._lanes.get(partition)
        if lane is None:
            lane = self._lanes[partition] = Lane(self._feed_id, partition, random_producer_id, self._outcome.lost)
        done = self._outcome.expect(block.nbytes)
        self._client.queue_write(lane, block, self._level, done, self._client.deadline(self._timeout))
        self._client.run_until(lambda: self._outcome.has_room(self._in_flight_bytes_max))
        self._check()

    def _ship(self, ready: list[Ready]) -> None:
        for batch in ready:
            self.send(batch.encode())

    def _check(self) -> None:
        with self._feed.forgetting():
            self._outcome.check()
