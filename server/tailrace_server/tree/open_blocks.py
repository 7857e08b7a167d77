"""Raw bodies of blocks for look-ups by key: those of compressed blocks are kept for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.block import FLAG_COMPRESSED, Block, BlockHeader
from tailrace.block.found import OpenRows

if TYPE_CHECKING:
    from tailrace.segment.file import Kept

# Raw bytes of compressed blocks that one turn of look-ups keeps open: two of the largest blocks.
OPEN_BYTES_MAX = 64 * 1024 * 1024


class OpenBlocks:
    """Keeps compressed blocks with keys that were just found, decompressed, so that neighbours are opened once.

    ``kept`` has and keeps them for longer. It counts their stored bytes, too, because a block may be flushed meanwhile.
    """

    def __init__(self, kept: Kept | None = None) -> None:
        self._kept = kept
        self._raw: dict[Block, bytes | memoryview] = {}
        self._raw_bytes = 0

    def raw(self, block: Block, header: BlockHeader) -> bytes | memoryview:
        """Returns the raw body of ``block``, whose header is ``header``; its columns are checked."""
        if not header.flags & FLAG_COMPRESSED:
            return block.open_raw()
        raw = self._raw.get(block)
        if raw is None:
            raw = None if self._kept is None else self._kept.get(block)
            if raw is None:
                raw = block.open_raw()
                if self._kept is not None:
                    self._kept.put(block, raw, block.nbytes + header.raw_bytes)
            if self._raw_bytes + header.raw_bytes > OPEN_BYTES_MAX:
                self._raw.clear()
                self._raw_bytes = 0
            self._raw[block] = raw
            self._raw_bytes += header.raw_bytes
        return raw

    def rows(self, block: Block) -> OpenRows:
        """Returns what a look-up needs of ``block``, whose columns are checked."""
        header = block.header
        return OpenRows.of(header, self.raw(block, header))
