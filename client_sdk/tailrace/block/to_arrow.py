"""Columns of a block as Arrow arrays over the same bytes."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Protocol

from tailrace.block.header import EXPIRED
from tailrace.block.lazy import numpy_or_none, pyarrow

if TYPE_CHECKING:
    from collections.abc import Callable

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


class BlockColumns(Protocol):
    """The columns of a block, `Columns`, as the arrays are made of them."""

    header: BlockHeader

    @property
    def rows(self) -> int: ...
    @property
    def validity(self) -> memoryview | None: ...
    def seq_buffer(self) -> memoryview | None: ...
    def timestamp_buffer(self) -> memoryview | None: ...
    def ttl_buffer(self) -> memoryview | None: ...
    def key_array(self) -> Any: ...
    def value_array(self) -> Any: ...


def arrow_batch(columns: BlockColumns, names: tuple[str, ...] | None = None, *, keys_only: bool = False) -> Any:
    """Makes a batch with the columns ``names`` of ``batch_schema``, by default all; the others are not made.

    With ``keys_only`` every value is null, and ``deleted`` and ``expired`` stay as they are. ValueError for a name that
    no column has.
    """
    schema = _schema_of(names)
    if names == ():  # a batch that is made of no arrays has no rows
        return pyarrow().RecordBatch.from_arrays([_all_false(columns.rows)], ["deleted"]).select([])
    arrays = [_MAKERS[name](columns, keys_only) for name in schema.names]
    return pyarrow().RecordBatch.from_arrays(arrays, schema=schema)


def _partition(columns: BlockColumns, keys_only: bool) -> Any:
    return _all_same(columns.header.partition, columns.rows)


def _keys(columns: BlockColumns, keys_only: bool) -> Any:
    return columns.key_array()


def _seqs(columns: BlockColumns, keys_only: bool) -> Any:
    numpy, buffer, first_seq = numpy_or_none(), columns.seq_buffer(), columns.header.first_seq
    if buffer is not None:
        return _numbers(numpy.frombuffer(buffer, "<i8"))
    rows = columns.rows
    return _numbers(numpy.arange(first_seq, first_seq + rows, dtype="<i8") if first_seq else numpy.zeros(rows, "<i8"))


def _values(columns: BlockColumns, keys_only: bool) -> Any:
    pa = pyarrow()
    return pa.nulls(columns.rows, pa.binary()) if keys_only else columns.value_array()


def _deleted(columns: BlockColumns, keys_only: bool) -> Any:
    return _all_false(columns.rows) if columns.validity is None else columns.value_array().is_null()


def _timestamps(columns: BlockColumns, keys_only: bool) -> Any:
    numpy, buffer = numpy_or_none(), columns.timestamp_buffer()
    if buffer is None:
        return _times(numpy.full(columns.rows, columns.header.timestamp, "<i8"))
    return _times(numpy.frombuffer(buffer, "<i8"))


def _expired(columns: BlockColumns, keys_only: bool) -> Any:
    buffer = columns.ttl_buffer()
    if buffer is None or columns.validity is None:
        return _all_false(columns.rows)
    pa = pyarrow()
    return pa.compute.and_(_deleted(columns, keys_only), pa.array(numpy_or_none().frombuffer(buffer, "<u4") == EXPIRED))


_MAKERS: dict[str, Callable[[BlockColumns, bool], Any]] = {
    "partition": _partition,
    "seq": _seqs,
    "key": _keys,
    "value": _values,
    "deleted": _deleted,
    "timestamp": _timestamps,
    "expired": _expired,
}


def batch_of_columns(
    partition: int, seqs: Any, keys: Any, values: Any, timestamps: Any, ttls: Any = None, *, keys_only: bool = False
) -> Any:
    """Makes a batch of ``batch_schema`` from columns: numpy arrays for the numbers, Arrow arrays else.

    Numbers are int64, and ttls u32, None if no row has one. ``keys_only``: as ``arrow_batch``.
    """
    pa, rows = pyarrow(), len(seqs)
    deleted = values.is_null() if values.null_count else _all_false(rows)
    columns = [
        _all_same(partition, rows),
        _numbers(seqs),
        keys,
        pa.nulls(rows, pa.binary()) if keys_only else values,
        deleted,
        _times(timestamps),
        _all_false(rows) if ttls is None else pa.compute.and_(deleted, pa.array(ttls == EXPIRED)),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=batch_schema())


def _numbers(numbers: Any) -> Any:
    return _over(pyarrow().int64(), numbers)


def _times(timestamps: Any) -> Any:
    return _over(pyarrow().timestamp("us", "UTC"), timestamps)


def _over(kind: Any, numbers: Any) -> Any:
    """Returns an array over the same numbers, which are copied only if they are not aligned."""
    pa, aligned = pyarrow(), numpy_or_none().require(numbers, requirements="CA")
    return pa.Array.from_buffers(kind, len(aligned), [None, pa.py_buffer(aligned)])


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


@functools.lru_cache(maxsize=64)
def _schema_of(names: tuple[str, ...] | None) -> Any:
    schema = batch_schema()
    if names is None:
        return schema
    missing = set(names).difference(schema.names)
    if missing:
        raise ValueError(f"no column is named {min(missing)!r}; the columns are {', '.join(schema.names)}")
    return pyarrow().schema([schema.field(name) for name in names])


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
