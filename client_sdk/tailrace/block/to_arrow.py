"""Columns of a block as Arrow arrays over the same bytes."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from tailrace.block.header import EXPIRED
from tailrace.block.lazy import numpy_or_none, pyarrow

if TYPE_CHECKING:
    from tailrace.block.header import BlockHeader

# Columns of a single value are parts of kept arrays of so many rows, if the block has no more. With fewer rows than
# SHARED_ROWS_MIN, the column of partitions is made anew.
SHARED_ROWS = 16 * 1024
SHARED_ROWS_MIN = 512
# The partitions of which such an array is kept: 2 MiB together.
SHARED_PARTITIONS = 32


def binary_array(pa: Any, offsets: memoryview, data: memoryview, validity: memoryview | None, rows: int) -> Any:
    """Returns a binary array over a column's buffers; null where ``validity`` has a 0. ``pa`` is pyarrow.

    Keys and values are never copied. The offsets are copied if the block is not aligned in its buffer, because Arrow's
    kernels load aligned numbers only.
    """
    offsets_buffer = pa.py_buffer(offsets)
    if offsets_buffer.address % 8:
        offsets_buffer = pa.py_buffer(offsets.tobytes())
    buffers = [None if validity is None else pa.py_buffer(validity), offsets_buffer, pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), rows, buffers)


def record_batch(
    header: BlockHeader,
    keys: Any,
    values: Any,
    seqs: memoryview | None,
    stamps: memoryview | None,
    ttls: memoryview | None = None,
    *,
    keys_only: bool = False,
) -> Any:
    """Makes a batch with the columns of ``batch_schema``.

    ``keys`` and ``values`` are arrays. ``seqs`` and ``stamps`` are columns of u64; if one is None, the header tells the
    numbers. ``ttls`` is a column of u32, if there is one. With ``keys_only`` every value is null, and ``deleted`` and
    ``expired`` stay as they are.
    """
    numpy = numpy_or_none()
    rows = header.rows
    dense = (
        numpy.arange(header.first_seq, header.first_seq + rows, dtype="<i8")
        if header.first_seq
        else numpy.zeros(rows, "<i8")
    )
    return batch_of_columns(
        header.partition,
        dense if seqs is None else numpy.frombuffer(seqs, "<i8"),
        keys,
        values,
        numpy.full(rows, header.timestamp, "<i8") if stamps is None else numpy.frombuffer(stamps, "<i8"),
        None if ttls is None else numpy.frombuffer(ttls, "<u4"),
        keys_only=keys_only,
    )


def batch_of_columns(
    partition: int, seqs: Any, keys: Any, values: Any, timestamps: Any, ttls: Any = None, *, keys_only: bool = False
) -> Any:
    """Makes the batch of ``record_batch`` from columns: numpy arrays for the numbers, Arrow arrays else.

    Numbers are int64, and ttls u32, None if no row has one.
    """
    pa, rows = pyarrow(), len(seqs)
    deleted = values.is_null() if values.null_count else _all_false(rows)
    columns = [
        _all_same(partition, rows),
        pa.array(seqs),
        keys,
        pa.nulls(rows, pa.binary()) if keys_only else values,
        deleted,
        _times(timestamps),
        _all_false(rows) if ttls is None else pa.compute.and_(deleted, pa.array(ttls == EXPIRED)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch_schema())


def _times(timestamps: Any) -> Any:
    """Returns an array of timestamps over the same numbers, which are copied only if they are not aligned."""
    pa, numpy = pyarrow(), numpy_or_none()
    numbers = numpy.require(timestamps, requirements="CA")
    return pa.Array.from_buffers(pa.timestamp("us", "UTC"), len(numbers), [None, pa.py_buffer(numbers)])


def _all_same(partition: int, rows: int) -> Any:
    if not SHARED_ROWS_MIN <= rows <= SHARED_ROWS:
        return pyarrow().array(numpy_or_none().full(rows, partition, "<i4"))
    return _shared_partition(partition).slice(0, rows)


def _all_false(rows: int) -> Any:
    return _shared_false().slice(0, rows) if rows <= SHARED_ROWS else pyarrow().repeat(False, rows)


@functools.lru_cache(SHARED_PARTITIONS)
def _shared_partition(partition: int) -> Any:
    return pyarrow().array(numpy_or_none().full(SHARED_ROWS, partition, "<i4"))


@functools.cache
def _shared_false() -> Any:
    return pyarrow().repeat(False, SHARED_ROWS)


@functools.cache
def batch_schema() -> Any:
    """Returns the schema of these batches, a ``pyarrow.Schema``."""
    pa = pyarrow()
    kinds = {
        "partition": pa.int32(),
        "seq": pa.int64(),
        "key": pa.binary(),
        "value": pa.binary(),
        "deleted": pa.bool_(),
        "timestamp": pa.timestamp("us", "UTC"),
        "expired": pa.bool_(),
    }
    return pa.schema(list(kinds.items()))
