"""The format of a stage's file: blocks as their producer made them, sealed by an index. Pure. docs/formats/stage.md.

    header (64 bytes) | blocks, back to back | index: 24 bytes a block | footer (64 bytes)

A stage without a footer is not sealed, and cannot be published.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import xxhash

MAGIC = b"TRST"
VERSION = 1
HEADER_BYTES = 64
FOOTER_BYTES = 64

_HEADER = struct.Struct("<4sHH16s16s16xQ")
_ENTRY = struct.Struct("<IIQII")
_FOOTER = struct.Struct("<IIQQQQQ8x4s4x")
_SUM = struct.Struct("<Q")
ENTRY_BYTES = _ENTRY.size

sum_of = xxhash.xxh3_64_intdigest

assert _HEADER.size == HEADER_BYTES
assert _FOOTER.size == FOOTER_BYTES


class BadStage(ValueError):
    """The bytes are not those of a sealed stage; the message says why."""


class StagedBlock(NamedTuple):
    """A block in the file: its partition, its rows, its offset and its bytes."""

    partition: int
    rows: int
    offset: int
    nbytes: int


class StageFooter(NamedTuple):
    """The footer of a sealed stage; ``checksum`` is that of its blocks' headers (`StageSum`)."""

    blocks: int
    rows: int
    index_offset: int
    index_sum: int
    checksum: int
    sealed_us: int


def encode_header(feed_id: bytes, stage_id: bytes) -> bytes:
    """Returns the first 64 bytes of the file."""
    data = _HEADER.pack(MAGIC, VERSION, HEADER_BYTES, feed_id, stage_id, 0)
    return data[: -_SUM.size] + _SUM.pack(sum_of(data[: -_SUM.size]))


def decode_header(data: bytes) -> tuple[bytes, bytes]:
    """Returns feed id and stage id. BadStage."""
    if len(data) != HEADER_BYTES or sum_of(data[: -_SUM.size]) != _SUM.unpack_from(data, HEADER_BYTES - _SUM.size)[0]:
        raise BadStage("its header is damaged")
    magic, version, header_bytes, feed_id, stage_id, _ = _HEADER.unpack(data)
    if magic != MAGIC or header_bytes != HEADER_BYTES:
        raise BadStage(f"it begins with {magic!r}, a stage with {MAGIC!r}")
    if version != VERSION:
        raise BadStage(f"it has version {version}, known is {VERSION}")
    return feed_id, stage_id


def encode_end(entries: Sequence[StagedBlock], index_offset: int, checksum: int, sealed_us: int) -> bytes:
    """Returns index and footer, which stand behind the blocks."""
    index = b"".join(_ENTRY.pack(entry.partition, entry.rows, entry.offset, entry.nbytes, 0) for entry in entries)
    rows = sum(entry.rows for entry in entries)
    fields = (len(entries), FOOTER_BYTES, rows, index_offset, sum_of(index), checksum, sealed_us)
    footer = _FOOTER.pack(*fields, MAGIC)
    summed = footer[:48] + footer[56:]
    return index + footer[:48] + _SUM.pack(sum_of(summed)) + footer[56:]


def decode_footer(data: bytes) -> StageFooter:
    """Returns the footer in the last 64 bytes. BadStage."""
    if len(data) != FOOTER_BYTES:
        raise BadStage("it has no footer")
    blocks, footer_bytes, rows, index_offset, index_sum, checksum, sealed_us, magic = _FOOTER.unpack(data)
    (told,) = _SUM.unpack_from(data, 48)
    if magic != MAGIC or footer_bytes != FOOTER_BYTES or told != sum_of(data[:48] + data[56:]):
        raise BadStage("its footer is damaged")
    return StageFooter(blocks, rows, index_offset, index_sum, checksum, sealed_us)


def decode_index(data: bytes, footer: StageFooter) -> list[StagedBlock]:
    """Returns the blocks in order. BadStage."""
    if len(data) != footer.blocks * ENTRY_BYTES or sum_of(data) != footer.index_sum:
        raise BadStage("its index is damaged")
    entries = [StagedBlock(*_ENTRY.unpack_from(data, at)[:4]) for at in range(0, len(data), ENTRY_BYTES)]
    offset = HEADER_BYTES
    for entry in entries:
        if entry.offset != offset:
            raise BadStage(f"a block is said to begin at {entry.offset}, and the one before it ends at {offset}")
        offset += entry.nbytes
    if offset != footer.index_offset or sum(entry.rows for entry in entries) != footer.rows:
        raise BadStage("its index does not fit its blocks")
    return entries


def by_partition(entries: Iterable[StagedBlock]) -> dict[int, list[StagedBlock]]:
    """Returns the blocks of each partition, in order."""
    found: dict[int, list[StagedBlock]] = {}
    for entry in entries:
        found.setdefault(entry.partition, []).append(entry)
    return found
