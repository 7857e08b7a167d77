"""A stage under trio: rows that no consumer sees until they are published."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from tailrace.errors import WrongProcess
from tailrace.link.forks import OfOneProcess
from tailrace.model import Delete, Put
from tailrace.model.documented import documented
from tailrace.requests.batch import check_value
from tailrace.requests.batching import Batching
from tailrace.requests.feed_core import FeedCore
from tailrace.requests.senders import RowSender, StageCore
from tailrace.requests.staging import SealedStage
from tailrace.trio.room import Room
from tailrace.trio.runner import RequestRunner


class Stage(OfOneProcess):
    """Sends rows to a stage, where no consumer sees them. Made by `Feed.stage`.

    All tasks of one trio run may share it. `seal` ends it, and `Feed.publish` takes the result. The first error is
    raised by every later call: make another stage then. The node drops a stage that is not sealed or never published
    after a day.
    """

    def __init__(self, runner: RequestRunner, feed: FeedCore, batching: Batching) -> None:
        self._runner = runner
        self._feed = feed
        self._batching = batching
        self._room = Room()

    async def __aenter__(self) -> Stage:
        """Raises UnknownFeed."""
        resolved = await self._runner.run(self._feed.resolve())
        self._core = StageCore(self._runner, self._feed, resolved, self._batching, on_change=self._room.changed)
        self._outbox = self._core.outbox
        self._register()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Does nothing: rows that are not sealed are never seen."""

    def _forked(self, error: WrongProcess) -> None:
        self._outbox.refuse(error)

    @documented(
        RowSender.put,
        "It is a checkpoint only if it has to wait, and after each batch. If it is cancelled, the row is not added.",
    )
    async def put(self, key: bytes, value: bytes) -> None:
        if not self._outbox.is_open:
            await self._room.enter(self._outbox)
        if value is None:
            check_value(value)  # to a batch it would be a deletion
        self._outbox.add(key, value)

    @documented(RowSender.delete, "If it is cancelled, the deletion is not added.")
    async def delete(self, key: bytes) -> None:
        if not self._outbox.is_open:
            await self._room.enter(self._outbox)
        self._outbox.add(key, None)

    @documented(
        RowSender.write,
        "If it is cancelled, the first rows of each partition may have been added, and a seal includes them.",
    )
    async def write(self, changes: Sequence[Put | Delete]) -> None:
        self._outbox.check()
        for share in self._outbox.shares(changes):
            while not share.is_taken:
                if not self._outbox.is_open:
                    await self._room.enter(self._outbox)
                self._outbox.extend(share)

    @documented(
        StageCore.seal,
        "If it is cancelled, the stage takes no more rows, and ``seal`` may be called again. "
        "Several tasks may call it.",
    )
    async def seal(self) -> SealedStage:
        return await self._room.pass_all(self._core.seal())
