"""Keeps the blocks that were filtered last. `tailrace.block.filtering` selects their rows."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING

from tailrace.block.filtering import FEW_ROWS, filter_block

if TYPE_CHECKING:
    from tailrace.block import Block
    from tailrace.wire.filters import StreamFilter

# The bounds of the cache of filtered blocks: the newest blocks, which all streams with one filter are about to send.
CACHE_BLOCKS_MAX = 64
CACHE_BYTES_MAX = 16 * 1024 * 1024


class FilterCache:
    """The results of the blocks that were filtered last, so that many streams with one filter cost one search.

    Not for several threads.
    """

    def __init__(self) -> None:
        self._entries: collections.OrderedDict[tuple[int, StreamFilter], tuple[Block, Block | None]]
        self._entries = collections.OrderedDict()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def filter_block(self, block: Block, wanted: StreamFilter) -> Block | None:
        """Returns the rows of ``block`` that ``wanted`` asks for, as the function of this name."""
        if block.header.rows <= FEW_ROWS:
            return filter_block(block, wanted)
        key = (id(block), wanted)  # the entry keeps the block alive, so its id stays its own
        entry = self._entries.get(key)
        if entry is not None:
            return entry[1]
        found = filter_block(block, wanted)
        self._entries[key] = block, found
        self.nbytes += _entry_bytes(block, found)
        while len(self._entries) > CACHE_BLOCKS_MAX or self.nbytes > CACHE_BYTES_MAX:
            _, oldest = self._entries.popitem(last=False)
            self.nbytes -= _entry_bytes(*oldest)
        return found


def _entry_bytes(block: Block, found: Block | None) -> int:
    return block.nbytes + (0 if found is None or found is block else found.nbytes)
