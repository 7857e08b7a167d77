"""A pipelined writer without async."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from tailrace.block import Block
from tailrace.blocking.sender import Sender
from tailrace.errors import TailraceError, Unreachable
from tailrace.model import Level, Resolved, VersionRange
from tailrace.requests.lane import Lane, random_producer_id
from tailrace.requests.outbox import Settle
from tailrace.requests.outcome import WriterOutcome, writes_lost
from tailrace.trio.writer import LEFT

if TYPE_CHECKING:
    from tailrace.blocking.client import Client
    from tailrace.blocking.feed import Feed


class Writer(Sender):
    """Batches rows by partition and sends them without waiting for each answer. Made by `Feed.writer`.

    A batch is sent when it is full, when all batches together have half of
    ``in_flight_bytes``, and by ``flush``. Leaving the ``with`` waits for every answer.

    Threads may share it, and the rows of each thread keep their order within a partition. The first error is raised by
    every later call and on leaving: make another writer then. If an exception leaves the body, unsent rows are dropped,
    and rows that were sent may or may not be written. If an exception such as KeyboardInterrupt ends a call, rows of
    earlier calls are not lost: later calls send them, or raise an error.
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
        super().__init__(
            client,
            feed,
            resolved,
            batch_bytes=batch_bytes,
            batch_rows=batch_rows,
            in_flight_bytes=in_flight_bytes,
            timeout=timeout,
        )
        self._feed_id = resolved.feed_id
        self._level = level
        self._lanes: dict[int, Lane] = {}
        self._outcome = WriterOutcome()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._guard.lock:
            self._outbox.close(LEFT)
            if error is not None:
                self._outbox.fail(TailraceError(f"an exception has ended the writer's body; {LEFT}"))
                for lane in self._lanes.values():
                    self._client.withdraw_lane(lane)
        if error is None:
            self.flush()

    def flush(self, *, timeout: float | None = None) -> dict[int, VersionRange]:
        """Sends all batches, and waits until every row is acknowledged.

        Args:
            timeout: The seconds to wait. After them rows that were sent stay on their way; call again.

        Returns:
            The first and the last version of each partition since the last ``flush``.

        Raises:
            Unreachable: ``timeout`` seconds have passed.
            WritesLost: Acknowledged rows were lost together with their level.
            TailraceError: A row has failed, or the writer was left.
        """
        deadline = None if timeout is None else self._client.deadline(timeout)
        with self._guard.lock:
            self._outbox.check()
            self._outbox.ship_all()
            shipped = self._outbox.shipped
        if not self._client.run_until(lambda: self._outbox.is_settled(shipped), deadline):
            raise Unreachable(f"{self._outbox.unanswered} blocks have no answer after {timeout:g} s", outcome="unknown")
        with self._guard.lock:
            self._outbox.check()
            return self._outcome.take_written()

    def send(self, block: Block) -> None:
        """Sends a block of one partition that the caller has made; waits as ``put``.

        Rows of the partition that were added before and are still batched leave after it.
        """
        self._ship(block, self._send)

    def _send(self, block: Block, settle: Settle) -> None:
        partition = block.header.partition
        lane = self._lanes.get(partition)
        if lane is None:
            lane = Lane(self._feed_id, partition, random_producer_id, lambda r: self._outbox.fail(writes_lost(r)))
            self._lanes[partition] = lane
        done = self._feed.forgetting_done(self._outcome.record(settle))
        self._client.queue_write(lane, block, self._level, done, self._client.deadline(self._timeout))
