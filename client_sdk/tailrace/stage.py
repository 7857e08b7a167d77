"""A stage: rows that nobody sees until they are published."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

import trio

from tailrace.batch import Batches, Ready, check_value
from tailrace.model import Delete, Put
from tailrace.staging import SealedStage, StageProgress
from tailrace.wire.stage_messages import STAGE_ID_BYTES

if TYPE_CHECKING:
    from tailrace.feed import Feed


class Stage:
    """Sends rows to a stage, pipelined; ``Feed.stage`` makes one, an async context manager.

    ``seal`` ends it, then ``Feed.publish`` may take it. The first error is raised by the next call, and by every one
    from then on: make another stage. One that is not sealed, or never published, goes by itself after a while.
    """

    def __init__(self, feed: Feed, *, batch_bytes: int, batch_rows: int, in_flight_bytes: int) -> None:
        self._feed = feed
        self._batch_bytes = batch_bytes
        self._batch_rows = batch_rows
        self._in_flight_bytes_max = in_flight_bytes
        self._answered = trio.Event()

    async def __aenter__(self) -> Stage:
        """Raises UnknownFeed."""
        resolved = await self._feed.resolve()
        self._batches = Batches(resolved.partitions, self._batch_bytes, self._batch_rows)
        stage_id = self._feed.host.random.randbytes(STAGE_ID_BYTES)
        self._progress = StageProgress(resolved.feed_id, stage_id=stage_id, on_change=lambda: self._answered.set())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing: what is not sealed is never seen."""

    async def put(self, key: bytes, value: bytes) -> None:
        """Adds a row. A checkpoint once a batch. Raises TypeError, ValueError or TooLarge for a bad row."""
        self._progress.check()
        check_value(value)
        ready = self._batches.add(key, value)
        if ready is not None:
            await self._ship([ready])

    async def delete(self, key: bytes) -> None:
        """Adds a deletion; as ``put``."""
        self._progress.check()
        ready = self._batches.add(key, None)
        if ready is not None:
            await self._ship([ready])

    async def write(self, changes: Sequence[Put | Delete]) -> None:
        """Adds many rows; as ``put``. Nothing is added where one of them is bad."""
        self._progress.check()
        await self._ship(self._batches.add_all(changes))

    async def seal(self) -> SealedStage:
        """Sends what is batched and ends the stage: it is on the node's disk when this returns.

        Where nothing was staged, nothing is asked of the node. Raises UnknownStage where the node has lost something of
        it: stage the rows anew.
        """
        await self._ship(self._batches.take_all())
        progress = self._progress
        if progress.is_empty:
            return SealedStage(progress.stage_id, (), 0, 0)
        while not progress.is_settled:
            await self._wait_answer()
        progress.check()
        if progress.sealed is None:
            self._feed.ask(progress.seal())
            while not progress.is_over:
                await self._wait_answer()
            progress.check()
        assert progress.sealed is not None
        return progress.sealed

    async def _ship(self, ready: Sequence[Ready]) -> None:
        for batch in ready:
            self._feed.ask(self._progress.block(batch.encode()))
            while not self._progress.has_room(self._in_flight_bytes_max):
                await self._wait_answer()
        await trio.lowlevel.checkpoint()
        self._progress.check()

    async def _wait_answer(self) -> None:
        self._answered = trio.Event()
        await self._answered.wait()
