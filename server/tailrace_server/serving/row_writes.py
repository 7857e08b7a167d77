"""The short way of the most frequent request: a WRITE of one usual row, without a condition, at the begin of a read.

    frames of a read ── read_row ──> RowWrite ── take_rows ──> partition, journal, answer
                           └── None ────────────────┴──> the general way: FrameDecoder, write_requests.py

Frame, message, block and row are unpacked by one call, and checked in one place. The short way accepts only what the
general way accepts. It leaves everything else to the general way before it has changed anything.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import xxhash

from tailrace.block import HEADER_BYTES, KEY_BYTES_MAX, BlockHeader
from tailrace.block.header import MAGIC, PARTITION_MAX, VERSION
from tailrace.errors import TailraceError
from tailrace.model import Level
from tailrace.wire.frames import FRAME_HEADER_BYTES, SMALL_BODY_BYTES
from tailrace.wire.messages import NODES_LEVEL
from tailrace.wire.opcodes import Opcode
from tailrace_server.partition.writing import write_row
from tailrace_server.serving.connection import TURN_SECONDS, Connection
from tailrace_server.serving.write_requests import answer_written

# As globals: an attribute of an Enum is slow to read, and each write needs them.
_WRITE, _MEMORY, _QUORUM = Opcode.WRITE, Level.MEMORY, Level.QUORUM
_LEVELS = tuple(Level)

# The header of a frame, the fixed part of a WRITE, the header of a block, and the beginning of its only row: the hash,
# and the offsets of the key (tailrace/block/row.py).
_START = struct.Struct("<IBBHII16sBB6x16sQ4sHHIIQQQQIIIIQQQQQII")
_OFFSETS = struct.Struct("<II")
_KEY_AT = _START.size
_BODY_AT = _KEY_AT - 16
_HEAD_AT = _BODY_AT - HEADER_BYTES
_HEAD_SUM_AT = _BODY_AT - 8
_FRAME_CHECK_AT = FRAME_HEADER_BYTES - 4
# With a key of one byte, its padding, and no value. Longer frames have bounds of their own (tailrace/wire/bounds.py).
_LEAST_BYTES = _KEY_AT + 8 + _OFFSETS.size
_MOST_BYTES = FRAME_HEADER_BYTES + SMALL_BODY_BYTES
_ZEROS = tuple(bytes(count) for count in range(8))

_xxh3 = xxhash.xxh3_64_intdigest


class RowWrite(NamedTuple):
    """A WRITE of one row. ``level`` is that of the message (`NODES_LEVEL` if the node is to choose)."""

    id: int
    feed_id: bytes
    level: int
    header: BlockHeader
    head: bytes
    body: bytes


def read_row(data: bytes) -> RowWrite | None:
    """Returns the WRITE of one usual row that ``data`` is, whole and checked; None for everything else."""
    nbytes = len(data)
    if not _LEAST_BYTES <= nbytes <= _MOST_BYTES:
        return None
    # fmt: off
    (
        body_bytes, opcode, frame_flags, frame_reserved, id, check,
        feed_id, level, flags, _, _,
        magic, version, block_flags, rows, partition, first_seq, last_seq, timestamp, producer_id, producer_seq,
        stored_bytes, raw_bytes, reserved, least_hash, greatest_hash, body_sum, head_sum,
        hash_, key_first, key_bytes,
    ) = _START.unpack_from(data)
    key_end = _KEY_AT + key_bytes
    offsets_at = key_end + 7 & ~7
    value_at = offsets_at + 8
    if (
        opcode != _WRITE or body_bytes != nbytes - FRAME_HEADER_BYTES or frame_flags or frame_reserved
        or level > NODES_LEVEL or flags
        or magic != MAGIC or version != VERSION or block_flags or rows != 1 or partition > PARTITION_MAX
        or first_seq or last_seq or timestamp or reserved
        or stored_bytes != nbytes - _BODY_AT or raw_bytes != stored_bytes
        or hash_ != least_hash or hash_ != greatest_hash or key_first or not key_bytes or key_bytes > KEY_BYTES_MAX
        or value_at > nbytes
    ):
        return None
    # fmt: on
    value_first, value_bytes = _OFFSETS.unpack_from(data, offsets_at)
    if value_first or value_at + value_bytes != nbytes:
        return None
    if key_end != offsets_at and data[key_end:offsets_at] != _ZEROS[offsets_at - key_end]:
        return None
    body = data[_BODY_AT:]
    if (
        _xxh3(data[:_FRAME_CHECK_AT]) & 0xFFFFFFFF != check
        or _xxh3(data[_HEAD_AT:_HEAD_SUM_AT]) != head_sum
        or _xxh3(body) != body_sum
    ):
        return None
    numbers = (0, 1, partition, 0, 0, 0, producer_id, producer_seq, raw_bytes, raw_bytes, hash_, hash_, body_sum)
    # NamedTuple's own constructor takes twice as long.
    header = tuple.__new__(BlockHeader, numbers)
    return tuple.__new__(RowWrite, (id, feed_id, level, header, data[_HEAD_AT:_BODY_AT], body))


def take_rows(connection: Connection, data: bytes) -> int:
    """Writes and answers the rows that ``data`` begins with. Returns the number of their bytes; the rest is untouched.

    ``data`` has to be a read whose first byte begins a frame, of a client that may write all rows of all feeds. Stops
    at a frame that is no such row or is unusual, after TURN_SECONDS, and if the client may not ask for more now.
    """
    size, offset, turn = len(data), 0, connection.node.turn
    now = turn.begin()
    until = now + TURN_SECONDS
    while True:
        end = offset + FRAME_HEADER_BYTES + int.from_bytes(data[offset : offset + 4], "little")
        is_alone = end - offset == size
        if end > size or not _take_row(connection, data if is_alone else data[offset:end], now, is_alone):
            return offset
        offset = end
        if offset == size or connection.is_closing or connection.memory.lacks_room():
            return offset
        now = turn.begin()
        if now >= until:
            return offset


def _take_row(connection: Connection, data: bytes, now: float, is_alone: bool) -> bool:
    """Writes and answers the row that ``data`` is. False: it is no such row, or unusual, and nothing has changed.

    ``now`` is the time of the turn. ``is_alone``: ``data`` is all of a read.
    """
    row = read_row(data)
    if row is None or connection.traced is not None:
        return False
    id, feed_id, level, header, head, body = row
    number, node = header.partition, connection.node
    storage, feed = node.storage, node.feeds.find(feed_id)
    leadership = node.leaderships.of(feed_id, number)
    if leadership.refuses_writes or now >= leadership.sure_until or feed is None:
        return False
    if connection.changes[leadership.group.number] != leadership.changes or number >= len(feed.partitions):
        return False
    if storage.committer.failure is not None or storage.space.low or storage.memory.stuck:
        return False
    partition = feed.partitions[number]
    try:
        if level == NODES_LEVEL:
            wanted = feed.write_level(leadership.safest_level)
        else:
            wanted = _LEVELS[level]
            if wanted is _QUORUM:
                leadership.require_set()
                feed.require_quorum()
        versions = write_row(
            partition,
            header,
            head,
            body,
            storage.journal,
            now_us=node.clock.wall_us(),
            now=now,
            begins_sync=is_alone and wanted is not _MEMORY and storage.committer.is_alone(connection, now),
        )
    except TailraceError:
        return False  # the general way meets the same error, or writes the row
    if versions is None:
        return False
    if not connection.memory.writes:
        connection.memory.has_written()
    node.traffic.request(_WRITE)
    storage.wrote(partition)
    storage.written.wrote(1, HEADER_BYTES + len(body))
    answer_written(connection, id, wanted, partition, versions, is_alone=is_alone)
    return True
