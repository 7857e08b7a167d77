"""A segment that is fetched in parts: its footer first, then its blocks in the order of their seqs. Sans-IO.

    ends ──> the rest of the footer, if it is long ──> open ──> ranges of whole blocks

A block is verified by its own checksums and against the block index, which the footer's checksum covers. A small file
is fetched at once. Needs numpy, as the decoder of segments does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tailrace.block import Block
from tailrace.consuming.fetched_range import BlockRange, FetchedRange
from tailrace.errors import BadBlock, BadSegment
from tailrace.model.failover import SEQ_MAX
from tailrace.segment.errors import SegmentFormatError
from tailrace.segment.footer import Footer
from tailrace.segment.format import FILE_SUM_OFFSET, HEADER_BYTES, TRAILER_BYTES, Trailer, file_sum_in
from tailrace.wire.segment_messages import CHECKSUM_BYTES

if TYPE_CHECKING:
    from tailrace.segment.block_index import BlockIndex
    from tailrace.wire.segment_messages import CheckpointFile

# A file of at most this many bytes is fetched whole.
WHOLE_BYTES_MAX = 256 * 1024
# The end of a longer file that is fetched first: the footer of 1,000 blocks.
TAIL_BYTES = 32 * 1024
assert HEADER_BYTES < TRAILER_BYTES <= TAIL_BYTES <= WHOLE_BYTES_MAX
# The longest footer. A segment with a longer one has more than 500,000 blocks, and is left to the stream.
FOOTER_BYTES_MAX = 16 * 1024 * 1024


class FetchedSegment:
    """A segment of a checkpoint while it is fetched. Only its own methods change its fields.

    ``snapshot_last`` is the last seq of the snapshot that it belongs to. Blocks that begin above ``stop_seq`` are left
    out.
    """

    def __init__(
        self, told: CheckpointFile, feed_id: bytes, partition: int, snapshot_last: int, stop_seq: int = SEQ_MAX
    ) -> None:
        self.told = told
        self.snapshot_last = snapshot_last
        self._stop_seq = stop_seq
        self.path = f"segment {told.id.hex()}"  # in messages
        self.nbytes = told.nbytes
        self.is_open = False
        self._place = feed_id, partition
        self._fetched: list[FetchedRange] = []  # of the footer
        self._to_ask = self._ends()
        self._asked = 0  # ranges of the footer that have not come
        # Once it is open: the index, the place of each block, and the numbers of the next block to be asked for and of
        # the first one that is left out.
        self._index: BlockIndex
        self._places: list[int] = []
        self._next_number = self._stop_number = 0

    def _ends(self) -> list[tuple[int, int]]:
        if self.nbytes <= WHOLE_BYTES_MAX:
            return [(0, self.nbytes)]
        return [(self.nbytes - TAIL_BYTES, TAIL_BYTES), (0, HEADER_BYTES)]

    # The footer

    def next_of_footer(self) -> FetchedRange | None:
        """Returns the next range of the footer to ask for; None if none is to be asked for now."""
        if not self._to_ask:
            return None
        self._asked += 1
        return FetchedRange(self.told.id, *self._to_ask.pop(0))

    def took(self, range: FetchedRange, after_seq: int) -> None:
        """Takes a range of the footer, and opens the segment above ``after_seq`` with the last one. BadSegment."""
        self._asked -= 1
        self._fetched.append(range)
        if self._to_ask or self._asked:
            return
        try:
            self._complete(after_seq)
        except SegmentFormatError as error:
            raise self.damaged(0, error) from None

    def _complete(self, after_seq: int) -> None:
        if self.nbytes < HEADER_BYTES + TRAILER_BYTES:
            raise SegmentFormatError(f"the file has {self.nbytes} bytes only")
        trailer = Trailer.unpack(self.read(self.nbytes - TRAILER_BYTES, TRAILER_BYTES), self.nbytes)
        if self.nbytes - trailer.index_offset > FOOTER_BYTES_MAX:
            raise SegmentFormatError(f"its footer has {self.nbytes - trailer.index_offset} bytes")
        begin = min(range.offset for range in self._fetched if range.nbytes > HEADER_BYTES)
        if trailer.index_offset < begin:
            # Once, because the range from there on has the whole footer.
            self._to_ask.append((trailer.index_offset, self.nbytes - trailer.index_offset))
            return
        self._open(Footer.read(self), after_seq)

    def _open(self, footer: Footer, after_seq: int) -> None:
        """Compares the segment with the checkpoint: rows of another file must not be read."""
        told, identity = self.told, footer.identity
        found = (identity.feed_id, identity.partition, identity.segment_id, identity.after_seq + 1, identity.last_seq)
        if found != (*self._place, told.id, told.first_seq, told.last_seq):
            raise SegmentFormatError("it is another segment than the checkpoint names")
        trailer = self.read(self.nbytes - TRAILER_BYTES, TRAILER_BYTES)
        checksum = file_sum_in(trailer[FILE_SUM_OFFSET:]).to_bytes(CHECKSUM_BYTES, "big")
        if checksum != told.checksum:
            raise SegmentFormatError(f"its checksum is {checksum.hex()}, the checkpoint's {told.checksum.hex()}")
        self._index = footer.blocks
        self._places = footer.blocks.places(HEADER_BYTES).tolist()
        self._next_number = int(footer.blocks.last_seqs.searchsorted(np.uint64(after_seq), "right"))
        self._stop_number = int(footer.blocks.first_seqs.searchsorted(np.uint64(self._stop_seq), "right"))
        self.is_open = True

    def read(self, offset: int, nbytes: int) -> bytes:
        """Returns bytes of the file that were fetched for the footer."""
        for range in self._fetched:
            if range.offset <= offset and offset + nbytes <= range.offset + range.nbytes:
                assert range.data is not None, "the range has come"
                return bytes(range.data[offset - range.offset : offset - range.offset + nbytes])
        raise self.damaged(offset, "its parts are not where its trailer says")

    def damaged(self, offset: int, why: object) -> BadSegment:
        """Returns the error that gives ``why`` for the part that begins at ``offset``."""
        return BadSegment(f"{self.path}, at offset {offset}: {why}")

    def close(self) -> None:
        """Does nothing: there is no file."""

    def drop_footer(self) -> int:
        """Forgets the ranges of the footer, which are no longer needed. Returns their bytes."""
        fetched, self._fetched = self._fetched, []
        return sum(range.nbytes for range in fetched)

    # The blocks

    @property
    def has_more(self) -> bool:
        """Whether blocks are left to be asked for."""
        return self._next_number < self._stop_number

    @property
    def is_cut(self) -> bool:
        """Whether blocks are left out, so that the segment's last seq is not reached."""
        return self._stop_number < len(self._places) - 1

    def local_blocks(self) -> BlockRange | None:
        """Returns the blocks to read if the whole file has come with its footer; None otherwise."""
        whole = next((range for range in self._fetched if range.nbytes == self.nbytes), None)
        if whole is None or not self.has_more:
            return None
        assert whole.data is not None, "the range has come"
        found = self._next(self._stop_number)
        found.data = whole.data[found.offset : found.offset + found.nbytes]
        return found

    def next_blocks(self, nbytes: int) -> BlockRange:
        """Returns the next blocks to ask for: at least one, and of at most ``nbytes`` bytes together otherwise."""
        assert self.has_more, "blocks are left"
        stop = self._next_number + 1
        limit = self._places[self._next_number] + nbytes
        while stop < self._stop_number and self._places[stop + 1] <= limit:
            stop += 1
        return self._next(stop)

    def _next(self, stop: int) -> BlockRange:
        first, self._next_number = self._next_number, stop
        offset = self._places[first]
        nbytes = self._places[stop] - offset
        return BlockRange(self.told.id, offset, nbytes, first=first, stop=stop, parse=self._parse_block)

    def _parse_block(self, number: int, data: memoryview, begin: int) -> Block:
        """Returns block ``number``, verified; ``data`` are the file's bytes from ``begin`` on. Raises BadSegment."""
        place = self._places[number]
        try:
            block = Block.parse_at(data, place - begin)
            self._index.check_block(number, block, self._place[1])
        except (BadBlock, SegmentFormatError) as error:
            raise self.damaged(place, error) from None
        return block
