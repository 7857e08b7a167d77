"""The events of a stream: mutations, the bounds of snapshots, the ends of rounds, rollbacks."""

from __future__ import annotations

from itertools import repeat
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

from tailrace.block.header import FLAG_TOMBSTONES, FLAG_TTLS
from tailrace.model import EndReason, Mutation
from tailrace.model.values import mutations_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tailrace.block import Block
    from tailrace.model.failover import FailoverLog
    from tailrace.model.position import Position
    from tailrace.wire.messages import Trace
    from tailrace.wire.push_messages import SegmentOffered, SegmentTransit
    from tailrace.wire.replica_messages import LeaderSeqs, Producers
    from tailrace.wire.stage_messages import SinksTold

T = TypeVar("T")


class Mutations:
    """Mutations of one partition, in the order of their seqs.

    ``for mutation in event`` yields `Mutation` objects. The columns, such as ``keys()`` and ``values()``, are several
    times faster. Each call makes a new column, so keep what you use twice. The object is immutable, and any thread may
    read it.

    Attributes:
        partition: The partition, from 0.
        first_seq: The seq of the first row.
        last_seq: The seq of the last row, included.
        block: The block that holds the rows. It may hold others, too.
        branch: The branch of ``last_seq``, 16 bytes; ``b""`` if it is not known.
        refetched: True for rows that were read again after a rollback. They do not move the position.
        keys_only: True if the stream has no values.
        traces: The contexts of sampled writes that have rows here, for ``tailrace.tracing.links``; mostly empty.
    """

    __slots__ = (
        "_first_row",
        "_stop_row",
        "block",
        "branch",
        "first_seq",
        "keys_only",
        "last_seq",
        "partition",
        "refetched",
        "traces",
    )

    def __init__(
        self,
        block: Block,
        first_row: int = 0,
        *,
        stop_row: int | None = None,
        branch: bytes = b"",
        refetched: bool = False,
        keys_only: bool = False,
        traces: Iterable[Trace] = (),
    ) -> None:
        """Selects rows of ``block``. ValueError if it has no such rows; BadBlock if its columns are broken."""
        block.check_columns(keep=True)
        header = block.header
        if not 0 <= first_row < header.rows:
            raise ValueError(f"first_row is {first_row}, but the block has rows 0 to {header.rows - 1}")
        if stop_row is not None and not first_row < stop_row <= header.rows:
            raise ValueError(f"stop_row is {stop_row}, but has to be {first_row + 1} to {header.rows}")
        self.block = block
        self.partition = header.partition
        self.first_seq = block.columns().seqs()[first_row] if first_row else header.first_seq
        self.last_seq = header.last_seq if stop_row is None else block.columns().seqs()[stop_row - 1]
        self.branch = branch
        self.refetched = refetched
        self.keys_only = keys_only
        # Of those that it is given, the ones of these rows.
        self.traces: tuple[Trace, ...] = ()
        if traces:
            self.traces = tuple(t for t in traces if t.first_seq <= self.last_seq and t.last_seq >= self.first_seq)
        self._first_row = first_row
        self._stop_row = stop_row

    @classmethod
    def above(
        cls, block: Block, seq: int, *, branch: bytes = b"", keys_only: bool = False, traces: Iterable[Trace] = ()
    ) -> Mutations | None:
        """Returns the rows of ``block`` above ``seq``; None if all rows are at or below it."""
        header = block.header
        if header.first_seq > seq:
            return cls(block, branch=branch, keys_only=keys_only, traces=traces)
        if header.last_seq <= seq:
            return None
        return cls(block, block.columns().row_above(seq), branch=branch, keys_only=keys_only, traces=traces)

    def stamped_since(self, timestamp: int) -> Mutations | None:
        """Returns the rows from a time on.

        Args:
            timestamp: Microseconds since 1970 UTC, included.

        Returns:
            The rows that were accepted then or later; None if all were accepted before.
        """
        row = self.block.columns().row_stamped(timestamp)
        if row <= self._first_row:
            return self
        if row >= self._stop:
            return None
        return self._rows(row, self._stop_row)

    def stamped_before(self, timestamp: int) -> Mutations | None:
        """Returns the rows before a time.

        Args:
            timestamp: Microseconds since 1970 UTC, not included.

        Returns:
            The rows that were accepted earlier; None if all were accepted then or later.
        """
        row = self.block.columns().row_stamped(timestamp)
        if row >= self._stop:
            return self
        if row <= self._first_row:
            return None
        return self._rows(self._first_row, row)

    def split(self, rows: int) -> tuple[Mutations, Mutations]:
        """Cuts the rows in two.

        Args:
            rows: The number of rows of the first part, from 1 to one less than all.

        Returns:
            The first rows, and the others.

        Raises:
            ValueError: A part would have no rows.
        """
        row = self._first_row + rows
        return self._rows(self._first_row, row), self._rows(row, self._stop_row)

    def _rows(self, first_row: int, stop_row: int | None) -> Mutations:
        return Mutations(
            self.block,
            first_row,
            stop_row=stop_row,
            branch=self.branch,
            refetched=self.refetched,
            keys_only=self.keys_only,
            traces=self.traces,
        )

    def __len__(self) -> int:
        return self._stop - self._first_row

    def __iter__(self) -> Iterator[Mutation]:
        values, flags = self.values(), self.block.header.flags
        if not flags & FLAG_TOMBSTONES:  # a search for None would take a tenth of the time of a row
            deleted: Iterator[bool] = repeat(False, len(values))
        elif self.keys_only:
            deleted = iter(self.deleted())
        else:
            deleted = map(is_, values, repeat(None))
        expired: Iterable[bool] = self.expired() if flags & FLAG_TTLS else repeat(False, len(values))
        rows = zip(self.keys(), values, self.seqs(), self.timestamps(), deleted, expired, strict=True)
        return map(tuple.__new__, repeat(self._kind), rows)  # the NamedTuple's own constructor takes twice as long

    def one_by_one(self) -> Iterator[Mutation]:
        """Iterates over the rows, and makes each object when it is asked for.

        It takes several times as long as plain iteration, and never holds a second copy of all keys and values.

        Returns:
            An iterator of `Mutation`.
        """
        columns = self.block.columns()
        rows = range(self._first_row, self._stop)
        numbers = zip(rows, self.seqs(), self.timestamps(), self.deleted(), self.expired(), strict=True)
        for row, seq, timestamp, deleted, expired in numbers:
            value = None if deleted or self.keys_only else columns.value_at(row)
            yield self._kind(columns.key_at(row), value, seq, timestamp, deleted, expired)

    @property
    def _kind(self) -> type[Mutation]:
        return mutations_of(self.partition, self.branch) if self.branch else Mutation

    def keys(self) -> list[bytes]:
        """Returns the keys.

        Returns:
            The key of each row.
        """
        return self._cut(self.block.columns().keys())

    def values(self) -> list[bytes | None]:
        """Returns the values.

        Returns:
            The value of each row; None for a deletion, and in a stream without values.
        """
        if self.keys_only:
            return [None] * len(self)
        return self._cut(self.block.columns().values())

    def deleted(self) -> list[bool]:
        """Tells which rows are deletions.

        Returns:
            True for each row that is a deletion.
        """
        return self._cut(self.block.columns().deleted())

    def expired(self) -> list[bool]:
        """Tells which rows are deletions of keys that have expired.

        Returns:
            True for each row that is the deletion of a key whose ttl was over; it is True in ``deleted()``, too.
        """
        return self._cut(self.block.columns().expired())

    def seqs(self) -> Sequence[int]:
        """Returns the seqs.

        Returns:
            The seq of each row, rising.
        """
        return self.block.columns().seqs()[self._first_row : self._stop_row]

    def timestamps(self) -> Sequence[int]:
        """Returns the times at which the node accepted the rows.

        Returns:
            The timestamp of each row, in microseconds since 1970 UTC.
        """
        return self.block.columns().timestamps()[self._first_row : self._stop_row]

    def hashes(self) -> list[int]:
        """Returns the key hashes, as the producer computed them.

        Returns:
            The hash of each key, 0 to 2**64 - 1.
        """
        return self._cut(self.block.columns().hashes())

    def hash_buffer(self) -> memoryview:
        """Returns the key hashes without making numbers of them, for numpy and the like.

        Returns:
            The hash of each key, 8 little-endian bytes.
        """
        return self.block.columns().hash_buffer[8 * self._first_row : 8 * self._stop]

    def to_arrow(self, columns: Sequence[str] | None = None) -> Any:
        """Makes an Arrow record batch. Keys and values are not copied.

        The columns are ``partition`` (int32), ``seq`` (int64), ``key`` (binary), ``value`` (binary, null for a deletion
        and in a stream without values), ``deleted`` (bool), ``timestamp`` (timestamp[us, UTC]) and ``expired`` (bool:
        the deletion of a key whose ttl was over).

        Args:
            columns: The names of those to make, in the order of the batch. None: all.

        Returns:
            A ``pyarrow.RecordBatch``.

        Raises:
            ValueError: There is no column of a name.
            ImportError: pyarrow is not installed; ``pip install 'tailrace[arrow]'`` installs it.
        """
        names = None if columns is None else tuple(columns)
        batch = self.block.columns().to_arrow(names, keys_only=self.keys_only)
        return batch if self._is_whole else batch.slice(self._first_row, len(self))

    def _cut(self, column: list[T]) -> list[T]:
        return column if self._is_whole else column[self._first_row : self._stop_row]

    @property
    def _stop(self) -> int:
        return self.block.header.rows if self._stop_row is None else self._stop_row

    @property
    def _is_whole(self) -> bool:
        return not self._first_row and self._stop_row is None

    def __repr__(self) -> str:
        return f"<Mutations of partition {self.partition}: seqs {self.first_seq} to {self.last_seq}, {len(self)} rows>"


