"""Finds the tombstones that a compaction may purge. Pure, by whole columns."""

from __future__ import annotations

import numpy as np

from tailrace.block.arrays import U64, Bools, Indices
from tailrace.segment.superseded import RowNumbers


def purged(rows: RowNumbers, seqs: U64, gone: Bools) -> int:
    """Marks the rows of ``rows``, tombstones that may go, in ``gone``, unless a newer row has superseded them.

    Returns the highest of their ``seqs``, the least purge seq; 0 without such rows.
    """
    newest = ~gone[rows]
    gone[rows[newest]] = True
    return int(seqs[newest].max(initial=0))


def expired(valid: Bools | None, seqs: U64, timestamps: U64, before_us: int, stable_seq: int) -> Indices:
    """Returns the rows that are tombstones, not newer than ``before_us``, and at or below ``stable_seq``.

    ``before_us`` is in microseconds since 1970 UTC. ``valid`` is False for a tombstone; None: no row is one.
    """
    if valid is None or before_us < 0:
        return np.zeros(0, np.intp)
    return np.flatnonzero(~valid & (timestamps <= np.uint64(before_us)) & (seqs <= np.uint64(stable_seq)))
