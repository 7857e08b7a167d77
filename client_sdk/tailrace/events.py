"""What a stream delivers: mutations, the bounds of snapshots, the ends of rounds, rollbacks."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tailrace.model import EndReason, Mutation
from tailrace.wire.replica_messages import LeaderSeqs, Producers
from tailrace.wire.stage_messages import SinksTold

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.block import Block
    from tailrace.failover import FailoverLog
    from tailrace.position import Position

T = TypeVar("T")


class Mutations:
    """Mutations of one partition, in seq order: the rows of a block, from row ``first_row`` on, before ``stop_row``.

    ``for mutation in event`` gives ``Mutation`` objects; ``keys()``, ``values()`` and the other columns are several
    times faster where whole columns will do. Columns are made anew at each call, so keep what you use twice.

    ``partition``; ``first_seq`` and ``last_seq``, both included; ``block``, the whole block, its other rows
    included; ``branch``, the uuid (16 bytes) of the history that ``last_seq`` belongs to, b"" where it is not known;
    ``refetched``: read again after a rollback, in place of what was rolled back, which does not move the position;
    ``keys_only``: values were not asked for, so each is None, and ``deleted`` tells deletions from the rest.
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
    ) -> None:
        """ValueError where these are no rows of ``block``. BadBlock where the block's columns are broken."""
        columns = block.columns()
        header = block.header
        if not 0 <= first_row < header.rows:
            raise ValueError(f"row {first_row} is not one of the block's {header.rows}")
        if stop_row is not None and not first_row < stop_row <= header.rows:
            raise ValueError(f"there are no rows from {first_row} up to {stop_row} of the block's {header.rows}")
        self.block = block
        self.partition = header.partition
        self.first_seq = columns.seqs()[first_row] if first_row else header.first_seq
        self.last_seq = header.last_seq if stop_row is None else columns.seqs()[stop_row - 1]
        self.branch = branch
        self.refetched = refetched
        self.keys_only = keys_only
        self._first_row = first_row
        self._stop_row = stop_row

    @classmethod
    def above(cls, block: Block, seq: int, *, branch: bytes = b"", keys_only: bool = False) -> Mutations | None:
        """The rows of ``block`` whose seq is above ``seq``; None where there is none."""
        header = block.header
        if header.first_seq > seq:
            return cls(block, branch=branch, keys_only=keys_only)
        if header.last_seq <= seq:
            return None
        return cls(block, block.columns().row_above(seq), branch=branch, keys_only=keys_only)

    def stamped_since(self, timestamp: int) -> Mutations | None:
        """Those whose timestamp (microseconds since 1970 UTC) is ``timestamp`` or later; None where there is none."""
        row = self.block.columns().row_stamped(timestamp)
        if row <= self._first_row:
            return self
        if row >= self._stop:
            return None
        return self._rows(row, self._stop_row)

    def stamped_before(self, timestamp: int) -> Mutations | None:
        """Those whose timestamp (microseconds since 1970 UTC) is earlier; None where there is none."""
        row = self.block.columns().row_stamped(timestamp)
        if row >= self._stop:
            return self
        if row <= self._first_row:
            return None
        return self._rows(self._first_row, row)

    def _rows(self, first_row: int, stop_row: int | None) -> Mutations:
        return Mutations(
            self.block,
            first_row,
            stop_row=stop_row,
            branch=self.branch,
            refetched=self.refetched,
            keys_only=self.keys_only,
        )

    def __len__(self) -> int:
        return self._stop - self._first_row

    def __iter__(self) -> Iterator[Mutation]:
        values = self.values()
        if self.keys_only:
            deleted: Iterator[bool] = iter(self.deleted())
        elif None in values:
            deleted = (value is None for value in values)
        else:
            deleted = repeat(False, len(values))
        rows = zip(self.keys(), values, self.seqs(), self.timestamps(), deleted, strict=True)
        return map(tuple.__new__, repeat(Mutation), rows)  # the NamedTuple's own constructor takes twice as long

    def one_by_one(self) -> Iterator[Mutation]:
        """Gives what iteration gives, and makes each row when it is asked for.

        It takes several times as long, and never holds a second copy of all keys and values.
        """
        columns = self.block.columns()
        numbers = zip(range(self._first_row, self._stop), self.seqs(), self.timestamps(), self.deleted(), strict=True)
        for row, seq, timestamp, deleted in numbers:
            value = None if deleted or self.keys_only else columns.value_at(row)
            yield Mutation(columns.key_at(row), value, seq, timestamp, deleted)

    def keys(self) -> list[bytes]:
        """The key of each row."""
        return self._cut(self.block.columns().keys())

    def values(self) -> list[bytes | None]:
        """The value of each row, None for a deletion, and where only keys were asked for."""
        if self.keys_only:
            return [None] * len(self)
        return self._cut(self.block.columns().values())

    def deleted(self) -> list[bool]:
        """Whether each row is a deletion."""
        return self._cut(self.block.columns().deleted())

    def seqs(self) -> Sequence[int]:
        """The seq of each row, rising."""
        return self.block.columns().seqs()[self._first_row : self._stop_row]

    def timestamps(self) -> Sequence[int]:
        """When the server took each row, in microseconds since 1970 UTC."""
        return self.block.columns().timestamps()[self._first_row : self._stop_row]

    def hashes(self) -> list[int]:
        """The key hash of each row (tailrace.hashing), by the producer's word."""
        return self._cut(self.block.columns().hashes())

    def to_arrow(self) -> Any:
        """A ``pyarrow.RecordBatch``, keys and values without copying.

        Columns: partition int32, seq int64, key binary, value binary (null for a deletion, and where only keys were
        asked for), deleted bool, timestamp timestamp[us, UTC]. ImportError where pyarrow is not installed (``pip
        install 'tailrace[arrow]'``).
        """
        batch = self.block.columns().to_arrow(keys_only=self.keys_only)
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
    """A snapshot of a partition begins: what follows, up to SnapshotEnd, leads from one consistent state to another.

    ``first_seq`` and ``last_seq`` bound it, both included; ``position`` is where the consumer stands now. ``complete``:
    no superseded mutation is left out of it. ``purge_seq``: up to here deletions may be missing in it. ``published`` is
    for replicas: it is to be taken over in one step.
    """

    partition: int
    first_seq: int
    last_seq: int
    position: Position
    complete: bool = False
    purge_seq: int = 0
    published: bool = False


