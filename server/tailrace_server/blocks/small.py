"""Opens many small blocks at once: their rows become arrays, by a few dozen calls of numpy for all blocks. Pure.

    bytes of many blocks ── open_small ──>  SmallBlocks  ── encode_groups ──>  few larger blocks
    blocks of a tree ────── join_small ──>  ColumnArrays

`tailrace.block.arrays.join_blocks` opens each block by itself, in some microseconds, and checks it. This module is for
a hundred thousand blocks of one row, which were checked when they were written. The caller opens a block that this
cannot open.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple

import lz4.block
import numpy as np

from tailrace.block import (
    FLAG_COMPRESSED,
    FLAG_SEQS,
    FLAG_TIMESTAMPS,
    FLAG_TOMBSTONES,
    FLAG_TTLS,
    KEY_BYTES_MAX,
    Block,
    BlockHeader,
)
from tailrace.block.arrays import U8, U32, U64, Bools, ColumnArrays, Indices
from tailrace.block.encode import stored_form
from tailrace.block.header import sum_of
from tailrace.block.layout import padding_after
from tailrace_server.blocks.heads import Heads

_ZEROS = tuple(bytes(count) for count in range(8))


class SmallBlocks(NamedTuple):
    """Blocks and their rows; a block that could not be opened has no rows here.

    Arrays with one element for each block: ``rows``, the number of its rows; ``key_begins`` and ``key_ends``, the bytes
    of ``raw`` with its keys; ``value_begins`` and ``value_ends``, those with its values. The other arrays have one
    element for each row; ``valid`` is False for a tombstone.
    """

    raw: bytes
    rows: Indices
    key_begins: Indices
    key_ends: Indices
    value_begins: Indices
    value_ends: Indices
    hashes: U64
    timestamps: U64
    key_lengths: U32
    value_lengths: U32
    valid: Bools


def open_small(data: bytes, bodies: Indices, heads: Heads, raw_bytes_max: int, packed_bytes_max: int) -> SmallBlocks:
    """Opens the blocks with these ``heads``, whose stored bodies begin at ``bodies`` in ``data``, at multiples of 8.

    Blocks of more than ``raw_bytes_max`` raw bytes, compressed ones of more than ``packed_bytes_max``, those with a
    column of seqs or ttls, and those whose columns break the format are not opened.
    """
    flags, rows = heads["flags"], heads["rows"].astype(np.intp)
    sizes = heads["raw_bytes"].astype(np.intp)
    opened: Bools = (sizes <= raw_bytes_max) & ((flags & (FLAG_SEQS | FLAG_TTLS)) == 0)
    opened &= ((flags & FLAG_COMPRESSED) == 0) | (sizes <= packed_bytes_max)
    raw, begins = _unpacked(data, bodies, heads, opened)
    words, halves = np.frombuffer(raw, "<u8", len(raw) // 8), np.frombuffer(raw, "<u4", len(raw) // 4)
    has_stamps, has_bitmap = (flags & FLAG_TIMESTAMPS) != 0, (flags & FLAG_TOMBSTONES) != 0
    # The begin of each column, and whether it ends inside the body. Blocks that are not opened are skipped.
    ends = begins + sizes
    stamps = begins + 8 * rows
    key_offsets = np.where(has_stamps, stamps + 8 * rows, stamps)
    key_begins = _aligned(key_offsets + 4 * (rows + 1))
    opened &= key_begins <= ends
    key_ends = key_begins + _number_at(halves, key_offsets + 4 * rows, opened)
    bitmaps = _aligned(key_ends)
    value_offsets = np.where(has_bitmap, _aligned(bitmaps + (rows + 7) // 8), bitmaps)
    value_begins = _aligned(value_offsets + 4 * (rows + 1))
    opened &= value_begins <= ends
    value_ends = value_begins + _number_at(halves, value_offsets + 4 * rows, opened)
    opened &= value_ends == ends
    while True:  # until all opened blocks are good
        picked = np.flatnonzero(opened)
        count = rows[picked]
        within = _within(count)
        key_lengths, keys_good = _lengths(halves, key_offsets[picked], count, within)
        value_lengths, values_good = _lengths(halves, value_offsets[picked], count, within)
        timestamps = np.repeat(heads["timestamp"][picked], count)
        stamped = np.repeat(has_stamps[picked], count)
        timestamps[stamped] = words[(np.repeat(stamps[picked] // 8, count) + within)[stamped]]
        good = keys_good & values_good & _good_stamps(timestamps, heads["timestamp"][picked], count, within)
        if len(picked):
            firsts = np.cumsum(count) - count
            good &= np.minimum.reduceat(key_lengths, firsts) >= 1
            good &= np.maximum.reduceat(key_lengths, firsts) <= KEY_BYTES_MAX
        if good.all():
            break
        opened[picked[~good]] = False
    hashes = words[np.repeat(begins[picked] // 8, count) + within]
    return SmallBlocks(
        raw,
        np.where(opened, rows, 0),
        key_begins,
        key_ends,
        value_begins,
        value_ends,
        hashes,
        timestamps,
        key_lengths,
        value_lengths,
        _valid(raw, bitmaps[picked], has_bitmap[picked], count, within),
    )


def join_small(blocks: Sequence[Block], heads: Heads) -> Generator[None, None, ColumnArrays | None]:
    """Returns what `join_blocks` does of blocks without seqs and ttls; None if one of them is unusual or broken.

    In steps, after each of which it yields. ``heads`` are theirs. The bodies' sums were compared before; the caller
    checks what becomes of the columns.
    """
    if (heads["flags"] & (FLAG_COMPRESSED | FLAG_SEQS | FLAG_TTLS)).any():
        return None
    sizes = heads["stored_bytes"].astype(np.intp)
    padded = _aligned(sizes)
    parts: list[bytes | memoryview] = [b""] * (2 * len(blocks))
    parts[::2] = [block.body for block in blocks]
    parts[1::2] = list(map(_ZEROS.__getitem__, (padded - sizes).tolist()))
    data = b"".join(parts)
    yield
    opened = open_small(data, np.cumsum(padded) - padded, heads, int(sizes.max()), 0)
    firsts = np.cumsum(opened.rows) - opened.rows
    if not opened.rows.all() or (np.minimum.reduceat(opened.hashes, firsts) != heads["least_hash"]).any():
        return None
    if (np.maximum.reduceat(opened.hashes, firsts) != heads["greatest_hash"]).any():
        return None
    seqs = np.repeat(heads["first_seq"] - firsts.astype("<u8"), opened.rows) + np.arange(
        len(opened.hashes), dtype="<u8"
    )
    yield
    keys = _joined(data, opened.key_begins, opened.key_ends)
    yield
    values = _joined(data, opened.value_begins, opened.value_ends)
    yield
    return ColumnArrays(
        opened.hashes,
        seqs,
        opened.timestamps,
        _offsets_of(opened.key_lengths),
        keys,
        None if opened.valid.all() else opened.valid,
        _offsets_of(opened.value_lengths),
        values,
    )


def _offsets_of(lengths: U32) -> U32:
    offsets = np.zeros(len(lengths) + 1, "<u4")
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _joined(data: bytes, begins: Indices, ends: Indices) -> U8:
    spans = zip(begins.tolist(), ends.tolist(), strict=True)
    return np.frombuffer(b"".join([data[begin:end] for begin, end in spans]), "u1")


def _unpacked(data: bytes, bodies: Indices, heads: Heads, opened: Bools) -> tuple[bytes, Indices]:
    """Returns ``data`` with all compressed bodies unpacked behind it, and the begin of each raw body."""
    packed = np.flatnonzero(opened & ((heads["flags"] & FLAG_COMPRESSED) != 0))
    if not len(packed):
        return data, bodies
    begins = bodies.copy()
    parts = [data, _ZEROS[padding_after(len(data))]]
    place = len(data) + padding_after(len(data))
    stored = heads["stored_bytes"].astype(np.intp)
    for index in packed.tolist():
        begin, size = int(bodies[index]), int(heads["raw_bytes"][index])
        try:
            raw = lz4.block.decompress(data[begin : begin + int(stored[index])], uncompressed_size=size)
        except lz4.block.LZ4BlockError:
            raw = b""
        if len(raw) != size:
            opened[index] = False
            continue
        begins[index] = place
        parts += (raw, _ZEROS[padding_after(size)])
        place += size + padding_after(size)
    return b"".join(parts), begins


def _aligned(places: Indices) -> Indices:
    return (places + 7) & ~7


def _number_at(halves: U32, places: Indices, opened: Bools) -> Indices:
    """Returns the 32-bit number at each place; 0 for a block that is not opened."""
    return np.where(opened, halves[np.where(opened, places // 4, 0)], 0).astype(np.intp)


def _within(counts: Indices) -> Indices:
    """Returns 0, 1, ... up to each of ``counts``, one after the other."""
    ends = np.cumsum(counts)
    return np.arange(int(ends[-1]) if len(ends) else 0) - np.repeat(ends - counts, counts)


def _lengths(halves: U32, offsets: Indices, counts: Indices, within: Indices) -> tuple[U32, Bools]:
    """Returns the lengths of all strings, and which blocks have offsets that begin at 0 and never fall."""
    places = np.repeat(offsets // 4, counts) + within
    begins, ends = halves[places], halves[places + 1]
    good = halves[offsets // 4] == 0
    falls = ends < begins
    if falls.any():
        good[np.repeat(np.arange(len(counts)), counts)[falls]] = False
    return ends - begins, good


def _good_stamps(timestamps: U64, lasts: U64, counts: Indices, within: Indices) -> Bools:
    """Returns which blocks have timestamps that never fall, and end with the header's."""
    good: Bools = timestamps[np.cumsum(counts) - 1] == lasts
    falls = timestamps[1:] < timestamps[:-1]
    falls &= within[1:] > 0
    if falls.any():
        good[np.repeat(np.arange(len(counts)), counts)[1:][falls]] = False
    return good


