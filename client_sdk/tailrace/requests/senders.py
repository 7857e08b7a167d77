"""Writers and stages without I/O: rows become blocks, and blocks become requests. Each shell wraps these cores.

A shell adds rows to ``outbox`` and waits for room. Flushing and sealing are generators: each yields a condition, and
the shell resumes it when the condition holds.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from tailrace.block import Block
from tailrace.errors import TailraceError
from tailrace.model import Delete, Level, Put, Resolved, VersionRange
from tailrace.requests.feed_core import FeedCore
from tailrace.requests.lane import Lane
from tailrace.requests.outbox import Batching, Settle
from tailrace.requests.outcome import WriterOutcome, writes_lost
from tailrace.requests.plan import RequestStep, WriteBlock
from tailrace.requests.replies import forgetting
from tailrace.requests.request import Answered
from tailrace.requests.staging import SEALED, SealedStage, StageProgress, StageRequest

_T = TypeVar("_T")

# Yields conditions to wait for, one after the other, and returns a result.
Waits: TypeAlias = Generator[Callable[[], bool], None, _T]

LEFT = "the writer was left: make another one"
SEAL_LEVELS = ("disk", "quorum")


class Queue(Protocol):
    """The side of a shell that sends what writers and stages queue."""

    def queue(self, step: RequestStep, done: Answered) -> None:
        """Queues a request. ``done`` is called with the answer."""
        ...

    def kick(self) -> None:
        """Sends queued requests as far as that needs no waiting."""
        ...

    def withdraw_lane(self, lane: Lane) -> None:
        """Drops the blocks of ``lane`` that were not sent, and sends none of the others again."""
        ...


def no_change() -> None:
    """Does nothing: a blocking shell looks at the outbox itself."""


class WriterCore:
    """The part of a writer that all shells share.

    ``on_change`` is called when a waiting call has to look at its condition again.
    """

    def __init__(
        self,
        queue: Queue,
        feed: FeedCore,
        resolved: Resolved,
        level: Level | None,
        batching: Batching,
        on_change: Callable[[], None] = no_change,
    ) -> None:
        self._queue = queue
        self._feed = feed
        self._feed_id = resolved.feed_id
        self._partitions = resolved.partitions
        self._level = level
        self._lanes: dict[int, Lane] = {}
        self._outcome = WriterOutcome()
        self.outbox = batching.outbox(resolved.partitions, self.send, queue.kick, on_change)

    def send(self, block: Block, settle: Settle) -> None:
        """Queues a block in the lane of its partition."""
        partition = block.header.partition
        lane = self._lanes.get(partition)
        if lane is None:
            lane = Lane(self._feed_id, partition, self._feed.new_producer_id, self._lost)
            self._lanes[partition] = lane
        done = forgetting(self._outcome.record(settle), self._feed.forget)
        self._queue.queue(WriteBlock(lane, block, self._level, feed=self._feed.name), done)

    def flush(self) -> Waits[dict[int, VersionRange]]:
        """Sends all batches, and waits until every row that was added before the call is acknowledged.

        Returns:
            The first and the last version of each partition since the last ``flush``. Versions of other writers may lie
            between them.

        Raises:
            WritesLost: Acknowledged rows were lost together with their level.
            TailraceError: A row has failed, or the writer was left.
        """
        outbox = self.outbox
        outbox.check()
        outbox.ship_all()
        shipped = outbox.shipped
        yield lambda: outbox.is_settled(shipped)
        outbox.check()
        return self._outcome.take_written()

    @property
    def acknowledged(self) -> dict[int, VersionRange]:
        """The first and the last version of each partition that were acknowledged since the last ``flush``.

        After an error it tells how far each partition has come: the rows of a partition are written in their order.
        """
        return self._outcome.written

    def arrow_blocks(
        self, data: Any, key: str, value: str, deleted: str | None, ttl: int | str | None
    ) -> Iterator[Block]:
        """Adds the rows of Arrow data, by whole columns. It waits for room as often as needed.

        Rows that were added before are sent first. All rows of the data are sent when this returns. Data is checked as
        in `Feed.write_arrow`: if a row is bad, the rows before its batch are sent, or none of data in memory.

        Args:
            data: As in `Feed.write_arrow`.
            key: The name of the column of keys.
            value: The name of the column of values.
            deleted: The name of a column of bool that is True for deletions. None: no row is a deletion.
            ttl: As in `Feed.write_arrow`.

        Raises:
            TailraceError: As in `Feed.write_arrow`, with `TypeError`, `ValueError` and `ImportError`; or an earlier row
                has failed.
        """
        from tailrace.block.lazy import pyarrow

        pyarrow()
        from tailrace.requests.arrow_rows import ArrowRows

        rows = ArrowRows(data, key, value, deleted, ttl)
        self.outbox.check()
        self.outbox.ship_all()
        return rows.blocks(self._partitions)

    def leave(self, error: BaseException | None) -> None:
        """Takes no more rows. Rows that were added are still sent, unless ``error`` has ended the writer's body."""
        self.outbox.close(LEFT)
        if error is not None:
            self.give_up()

    def give_up(self) -> None:
        """Drops unsent rows, and ends all waits with an error."""
        self.outbox.fail(TailraceError(f"an exception has ended the writer's body; {LEFT}"))
        for lane in self._lanes.values():
            self._queue.withdraw_lane(lane)

    def _lost(self, ranges: list[VersionRange]) -> None:
        self.outbox.fail(writes_lost(ranges))