class SnapshotEnd(NamedTuple):
    """A snapshot is complete; ``position`` is where the consumer stands now, and a good point to store.

    A filtered stream gives it without a SnapshotStart where nothing in the snapshot was asked for.
    """

    partition: int
    first_seq: int
    last_seq: int
    position: Position


class RoundComplete(NamedTuple):
    """The stream has been through all its partitions that had something new, for the ``number``-th time, from 1."""

    number: int


class Rollback(NamedTuple):
    """What you were given of ``partition`` above ``seq`` may no longer exist.

    ``keys`` are the keys of it; their present values follow at once as ``Mutations`` that are ``refetched``, a deletion
    where there is none, and then the stream from ``seq`` on. Who applies these has to do nothing here. (Dropping the
    keys instead would be wrong: an older value of a key lies below ``seq``, and does not come again.) None where the
    keys are not known: drop the whole partition, it comes again from the beginning.
    """

    partition: int
    seq: int
    keys: tuple[bytes, ...] | None


Event = Mutations | SnapshotStart | SnapshotEnd | RoundComplete | Rollback


class Agreed(NamedTuple):
    """To a replica: the stream of ``partition`` is open; ``log`` is the node's, ``high_seq`` its last seq."""

    partition: int
    log: FailoverLog
    high_seq: int


class StreamFailed(NamedTuple):
    """To a replica: the node cannot stream ``partition`` on. Answered by `ReplicaStream.resume`.

    The other partitions go on. ``reason`` is why the stream ended, and ``message`` what the node says of it.
    """

    partition: int
    reason: EndReason
    message: str


class LeaderCheck(NamedTuple):
    """To a replica: the leader asks whether it is still followed. Answered by `ReplicaStream.confirm`."""

    number: int


# What only a replica is given.
ReplicaEvent = Agreed | StreamFailed | LeaderSeqs | Producers | SinksTold | LeaderCheck