def _valid(raw: bytes, bitmaps: Indices, has_bitmap: Bools, counts: Indices, within: Indices) -> Bools:
    """Returns which rows have a value."""
    valid = np.ones(len(within), np.bool_)
    marked = np.repeat(has_bitmap, counts)
    if marked.any():
        rows = within[marked]
        octets = np.frombuffer(raw, "u1")[np.repeat(bitmaps, counts)[marked] + rows // 8]
        valid[marked] = (octets >> (rows % 8).astype("u1")) & 1 == 1
    return valid


class SmallRows(NamedTuple):
    """The rows of several new blocks, in order: as in `SmallBlocks`, with the bytes of keys and values in order."""

    hashes: U64
    timestamps: U64
    key_lengths: U32
    value_lengths: U32
    valid: Bools
    keys: bytes
    values: bytes


class JoinedBlock(NamedTuple):
    """A new block: the number of its rows among `SmallRows`, its partition, and its first seq."""

    rows: int
    partition: int
    first_seq: int
    compress: bool


def encode_groups(rows: SmallRows, groups: Sequence[JoinedBlock]) -> list[Block]:
    """Returns the blocks of ``groups``, which divide all of ``rows`` in order; they name no producer.

    Timestamps do not fall within a group, which has at least one row and no more than a block may have.
    """
    if not groups:
        return []
    counts = np.array([group.rows for group in groups])
    ends = np.cumsum(counts)
    begins = ends - counts
    key_offsets, key_places = _group_offsets(rows.key_lengths, begins, counts)
    value_offsets, value_places = _group_offsets(rows.value_lengths, begins, counts)
    columns = zip(
        groups,
        begins.tolist(),
        ends.tolist(),
        np.minimum.reduceat(rows.hashes, begins).tolist(),
        np.maximum.reduceat(rows.hashes, begins).tolist(),
        np.logical_and.reduceat(rows.valid, begins).tolist(),
        rows.timestamps[begins].tolist(),
        rows.timestamps[ends - 1].tolist(),
        strict=True,
    )
    hashes, timestamps = rows.hashes.tobytes(), rows.timestamps.tobytes()
    blocks = []
    for number, (group, begin, end, least, greatest, is_valid, first_stamp, timestamp) in enumerate(columns):
        offsets = slice(4 * (begin + number), 4 * (end + number + 1))
        parts = [hashes[8 * begin : 8 * end]]
        flags = 0
        if timestamp != first_stamp:
            flags |= FLAG_TIMESTAMPS
            parts.append(timestamps[8 * begin : 8 * end])
        _add(parts, key_offsets[offsets])
        _add(parts, rows.keys[key_places[number] : key_places[number + 1]])
        if not is_valid:
            flags |= FLAG_TOMBSTONES
            _add(parts, np.packbits(rows.valid[begin:end], bitorder="little").tobytes())
        _add(parts, value_offsets[offsets])
        parts.append(rows.values[value_places[number] : value_places[number + 1]])
        raw = b"".join(parts)
        stored, flag = stored_form(raw) if group.compress else (raw, 0)
        last_seq = group.first_seq + group.rows - 1
        seqs = (group.first_seq, last_seq, timestamp, 0, 0, len(stored), len(raw))
        header = BlockHeader(flags | flag, group.rows, group.partition, *seqs, least, greatest, sum_of(stored))
        blocks.append(Block(header, header.pack(), stored))
    return blocks


def _add(parts: list[bytes], column: bytes) -> None:
    """Adds a column, and the zeros behind it."""
    parts += (column, _ZEROS[padding_after(len(column))])


def _group_offsets(lengths: U32, begins: Indices, counts: Indices) -> tuple[bytes, list[int]]:
    """Returns the offsets of each group's strings, group by group, and the places of the groups in the joined data."""
    ends = np.cumsum(lengths, dtype=np.int64)
    places = np.concatenate(([0], ends))
    bases = places[begins]
    offsets = np.zeros(len(lengths) + len(begins), "<u4")
    offsets[np.arange(len(lengths)) + np.repeat(np.arange(len(begins)), counts) + 1] = ends - np.repeat(bases, counts)
    return offsets.tobytes(), [*bases.tolist(), int(places[-1])]
