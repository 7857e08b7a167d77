"""Columns of a block as Arrow arrays over the same bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace.block.lazy import numpy_or_none, pyarrow

if TYPE_CHECKING:
    from tailrace.block.header import BlockHeader


def binary_array(pa: Any, offsets: memoryview, data: memoryview, validity: memoryview | None, rows: int) -> Any:
    """A binary array over a column's buffers; null where ``validity`` has a 0. ``pa`` is pyarrow.

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
    *,
    keys_only: bool = False,
) -> Any:
    """Makes a batch: partition int32, seq int64, key binary, value binary, deleted bool, timestamp timestamp[us, UTC].

    ``keys`` and ``values`` are arrays. ``seqs`` and ``stamps`` are columns of u64; if one is None, the header tells the
    numbers. With ``keys_only`` every value is null, and ``deleted`` stays as it is.
    """
    pa, numpy = pyarrow(), numpy_or_none()
    rows = header.rows
    dense = (
        numpy.arange(header.first_seq, header.first_seq + rows, dtype="<i8")
        if header.first_seq
        else numpy.zeros(rows, "<i8")
    )
    arrays = {
        "partition": pa.array(numpy.full(rows, header.partition, "<i4")),
        "seq": pa.array(dense if seqs is None else numpy.frombuffer(seqs, "<i8")),
        "key": keys,
        "value": pa.nulls(rows, pa.binary()) if keys_only else values,
        "deleted": values.is_null(),
        "timestamp": pa.array(
            numpy.full(rows, header.timestamp, "<i8") if stamps is None else numpy.frombuffer(stamps, "<i8"),
            pa.timestamp("us", "UTC"),
        ),
    }
    return pa.RecordBatch.from_pydict(arrays)
