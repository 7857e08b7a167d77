"""An unsealed stage: its file as it grows, and the good blocks in it after a restart."""

from __future__ import annotations

import xxhash

from tailrace.block import HEADER_BYTES, Block, BlockHeader
from tailrace.errors import BadBlock
from tailrace_server.host.disk import File
from tailrace_server.publishing import stage_file
from tailrace_server.publishing.stage_file import StagedBlock

# Bytes of one read while a stage is opened again.
SCAN_BYTES = 1 << 20


class OpenStage:
    """A stage that is being written. ``end`` is the offset behind its last block, ``used_at`` monotonic seconds."""

    def __init__(self, feed_id: bytes, id: bytes, file: File, path: str, used_at: float) -> None:
        self.feed_id = feed_id
        self.id = id
        self.file = file
        self.path = path
        self.used_at = used_at
        self.entries: list[StagedBlock] = []
        self.end = stage_file.HEADER_BYTES
        self.sum = xxhash.xxh3_64()  # of the heads of all blocks
        self.is_sealing = False

    @property
    def nbytes(self) -> int:
        """Bytes of the blocks."""
        return self.end - stage_file.HEADER_BYTES

    def note(self, block: Block) -> None:
        """Notes that ``block`` has been written behind the others."""
        self.entries.append(StagedBlock(block.header.partition, block.rows, self.end, block.nbytes))
        self.end += block.nbytes
        self.sum.update(block.head)


class LeftStage:
    """A stage that an earlier run left unsealed. ``changed_us``: the wall clock when it was last written."""

    __slots__ = ("changed_us", "is_opening", "nbytes")

    def __init__(self, nbytes: int, changed_us: int) -> None:
        self.nbytes = nbytes
        self.changed_us = changed_us
        self.is_opening = False  # its writer is back, and it is being opened again


def scan(stage: OpenStage) -> None:
    """Notes the good blocks at the beginning of the file. At most SCAN_BYTES, or one block, are in memory."""
    size = stage.file.size()
    while stage.end < size:
        data = stage.file.read_at(stage.end, min(SCAN_BYTES, size - stage.end))
        if not _scan_part(stage, data):
            nbytes = _bytes_of_first_block(data)
            if not len(data) < nbytes <= size - stage.end:
                return
            if not _scan_part(stage, stage.file.read_at(stage.end, nbytes)):
                return


def _bytes_of_first_block(data: bytes) -> int:
    """Returns the size of the block that ``data`` begins with, by its header; 0 if the header is not good."""
    try:
        return HEADER_BYTES + BlockHeader.unpack(data).stored_bytes
    except BadBlock:
        return 0


def _scan_part(stage: OpenStage, data: bytes) -> bool:
    """Notes the whole blocks that ``data`` begins with; False if it has no whole block."""
    offset = 0
    while offset < len(data):
        try:
            block = Block.parse_at(data, offset)
        except BadBlock:
            break
        stage.note(block)
        offset += block.nbytes
    return offset > 0
