"""Columns of a block as Arrow arrays over the same bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.block.header import EXPIRED
from tailrace.block.lazy import numpy_or_none, pyarrow

if TYPE_CHECKING:
    from tailrace.block.header import BlockHeader


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
    pa, numpy = pyarrow(), numpy_or_none()
    rows, deleted = len(seqs), values.is_null()
    expired = pa.repeat(False, rows) if ttls is None else pa.compute.and_(deleted, pa.array(ttls == EXPIRED))
    arrays = {
        "partition": pa.array(numpy.full(rows, partition, "<i4")),
        "seq": pa.array(seqs),
        "key": keys,
        "value": pa.nulls(rows, pa.binary()) if keys_only else values,
        "deleted": deleted,
        "timestamp": pa.array(timestamps, pa.timestamp("us", "UTC")),
        "expired": expired,
    }
    return pa.RecordBatch.from_pydict(arrays)


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
