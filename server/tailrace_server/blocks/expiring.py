"""Finds the rows of a block that are due to expire, and when to look at it again, by whole columns. Pure."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tailrace.block import FLAG_TTLS, Block
from tailrace.block.arrays import ColumnArrays, arrays_of, encode_arrays, take
from tailrace.block.header import EXPIRED
from tailrace_server.state.expiries import LATE_PARTS, LATE_US_MAX, NEVER_US

_SECOND_US = np.int64(1_000_000)

_NUMBERS, _OFFSETS, _BYTES = np.zeros(0, "<u8"), np.zeros(1, "<u4"), np.zeros(0, "u1")
NO_ROWS = ColumnArrays(_NUMBERS, _NUMBERS, _NUMBERS, _OFFSETS, _BYTES, None, _OFFSETS, _BYTES)


class ExpiringRows(NamedTuple):
    """The rows that are due, and the time of the next look at the others; NEVER_US if none of them will expire.

    ``due`` are rows whose keys are to be deleted, unless these have newer rows; without their values. ``rest_seq``: the
    rows from this seq on that are due were left out, as they are too many; 0 if none was.
    """

    due: ColumnArrays
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
        return ExpiringRows(NO_ROWS, NEVER_US)
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
        return ExpiringRows(NO_ROWS, look_us)
    nothing = np.zeros(arrays.rows + 1, "<u4")
    keys = arrays._replace(valid=None, value_offsets=nothing, value_data=NO_ROWS.value_data, ttls=None)
    return ExpiringRows(take(keys, due), look_us, rest_seq)


def tombstones_of(due: ColumnArrays, partition: int) -> Block:
    """Returns the block that deletes the keys of ``due``, as expiries; it has no seqs yet."""
    rows = due.rows
    tombstones = due._replace(
        seqs=np.arange(1, rows + 1, dtype="<u8"),
        timestamps=np.ones(rows, "<u8"),
        valid=np.zeros(rows, np.bool_),
        ttls=np.full(rows, EXPIRED, "<u4"),
    )
    return encode_arrays(tombstones, partition, compress=True)


def first_look_us(block: Block, default_us: int | None) -> int:
    """Returns a time before which no row of ``block`` needs a look; NEVER_US if none will expire.

    ``default_us``: as for ``expiring_rows``. A block without ttls is not opened, if its rows have one timestamp.
    """
    return expiring_rows(block, 0, NEVER_US - 1, -1, default_us, 1).look_us
