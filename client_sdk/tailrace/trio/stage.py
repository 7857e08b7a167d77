"""A stage: rows that nobody sees until they are published."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from tailrace.block import Block
from tailrace.errors import WrongProcess
from tailrace.link.forks import OfOneProcess
from tailrace.model import Delete, Put
from tailrace.requests.batch import check_value
from tailrace.requests.outbox import Outbox, Settle
from tailrace.requests.staging import SEALED, SealedStage, StageProgress
from tailrace.trio.room import Room
from tailrace.wire.stage_messages import STAGE_ID_BYTES

if TYPE_CHECKING:
    from tailrace.trio.feed import Feed


class Stage(OfOneProcess):
    """Sends rows to a stage, where no consumer sees them. Made by `Feed.stage`.

    All tasks of one trio run may share it. `seal` ends it, and `Feed.publish` takes the result. The first error is
    raised by every later call: make another stage then. The node drops a stage that is not sealed or never published
    after a day.
    """

    def __init__(self, feed: Feed, *, batch_bytes: int, batch_rows: int, in_flight_bytes: int) -> None:
        self._feed = feed
        self._batch_bytes = batch_bytes
        self._batch_rows = batch_rows
        self._in_flight_bytes_max = in_flight_bytes
        self._room = Room()
        self._is_seal_asked = False

    async def __aenter__(self) -> Stage:
        """Raises UnknownFeed."""
        resolved = await self._feed.resolve()
        stage_id = self._feed.host.random.randbytes(STAGE_ID_BYTES)
        self._progress = StageProgress(resolved.feed_id, stage_id=stage_id)
        self._outbox = Outbox(
            resolved.partitions,
            batch_bytes=self._batch_bytes,
            batch_rows=self._batch_rows,
            bytes_max=self._in_flight_bytes_max,
            send=self._send,
            kick=self._feed.kick,
            on_change=self._room.changed,
        )
        self._register()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Nothing: what is not sealed is never seen."""

    def _forked(self, error: WrongProcess) -> None:
        self._outbox.refuse(error)

    async def put(self, key: bytes, value: bytes) -> None:
        """Adds a row. It waits first while rows of ``in_flight_bytes`` have no answer.

        It is a checkpoint only if it has to wait, and after each batch. If it is cancelled, the row is not added.

        Args:
            key: 1 to 4,096 bytes.
            value: At most 16 MiB.

        Raises:
            TypeError: The key or the value is not bytes. Nothing is added.
            ValueError: The key is empty, or the stage was sealed.
            TooLarge: The key or the value is too long. Nothing is added.
            TailraceError: An earlier row has failed.
        """
        if not self._outbox.is_open:
            await self._room.enter(self._outbox)
        if value is None:
            check_value(value)  # to a batch it would be a deletion
        self._outbox.add(key, value)

    async def delete(self, key: bytes) -> None:
        """Adds a deletion. It waits, and is cancelled, as `put`.

        Args:
            key: 1 to 4,096 bytes.

        Raises:
            TailraceError: As in `put`, with `TypeError` and `ValueError`.
        """
        if not self._outbox.is_open:
            await self._room.enter(self._outbox)
        self._outbox.add(key, None)

    async def write(self, changes: Sequence[Put | Delete]) -> None:
        """Adds many rows, and waits for room as often as needed.

        If it is cancelled, the first rows of each partition may have been added, and a seal includes them.

        Args:
            changes: The rows. If one of them is bad, none is added.

        Raises:
            TailraceError: As in `put`, with `TypeError` and `ValueError`.
        """
        self._outbox.check()
        for share in self._outbox.shares(changes):
            while not share.is_taken:
                if not self._outbox.is_open:
                    await self._room.enter(self._outbox)
                self._outbox.extend(share)

    async def seal(self) -> SealedStage:
        """Sends all batches and ends the stage. The rows are on the node's disk when this returns.

        An empty stage is sealed without asking the node. If it is cancelled, the stage takes no more rows, and ``seal``
        may be called again. Several tasks may call it.

        Returns:
            The sealed stage, for `Feed.publish`.

        Raises:
            UnknownStage: The node has lost a part of the stage. Stage the rows again.
            TailraceError: A row has failed.
        """
        outbox, progress = self._outbox, self._progress
        outbox.check()
        outbox.close(SEALED)
        outbox.ship_all()
        if progress.is_empty:
            return SealedStage(progress.stage_id, (), 0, 0, 0)
        await self._room.until(lambda: outbox.is_settled(outbox.shipped))
        outbox.check()
        if not self._is_seal_asked:
            self._is_seal_asked = True
            self._feed.ask(progress.seal(outbox.heard))
            self._feed.kick()
        await self._room.until(lambda: progress.sealed is not None or outbox.has_failed)
        outbox.check()
        assert progress.sealed is not None
        return progress.sealed

    def _send(self, block: Block, settle: Settle) -> None:
        self._feed.ask(self._progress.block(block, settle))
