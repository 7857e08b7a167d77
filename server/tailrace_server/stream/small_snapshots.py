"""The short way of the most frequent snapshot of a replica: a few small blocks that have just been written. Pure.

The general way (rounds.py) takes a dozen calls for each snapshot and some for each block. Here the frames of the whole
snapshot become one buffer in one loop. All bytes, and the state of the stream after them, are those of the general way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tailrace_server.stream.frames import block_header

if TYPE_CHECKING:
    from tailrace.block import Block
    from tailrace_server.stream.stream_slot import StreamSlot

# The bytes of such a snapshot: it is copied once.
SMALL_BYTES_MAX = 64 * 1024


def small_bytes(blocks: Sequence[Block]) -> int:
    """Returns the bytes of ``blocks`` on the wire; 0 if they are more than SMALL_BYTES_MAX."""
    nbytes = 0
    for block in blocks:
        nbytes += block.nbytes
    return nbytes if nbytes <= SMALL_BYTES_MAX else 0


def encode_snapshot(slot: StreamSlot, blocks: Sequence[Block]) -> bytes:
    """Returns all frames of the snapshot that ``blocks`` are, from SNAPSHOT_START to SNAPSHOT_END."""
    stream, frames = slot.stream, slot.frames
    partition, id, first, last_seq = stream.partition, stream.id, blocks[0], blocks[-1].seqs[1]
    branch, purge_seq = partition.log.branch, partition.purge_seq
    start = frames.before_block(branch, stream.delivered_seq, last_seq, purge_seq, first.nbytes)
    parts: list[bytes | memoryview] = [start, first.head, first.body]
    for block in blocks[1:]:
        parts += (block_header(block.nbytes, id), block.head, block.body)
    parts.append(frames.end(last_seq))
    return b"".join(parts)
