"""Finds the newest row of each key in several segments that follow each other, in bounded memory.

A pass over all rows takes 10 bytes a row for hashes and lengths of keys (superseded.py). So if there are more than
HASHES_MAX rows, there are several passes, each for a part of the hashes' range: rows of one key have one hash, and are
in one pass. The result takes a byte a row.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from tailrace.block.arrays import Bools
from tailrace.model.hashing import HASH_BITS
from tailrace.segment.rows import SegmentRows, hashes_of_keys
from tailrace.segment.superseded import superseded

if TYPE_CHECKING:
    from tailrace.segment.superseded import Keys, RowNumbers

# The rows of a pass. With the keys that are compared, it takes up to 300 MB.
HASHES_MAX = 4 << 20


def superseded_rows(rows: SegmentRows) -> Bools:
    """Returns a mask of the rows that have a newer row of the same key. Raises the error of the file.

    The hashes are computed from the keys, since the ones in a block are only the word of its producer.
    """
    gone = np.zeros(rows.count, np.bool_)
    passes = -(-rows.count // HASHES_MAX)
    borders = [(index << HASH_BITS) // max(1, passes) for index in range(passes + 1)]
    for low, high in pairwise(borders):
        _find(rows, low, high - 1, gone)
    return gone


def _find(rows: SegmentRows, low: int, high: int, gone: Bools) -> None:
    """Marks the superseded rows among those with hashes from ``low`` to ``high``, both included."""
    numbers, hashes, lengths = [], [], []
    for batch in rows.batches():
        arrays = batch.arrays()
        found = hashes_of_keys(arrays)
        chosen = np.flatnonzero((found >= np.uint64(low)) & (found <= np.uint64(high)))
        numbers.append(chosen + batch.row)
        hashes.append(found[chosen])
        lengths.append(np.diff(arrays.key_offsets)[chosen].astype(np.uint16))
    row_numbers = np.concatenate(numbers)

    def keys_of(indices: RowNumbers) -> Keys:
        return rows.keys_of(row_numbers[indices])

    mask = superseded(np.concatenate(hashes), np.concatenate(lengths), keys_of)
    gone[row_numbers[mask]] = True
