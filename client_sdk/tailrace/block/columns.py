"""The columns of a block's body: as buffers without copying, as lists, and as Arrow arrays (to_arrow.py)."""

from __future__ import annotations

import bisect
import functools
import struct
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any

from tailrace.block.check import PLAIN_ROWS_MAX, absent_rows, uniform_width, unpack_u32, unpack_u64
from tailrace.block.header import EXPIRED
from tailrace.block.lazy import pyarrow, pyarrow_or_none, strings_of
from tailrace.block.to_arrow import arrow_batch, binary_array

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.block.header import BlockHeader
    from tailrace.block.layout import Layout

_TWO_OFFSETS = struct.Struct("<2I")
# From so many rows on, a column's strings fill enough of an arena that its memory is worth keeping.
_KEPT_ROWS_MIN = 1_024
_CHUNK_ROWS = 64  # rows that one Struct takes at once: more gain nothing, and a Struct's size stays bounded


class Columns:
    """The decoded columns of one block, checked. Made by ``Block.columns``.

    Buffers are memoryviews of the raw body, so they keep it alive and cost nothing; the lists are made anew at each
    call. The hashes are the producer's word.
    """

    __slots__ = ("_layout", "_raw", "header")

    def __init__(self, header: BlockHeader, layout: Layout, raw: memoryview) -> None:
        self.header = header
        self._layout = layout
        self._raw = raw

    def __len__(self) -> int:
        return self.header.rows

    @property
    def rows(self) -> int:
        """How many rows there are, at least 1."""
        return self.header.rows

    @property
    def raw(self) -> memoryview:
        """The raw body, which has all columns."""
        return self._raw

    @property
    def hash_buffer(self) -> memoryview:
        """The key hashes: ``rows`` u64."""
        return self._raw[self._layout.hashes]

    @property
    def key_offsets(self) -> memoryview:
        """The start of each key in ``key_data``, and the end of the last: ``rows + 1`` u32."""
        return self._raw[self._layout.key_offsets]

    @property
    def key_data(self) -> memoryview:
        """All keys, one after the other."""
        return self._raw[self._layout.key_data]

    @property
    def validity(self) -> memoryview | None:
        """A bit for each row, least bit first, 0 for a tombstone; None if the block has no tombstone."""
        extent = self._layout.validity
        return None if extent is None else self._raw[extent]

    @property
    def value_offsets(self) -> memoryview:
        """The start of each value in ``value_data``, and the end of the last: ``rows + 1`` u32."""
        return self._raw[self._layout.value_offsets]

    @property
    def value_data(self) -> memoryview:
        """All values, one after the other."""
        return self._raw[self._layout.value_data]

    def hashes(self) -> list[int]:
        """Returns the hash of each key, 64 bits."""
        return list(unpack_u64(self.hash_buffer, self.rows))

    def seqs(self) -> Sequence[int]:
        """Returns the seq of each row, a range if they are dense; all 0 before the server has given them."""
        header, extent = self.header, self._layout.seqs
        if extent is not None:
            return unpack_u64(self._raw[extent], header.rows)
        if header.first_seq == 0:
            return [0] * header.rows
        return range(header.first_seq, header.last_seq + 1)

    def timestamps(self) -> Sequence[int]:
        """Returns the timestamp of each row in microseconds since 1970 UTC."""
        extent = self._layout.timestamps
        if extent is not None:
            return unpack_u64(self._raw[extent], self.rows)
        return [self.header.timestamp] * self.rows

    def keys(self) -> list[bytes]:
        """Returns the key of each row."""
        if self.header.rows == 1:
            return [self._raw[self._layout.key_data].tobytes()]
        return self._strings(self.key_offsets, self.key_data, None)

    def values(self) -> list[bytes | None]:
        """Returns the value of each row, None for a tombstone."""
        layout = self._layout
        if self.header.rows == 1 and layout.validity is None:
            return [self._raw[layout.value_data].tobytes()]
        return self._strings(self.value_offsets, self.value_data, self.validity)

    def key_at(self, row: int) -> bytes:
        """Returns the key of ``row``, without making those of the others."""
        return _string_at(self.key_offsets, self.key_data, row)

    def value_at(self, row: int) -> bytes:
        """Returns the value of ``row``, without making those of the others; b"" for a tombstone."""
        return _string_at(self.value_offsets, self.value_data, row)

    def deleted(self) -> list[bool]:
        """Returns whether each row is a tombstone."""
        deleted = [False] * self.rows
        if self.validity is not None:
            for row in absent_rows(self.validity, self.rows):
                deleted[row] = True
        return deleted

    def row_above(self, seq: int) -> int:
        """Returns the first row whose seq is above ``seq``; ``rows`` if all are at or below it."""
        return bisect.bisect_right(self.seqs(), seq)

    def row_stamped(self, timestamp: int) -> int:
        """Returns the first row whose timestamp is ``timestamp`` or later; ``rows`` if all are earlier."""
        if self._layout.timestamps is None:
            return 0 if self.header.timestamp >= timestamp else self.rows
        return bisect.bisect_left(self.timestamps(), timestamp)

    def ttls(self) -> list[int]:
        """Returns the ttl of each row in seconds; 0: it has none. Of a tombstone: EXPIRED, or 0."""
        buffer = self.ttl_buffer()
        return [0] * self.rows if buffer is None else list(unpack_u32(buffer, self.rows))

    def expired(self) -> list[bool]:
        """Returns whether each row is the deletion of a key that has expired."""
        if self.validity is None or self._layout.ttls is None:
            return [False] * self.rows
        return [deleted and ttl == EXPIRED for deleted, ttl in zip(self.deleted(), self.ttls(), strict=True)]

    def ttl_buffer(self) -> memoryview | None:
        """Returns the column of ttls, ``rows`` u32; None if no row has one."""
        extent = self._layout.ttls
        return None if extent is None else self._raw[extent]

    def seq_buffer(self) -> memoryview | None:
        """Returns the column of seqs, ``rows`` u64; None if they are dense."""
        extent = self._layout.seqs
        return None if extent is None else self._raw[extent]

    def timestamp_buffer(self) -> memoryview | None:
        """Returns the column of timestamps, ``rows`` u64; None if all have the header's."""
        extent = self._layout.timestamps
        return None if extent is None else self._raw[extent]

    def key_array(self) -> Any:
        """Returns the keys as a pyarrow binary array, without copying. ImportError without pyarrow."""
        return binary_array(pyarrow(), self.key_offsets, self.key_data, None, self.rows)

    def value_array(self) -> Any:
        """Returns the values as a pyarrow binary array, without copying; a tombstone is null.

        ImportError without pyarrow.
        """
        return binary_array(pyarrow(), self.value_offsets, self.value_data, self.validity, self.rows)

    def to_arrow(self, names: tuple[str, ...] | None = None, *, keys_only: bool = False) -> Any:
        """Returns the columns ``names``, by default all, of all rows: see `tailrace.Mutations.to_arrow`."""
        return arrow_batch(self, names, keys_only=keys_only)

    def _strings(self, offsets: memoryview, data: memoryview, validity: memoryview | None) -> list[Any]:
        strings = self._decoded(offsets, data, validity)
        if self.rows >= _KEPT_ROWS_MIN:
            from tailrace.block.arenas import keep_arenas  # few programs read so many rows at once

            keep_arenas(strings, len(data))
        return strings

    def _decoded(self, offsets: memoryview, data: memoryview, validity: memoryview | None) -> list[Any]:
        """Returns a column of byte strings by the fastest way that is there; the three give the same."""
        rows = self.rows
        pa = pyarrow_or_none() if rows > PLAIN_ROWS_MAX else None
        if pa is not None:
            return strings_of(binary_array(pa, offsets, data, validity, rows))
        width = uniform_width(offsets, rows)
        strings: list[Any] = slice_differing(offsets, data, rows) if width is None else slice_uniform(data, rows, width)
        if validity is not None:
            for row in absent_rows(validity, rows):
                strings[row] = None
        return strings


def _string_at(offsets: memoryview, data: memoryview, row: int) -> bytes:
    start, stop = _TWO_OFFSETS.unpack_from(offsets, 4 * row)
    return data[start:stop].tobytes()


def slice_differing(offsets: memoryview, data: memoryview, rows: int) -> list[bytes]:
    """Strings of any lengths: ``rows + 1`` offsets into ``data``."""
    numbers = unpack_u32(offsets, rows + 1)
    whole = data.tobytes()
    return [whole[start:stop] for start, stop in pairwise(numbers)]


def slice_uniform(data: memoryview, rows: int, width: int) -> list[bytes]:
    """Strings of ``width`` bytes each, which a Struct takes out several times faster than slices."""
    if width == 0:
        return [b""] * rows
    many = rows - rows % _CHUNK_ROWS
    strings = list(chain.from_iterable(_chunk_of(width).iter_unpack(data[: many * width])))
    strings += chain.from_iterable(struct.iter_unpack(f"{width}s", data[many * width :]))
    return strings


@functools.lru_cache(maxsize=64)
def _chunk_of(width: int) -> struct.Struct:
    """Takes _CHUNK_ROWS strings of ``width`` bytes."""
    return struct.Struct(f"{width}s" * _CHUNK_ROWS)
