"""Finds the rows of a block that are due to expire, and when to look at it again, by whole columns. Pure."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tailrace.block import FLAG_TTLS, Block
from tailrace.block.arrays import arrays_of, take
from tailrace_server.state.expiries import LATE_PARTS, LATE_US_MAX, NEVER_US

_SECOND_US = np.int64(1_000_000)


class DueRow(NamedTuple):
    """A row whose key is to be deleted, unless it has a newer one: the key, its hash as the block has it, the seq."""

    key: bytes
    hash: int
    seq: int


class ExpiringRows(NamedTuple):
    """The rows that are due, and the time of the next look at the others; NEVER_US if none of them will expire.

    ``rest_seq``: the rows from this seq on that are due were left out, as they are too many; 0 if none was.
    """

    due: list[DueRow]
    look_us: int
    rest_seq: int = 0


def expiring_rows(
    block: Block, first_seq: int, last_seq: int, now_us: int, default_us: int | None, rows_max: int
) -> ExpiringRows:
    """Looks at the rows of ``block`` from ``first_seq`` to ``last_seq``.

    Args:
        block: A block with its seqs.
        first_seq: The first row that is looked at, if the block has it.
        last_seq: The last one.
        now_us: The time, in microseconds since 1970.
        default_us: The ttl of rows that name none, in microseconds; None: they do not expire.
        rows_max: The rows that are returned at most, 1 or more.

    Raises:
        BadBlock: The columns break the format.
    """
    if default_us is None and not block.header.flags & FLAG_TTLS:
        return ExpiringRows([], NEVER_US)
    arrays = arrays_of(block)
    first, last = np.searchsorted(arrays.seqs, np.array([first_seq, last_seq + 1], "<u8")).tolist()
    ttls = np.zeros(arrays.rows, np.int64) if arrays.ttls is None else arrays.ttls.astype(np.int64) * _SECOND_US
    if default_us is not None:
        ttls[ttls == 0] = default_us
    if arrays.valid is not None:
        ttls[~arrays.valid] = 0
    ttls[:first] = 0
    ttls[last:] = 0
    rows = np.flatnonzero(ttls)
    ttls, stamps = ttls[rows], arrays.timestamps[rows].astype(np.int64)
    # Stamps ahead of any clock must not overflow.
    expiries = np.minimum(stamps, NEVER_US - 1 - ttls) + ttls
    is_due = expiries <= now_us
    due = rows[is_due]
    late = np.minimum(ttls // LATE_PARTS, LATE_US_MAX)
    looks = (np.minimum(expiries, NEVER_US - 1 - late) + late)[~is_due]
    look_us = int(looks.min(initial=NEVER_US))
    rest_seq = 0
    if len(due) > rows_max:
        due, rest_seq = due[:rows_max], int(arrays.seqs[due[rows_max]])
    if not len(due):
        return ExpiringRows([], look_us)
    taken = take(arrays, due)
    offsets, data = taken.key_offsets.tolist(), taken.key_data.tobytes()
    keys = [data[begin:end] for begin, end in pairwise(offsets)]
    found = zip(keys, taken.hashes.tolist(), taken.seqs.tolist(), strict=True)
    return ExpiringRows([DueRow(*row) for row in found], look_us, rest_seq)


def first_look_us(block: Block, default_us: int | None) -> int:
    """Returns a time before which no row of ``block`` needs a look; NEVER_US if none will expire.

    ``default_us``: as for ``expiring_rows``. A block without ttls is not opened, if its rows have one timestamp.
    """
    return expiring_rows(block, 0, NEVER_US - 1, -1, default_us, 1).look_us
