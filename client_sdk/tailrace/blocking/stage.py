"""A stage without async: rows that nobody sees until they are published."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from tailrace.batch import Batches, Ready, check_value
from tailrace.block import Block
from tailrace.model import Delete, Put, Resolved
from tailrace.staging import SealedStage, StageProgress

if TYPE_CHECKING:
    from tailrace.blocking.client import Client
    from tailrace.blocking.feed import Feed


class Stage:
    """Sends rows to a stage, pipelined; ``Feed.stage`` makes one. ``seal`` ends it, then ``Feed.publish`` may take it.

    The first error is raised by the next call, and by every one from then on: make another stage. One that is not
    sealed, or never published, goes by itself after a while.
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
        self._client = client
        self._feed = feed
        self._in_flight_bytes_max = in_flight_bytes
        self._timeout = timeout
        self._batches = Batches(resolved.partitions, batch_bytes, batch_rows)
        self._progress = StageProgress(resolved.feed_id)

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing: what is not sealed is never seen."""

    @property
    def stage_id(self) -> bytes:
        """Its id, 16 random bytes."""
        return self._progress.stage_id

    def put(self, key: bytes, value: bytes) -> None:
        """Adds a row; waits where too much is in flight. Raises TypeError, ValueError, TooLarge for a bad row."""
        self._check()
        check_value(value)
        self._ship(self._batches.add(key, value))

    def delete(self, key: bytes) -> None:
        """Adds a deletion; as ``put``."""
        self._check()
        self._ship(self._batches.add(key, None))

    def write(self, changes: Sequence[Put | Delete]) -> None:
        """Adds many rows; nothing is added where one of them is bad."""
        self._check()
        for ready in self._batches.add_all(changes):
            self._ship(ready)

    def send(self, block: Block) -> None:
        """Sends a block of one partition, for who has made it himself; waits where too much is in flight."""
        self._check()
        self._client.queue(self._progress.block(block), self._client.deadline(self._timeout))
        self._client.run_until(lambda: self._progress.has_room(self._in_flight_bytes_max))
        self._check()

    def seal(self) -> SealedStage:
        """Sends what is batched and ends the stage: it is on the node's disk when this returns.

        Where nothing was staged, nothing is asked of the node. Raises UnknownStage where the node has lost something of
        it: stage the rows anew.
        """
        for ready in self._batches.take_all():
            self._ship(ready)
        progress = self._progress
        if progress.is_empty:
            return SealedStage(progress.stage_id, (), 0, 0)
        self._client.run_until(lambda: progress.is_settled)
        self._check()
        if progress.sealed is None:
            self._client.queue(progress.seal(), self._client.deadline(self._timeout))
            self._client.run_until(lambda: progress.is_over)
            self._check()
        assert progress.sealed is not None
        return progress.sealed

    def _ship(self, ready: Ready | None) -> None:
        if ready is not None:
            self.send(ready.encode())

    def _check(self) -> None:
        with self._feed.forgetting():
            self._progress.check()
