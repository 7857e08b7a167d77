"""A pipelined writer under asyncio: rows in, blocks out, in the order of each partition."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from tailrace.asyncio.runner import RequestRunner
from tailrace.asyncio.sender import Sender
from tailrace.model import Level, VersionRange
from tailrace.model.documented import documented
from tailrace.requests.feed_core import FeedCore
from tailrace.requests.outbox import Batching
from tailrace.requests.senders import WriterCore


class Writer(Sender):
    """Batches rows by partition and sends them without waiting for each answer. Made by `Feed.writer`.

    All tasks of one event loop may share a writer, and the rows of one task keep their order within a partition.
    Leaving the ``async with`` waits until every row is acknowledged.

    Every later call and leaving raise the first error. If acknowledged writes are lost together with their level, they
    raise `WritesLost`. If an exception leaves the body, or leaving is cancelled, unsent rows are dropped, and rows that
    were sent may or may not be written.
    """

    def __init__(
        self, runner: RequestRunner, feed: FeedCore, level: Level | None, batching: Batching, *, linger_s: float
    ) -> None:
        super().__init__(linger_s)
        self._runner = runner
        self._feed = feed
        self._options = level, batching

    async def __aenter__(self) -> Writer:
        """Raises UnknownFeed."""
        self._lifetime.require_idle()  # before the rows of the body are replaced
        resolved = await self._runner.run(self._feed.resolve())
        self._core = WriterCore(self._runner, self._feed, resolved, *self._options, on_change=self._room.changed)
        self._register()
        self._outbox = self._core.outbox
        self._runner.serve(self._outbox)
        self._timer = None  # that of an earlier body
        await self._lifetime.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if self._forked_from:
            return False
        if self._timer is not None:
            self._timer.cancel()
        self._core.leave(error)
        failure = error or await self._flush_all()
        if failure is not error:
            self._core.give_up()
        await self._lifetime.end(failure)
        if failure is not error:
            assert failure is not None
            raise failure
        return False

    async def _flush_all(self) -> BaseException | None:
        """Waits for every answer. Returns the error that has ended the wait."""
        try:
            await self.flush()
        except BaseException as failure:
            return failure
        return None

    @documented(
        WriterCore.arrow_blocks,
        "Other tasks get their turn after each block of about 1 MiB. If it is cancelled, the first rows of each "
        "partition may have been added.",
    )
    async def write_arrow(
        self,
        data: Any,
        *,
        key: str = "key",
        value: str = "value",
        deleted: str | None = None,
        ttl: int | str | None = None,
    ) -> None:
        for block in self._core.arrow_blocks(data, key, value, deleted, ttl):
            await self._room.enter(self._outbox)
            self._outbox.ship_block(block, self._core.send)

    @property
    @documented(WriterCore.acknowledged)
    def acknowledged(self) -> dict[int, VersionRange]:
        return self._core.acknowledged

    @documented(
        WriterCore.flush,
        "If it is cancelled, rows that were sent stay on their way, and another ``flush`` waits for them. The versions "
        "are those since the last ``flush`` of any task.",
    )
    async def flush(self) -> dict[int, VersionRange]:
        self._runner.check_steps()
        return await self._room.pass_all(self._core.flush())
