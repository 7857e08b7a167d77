"""A pipelined writer: rows in, blocks out, in the order of each partition."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

import trio

from tailrace.block import Block
from tailrace.errors import TailraceError, WrongProcess
from tailrace.link.forks import OfOneProcess
from tailrace.model import Delete, Level, Put, Resolved, VersionRange
from tailrace.requests.batch import check_value
from tailrace.requests.lane import Lane, random_producer_id
from tailrace.requests.outbox import Outbox, Settle
from tailrace.requests.outcome import WriterOutcome, writes_lost
from tailrace.trio.lifetime import Lifetime
from tailrace.trio.room import Room

if TYPE_CHECKING:
    from tailrace.trio.feed import Feed

LEFT = "the writer was left: make another one"


class Writer(OfOneProcess):
    """Batches rows by partition and sends them without waiting for each answer. Made by `Feed.writer`.

    All tasks of one trio run may share a writer. The rows of one task keep their order within a partition. Leaving the
    ``async with`` waits until every row is acknowledged.

    The first error is raised by every later call and on leaving. If acknowledged writes are lost together with their
    level, `WritesLost` is raised in the same way. If an exception leaves the body, or leaving is cancelled, unsent rows
    are dropped, and rows that were sent may or may not be written.
    """

    def __init__(
        self, feed: Feed, *, level: Level, batch_bytes: int, batch_rows: int, linger_s: float, in_flight_bytes: int
    ) -> None:
        self._feed = feed
        self._level = level
        self._batch_bytes = batch_bytes
        self._batch_rows = batch_rows
        self._linger_s = linger_s
        self._in_flight_bytes_max = in_flight_bytes
        self._lifetime = Lifetime()
        self._lanes: dict[int, Lane] = {}
        self._outcome = WriterOutcome()
        self._room = Room()
        self._started = trio.Event()

    async def __aenter__(self) -> Writer:
        """Raises UnknownFeed."""
        self._resolved: Resolved = await self._feed.resolve()
        self._outbox = Outbox(
            self._resolved.partitions,
            batch_bytes=self._batch_bytes,
            batch_rows=self._batch_rows,
            bytes_max=self._in_flight_bytes_max,
            send=self._send,
            kick=self._feed.kick,
            on_change=self._room.changed,
        )
        self._register()
        await self._lifetime.__aenter__()
        self._lifetime.start(self._linger)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if self._forked_from:
            return False
        self._outbox.close(LEFT)
        if error is None:
            try:
                await self.flush()
            except BaseException as failure:
                self._give_up()
                await self._lifetime.__aexit__(type(failure), failure, failure.__traceback__)
                raise
        else:
            self._give_up()
        return await self._lifetime.__aexit__(kind, error, traceback)

    def _forked(self, error: WrongProcess) -> None:
        self._outbox.refuse(error)

    # Rows

    async def put(self, key: bytes, value: bytes) -> None:
        """Adds a row. It waits first while rows of ``in_flight_bytes`` have no answer.

        It is a checkpoint only if it has to wait, and after each batch. If it is cancelled, the row is not added.

        Args:
            key: 1 to 4,096 bytes.
            value: At most 16 MiB.

        Raises:
            TypeError: The key or the value is not bytes. Nothing is added.
            ValueError: The key is empty. Nothing is added.
            TooLarge: The key or the value is too long. Nothing is added.
            TailraceError: An earlier row has failed, or the writer was left.
        """
        if not self._outbox.is_open:
            await self._room.enter(self._outbox)
        if value is None:
            check_value(value)  # to a batch it would be a deletion
        self._outbox.add(key, value)
        if not self._started.is_set():
            self._started.set()

    async def delete(self, key: bytes) -> None:
        """Adds a deletion. It waits, and is cancelled, as `put`.

        Args:
            key: 1 to 4,096 bytes.

        Raises:
            TailraceError: As in `put`, with `TypeError` and `ValueError`.
        """
        if not self._outbox.is_open:
            await self._room.enter(self._outbox)
        self._outbox.add(key, None)
        if not self._started.is_set():
            self._started.set()

    async def write(self, changes: Sequence[Put | Delete]) -> None:
        """Adds many rows, and waits for room as often as needed. It is a checkpoint after each batch.

        If it is cancelled, the first rows of each partition may have been added, and these are sent.

        Args:
            changes: The rows. If one of them is bad, none is added.

        Raises:
            TailraceError: As in `put`, with `TypeError` and `ValueError`.
        """
        self._outbox.check()
        for share in self._outbox.shares(changes):
            while not share.is_taken:
                if not self._outbox.is_open:
                    await self._room.enter(self._outbox)
                self._outbox.extend(share)
                if not self._started.is_set():
                    self._started.set()

    async def flush(self) -> dict[int, VersionRange]:
        """Sends all batches, and waits until every row that was added before the call is acknowledged.

        If it is cancelled, rows that were sent stay on their way, and another ``flush`` waits for them.

        Returns:
            The first and the last version of each partition since the last ``flush`` of any task. Versions of other
            writers may lie between them.

        Raises:
            WritesLost: Acknowledged rows were lost together with their level.
            TailraceError: A row has failed, or the writer was left.
        """
        self._outbox.check()
        self._outbox.ship_all()
        shipped = self._outbox.shipped
        await self._room.until(lambda: self._outbox.is_settled(shipped))
        self._outbox.check()
        return self._outcome.take_written()

    # Blocks

    def _send(self, block: Block, settle: Settle) -> None:
        lane = self._lane(block.header.partition)
        self._feed.send_block(lane, block, self._level, self._outcome.record(settle))

    def _lane(self, partition: int) -> Lane:
        lane = self._lanes.get(partition)
        if lane is None:
            new_producer_id = partial(random_producer_id, self._feed.host.random)
            lane = Lane(self._resolved.feed_id, partition, new_producer_id, lambda r: self._outbox.fail(writes_lost(r)))
            self._lanes[partition] = lane
        return lane

    def _give_up(self) -> None:
        """Sends nothing more, and wakes tasks that wait for room or for answers: they raise."""
        self._outbox.fail(TailraceError(f"an exception has ended the writer's body; {LEFT}"))
        for lane in self._lanes.values():
            self._feed.withdraw_lane(lane)

    async def _linger(self) -> None:
        """Sends batches that have waited for more rows long enough."""
        while True:
            await self._started.wait()
            await trio.sleep(self._linger_s)
            self._started = trio.Event()
            self._outbox.ship_all()
