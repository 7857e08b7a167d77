"""A pipelined writer without async."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from tailrace.block import Block
from tailrace.blocking.runner import BlockingRunner
from tailrace.blocking.sender import Sender, TimedQueue
from tailrace.errors import Unreachable
from tailrace.model import Level, Resolved, VersionRange
from tailrace.model.documented import documented
from tailrace.requests.feed_core import FeedCore
from tailrace.requests.outbox import Batching
from tailrace.requests.senders import WriterCore


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
        runner: BlockingRunner,
        feed: FeedCore,
        resolved: Resolved,
        level: Level | None,
        batching: Batching,
        timeout: float | None,
    ) -> None:
        self._core = WriterCore(TimedQueue(runner, timeout), feed, resolved, level, batching)
        super().__init__(runner, self._core.outbox)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._guard.lock:
            self._core.leave(error)
        if error is None:
            self.flush()

    @documented(
        WriterCore.arrow_blocks,
        "Other threads may add rows meanwhile. If an exception such as KeyboardInterrupt ends it, the first rows of "
        "each partition may have been added.",
    )
    def write_arrow(
        self,
        data: Any,
        *,
        key: str = "key",
        value: str = "value",
        deleted: str | None = None,
        ttl: int | str | None = None,
    ) -> None:
        with self._guard.lock:
            blocks = self._core.arrow_blocks(data, key, value, deleted, ttl)
        for block in blocks:
            self.send(block)

    @property
    @documented(WriterCore.acknowledged)
    def acknowledged(self) -> dict[int, VersionRange]:
        with self._guard.lock:
            return self._core.acknowledged

    @documented(
        WriterCore.flush,
        "It raises `Unreachable` after ``timeout`` seconds. Rows that were sent stay on their way: call again.",
        timeout="The seconds to wait. None: as long as it takes.",
    )
    def flush(self, *, timeout: float | None = None) -> dict[int, VersionRange]:
        deadline = None if timeout is None else self._runner.deadline(timeout)
        written = self._runner.pass_all(self._core.flush(), deadline)
        if written is None:
            raise Unreachable(f"{self._outbox.unanswered} blocks have no answer after {timeout:g} s", outcome="unknown")
        return written

    def send(self, block: Block) -> None:
        """Sends a block of one partition that the caller has made; waits as ``put``.

        Rows of the partition that were added before and are still batched leave after it.
        """
        self._ship(block, self._core.send)
