"""The files of rows of a directory of Parquet: written, looked up, and merged by ranges of keys in bounded memory."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.indexes.arrow_mutations import ArrowMutations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from tailrace.indexes.parquet_state import Undone
    from tailrace.indexes.typed_columns import TypedColumns

# A row group: a reader loads one at once, and a merge holds one of each file.
GROUP_ROWS_MAX = 65_536
GROUP_BYTES_MAX = 32 << 20
# The metadata of a file that names the first key of each row group. Parquet's own statistics leave long keys away.
FIRST_KEYS = b"tailrace.first_keys"


class HeldRow(NamedTuple):
    """The newest row of a key; ``seq`` is 0 if a rollback has undone it."""

    partition: int
    seq: int
    batch: int


class ParquetFiles:
    """Reads and writes the files of one index. It holds no state but their schema."""

    def __init__(self, columns: TypedColumns) -> None:
        """Raises ImportError if pyarrow is missing."""
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet

        self._arrow: Any = pyarrow
        types = {
            "text": pyarrow.string(),
            "integer": pyarrow.int64(),
            "real": pyarrow.float64(),
            "boolean": pyarrow.bool_(),
            "json": pyarrow.string(),
        }
        self._columns = columns
        self.schema: Any = pyarrow.schema(
            [
                pyarrow.field("key", pyarrow.binary(), nullable=False),
                pyarrow.field("value", pyarrow.binary()),
                pyarrow.field("deleted", pyarrow.bool_(), nullable=False),
                pyarrow.field("partition", pyarrow.int32(), nullable=False),
                pyarrow.field("seq", pyarrow.int64(), nullable=False),
                pyarrow.field("timestamp", pyarrow.timestamp("us", tz="UTC"), nullable=False),
                pyarrow.field("batch", pyarrow.int64(), nullable=False),
                *(pyarrow.field(column.name, types[column.type]) for column in columns.columns),
            ]
        )

    def table(self, rows: Any, batch: int) -> Any:
        """Makes the table of a batch, by rising key. ValueError if a number has no room."""
        arrow, columns = self._arrow, ArrowMutations.of(rows)
        further: dict[str, Any] = {"batch": arrow.repeat(arrow.scalar(batch, arrow.int64()), len(columns))}
        if self._columns.names:
            further.update(zip(self._columns.names, self._columns.read(columns.values), strict=True))
        return columns.by_key(further, self.schema)

    def write(self, path: Path, tables: Iterable[Any]) -> int:
        """Writes tables, each above the one before it, as one file. Returns the number of rows."""
        first_keys: list[str] = []
        rows = 0
        with self._arrow.parquet.ParquetWriter(
            path, self.schema, use_dictionary=["partition", "batch", *self._columns.names]
        ) as writer:
            for table in tables:
                if not table.num_rows:
                    continue
                group_rows = max(1, min(GROUP_ROWS_MAX, table.num_rows * GROUP_BYTES_MAX // max(table.nbytes, 1)))
                for start in range(0, table.num_rows, group_rows):
                    group = table.slice(start, group_rows)
                    first_keys.append(group["key"][0].as_py().hex())
                    writer.write_table(group, row_group_size=group_rows)
                rows += table.num_rows
            writer.add_key_value_metadata({FIRST_KEYS: json.dumps(first_keys)})
        return rows

    # Looking up

    def held(self, paths: Sequence[Path], keys: Sequence[bytes], undone: Sequence[Undone]) -> dict[bytes, HeldRow]:
        """Finds the newest row of each of some keys, deletions too."""
        found: dict[bytes, HeldRow] = {}
        wanted = sorted(keys)
        value_set = self._arrow.array(wanted, self._arrow.binary())
        for path in paths:  # the oldest first
            with _Groups(self._arrow, path) as groups:
                for number, (low, high) in enumerate(groups.spans):
                    first = bisect_left(wanted, low)
                    if first == len(wanted) or (high is not None and wanted[first] >= high):
                        continue
                    table = groups.read(number, ["key", "partition", "seq", "batch"])
                    table = table.filter(self._arrow.compute.is_in(table["key"], value_set))
                    for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
                        found[row[0]] = HeldRow(*row[1:])
        return {key: row._replace(seq=_counted(row, undone)) for key, row in found.items()}

    def newest(self, paths: Sequence[Path], columns: Sequence[str] | None = None) -> Any:
        """Reads the newest row of each key that is there, by rising key."""
        wanted = list(columns or self.schema.names)

        def keep(table: Any) -> Any:
            return table.filter(self._arrow.compute.invert(table["deleted"])).select(wanted)

        empty = self.schema.empty_table().select(wanted)
        return self._arrow.concat_tables([empty, *self._merged(paths, (), keep)])

    # Merging

    def merge(
        self,
        paths: Sequence[Path],
        into: Path,
        undone: Sequence[Undone],
        *,
        drops_deletions: bool,
        without: int | None = None,
    ) -> int:
        """Writes the newest row of each key of several files as one. Returns the number of rows.

        Args:
            paths: The files, the oldest first.
            into: The file to write.
            undone: The rollbacks, which the rows show after that: their seq is 0.
            drops_deletions: Deletions are left away, since no older file has their keys.
            without: A partition whose rows are left away.

        Returns:
            The number of rows.
        """
        compute = self._arrow.compute

        def keep(table: Any) -> Any:
            if drops_deletions and compute.any(table["deleted"]).as_py():
                table = table.filter(compute.invert(table["deleted"]))
            return table if without is None else table.filter(compute.not_equal(table["partition"], without))

        return self.write(into, self._merged(paths, undone, keep))

    def _merged(self, paths: Sequence[Path], undone: Sequence[Undone], keep: Callable[[Any], Any]) -> Iterator[Any]:
        """Yields the newest row of each key, range after range of the keys."""
        files = [_Groups(self._arrow, path) for path in paths]
        try:
            # A range has about two row groups of the largest file, and what the others have in it.
            largest = max(files, key=lambda file: len(file.spans), default=None)
            cuts: list[bytes | None] = [low for low, _ in largest.spans[2::2]] if largest is not None else []
            for low, high in zip([b"", *cuts], [*cuts, None], strict=True):
                tables = [part for file in files for part in file.between(low or b"", high)]
                if tables:
                    table = self._newest_of(self._arrow.concat_tables(tables))
                    yield keep(self._undo(table, undone))
        finally:
            for file in files:
                file.close()

    def _newest_of(self, table: Any) -> Any:
        arrow, compute = self._arrow, self._arrow.compute
        order = compute.sort_indices(table, sort_keys=[("key", "ascending"), ("batch", "descending")])
        table = table.take(order).combine_chunks()
        keys = table["key"].combine_chunks()
        if len(keys) < 2:
            return table
        if isinstance(keys, arrow.ChunkedArray):
            keys = keys.chunk(0)
        differs = compute.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1))
        if compute.all(differs).as_py():
            return table
        return table.filter(arrow.concat_arrays([arrow.array([True]), differs]))

    def _undo(self, table: Any, undone: Sequence[Undone]) -> Any:
        compute = self._arrow.compute
        for one in undone:
            counts_no_more = compute.and_(
                compute.equal(table["partition"], one.partition),
                compute.and_(compute.less_equal(table["batch"], one.batch), compute.greater(table["seq"], one.seq)),
            )
            seqs = compute.if_else(counts_no_more, self._arrow.scalar(0, self._arrow.int64()), table["seq"])
            place = self.schema.get_field_index("seq")
            table = table.set_column(place, self.schema.field("seq"), seqs)
        return table


class _Groups:
    """The row groups of a file, with the keys at which they begin."""

    def __init__(self, arrow: Any, path: Path) -> None:
        self._arrow = arrow
        self._file = arrow.parquet.ParquetFile(path)
        first_keys = [bytes.fromhex(key) for key in json.loads(self._file.metadata.metadata[FIRST_KEYS])]
        self._firsts = first_keys
        # Of each group the first key, and the first key of the next one.
        self.spans: list[tuple[bytes, bytes | None]] = list(zip(first_keys, [*first_keys[1:], None], strict=True))

    def __enter__(self) -> _Groups:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def read(self, number: int, columns: list[str] | None = None) -> Any:
        """Reads a row group."""
        return self._file.read_row_group(number, columns=columns)

    def between(self, low: bytes, high: bytes | None) -> Iterator[Any]:
        """Yields the rows whose keys are at or above ``low``, and below ``high``."""
        first = max(bisect_right(self._firsts, low) - 1, 0)
        last = len(self._firsts) if high is None else bisect_left(self._firsts, high)
        compute = self._arrow.compute
        for number in range(first, last):
            table = self.read(number)
            begin, end = self.spans[number]
            if begin < low:
                table = table.filter(compute.greater_equal(table["key"], self._arrow.scalar(low, self._arrow.binary())))
            if high is not None and (end is None or end > high):
                table = table.filter(compute.less(table["key"], self._arrow.scalar(high, self._arrow.binary())))
            yield table

    def close(self) -> None:
        self._file.close()


def _counted(row: HeldRow, undone: Sequence[Undone]) -> int:
    """Returns the seq of a row as far as it counts: 0 if it was rolled back."""
    for one in undone:
        if one.partition == row.partition and row.batch <= one.batch and row.seq > one.seq:
            return 0
    return row.seq