class StageCore:
    """The part of a stage that all shells share. ``on_change`` as in `WriterCore`."""

    def __init__(
        self,
        queue: Queue,
        feed: FeedCore,
        resolved: Resolved,
        batching: Batching,
        on_change: Callable[[], None] = no_change,
    ) -> None:
        self._queue = queue
        self._feed = feed
        self._progress = StageProgress(resolved.feed_id, stage_id=feed.new_stage_id())
        self._seal_level = ""  # the level of the first call of ``seal``
        self.outbox = batching.outbox(resolved.partitions, self.send, queue.kick, on_change)

    @property
    def stage_id(self) -> bytes:
        """The id of the stage, 16 random bytes."""
        return self._progress.stage_id

    def send(self, block: Block, settle: Settle, digest: int | None = None) -> None:
        """Queues a block. ``digest`` is that of its rows; None: it is computed from the block."""
        self._ask(self._progress.block(block, settle, digest))

    def seal(self, level: str = "disk") -> Waits[SealedStage]:
        """Sends all batches and ends the stage. The rows are on the node's disk when this returns.

        An empty stage is sealed without asking the node.

        Args:
            level: "disk", or "quorum": in a set of nodes the rows are on the disks of a majority when this returns, so
                the next leader can publish them if this one is lost. Outside of a set it is the same as "disk".

        Returns:
            The sealed stage, for `Feed.publish`.

        Raises:
            ValueError: The level is another one, or not that of an earlier call.
            UnknownStage: The node has lost a part of the stage. Stage the rows again.
            TailraceError: A row has failed, or no majority of the set has taken the stage in time.
        """
        if level not in SEAL_LEVELS:
            raise ValueError(f"level is {level!r}: a stage is sealed at level {' or '.join(map(repr, SEAL_LEVELS))}")
        if self._seal_level not in ("", level):
            raise ValueError(f"level is {level!r}, and the stage is being sealed at level {self._seal_level!r}")
        outbox, progress = self.outbox, self._progress
        outbox.check()
        outbox.close(SEALED)
        outbox.ship_all()
        if progress.is_empty:
            return SealedStage(progress.stage_id, (), 0, 0, 0)
        yield lambda: outbox.is_settled(outbox.shipped)
        outbox.check()
        if not self._seal_level:
            self._ask(progress.seal(outbox.heard, Level.parse(level)))
            self._seal_level = level
            self._queue.kick()
        yield lambda: progress.sealed is not None or outbox.has_failed
        outbox.check()
        assert progress.sealed is not None
        return progress.sealed

    def _ask(self, request: StageRequest) -> None:
        self._queue.queue(request, forgetting(request.done, self._feed.forget))


class RowSender(Protocol):
    """The calls that add rows, of the writers and stages of all shells. Only a shell can wait for room."""

    def put(self, key: bytes, value: bytes, *, ttl: int | None = None) -> Any:
        """Adds a row. It waits first while rows of ``in_flight_bytes`` have no answer.

        Args:
            key: 1 to 4,096 bytes.
            value: At most 16 MiB.
            ttl: The seconds after which the key expires, as in `Feed.put`. A stage takes none.

        Raises:
            TypeError: The key or the value is not bytes. Nothing is added.
            ValueError: The key is empty, the ttl is out of its bounds, the writer was left, or the stage was sealed.
                Nothing is added.
            TooLarge: The key or the value is too long. Nothing is added.
            TailraceError: An earlier row has failed.
        """
        ...

    def delete(self, key: bytes) -> Any:
        """Adds a deletion. It waits as `put`.

        Args:
            key: 1 to 4,096 bytes.

        Raises:
            TailraceError: As in `put`, with `TypeError` and `ValueError`.
        """
        ...

    def write(self, changes: Sequence[Put | Delete]) -> Any:
        """Adds many rows, and waits for room as often as needed.

        Args:
            changes: The rows. If one of them is bad, none is added.

        Raises:
            TailraceError: As in `put`, with `TypeError` and `ValueError`.
        """
        ...


