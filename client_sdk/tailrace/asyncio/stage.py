"""A stage under asyncio: rows that no consumer sees until they are published."""

from __future__ import annotations

from types import TracebackType

from tailrace.asyncio.runner import RequestRunner
from tailrace.asyncio.sender import Sender
from tailrace.model import SealLevel
from tailrace.model.documented import documented
from tailrace.requests.feed_core import FeedCore
from tailrace.requests.outbox import Batching
from tailrace.requests.senders import StageCore
from tailrace.requests.staging import SealedStage


class Stage(Sender):
    """Sends rows to a stage, where no consumer sees them. Made by `Feed.stage`.

    All tasks of one event loop may share it. `seal` ends it, and `Feed.publish` takes the result. Every later call
    raises the first error: make another stage then. The node drops a stage that is not sealed or never published after
    a day.
    """

    def __init__(self, runner: RequestRunner, feed: FeedCore, batching: Batching) -> None:
        super().__init__()
        self._maker = runner, feed, batching
        self._core: StageCore | None = None
        self._was_entered = False

    async def __aenter__(self) -> Stage:
        """Raises UnknownFeed, and RuntimeError for a second body: it would drop the rows of the first one."""
        if self._was_entered:
            raise RuntimeError("this stage was entered before: make another one")
        self._was_entered = True
        runner, feed, batching = self._maker
        resolved = await runner.run(feed.resolve())
        self._core = StageCore(runner, feed, resolved, batching, on_change=self._room.changed)
        self._outbox = self._core.outbox
        runner.serve(self._outbox)
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
    async def seal(self, level: SealLevel = "disk") -> SealedStage:
        assert self._core is not None, "the stage was not entered"
        self._maker[0].check_steps()
        return await self._room.pass_all(self._core.seal(level))