class SnapshotStart(NamedTuple):
    """A snapshot of a partition begins. The mutations up to `SnapshotEnd` lead from one consistent state to another.

    Attributes:
        partition: The partition, from 0.
        first_seq: The first seq of the snapshot.
        last_seq: The last seq of the snapshot, included.
        position: The position of the consumer now.
        complete: True if the snapshot has every mutation; False if superseded mutations may be missing.
        purge_seq: Deletions up to this seq may be missing.
        published: For replicas: the snapshot is applied in one step.
    """

    partition: int
    first_seq: int
    last_seq: int
    position: Position
    complete: bool = False
    purge_seq: int = 0
    published: bool = False


class SnapshotEnd(NamedTuple):
    """A snapshot is complete. This is a good point to store ``position``.

    A filtered stream may deliver it without a `SnapshotStart`, if the filter left nothing of the snapshot.

    Attributes:
        partition: The partition, from 0.
        first_seq: The first seq of the snapshot.
        last_seq: The last seq of the snapshot, included.
        position: The position of the consumer now.
    """

    partition: int
    first_seq: int
    last_seq: int
    position: Position


class RoundComplete(NamedTuple):
    """The stream has served every partition that had something new.

    Attributes:
        number: The number of the round, from 1.
    """

    number: int


class Rollback(NamedTuple):
    """The node has lost mutations of ``partition`` above ``seq`` that this consumer may have received.

    If ``keys`` are given, their present values follow as `Mutations` with ``refetched`` set; a key that no longer
    exists is a deletion. A consumer that applies these has nothing else to do. It must not delete the keys: an older
    value of a key may lie below ``seq``, and is not sent again.

    Attributes:
        partition: The partition, from 0.
        seq: The last seq that is still valid.
        keys: The keys that were delivered above ``seq``. None if they are not known: delete the whole partition, it is
            sent again from the beginning.
    """

    partition: int
    seq: int
    keys: tuple[bytes, ...] | None


