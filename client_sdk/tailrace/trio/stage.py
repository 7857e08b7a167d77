"""A stage under trio: rows that no consumer sees until they are published."""

from __future__ import annotations

from types import TracebackType

import trio

from tailrace.model import SealLevel
from tailrace.model.documented import documented
from tailrace.requests.feed_core import FeedCore
from tailrace.requests.outbox import Batching
from tailrace.requests.senders import StageCore
from tailrace.requests.staging import SealedStage
from tailrace.trio.runner import RequestRunner
from tailrace.trio.sender import Sender


class Stage(Sender):
    """Sends rows to a stage, where no consumer sees them. Made by `Feed.stage`.

    All tasks of one trio run may share it. `seal` ends it, and `Feed.publish` takes the result. The first error is
    raised by every later call: make another stage then. The node drops a stage that is not sealed or never published
    after a day.
    """

    def __init__(self, runner: RequestRunner, feed: FeedCore, batching: Batching) -> None:
        super().__init__()
        self._runner = runner
        self._feed = feed
        self._batching = batching
        self._entered = False

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Stage:
        """Raises UnknownFeed, and RuntimeError for a second body: it would drop the rows of the first one."""
        if self._entered:
            raise RuntimeError("this stage was entered before: make another one")
        self._entered = True
        resolved = await self._runner.run(self._feed.resolve())
        self._core = StageCore(self._runner, self._feed, resolved, self._batching, on_change=self._room.changed)
        self._outbox = self._core.outbox
        self._register()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Does nothing: rows that are not sealed are never seen."""

    @documented(
        StageCore.seal,
        "If it is cancelled, the stage takes no more rows, and ``seal`` may be called again. "
        "Several tasks may call it.",
    )
    @trio.lowlevel.enable_ki_protection
    async def seal(self, level: SealLevel = "disk") -> SealedStage:
        return await self._room.pass_all(self._core.seal(level))