class ParkedRows(Protocol):
    """The call of all shells that gives parked rows to the indexes again."""

    def replay_parked(self) -> Any:
        """Gives the rows of the feed ``NAME.parked`` to the indexes again. Mend the index first.

        Each parked row that is still the newest of its key is written once more, with the same value, and is taken out
        of ``NAME.parked``. A row that a later write has replaced is only taken out.

        Returns:
            How many rows were written again, and how many had been replaced.

        Raises:
            UnknownFeed: There is no feed ``NAME.parked``, since no row was ever parked.
            ProtocolError: A row of ``NAME.parked`` was not written by a follower.
            Retryable: A request has not succeeded in time. Call it again for the rest.
        """
        ...


class FeedOpener(Protocol):
    """The call of the clients of all shells that makes a handle of a feed."""

    def feed(self, name: str, *, serializer: Any = None, key_serializer: Any = None) -> Any:
        """Returns a handle of a feed without asking the node.

        With serializers, keys and values are typed: in ``put``, ``delete``, ``get``, ``write``, ``writer``, ``stage``,
        ``items`` and ``consume``. Blocks, Arrow, indexes and prefixes stay bytes. None is no value. A row that a
        serializer cannot read raises `BadValue` when the program comes to it. To type checkers such a handle is Any.

        Args:
            name: The name of the feed. If it does not exist, the first call of the handle raises `UnknownFeed`.
            serializer: Makes bytes of values, and values of bytes. None: values are bytes.
            key_serializer: The same for keys. It has to make the same bytes of equal keys. None: keys are bytes.

        Returns:
            The handle.

        Raises:
            TypeError: A serializer lacks ``name``, ``dumps`` or ``loads``.
        """
        ...


class ArrowSender(Protocol):
    """The call of the feeds of all shells that writes Arrow data by a writer of its own."""

    def write_arrow(
        self, data: Any, *, key: str, value: str, deleted: str | None, ttl: int | str | None, level: str | None
    ) -> Any:
        """Writes the rows of Arrow data by whole columns, and returns when all have reached their level.

        The rows of each partition keep their order. They are sent in blocks of about 1 MiB. The call as a whole is not
        atomic: consumers see rows as they come.

        Data that is in memory as a whole, such as a table, a data frame or a list of batches, is checked first. If a
        row is bad, nothing is written. Data that comes batch by batch is checked so: the rows before a bad batch are
        written. Notes of the error count these rows, and name the versions that the call has written. Rows are counted
        from 0.

        Args:
            data: A ``pyarrow.Table``, a ``RecordBatch``, a ``RecordBatchReader``, an object that hands over one of them
                by Arrow's C interface, such as a data frame of pandas or Polars, or an iterable of these.
            key: The name of the column of keys: strings of 1 to 4,096 bytes, never null. A column of strings may be of
                any Arrow type: binary or string, large, view, fixed size, dictionary. Text counts in UTF-8.
            value: The name of the column of values: strings of at most 16 MiB, null only in deletions.
            deleted: The name of a column of bool: True deletes the key, whatever the value is, and null counts as
                False. None: no row is a deletion.
            ttl: The seconds after which the keys expire, 1 to 315,360,000, as in `put`; or the name of a column of
                whole numbers with the seconds of each row, null for none. A deletion has none. None: that of the feed.
            level: "memory", "disk" or "quorum", as in `put`.

        Returns:
            The first and the last version of each partition. Versions of other writers may lie between them.

        Raises:
            TypeError: The data or a column is of another type.
            ValueError: A column is missing or occurs twice, a key is null or empty, a ttl is out of its bounds, or a
                value is null without being deleted. The message has the number of the first such row.
            TooLarge: A key or a value is too long. The message has the number of the row.
            ImportError: pyarrow is not installed; ``pip install 'tailrace[arrow]'`` installs it.
            TailraceError: As in `put`. A part may be written.
        """
        ...
