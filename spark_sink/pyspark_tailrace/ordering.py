"""Sorts the rows of a task by columns.

Spark cannot sort a stream without an aggregation, and a task's rows come in the order of their files and batches. So
all rows of a task are held in memory until the last one has come.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pyspark_tailrace.options import SortColumn
from tailrace.block.spans import spans

# Batches are joined up to this size, so that rows are taken from few of them. Each array has to stay below 2 GiB.
SEGMENT_BYTES = 256 * 1024 * 1024
# The bounds of a piece of the result, which is a copy of some of the rows that are held.
SLICE_BYTES = 8 * 1024 * 1024
SLICE_ROWS = 10_000


def in_order(
    batches: Iterator[pa.RecordBatch], order_by: Sequence[SortColumn], columns: Container[str]
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of ``batches`` sorted by the columns of ``order_by``, with ``columns`` only.

    As in Spark, NaN is greater than any other number. Rows that are equal in all columns keep their order.
    """
    segments, sort_columns = _hold(batches, order_by, columns)
    if not segments:
        return
    order = _sorted(pa.Table.from_batches(sort_columns), order_by)
    del sort_columns
    sizes = np.concatenate([_row_bytes(segment) for segment in segments])[order]
    starts = np.cumsum([0] + [len(segment) for segment in segments[:-1]])
    for start, stop in spans(np.cumsum(sizes), SLICE_BYTES, SLICE_ROWS):
        yield _take(segments, starts, order[start:stop])


def _hold(
    batches: Iterator[pa.RecordBatch], order_by: Sequence[SortColumn], columns: Container[str]
) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
    """Returns all rows in a few segments: the columns of the result, and the columns to sort by."""
    names = list(dict.fromkeys(column.name for column in order_by))
    segments: list[pa.RecordBatch] = []
    sort_columns: list[pa.RecordBatch] = []
    joining: list[pa.RecordBatch] = []
    nbytes = 0

    def join() -> None:
        # Both are copied, or neither: one remaining column of a batch keeps all of the batch in memory.
        sort_columns.extend(_joined([batch.select(names) for batch in joining]))
        segments.extend(_joined([_only(batch, columns) for batch in joining]))
        joining.clear()

    for batch in batches:
        if not batch.num_rows:
            continue
        if nbytes + batch.nbytes > SEGMENT_BYTES:
            join()
            nbytes = 0
        joining.append(batch)
        nbytes += batch.nbytes
    join()
    return segments, sort_columns


def _only(batch: pa.RecordBatch, columns: Container[str]) -> pa.RecordBatch:
    return batch.select([name for name in batch.schema.names if name in columns])


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    if len(batches) < 2:
        return batches
    found: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return found


def _sorted(table: pa.Table, order_by: Sequence[SortColumn]) -> NDArray[np.int64]:
    """Returns the numbers of the rows in sorted order."""
    arrays: list[Any] = []
    keys: list[tuple[str, str]] = []

    def add(array: Any, is_descending: bool) -> None:
        keys.append((str(len(arrays)), "descending" if is_descending else "ascending"))
        arrays.append(array)

    for name, is_descending, has_nulls_last in order_by:
        column = table[name]
        if column.null_count:  # Arrow would put all nulls to one end, for every column
            add(column.is_valid(), has_nulls_last)
        if pa.types.is_floating(column.type):
            is_nan = pc.is_nan(column)
            if pc.any(is_nan).as_py():  # Arrow would put them next to the nulls, in either direction
                add(is_nan, is_descending)
                column = pc.if_else(is_nan, pa.scalar(0.0, column.type), column)
        add(column, is_descending)
    named = pa.table(arrays, names=[str(number) for number in range(len(arrays))])
    order: NDArray[np.int64] = pc.sort_indices(named, sort_keys=keys).to_numpy().astype(np.int64)
    return order


def _row_bytes(batch: pa.RecordBatch) -> NDArray[np.int64]:
    """Returns the bytes of each row: those of its strings, and an even share of nested columns."""
    total: NDArray[np.int64] = np.zeros(batch.num_rows, np.int64)
    for column in batch.columns:
        if _has_lengths(column.type):
            total += pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
        elif pa.types.is_nested(column.type):
            total += column.nbytes // max(len(column), 1)
    return total


def _has_lengths(kind: Any) -> bool:
    types = pa.types
    return bool(
        types.is_binary(kind) or types.is_string(kind) or types.is_large_binary(kind) or types.is_large_string(kind)
    )


def _take(segments: Sequence[pa.RecordBatch], starts: NDArray[np.int64], rows: NDArray[np.int64]) -> pa.RecordBatch:
    """Returns rows by their numbers over all segments, in the order of ``rows``."""
    if len(segments) == 1:
        return segments[0].take(pa.array(rows))
    owners = np.searchsorted(starts, rows, side="right") - 1
    by_owner = np.argsort(owners, kind="stable")
    parts = [
        segments[owner].take(pa.array(rows[owners == owner] - starts[owner])) for owner in np.unique(owners).tolist()
    ]
    if len(parts) == 1:
        return parts[0]
    places = np.empty_like(by_owner)
    places[by_owner] = np.arange(len(rows))
    [joined] = _joined(parts)
    return joined.take(pa.array(places))