class CaughtUp(NamedTuple):
    """The stream has delivered everything that had been acknowledged, at any level, when it was complete.

    It comes once, if `Feed.consume` was asked for it. Rows that are written meanwhile may come before it.

    Attributes:
        partitions: The number of partitions of the stream.
    """

    partitions: int


class Assigned(NamedTuple):
    """This member of a group owns these partitions from now on. Their events follow.

    Attributes:
        partitions: The partitions, from 0.
    """

    partitions: tuple[int, ...]


class Revoked(NamedTuple):
    """Another member of the group is to own these partitions. No event of them comes any more.

    Finish what you have of them, and commit, before you ask for the next event: then they are released, and the next
    owner begins at the last commit.

    Attributes:
        partitions: The partitions, from 0.
        lost: True if they are another member's already, since this one was silent for too long: what was not committed
            comes to that one, and a commit of it raises NotOwner.
    """

    partitions: tuple[int, ...]
    lost: bool = False


# The events that are not about one partition.
OfNoPartition = RoundComplete | CaughtUp | Assigned | Revoked
Event = Mutations | SnapshotStart | SnapshotEnd | RoundComplete | Rollback | CaughtUp | Assigned | Revoked


class Agreed(NamedTuple):
    """For a replica: the stream of a partition is open.

    Attributes:
        partition: The partition, from 0.
        log: The failover log of the node.
        high_seq: The newest seq of the node.
    """

    partition: int
    log: FailoverLog
    high_seq: int


class StreamFailed(NamedTuple):
    """For a replica: the stream of a partition has ended, and the others go on. `ReplicaStream.resume` answers it.

    Attributes:
        partition: The partition, from 0.
        reason: Why the stream ended.
        message: The node's explanation.
    """

    partition: int
    reason: EndReason
    message: str


# The events for replicas alone.
ReplicaEvent: TypeAlias = "Agreed | StreamFailed | LeaderSeqs | Producers | SinksTold | SegmentOffered | SegmentTransit"
