"""The mutations of one call of an index, as columns: a store that takes whole columns needs no object for each row."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import compress, groupby, repeat
from typing import TYPE_CHECKING, Any, overload

from tailrace.consuming.ring import RingChange, RingChunk
from tailrace.indexes.protocol import AppliedMutation

if TYPE_CHECKING:
    from tailrace.consuming.events import Mutations


class AppliedMutations(Sequence[AppliedMutation]):
    """Mutations as columns. It is a sequence of `AppliedMutation`, too, whose objects are made when they are asked for.

    A follower gives one to each call of `Index.apply`. Each key occurs once. It is immutable, and any thread may read
    it.

    Attributes:
        partitions: The partition of each mutation.
        keys: The keys.
        values: The new values; None for a deletion.
        seqs: The seqs, which rise within a partition unless the rows were read again after a rollback.
        timestamps: When the node accepted each mutation, in microseconds since 1970 UTC.
    """

    __slots__ = ("keys", "partitions", "seqs", "timestamps", "values")

    def __init__(
        self,
        partitions: Sequence[int],
        keys: Sequence[bytes],
        values: Sequence[bytes | None],
        seqs: Sequence[int],
        timestamps: Sequence[int],
    ) -> None:
        self.partitions = partitions
        self.keys = keys
        self.values = values
        self.seqs = seqs
        self.timestamps = timestamps

    @classmethod
    def of(cls, mutations: Iterable[AppliedMutation]) -> AppliedMutations:
        """Makes columns of any mutations, so that an index has to know one form only.

        Args:
            mutations: The mutations of a call of `Index.apply`.

        Returns:
            The last mutation of each key.
        """
        if isinstance(mutations, AppliedMutations):
            return mutations
        newest = {mutation.key: mutation for mutation in mutations}
        columns = zip(*newest.values(), strict=True) if newest else repeat((), 5)
        return cls(*columns)

    @classmethod
    def of_events(cls, events: list[Mutations]) -> AppliedMutations:
        """Takes the columns of events, and the newest row of each key.

        Args:
            events: The events, in order. The list is emptied, so that their blocks can be freed.

        Returns:
            The rows, in the order of the events.
        """
        partitions: list[int] = []
        keys: list[bytes] = []
        values: list[bytes | None] = []
        seqs: list[int] = []
        timestamps: list[int] = []
        events.reverse()
        while events:
            event = events.pop()
            of_event = event.keys()
            partitions += repeat(event.partition, len(of_event))
            keys += of_event
            values += event.values()
            seqs += event.seqs()
            timestamps += event.timestamps()
        columns: tuple[list[Any], ...] = (partitions, keys, values, seqs, timestamps)
        if len(set(keys)) < len(keys):
            is_newest = bytearray(len(keys))
            for place in dict(zip(keys, range(len(keys)), strict=True)).values():
                is_newest[place] = 1
            columns = tuple([list(compress(column, is_newest)) for column in columns])
        return cls(*columns)

    def deletions(self) -> AppliedMutations:
        """Selects the deletions.

        Returns:
            The mutations without a value.
        """
        if None not in self.values:
            return AppliedMutations((), (), (), (), ())
        return self.where([value is None for value in self.values])

    def upserts(self) -> AppliedMutations:
        """Selects the mutations with a value.

        Returns:
            The mutations that are no deletions; these columns themselves if all are.
        """
        if None not in self.values:
            return self
        return self.where([value is not None for value in self.values])

    def columns(self) -> tuple[Sequence[Any], ...]:
        """Returns the columns in the order of an index's table.

        Returns:
            The keys, values, partitions, seqs and timestamps.
        """
        return self.keys, self.values, self.partitions, self.seqs, self.timestamps

    def where(self, selected: Iterable[object]) -> AppliedMutations:
        """Selects some mutations.

        Args:
            selected: A true value for each mutation to keep.

        Returns:
            These mutations, in their order.
        """
        chosen = [bool(one) for one in selected]
        columns: tuple[Sequence[Any], ...] = (self.partitions, self.keys, self.values, self.seqs, self.timestamps)
        return AppliedMutations(*[list(compress(column, chosen)) for column in columns])

    def seq_bounds(self) -> dict[int, tuple[int, int]]:
        """Finds the bounds of the seqs, by which an index compares all rows of a partition at once.

        Returns:
            The lowest and the highest seq of each partition that occurs.
        """
        bounds: dict[int, tuple[int, int]] = {}
        for partition, rows in self._runs():
            seqs = self.seqs[rows]
            low, high = min(seqs), max(seqs)
            if partition in bounds:
                low, high = min(low, bounds[partition][0]), max(high, bounds[partition][1])
            bounds[partition] = low, high
        return bounds

    def _runs(self) -> Iterator[tuple[int, slice]]:
        """Yields each partition with rows of it that stand together."""
        start = 0
        for partition, group in groupby(self.partitions):
            stop = start + len(list(group))
            yield partition, slice(start, stop)
            start = stop

    def ring_changes(self, floors: Mapping[int, int]) -> dict[int, RingChange]:
        """Returns the changes of the rings for these mutations.

        Args:
            floors: The floor of the ring of each partition that may occur.

        Returns:
            The change of each of these partitions.
        """
        entries: dict[int, tuple[list[int], list[bytes]]] = {partition: ([], []) for partition in floors}
        for partition, rows in self._runs():
            held_seqs, held_keys = entries[partition]
            held_seqs += self.seqs[rows]
            held_keys += self.keys[rows]
        return {p: RingChange(floors[p], None, _chunks(floors[p], *columns)) for p, columns in entries.items()}

    def __len__(self) -> int:
        return len(self.keys)

    def __iter__(self) -> Iterator[AppliedMutation]:
        rows = zip(self.partitions, self.keys, self.values, self.seqs, self.timestamps, strict=True)
        return map(AppliedMutation._make, rows)

    @overload
    def __getitem__(self, place: int) -> AppliedMutation: ...
    @overload
    def __getitem__(self, place: slice) -> AppliedMutations: ...
    def __getitem__(self, place: int | slice) -> AppliedMutation | AppliedMutations:
        columns: tuple[Sequence[Any], ...] = (self.partitions, self.keys, self.values, self.seqs, self.timestamps)
        parts: list[Any] = [column[place] for column in columns]
        return AppliedMutations(*parts) if isinstance(place, slice) else AppliedMutation(*parts)


def are_above(high_seqs: Mapping[int, int], rows: AppliedMutations) -> bool:
    """Tells whether all rows are above the highest seq of their partition: then none is older than a held one."""
    return all(low > high_seqs.get(partition, 0) for partition, (low, _) in rows.seq_bounds().items())


def raised(high_seqs: Mapping[int, int], rows: AppliedMutations) -> dict[int, int]:
    """Returns the highest seq of each partition when ``rows`` are stored."""
    bounds = rows.seq_bounds()
    return {**high_seqs, **{p: max(high, high_seqs.get(p, 0)) for p, (_, high) in bounds.items()}}


def _chunks(floor_seq: int, seqs: list[int], keys: list[bytes]) -> tuple[RingChunk, ...]:
    """Returns the entries above ``floor_seq`` as one chunk, or none."""
    rising = sorted(seqs)
    if rising != seqs:
        pairs = sorted(zip(seqs, keys, strict=True))
        seqs, keys = [seq for seq, _ in pairs], [key for _, key in pairs]
    first = bisect_right(seqs, floor_seq)
    return (RingChunk.of(seqs[first:], keys[first:]),) if first < len(seqs) else ()
