"""A pipelined writer under trio: rows in, blocks out, in the order of each partition."""

from __future__ import annotations

from types import TracebackType
from typing import Any

import trio

from tailrace.model import Level, VersionRange
from tailrace.model.documented import documented
from tailrace.requests.feed_core import FeedCore
from tailrace.requests.outbox import Batching
from tailrace.requests.senders import WriterCore
from tailrace.trio.lifetime import Lifetime
from tailrace.trio.runner import RequestRunner
from tailrace.trio.sender import Sender


class Writer(Sender):
    """Batches rows by partition and sends them without waiting for each answer. Made by `Feed.writer`.

    All tasks of one trio run may share a writer. The rows of one task keep their order within a partition. Leaving the
    ``async with`` waits until every row is acknowledged.

    The first error is raised by every later call and on leaving. If acknowledged writes are lost together with their
    level, `WritesLost` is raised in the same way. If an exception leaves the body, or leaving is cancelled, unsent rows
    are dropped, and rows that were sent may or may not be written.
    """

    def __init__(
        self, runner: RequestRunner, feed: FeedCore, level: Level | None, batching: Batching, *, linger_s: float
    ) -> None:
        super().__init__()
        self._runner = runner
        self._feed = feed
        self._level = level
        self._batching = batching
        self._linger_s = linger_s
        self._lifetime = Lifetime()

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Writer:
        """Raises UnknownFeed."""
        self._lifetime.require_idle()  # before the rows of the body are replaced
        resolved = await self._runner.run(self._feed.resolve())
        self._core = WriterCore(
            self._runner, self._feed, resolved, self._level, self._batching, on_change=self._room.changed
        )
        self._outbox = self._core.outbox
        self._register()
        await self._lifetime.__aenter__()
        self._lifetime.start(self._linger)
        return self

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        if self._forked_from:
            return False
        self._core.leave(error)
        if error is None:
            try:
                await self.flush()
            except BaseException as failure:
                self._core.give_up()
                await self._lifetime.__aexit__(type(failure), failure, failure.__traceback__)
                raise
        return await self._lifetime.__aexit__(kind, error, traceback)

    @documented(
        WriterCore.arrow_blocks,
        "It is a checkpoint after each block of about 1 MiB. If it is cancelled, the first rows of each partition "
        "may have been added.",
    )
    @trio.lowlevel.enable_ki_protection
    async def write_arrow(
        self,
        data: Any,
        *,
        key: str = "key",
        value: str = "value",
        deleted: str | None = None,
        ttl: int | str | None = None,
    ) -> None:
        outbox, core = self._outbox, self._core
        for block in core.arrow_blocks(data, key, value, deleted, ttl):
            await self._room.enter(outbox)
            outbox.ship_block(block, core.send)

    @property
    @documented(WriterCore.acknowledged)
    def acknowledged(self) -> dict[int, VersionRange]:
        return self._core.acknowledged

    @documented(
        WriterCore.flush,
        "If it is cancelled, rows that were sent stay on their way, and another ``flush`` waits for them. The versions "
        "are those since the last ``flush`` of any task.",
    )
    @trio.lowlevel.enable_ki_protection
    async def flush(self) -> dict[int, VersionRange]:
        return await self._room.pass_all(self._core.flush())

    async def _linger(self) -> None:
        """Sends batches that have waited for more rows long enough."""
        while True:
            await self._has_rows.wait()
            await trio.sleep(self._linger_s)
            self._has_rows, self._is_told = trio.Event(), False
            self._outbox.ship_all()
