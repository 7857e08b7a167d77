"""The mutations of one call of an index as Arrow columns, without an object for each row."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from tailrace.block.lazy import numpy_or_none, pyarrow
from tailrace.block.to_arrow import batch_schema
from tailrace.consuming.ring import RingChange, RingChunk
from tailrace.indexes.applied import AppliedMutations

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tailrace.consuming.events import Mutations
    from tailrace.indexes.protocol import AppliedMutation

# The columns of an event's table that an index is given.
COLUMNS = ["partition", "seq", "key", "value", "deleted", "timestamp"]


class ArrowMutations(AppliedMutations):
    """`AppliedMutations` over an Arrow table. The lists of the base class are made when they are asked for.

    A follower gives one to ``apply`` of an index whose attribute ``takes_arrow`` is True. A call without rows, and rows
    that are tried again because one of them is bad, have other types: `of` makes a table of any.

    Attributes:
        table: The columns ``partition``, ``seq``, ``key``, ``value``, ``deleted`` and ``timestamp``, of one chunk each.
    """

    def __init__(self, table: Any, order: Any) -> None:
        """Takes a table without a key that occurs twice, and the places of its rows by rising key."""
        self.table = table
        self._order = order

    @classmethod
    def of(cls, mutations: Iterable[AppliedMutation]) -> ArrowMutations:
        """Makes a table of any mutations, so that an index has to know one form only.

        Args:
            mutations: The mutations of a call of `Index.apply`.

        Returns:
            The last mutation of each key; the argument itself if it is an `ArrowMutations`.

        Raises:
            ValueError: A seq or a timestamp has more than 63 bits.
        """
        if isinstance(mutations, ArrowMutations):
            return mutations
        rows, pa = AppliedMutations.of(mutations), pyarrow()
        is_deleted = [value is None for value in rows.values]
        columns = [rows.partitions, rows.seqs, rows.keys, rows.values, is_deleted, rows.timestamps]
        schema = pa.schema([batch_schema().field(name) for name in COLUMNS])
        try:
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
        except (OverflowError, pa.ArrowInvalid) as error:
            raise ValueError(f"a seq or a timestamp has more than 63 bits: {error}") from error
        return cls(pa.table(arrays, schema=schema), pa.compute.array_sort_indices(arrays[2]))

    @classmethod
    def of_events(cls, events: list[Mutations]) -> AppliedMutations:
        """Takes the columns of events, and the newest row of each key, as the base class.

        Args:
            events: The events, in order. The list is emptied, so that their blocks can be freed.

        Returns:
            The rows, in the order of the events.
        """
        if not events:
            return AppliedMutations.of_events(events)
        pa = pyarrow()
        try:
            table = pa.Table.from_batches([event.to_arrow() for event in events]).select(COLUMNS).combine_chunks()
        except OverflowError:  # a timestamp of more than 63 bits, which an index refuses
            return AppliedMutations.of_events(events)
        numbers = table["seq"], table["timestamp"].cast(pa.int64())
        if any(pa.compute.min(column).as_py() < 0 for column in numbers):
            return AppliedMutations.of_events(events)
        events.clear()
        order, newest = _by_key(pa, table["key"].chunk(0))
        if newest is not None:
            table = table.take(newest).combine_chunks()
            order, _ = _by_key(pa, table["key"].chunk(0))
        return cls(table, order)

    def by_key(self, further: Mapping[str, Sequence[Any]], schema: Any) -> Any:
        """Makes a table in the order of the keys.

        Args:
            further: Columns that ``table`` does not have, by name, in the order of its rows.
            schema: A ``pyarrow.Schema`` with the columns to take.

        Returns:
            A ``pyarrow.Table`` of this schema, by rising key.
        """
        pa = pyarrow()
        columns = [
            pa.array(further[field.name], field.type) if field.name in further else self.table[field.name]
            for field in schema
        ]
        return pa.table(columns, schema=schema).take(self._order)

    def fixed(self) -> list[Any]:
        """Returns the columns in the order of an index's table, as ``columns()`` does for lists.

        Returns:
            The keys, values, partitions, seqs and timestamps (int64), each a ``pyarrow.ChunkedArray``.
        """
        columns = [self.table[name] for name in ("key", "value", "partition", "seq", "timestamp")]
        return [*columns[:-1], columns[-1].cast(pyarrow().int64())]

    # The columns of the base class

    @cached_property
    def partitions(self) -> list[int]:  # type: ignore[override]
        """The partition of each mutation."""
        return self._list("partition")

    @cached_property
    def keys(self) -> list[bytes]:  # type: ignore[override]
        """The keys."""
        return self._list("key")

    @cached_property
    def values(self) -> list[bytes | None]:  # type: ignore[override]
        """The new values; None for a deletion."""
        return self._list("value")

    @cached_property
    def seqs(self) -> list[int]:  # type: ignore[override]
        """The seqs."""
        return self._list("seq")

    @cached_property
    def timestamps(self) -> list[int]:  # type: ignore[override]
        """The times, in microseconds since 1970 UTC."""
        taken: list[int] = self.table["timestamp"].chunk(0).cast(pyarrow().int64()).to_numpy().tolist()
        return taken

    def _list(self, name: str) -> list[Any]:
        taken: list[Any] = self.table[name].chunk(0).to_numpy(zero_copy_only=False).tolist()
        return taken

    def __len__(self) -> int:
        return len(self._order)

    def deletions(self) -> AppliedMutations:
        """Selects the deletions.

        Returns:
            The mutations without a value.
        """
        return super().deletions() if self.table["value"].null_count else AppliedMutations((), (), (), (), ())

    def upserts(self) -> AppliedMutations:
        """Selects the mutations with a value.

        Returns:
            The mutations that are no deletions; these columns themselves if all are.
        """
        return super().upserts() if self.table["value"].null_count else self

    def seq_bounds(self) -> dict[int, tuple[int, int]]:
        """Finds the bounds of the seqs.

        Returns:
            The lowest and the highest seq of each partition that occurs.
        """
        partitions, seqs = self._numbers()
        bounds = {}
        for partition in numpy_or_none().unique(partitions).tolist():
            of_one = seqs[partitions == partition]
            bounds[partition] = int(of_one.min()), int(of_one.max())
        return bounds

    def ring_changes(self, floors: Mapping[int, int]) -> dict[int, RingChange]:
        """Returns the changes of the rings for these mutations.

        Args:
            floors: The floor of the ring of each partition that may occur.

        Returns:
            The change of each of these partitions.
        """
        return {
            partition: RingChange(floor, None, self._chunks(partition, floor)) for partition, floor in floors.items()
        }

    def _chunks(self, partition: int, floor_seq: int) -> tuple[RingChunk, ...]:
        """Returns the entries of a partition above ``floor_seq`` as one chunk, or none."""
        numpy = numpy_or_none()
        partitions, all_seqs = self._numbers()
        places = numpy.flatnonzero((partitions == partition) & (all_seqs > floor_seq))
        if not len(places):
            return ()
        seqs, keys = all_seqs[places], self.table["key"].chunk(0)
        if (numpy.diff(seqs) < 0).any():
            by_seq = numpy.argsort(seqs, kind="stable")
            seqs, places = seqs[by_seq], places[by_seq]
        return (RingChunk.of_arrow(seqs, keys.take(pyarrow().array(places))),)

    def _numbers(self) -> tuple[Any, Any]:
        return self.table["partition"].chunk(0).to_numpy(), self.table["seq"].chunk(0).to_numpy()


def _by_key(pa: Any, keys: Any) -> tuple[Any, Any]:
    """Returns the places by rising key, and those of the last row of each key, in order; None if no key repeats."""
    compute = pa.compute
    order = compute.array_sort_indices(keys)  # it keeps the order of equal keys
    sorted_keys = keys.take(order)
    is_last = compute.not_equal(sorted_keys.slice(1), sorted_keys.slice(0, len(keys) - 1))
    if compute.all(is_last, min_count=0).as_py():
        return order, None
    newest = order.filter(pa.concat_arrays([is_last, pa.array([True])]))
    return order, newest.take(compute.array_sort_indices(newest))
