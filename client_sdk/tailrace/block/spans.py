"""Cuts rows into pieces by their sizes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray


def spans(ends: NDArray[np.int64], bytes_max: int, rows_max: int) -> Iterator[tuple[int, int]]:
    """Yields pieces (first row, row after the last). A piece ends with the row that reaches one of the bounds.

    ``ends`` are the bytes up to and including each row. A piece exceeds ``bytes_max`` by less than its last row.
    """
    start, rows = 0, len(ends)
    while start < rows:
        before = int(ends[start - 1]) if start else 0
        stop = min(int(np.searchsorted(ends, before + bytes_max)) + 1, start + rows_max, rows)
        yield start, stop
        start = stop
