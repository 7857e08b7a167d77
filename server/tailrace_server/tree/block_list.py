"""A list of the first blocks of a tree, for look-ups of many keys: a block takes less time than by the tree.

    tree    chunk: block block ...   chunk: block block ...     tail: block block ...
    list           end   end         end          end                 end
                   rows                           rows    of large blocks that were looked at

A list is made at a look-up. Trees that begin with its blocks share it: it is dropped when blocks are merged or flushed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

from tailrace.block import FLAG_COMPRESSED, Block
from tailrace.block.found import OpenRows
from tailrace.block.header import last_seq_of
from tailrace_server.tree.open_blocks import OpenBlocks

# What a look-up needs of a block is kept for blocks of this many rows: it is less than 6 bytes a row then.
KEPT_ROWS_MIN = 64


class BlockList:
    """Neighbouring ``blocks``, at least one. Takes 40 bytes a block, and 350 for a large one that was looked at."""

    __slots__ = ("_blocks", "_ends", "_rows")

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks = blocks
        self._ends = list(map(last_seq_of, blocks))
        self._rows: list[OpenRows | None] = [None] * len(blocks)

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def last_seq(self) -> int:
        """The end of the last block."""
        return self._ends[-1]

    def extended(self, blocks: Iterable[Block]) -> BlockList:
        """Returns a list with these blocks behind its own, in 0.1 ms if these are few and its own 16,000."""
        more = BlockList(list(blocks))
        longer = BlockList(())
        longer._blocks = [*self._blocks, *more._blocks]
        longer._ends, longer._rows = self._ends + more._ends, self._rows + more._rows
        return longer

    def rows_of(self, seqs: Sequence[int], opened: OpenBlocks) -> Iterator[tuple[OpenRows, int]]:
        """Yields the rows of each block with some of ``seqs``, and the index behind the last of these.

        ``seqs`` rise, and are above the begin of the first block. Those above the end of the last block are left out.
        """
        ends, begin, number = self._ends, 0, 0
        count = bisect_right(seqs, ends[-1])
        while begin < count:
            number = bisect_left(ends, seqs[begin], number)
            begin = bisect_right(seqs, ends[number], begin, count)
            yield self._rows[number] or self._open(number, opened), begin

    def _open(self, number: int, opened: OpenBlocks) -> OpenRows:
        block = self._blocks[number]
        header = block.header
        rows = OpenRows.of(header, opened.raw(block, header))
        if header.rows >= KEPT_ROWS_MIN and not header.flags & FLAG_COMPRESSED:
            rows = self._rows[number] = rows.measured()
        return rows

    def check(self, blocks: Sequence[Block]) -> None:
        """Raises AssertionError unless these are its blocks, and perhaps others behind them."""
        first = blocks[: len(self._blocks)]
        assert list(map(id, self._blocks)) == list(map(id, first)), "the list has other blocks than the tree"
