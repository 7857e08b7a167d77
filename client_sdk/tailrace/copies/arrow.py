"""Arrow record batches of the rows of a copy, each of about the same number of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from tailrace.block.arrays import ColumnArrays, join_arrays, take
from tailrace.block.lazy import pyarrow
from tailrace.block.to_arrow import batch_of_columns, binary_array

# Data of a batch: its offsets have 31 bits, and a program that asks for many rows does not mean gigabytes of values.
BATCH_BYTES_MAX = 64 << 20


def record_batches(pieces: Iterable[ColumnArrays], partition: int, rows: int) -> Iterator[Any]:
    """Yields the rows of ``pieces``, none of them empty, in batches of ``rows``; of fewer if they are large."""
    waiting: list[ColumnArrays] = []
    count = nbytes = 0
    for piece in pieces:
        waiting.append(piece)
        count += piece.rows
        nbytes += len(piece.key_data) + len(piece.value_data)
        if count < rows and nbytes < BATCH_BYTES_MAX:
            continue
        joined = join_arrays(waiting)
        whole = joined.rows - joined.rows % rows if nbytes < BATCH_BYTES_MAX else joined.rows
        for start in range(0, whole, rows):
            yield batch_of(take(joined, slice(start, min(start + rows, whole))), partition)
        rest = take(joined, slice(whole, None))
        waiting, count = ([rest], rest.rows) if rest.rows else ([], 0)
        nbytes = len(rest.key_data) + len(rest.value_data)
    if waiting:
        yield batch_of(join_arrays(waiting), partition)


def batch_of(arrays: ColumnArrays, partition: int) -> Any:
    """Returns the rows as a ``pyarrow.RecordBatch``; keys and values are not copied."""
    pa = pyarrow()
    validity = None if arrays.valid is None else np.packbits(arrays.valid, bitorder="little").data
    return batch_of_columns(
        partition,
        arrays.seqs.view("<i8"),
        binary_array(pa, _bytes(arrays.key_offsets), _bytes(arrays.key_data), None, arrays.rows),
        binary_array(pa, _bytes(arrays.value_offsets), _bytes(arrays.value_data), validity, arrays.rows),
        arrays.timestamps.view("<i8"),
        arrays.ttls,
    )


def _bytes(column: Any) -> memoryview:
    """Returns the bytes of a column."""
    return np.ascontiguousarray(column).view(np.uint8).data
