"""A pipelined writer: rows in, blocks out, in the order of each partition."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

import trio

from tailrace.batch import Batches, Ready, check_value
from tailrace.lifetime import Lifetime
from tailrace.model import Delete, Level, Put, Resolved, VersionRange
from tailrace.requests.lane import Lane, random_producer_id
from tailrace.requests.outcome import WriterOutcome

if TYPE_CHECKING:
    from tailrace.feed import Feed


class Writer:
    """Batches rows by partition, and sends the batches without waiting for their answers; ``Feed.writer`` makes one.

    Leaving the ``async with`` waits until all is acknowledged. The first error is raised by the next call and on
    leaving; acknowledged writes that were lost with their level raise WritesLost likewise.
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
        self._answered = trio.Event()
        self._outcome = WriterOutcome(lambda: self._answered.set())
        self._started = trio.Event()

    async def __aenter__(self) -> Writer:
        """Raises UnknownFeed."""
        self._resolved: Resolved = await self._feed.resolve()
        self._batches = Batches(self._resolved.partitions, self._batch_bytes, self._batch_rows)
        await self._lifetime.__aenter__()
        self._lifetime.start(self._linger)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if error is None:
            try:
                await self.flush()
            except BaseException as failure:
                await self._lifetime.__aexit__(type(failure), failure, failure.__traceback__)
                raise
        return await self._lifetime.__aexit__(kind, error, traceback)

    # Rows

    async def put(self, key: bytes, value: bytes) -> None:
        """Adds a row. A checkpoint where it has to wait for room, and once a batch; otherwise not.

        Raises TypeError, ValueError or TooLarge for a bad row (nothing is added), or what has gone wrong before.
        """
        self._outcome.check()
        check_value(value)
        ready = self._batches.add(key, value)
        if ready is not None:
            await self._ship_and_wait([ready])
        elif not self._started.is_set():
            self._started.set()

    async def delete(self, key: bytes) -> None:
        """Adds a deletion; as ``put``."""
        self._outcome.check()
        ready = self._batches.add(key, None)
        if ready is not None:
            await self._ship_and_wait([ready])
        elif not self._started.is_set():
            self._started.set()

    async def write(self, changes: Sequence[Put | Delete]) -> None:
        """Adds many rows; as ``put``, and a checkpoint once a batch. Nothing is added where one of them is bad."""
        self._outcome.check()
        await self._ship_and_wait(self._batches.add_all(changes))
        self._started.set()

    async def flush(self) -> dict[int, VersionRange]:
        """Sends what is batched, and waits until everything so far is acknowledged.

        Gives the versions written since the last ``flush``: for each partition the first and the last one; other
        writers' may lie between.
        """
        self._ship(self._batches.take_all())
        while not self._outcome.settled:
            await self._wait_answer()
        return self._outcome.take_written()

    # Blocks

    async def _ship_and_wait(self, ready: list[Ready]) -> None:
        for batch in ready:
            self._ship([batch])
            while not self._outcome.has_room(self._in_flight_bytes_max):
                await self._wait_answer()
        if ready:
            await trio.lowlevel.checkpoint()
        self._outcome.check()

    async def _wait_answer(self) -> None:
        self._answered = trio.Event()
        await self._answered.wait()

    def _ship(self, ready: list[Ready]) -> None:
        for batch in ready:
            block = batch.encode()
            done = self._outcome.expect(block.nbytes)
            self._feed.send_block(self._lane(batch.partition), block, self._level, done)
        if ready:
            self._feed.kick()

    def _lane(self, partition: int) -> Lane:
        lane = self._lanes.get(partition)
        if lane is None:
            new_producer_id = partial(random_producer_id, self._feed.host.random)
            lane = Lane(self._resolved.feed_id, partition, new_producer_id, self._outcome.lost)
            self._lanes[partition] = lane
        return lane

    async def _linger(self) -> None:
        """Sends batches that have waited for more rows long enough."""
        while True:
            await self._started.wait()
            await trio.sleep(self._linger_s)
            self._started = trio.Event()
            self._ship(self._batches.take_all())
