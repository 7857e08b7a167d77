"""A stage without async: rows that no consumer sees until they are published."""

from __future__ import annotations

import functools
from types import TracebackType

from tailrace.block import Block
from tailrace.blocking.runner import BlockingRunner
from tailrace.blocking.sender import Sender, TimedQueue
from tailrace.model import Resolved, SealLevel
from tailrace.model.documented import documented
from tailrace.requests.feed_core import FeedCore
from tailrace.requests.outbox import Batching
from tailrace.requests.senders import StageCore
from tailrace.requests.staging import SealedStage


class Stage(Sender):
    """Sends rows to a stage, where no consumer sees them. Made by `Feed.stage`.

    Threads may share it, and the rows of each thread keep their order within a partition. `seal` ends it, and
    `Feed.publish` takes the result. The first error is raised by every later call: make another stage then. The
    node drops a stage that is not sealed or never published after a day. If an exception such as
    KeyboardInterrupt ends a call, rows of earlier calls are not lost: ``seal`` includes them, or raises an error.
    """

    def __init__(
        self,
        runner: BlockingRunner,
        feed: FeedCore,
        resolved: Resolved,
        batching: Batching,
        timeout: float | None,
    ) -> None:
        self._core = StageCore(TimedQueue(runner, timeout), feed, resolved, batching)
        super().__init__(runner, self._core.outbox)

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Does nothing: rows that are not sealed are never seen."""

    @property
    def stage_id(self) -> bytes:
        """The id of the stage, 16 random bytes."""
        return self._core.stage_id

    def send(self, block: Block, *, digest: int | None = None) -> None:
        """Sends a block of one partition that the caller has made; waits as ``put``.

        ``digest`` is that of its rows (`tailrace.block.row_digest`). If it is None, it is computed from the block.
        """
        self._ship(block, functools.partial(self._core.send, digest=digest))

    @documented(StageCore.seal, "After an interrupt ``seal`` may be called again; the stage takes no more rows.")
    def seal(self, level: SealLevel = "disk") -> SealedStage:
        sealed = self._runner.pass_all(self._core.seal(level))
        assert sealed is not None, "without a deadline it waits until all is answered"
        return sealed
