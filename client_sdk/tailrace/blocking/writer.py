"""A pipelined writer without async."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from tailrace.batch import check_value
from tailrace.block import Block
from tailrace.errors import TailraceError, Unreachable
from tailrace.model import Delete, Level, Put, Resolved, VersionRange
from tailrace.outbox import Outbox, Settle
from tailrace.requests.lane import Lane, random_producer_id
from tailrace.requests.outcome import WriterOutcome, writes_lost
from tailrace.writer import LEFT

if TYPE_CHECKING:
    from tailrace.blocking.client import Client
    from tailrace.blocking.feed import Feed


class Writer:
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
        self._client = client
        self._feed = feed
        self._guard = client.guard
        self._feed_id = resolved.feed_id
        self._level = level
        self._timeout = timeout
        self._lanes: dict[int, Lane] = {}
        self._outcome = WriterOutcome()
        self._outbox = Outbox(
            resolved.partitions,
            batch_bytes=batch_bytes,
            batch_rows=batch_rows,
            bytes_max=in_flight_bytes,
            send=self._send,
            kick=client.push,
        )

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

    def put(self, key: bytes, value: bytes) -> None:
        """Adds a row. It waits first while rows of ``in_flight_bytes`` have no answer.

        Args:
            key: 1 to 4,096 bytes.
            value: At most 16 MiB.

        Raises:
            TypeError: The key or the value is not bytes. Nothing is added.
            ValueError: The key is empty. Nothing is added.
            TooLarge: The key or the value is too long. Nothing is added.
            TailraceError: An earlier row has failed, or the writer was left.
        """
        if value is None:
            check_value(value)  # to a batch it would be a deletion
        with self._guard.lock:
            if self._outbox.is_open:
                self._outbox.add(key, value)
                return
        self._add(key, value)

    def delete(self, key: bytes) -> None:
        """Adds a deletion. It waits as `put`.

        Args:
            key: 1 to 4,096 bytes.

        Raises:
            TailraceError: As in `put`, with `TypeError` and `ValueError`.
        """
        self._add(key, None)

    def _add(self, key: bytes, value: bytes | None) -> None:
        """Adds a row as soon as there is room. Another thread may take it, so it has to be looked at again."""
        while True:
            with self._guard.lock:
                if self._outbox.is_open:
                    self._outbox.add(key, value)
                    return
            self._enter()

    def write(self, changes: Sequence[Put | Delete]) -> None:
        """Adds many rows, and waits for room as often as needed.

        Args:
            changes: The rows. If one of them is bad, none is added.

        Raises:
            TailraceError: As in `put`, with `TypeError` and `ValueError`.
        """
        lock, outbox = self._guard.lock, self._outbox
        with lock:
            outbox.check()
        for share in outbox.shares(changes):
            while not share.is_taken:
                with lock:
                    if outbox.is_open:
                        outbox.extend(share)
                        continue
                self._enter()

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
        is_sent = False
        while not is_sent:
            self._enter()
            with self._guard.lock:
                if self._outbox.is_open:
                    is_sent = True
                    self._outbox.ship_block(block)

    def _send(self, block: Block, settle: Settle) -> None:
        partition = block.header.partition
        lane = self._lanes.get(partition)
        if lane is None:
            lane = Lane(self._feed_id, partition, random_producer_id, lambda r: self._outbox.fail(writes_lost(r)))
            self._lanes[partition] = lane
        done = self._feed.forgetting_done(self._outcome.record(settle))
        self._client.queue_write(lane, block, self._level, done, self._client.deadline(self._timeout))

    def _enter(self) -> None:
        with self._guard.lock:
            self._outbox.check()
        self._client.run_until(lambda: self._outbox.has_room)
        with self._guard.lock:
            self._outbox.enter()
