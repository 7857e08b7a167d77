"""The frames that a node makes for every write, each packed by one call. Pure.

The same bytes as ``tailrace.wire.messages`` makes of them one by one, in a third of the calls: a process that sleeps
between writes pays two or three times what each call costs in a loop.
"""

from __future__ import annotations

import functools
import struct

import xxhash

from tailrace.model import VersionRange
from tailrace.wire.frames import FRAME_HEADER_BYTES, frame_header
from tailrace.wire.opcodes import Opcode

# As globals: an attribute of an Enum is slow to read, and each write needs them.
_WRITTEN_OPCODE = Opcode.WRITTEN

# The first 12 bytes of a frame's header, of which its check is the sum.
_CHECKED = struct.Struct("<IBBHI")
# Those, their check, and the body of a WRITTEN.
_WRITTEN = struct.Struct("<12sII4x16sQQ")
# A SNAPSHOT_START behind its header, and the header of the BLOCK that follows.
_BEFORE_BLOCK = struct.Struct("<16sII16sQQQ16s")
# A SNAPSHOT_END or a SEQ_ADVANCED, and a ROUND_COMPLETE, each behind its header.
_AFTER_BLOCK = struct.Struct("<16sI4xQ16sQ")
# A SNAPSHOT_END behind its header.
_END = struct.Struct("<16sI4xQ")

WRITTEN_FRAME_BYTES = _WRITTEN.size
_WRITTEN_BODY_BYTES = WRITTEN_FRAME_BYTES - FRAME_HEADER_BYTES
_SNAPSHOT_START_BODY_BYTES = _BEFORE_BLOCK.size - 2 * FRAME_HEADER_BYTES
_ROUND_COMPLETE = frame_header(Opcode.ROUND_COMPLETE, 8)
_SNAPSHOT_END_BODY_BYTES = _AFTER_BLOCK.size - 2 * FRAME_HEADER_BYTES - 8
_COMPLETE = 1  # a snapshot's flag: no superseded row is left out

_xxh3 = xxhash.xxh3_64_intdigest


def written(versions: VersionRange, id: int) -> bytes:
    """Returns a WRITTEN, the answer to WRITE ``id``."""
    start = _CHECKED.pack(_WRITTEN_BODY_BYTES, _WRITTEN_OPCODE, 0, 0, id)
    return _WRITTEN.pack(start, _xxh3(start) & 0xFFFFFFFF, *versions)


class SnapshotFrames:
    """The frames around the blocks of a snapshot that is made at once."""

    __slots__ = ("_advanced", "_end", "_partition", "_start", "_stream_id")

    def __init__(self, stream_id: int, partition: int) -> None:
        self._stream_id = stream_id
        self._partition = partition
        self._start = frame_header(Opcode.SNAPSHOT_START, _SNAPSHOT_START_BODY_BYTES, stream_id)
        self._advanced = frame_header(Opcode.SEQ_ADVANCED, _SNAPSHOT_END_BODY_BYTES, stream_id)
        self._end = frame_header(Opcode.SNAPSHOT_END, _SNAPSHOT_END_BODY_BYTES, stream_id)

    def before_block(self, branch: bytes, after_seq: int, last_seq: int, purge_seq: int, block_bytes: int) -> bytes:
        """Returns SNAPSHOT_START, and the header of a BLOCK of ``block_bytes``."""
        return _BEFORE_BLOCK.pack(
            self._start,
            self._partition,
            _COMPLETE,
            branch,
            after_seq,
            last_seq,
            purge_seq,
            block_header(block_bytes, self._stream_id),
        )

    def after_block(self, last_seq: int, round_number: int) -> bytes:
        """Returns SNAPSHOT_END and ROUND_COMPLETE."""
        return _AFTER_BLOCK.pack(self._end, self._partition, last_seq, _ROUND_COMPLETE, round_number)

    def end(self, last_seq: int) -> bytes:
        """Returns SNAPSHOT_END."""
        return _END.pack(self._end, self._partition, last_seq)

    def passed_over(self, last_seq: int, round_number: int) -> bytes:
        """Returns SEQ_ADVANCED and ROUND_COMPLETE, in place of a snapshot without rows to send."""
        return _AFTER_BLOCK.pack(self._advanced, self._partition, last_seq, _ROUND_COMPLETE, round_number)


# Writers whose values have one size, or a few, meet the same ones again; 1,024 take 0.2 MB.
@functools.lru_cache(maxsize=1024)
def block_header(block_bytes: int, stream_id: int) -> bytes:
    """Returns the header of a BLOCK of ``block_bytes``."""
    return frame_header(Opcode.BLOCK, block_bytes, stream_id)
