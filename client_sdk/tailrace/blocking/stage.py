"""A stage without async: rows that nobody sees until they are published."""

from __future__ import annotations

import functools
from types import TracebackType
from typing import TYPE_CHECKING

from tailrace.block import Block
from tailrace.blocking.sender import Sender
from tailrace.model import Resolved
from tailrace.requests.outbox import Settle
from tailrace.requests.staging import SEALED, SealedStage, StageProgress, StageRequest

if TYPE_CHECKING:
    from tailrace.blocking.client import Client
    from tailrace.blocking.feed import Feed


class Stage(Sender):
    """Sends rows to a stage, where no consumer sees them. Made by `Feed.stage`.

    Threads may share it, and the rows of each thread keep their order within a partition. `seal` ends it, and
    `Feed.publish` takes the result. The first error is raised by every later call: make another stage then. The
    node drops a stage that is not sealed or never published after a day. If an exception such as
    KeyboardInterrupt ends a call, rows of earlier calls are not lost: ``seal`` includes them, or raises an error.
    """

    def __init__(
        self,
        client: Client,
        feed: Feed,
        resolved: Resolved,
        *,
        batch_bytes: int,
        batch_rows: int,
        in_flight_bytes: int,
        timeout: float | None,
    ) -> None:
        super().__init__(
            client,
            feed,
            resolved,
            batch_bytes=batch_bytes,
            batch_rows=batch_rows,
            in_flight_bytes=in_flight_bytes,
            timeout=timeout,
        )
        self._progress = StageProgress(resolved.feed_id)
        self._is_seal_asked = False

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing: what is not sealed is never seen."""

    @property
    def stage_id(self) -> bytes:
        """The id of the stage, 16 random bytes."""
        return self._progress.stage_id

    def send(self, block: Block, *, digest: int | None = None) -> None:
        """Sends a block of one partition that the caller has made; waits as ``put``.

        ``digest`` is that of its rows (`tailrace.block.row_digest`) if the caller has it: else the block is opened.
        """
        self._ship(block, functools.partial(self._send, digest=digest))

    def seal(self) -> SealedStage:
        """Sends all batches and ends the stage. The rows are on the node's disk when this returns.

        An empty stage is sealed without asking the node. After an interrupt ``seal`` may be called again; the stage
        takes no more rows.

        Returns:
            The sealed stage, for `Feed.publish`.

        Raises:
            UnknownStage: The node has lost a part of the stage. Stage the rows again.
            TailraceError: A row has failed.
        """
        outbox, progress = self._outbox, self._progress
        lock = self._guard.lock
        with lock:
            outbox.check()
            outbox.close(SEALED)
            outbox.ship_all()
            if progress.is_empty:
                return SealedStage(progress.stage_id, (), 0, 0, 0)
        self._client.run_until(lambda: outbox.is_settled(outbox.shipped))
        with lock:
            outbox.check()
            if not self._is_seal_asked:
                self._queue(progress.seal(outbox.heard))
                self._is_seal_asked = True
                self._client.push()
        self._client.run_until(lambda: progress.sealed is not None or outbox.has_failed)
        with lock:
            outbox.check()
            assert progress.sealed is not None
            return progress.sealed

    def _send(self, block: Block, settle: Settle, digest: int | None = None) -> None:
        self._queue(self._progress.block(block, settle, digest))

    def _queue(self, request: StageRequest) -> None:
        done = self._feed.forgetting_done(request.done)
        self._client.queue(request._replace(done=done), self._client.deadline(self._timeout))
