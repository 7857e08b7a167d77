"""The write queue of a partition: blocks in seq order, in an immutable tree.

    root ┬─ PVector of chunks ── chunk: first seq and up to 64 neighbouring blocks
         │                         (5, (block 5..9, block 10..10, ...)), (74, (...)), ...
         └─ tail: the newest blocks, fewer than 64

``append``, ``drop_through`` and ``replaced`` return a new tree that shares nearly all nodes with the old one. A
reference to a tree is a snapshot, because a tree never changes. The tail is rebuilt at each append (63 references at
most) and becomes a chunk when it is full. A chunk changes only if its blocks are merged (aging.py). A plain Python list
cannot be shared without a copy, a flat persistent vector cannot drop its head cheaply, and a B+tree of our own was
measured to be no faster.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import takewhile, zip_longest
from operator import itemgetter
from typing import NamedTuple

from pyrsistent import PVector, pvector

from tailrace.block import HEADER_BYTES, Block
from tailrace.block.found import OpenRows
from tailrace.block.header import first_seq_of, last_seq_of
from tailrace_server.tree.aging import Aging, Chunk, MergePlan, chunk_of, plan_merge
from tailrace_server.tree.block_list import BlockList
from tailrace_server.tree.memory import BLOCK_OBJECT_BYTES, HEADER_OBJECT_BYTES, memory_of, memory_of_all
from tailrace_server.tree.open_blocks import OpenBlocks

CHUNK_BLOCKS_MAX = 64
# Full chunks that are merged together, if so many are due. Of blocks of one row that takes 2.4 us a row; 3.9 of four
# chunks, and 7 of one, because most of the time of a small merge does not depend on its size.
CHUNKS_TOGETHER_MAX = 16
# Blocks that are listed for each seq of a look-up at most: to list so many takes less time than to look at a row.
_LISTED_FOR_A_SEQ = 16
_LISTED_MAX = 16_384  # 640 KiB
# Blocks of a longer list that are copied for each seq of a look-up at most, which takes less time, too.
_COPIED_FOR_A_SEQ = 128

_FIRST_SEQ_OF_CHUNK = itemgetter(Chunk._fields.index("first_seq"))
_BYTES_WITH_OWN_BODY = BLOCK_OBJECT_BYTES + HEADER_BYTES
_NOTHING_AGED = Aging()


class _Sums(NamedTuple):
    """The sums of all chunks, without the tail."""

    blocks: int = 0
    nbytes: int = 0
    memory_bytes: int = 0

    def changed(self, before: Sequence[Chunk], after: Sequence[Chunk]) -> _Sums:
        """Returns the sums with the chunks ``after`` in the place of those ``before``."""
        return _Sums(
            self.blocks + sum(len(chunk.blocks) for chunk in after) - sum(len(chunk.blocks) for chunk in before),
            self.nbytes + sum(chunk.nbytes for chunk in after) - sum(chunk.nbytes for chunk in before),
            self.memory_bytes + sum(chunk.memory_bytes for chunk in after) - sum(c.memory_bytes for c in before),
        )


class Tree:
    """Blocks of one partition in seq order, contiguous above ``base_seq``. Immutable.

    ``last_seq`` is that of the last block, and ``base_seq`` in an empty tree. Every method is O(log n) or
    better, except dropping and replacing: these copy the references to chunks, about 1 µs for 1,000 blocks.
    """

    __slots__ = (
        "_aging", "_chunks", "_listed", "_sums", "_tail", "_tail_nbytes", "base_seq", "last_seq", "memory_bytes",
    )  # fmt: skip

    def __init__(self, base_seq: int = 0) -> None:
        """Makes an empty tree, whose first block will begin right above ``base_seq``."""
        self._chunks: PVector[Chunk] = pvector()
        self._listed: BlockList | None = None  # of the first blocks; None if it was not needed yet
        self._sums = _Sums()
        self._aging = _NOTHING_AGED
        self._tail: tuple[Block, ...] = ()
        self._tail_nbytes = 0
        self.memory_bytes = 0  # of all blocks (memory.py)
        self.base_seq = base_seq
        self.last_seq = base_seq

    @property
    def first_seq(self) -> int:
        """The first seq that the tree holds; 0 if it is empty."""
        return self.base_seq + 1 if self.last_seq > self.base_seq else 0

    @property
    def block_count(self) -> int:
        """The number of blocks."""
        return self._sums.blocks + len(self._tail)

    @property
    def nbytes(self) -> int:
        """The bytes of the blocks on the wire."""
        return self._sums.nbytes + self._tail_nbytes

    @property
    def unmerged_blocks(self) -> int:
        """The number of blocks that merging has not passed yet."""
        return self._sums.blocks + len(self._tail) - self._aging.passed_blocks

    def append(self, block: Block) -> Tree:
        """Returns this tree with ``block`` at its end; the block begins right above ``last_seq``."""
        header, body, tail = block.header, block.body, self._tail
        assert header.first_seq == self.last_seq + 1, "blocks of a partition are contiguous"
        if type(body) is bytes:  # memory_of, inline for the most frequent blocks
            memory_bytes = self.memory_bytes + _BYTES_WITH_OWN_BODY + len(body)
        else:
            memory_bytes = self.memory_bytes + memory_of(block, tail[-1] if tail else None)
        tree = _new_tree(Tree)
        tree._chunks = self._chunks
        tree._listed = self._listed
        tree._sums = self._sums
        tree._aging = self._aging
        tree._tail = (*tail, block)
        if self._chunks:
            closed = self._chunks[-1].blocks
            if len(tail) < len(closed):
                closed[len(tail)].forget_header()
        tree._tail_nbytes = self._tail_nbytes + HEADER_BYTES + header.stored_bytes
        tree.memory_bytes = memory_bytes
        tree.base_seq = self.base_seq
        tree.last_seq = header.last_seq
        if len(tail) + 1 >= CHUNK_BLOCKS_MAX:
            tree._close_tail()
        return tree

    def extended(self, blocks: Sequence[Block]) -> Tree:
        """Returns this tree with ``blocks`` at its end, faster than ``append`` of each."""
        tree, begin = self, 0
        while begin < len(blocks) and (tree._tail or len(blocks) - begin < CHUNK_BLOCKS_MAX):
            tree, begin = tree.append(blocks[begin]), begin + 1
        made = []
        while len(blocks) - begin >= CHUNK_BLOCKS_MAX:
            made.append(chunk_of(blocks[begin : begin + CHUNK_BLOCKS_MAX]))
            begin += CHUNK_BLOCKS_MAX
        if made:
            assert made[0].first_seq == tree.last_seq + 1, "blocks of a partition are contiguous"
            for closed in tree._chunks[-1:]:  # a block that comes later frees only headers of the last chunk
                for block in closed.blocks:
                    block.forget_header()
            tree = tree._copy()
            tree._chunks = tree._chunks.extend(made)
            tree._sums = tree._sums.changed((), made)
            tree.memory_bytes = tree._sums.memory_bytes  # the tail is empty
            tree.last_seq = made[-1].last_seq
        for block in blocks[begin:]:
            tree = tree.append(block)
        return tree

    def _close_tail(self) -> None:
        """Turns the full tail into a chunk, in a tree that is not shared yet."""
        tail = self._tail
        memory_bytes = self.memory_bytes - self._sums.memory_bytes - HEADER_OBJECT_BYTES * len(tail)
        chunk = Chunk(first_seq_of(tail[0]), tail, self._tail_nbytes, memory_bytes)
        # Its blocks keep their headers, for streams, until as many blocks have come: each of those frees one. To free
        # all at once delayed one put in 64.
        self._chunks = self._chunks.append(chunk)
        blocks, nbytes, before_bytes = self._sums
        self._sums = _Sums(blocks + len(tail), nbytes + self._tail_nbytes, before_bytes + memory_bytes)
        self.memory_bytes = self._sums.memory_bytes
        self._tail = ()
        self._tail_nbytes = 0

    def drop_through(self, seq: int) -> Tree:
        """Returns this tree without the blocks that end at or below ``seq``; a block that ends above it stays whole."""
        if seq <= self.base_seq:
            return self
        if seq >= self.last_seq:
            return Tree(self.last_seq)
        chunks = list(self._chunks)
        count = bisect_right(chunks, seq, key=_last_seq_of_chunk)
        dropped, rest = chunks[:count], chunks[count:]
        tree = self._copy()
        tail_memory_bytes = self.memory_bytes - self._sums.memory_bytes
        if rest:
            whole, kept = rest[0], _above(rest[0].blocks, seq)
            if len(kept) < len(whole.blocks):
                rest[0] = chunk_of(kept)
            tree._sums = self._sums.changed([*dropped, whole], rest[:1])
            tree.base_seq = rest[0].first_seq - 1
        else:
            kept = _above(self._tail, seq)
            if len(kept) < len(self._tail):
                tree._tail = kept
                tree._tail_nbytes, tail_memory_bytes = _wire_bytes(kept), memory_of_all(kept)
            tree._sums = _Sums()
            tree.base_seq = kept[0].header.first_seq - 1
        tree.memory_bytes = tree._sums.memory_bytes + tail_memory_bytes
        tree._chunks, tree._listed = pvector(rest), None
        tree._aging = self._aging.dropped(count, rest)
        return tree

    def cut_above(self, seq: int) -> Tree:
        """Returns a tree without the blocks above ``seq``, which is the end of a block; it is made block by block."""
        tree = Tree(self.base_seq)
        for block in self.blocks_after(self.base_seq):
            if block.seqs[1] > seq:
                break
            tree = tree.append(block)
        return tree

    @property
    def last_timestamp(self) -> int:
        """The timestamp of the last block; 0 in an empty tree."""
        newest = self._tail[-1] if self._tail else next(self.newest_first(), None)
        return 0 if newest is None else newest.header.timestamp

    def is_merge_due(self, stable_seq: int) -> bool:
        """Returns whether ``merge_plan`` returns a plan."""
        passed = self._aging.passed
        if self._aging.is_settling_due:
            return True
        return passed < len(self._chunks) and self._chunks[passed].last_seq <= stable_seq

    def merge_plan(self, stable_seq: int, cuts: Sequence[int] = ()) -> MergePlan | None:
        """Returns the next merge; None if no merge is due, which takes constant time.

        Blocks above ``stable_seq`` stay as they are. No merged block crosses a seq of ``cuts``: the bases of branches,
        and ends of published batches. Run ``plan.steps()`` on the loop or ``plan.merge()`` in a thread, and pass the
        blocks to ``replaced``.
        """
        settled, passed = self._aging.settled, self._aging.passed
        if self._aging.is_settling_due:
            return plan_merge(self._range(settled, passed), cuts, settles=True)
        due = list(
            takewhile(lambda chunk: chunk.last_seq <= stable_seq, self._range(passed, passed + CHUNKS_TOGETHER_MAX))
        )
        return plan_merge(due, cuts, settles=False) if due else None

    def replaced(self, plan: MergePlan, merged: Sequence[Block], cuts: Sequence[int] = ()) -> Tree:
        """Returns this tree with ``merged``, the result of ``plan.merge()``, in the place of the chunks of ``plan``.

        Returns this tree itself if it has those chunks no more, or if a merged block crosses one of the present
        ``cuts``. The plan is of this tree or of an earlier one that it was made from.
        """
        assert [block.seqs for block in merged] == [group.extent for group in plan.groups], "another plan's"
        start = self._aging.settled if plan.settles else self._aging.passed
        stop = start + len(plan.chunks)
        if any(chunk is not known for chunk, known in zip_longest(plan.chunks, self._range(start, stop))):
            return self
        if plan.crosses(cuts):
            return self
        made = [chunk_of(merged[at : at + CHUNK_BLOCKS_MAX]) for at in range(0, len(merged), CHUNK_BLOCKS_MAX)]
        tree = self._copy()
        tree._listed = None
        if len(made) == len(plan.chunks) == 1:
            tree._chunks = self._chunks.set(start, made[0])
        else:
            tree._chunks = pvector([*self._range(0, start), *made, *self._range(stop, len(self._chunks))])
        tree._sums = self._sums.changed(plan.chunks, made)
        tree.memory_bytes = self.memory_bytes + tree._sums.memory_bytes - self._sums.memory_bytes
        tree._aging = self._aging.merged(plan, made)
        return tree

    def merge_aged(self, stable_seq: int, cuts: Sequence[int] = ()) -> Tree:
        """Returns the tree with all due merges done: for a thread, or for a start."""
        tree = self
        while (plan := tree.merge_plan(stable_seq, cuts)) is not None:
            merged = tree.replaced(plan, plan.merge(), cuts)
            assert merged is not tree, "a plan fits the tree that made it"
            tree = merged
        return tree

    def _copy(self) -> Tree:
        """Returns a copy, which its caller changes before it is shared."""
        tree = _new_tree(Tree)
        for name in Tree.__slots__:
            setattr(tree, name, getattr(self, name))
        return tree

    def _range(self, start: int, stop: int) -> list[Chunk]:
        """Returns the chunks from ``start`` to ``stop``, the latter excluded, as far as they exist."""
        chunks = self._chunks
        return [chunks[index] for index in range(start, min(stop, len(chunks)))]

    def _chunk_at(self, seq: int) -> int:
        """Returns the index of the last chunk that begins at or below ``seq``; -1 if all begin above it."""
        return bisect_right(self._chunks, seq, key=_FIRST_SEQ_OF_CHUNK) - 1

    def find(self, seq: int) -> Block | None:
        """Returns the block that holds ``seq``; None for a seq outside the tree."""
        if not self.base_seq < seq <= self.last_seq:
            return None
        blocks = self._tail
        if not blocks or seq < first_seq_of(blocks[0]):
            blocks = self._chunks[self._chunk_at(seq)].blocks
        return blocks[bisect_right(blocks, seq, key=first_seq_of) - 1]

    def rows_of(self, seqs: Sequence[int], opened: OpenBlocks) -> Iterator[tuple[OpenRows, int]]:
        """Yields the rows of each block with some of ``seqs``, which rise and are in the tree.

        With them comes the index behind the last of these seqs.
        """
        begin, listed = 0, self._listed
        unlisted = self.block_count - (0 if listed is None else len(listed))
        if 0 < unlisted <= _LISTED_FOR_A_SEQ * len(seqs) and self.block_count <= _LISTED_MAX:
            if listed is None:
                listed = self._listed = BlockList(list(self.blocks_after(self.base_seq)))
            elif seqs[-1] > listed.last_seq and len(listed) <= _COPIED_FOR_A_SEQ * len(seqs):
                listed = self._listed = listed.extended(self.blocks_after(listed.last_seq))
        if listed is not None:
            for rows, end in listed.rows_of(seqs, opened):
                yield rows, end
                begin = end
        for block, end in self.blocks_of(seqs, begin):
            yield opened.rows(block), end

    def blocks_of(self, seqs: Sequence[int], begin: int = 0) -> Iterator[tuple[Block, int]]:
        """Yields each block with some of ``seqs`` from index ``begin`` on, and the index behind the last of them.

        ``seqs`` rise and are in the tree.
        Takes less time than ``find`` for each if many blocks have some.
        """
        count = len(seqs)
        while begin < count:
            tail, seq = self._tail, seqs[begin]
            blocks = tail if tail and seq >= first_seq_of(tail[0]) else self._chunks[self._chunk_at(seq)].blocks
            end = bisect_right(seqs, last_seq_of(blocks[-1]), begin)
            # To read the end of each block takes as long as to search for so many.
            ends = list(map(last_seq_of, blocks)) if 8 * (end - begin) > len(blocks) else None
            number = 0
            while begin < end:
                if ends is None:
                    number = bisect_left(blocks, seqs[begin], number, key=last_seq_of)
                    last_seq = last_seq_of(blocks[number])
                else:
                    number = bisect_left(ends, seqs[begin], number)
                    last_seq = ends[number]
                begin = bisect_right(seqs, last_seq, begin, end)
                yield blocks[number], begin

    def blocks_after(self, seq: int) -> Iterator[Block]:
        """Yields the blocks with rows above ``seq``, in order; the first one may begin at or below it."""
        seq = max(seq, self.base_seq)
        if seq >= self.last_seq:
            return
        chunks, tail = self._chunks, self._tail
        if tail and first_seq_of(tail[0]) <= seq + 1:
            yield from _above(tail, seq)
            return
        start = self._chunk_at(seq + 1)
        yield from _above(chunks[start].blocks, seq)
        for index in range(start + 1, len(chunks)):
            yield from chunks[index].blocks
        yield from tail

    def newest_above(self, seq: int) -> tuple[Block, ...]:
        """Returns the blocks with rows above ``seq``, if all of them are in the tail and the last chunk; else ().

        It costs little if these are few.
        """
        tail = self._tail
        if not tail or first_seq_of(tail[0]) > seq + 1:
            chunk = self._chunks[-1] if self._chunks else None
            return () if chunk is None or chunk.first_seq > seq + 1 else (*_above(chunk.blocks, seq), *tail)
        index = len(tail)
        while index and last_seq_of(tail[index - 1]) > seq:
            index -= 1
        return tail[index:]

    def nbytes_after(self, seq: int) -> int:
        """Returns the bytes on the wire of the blocks with rows above ``seq``."""
        if seq <= self.base_seq:
            return self.nbytes
        if self._tail and first_seq_of(self._tail[0]) <= seq + 1:
            return _wire_bytes(_above(self._tail, seq))
        if seq >= self.last_seq:
            return 0
        chunks, start = self._chunks, self._chunk_at(seq + 1)
        later = sum(chunks[index].nbytes for index in range(start + 1, len(chunks)))
        return _wire_bytes(_above(chunks[start].blocks, seq)) + later + self._tail_nbytes

    def seq_before(self, timestamp: int) -> int:
        """Returns the end of the last block with all rows stamped before ``timestamp``, or ``base_seq``."""
        chunks, tail = self._chunks, self._tail
        count = bisect_left(chunks, timestamp, key=_timestamp_of_chunk)
        blocks = chunks[count].blocks if count < len(chunks) else tail
        index = bisect_left(blocks, timestamp, key=_timestamp)
        if index:
            return blocks[index - 1].seqs[1]
        return chunks[count - 1].last_seq if count else self.base_seq

    def newest_first(self) -> Iterator[Block]:
        """Yields all blocks, the newest first."""
        yield from reversed(self._tail)
        for chunk in reversed(self._chunks):
            yield from reversed(chunk.blocks)

    def check(self) -> None:
        """Walks every invariant; AssertionError names the one that does not hold."""
        chunks, tail = list(self._chunks), self._tail
        assert len(tail) < CHUNK_BLOCKS_MAX, f"the tail has {len(tail)} blocks"
        for index, chunk in enumerate(chunks):
            assert 1 <= len(chunk.blocks) <= CHUNK_BLOCKS_MAX, f"chunk {index} has {len(chunk.blocks)} blocks"
            assert chunk == chunk_of(chunk.blocks), f"chunk {index} misstates its first seq or its bytes"
        last_seq = self.base_seq
        for block in (*(block for chunk in chunks for block in chunk.blocks), *tail):
            header = block.header
            assert header.first_seq == last_seq + 1, f"a gap before seq {header.first_seq}"
            assert header.first_seq <= header.last_seq, f"block {header.first_seq} ends before it begins"
            last_seq = header.last_seq
        assert last_seq == self.last_seq, f"the last seq is {last_seq}, noted is {self.last_seq}"
        sums = _Sums().changed((), chunks)
        assert sums == self._sums, f"{sums} in the chunks, {self._sums} counted"
        tail_sums = _wire_bytes(tail), memory_of_all(tail)
        counted = self._tail_nbytes, self.memory_bytes - sums.memory_bytes
        assert tail_sums == counted, f"{tail_sums} bytes and memory in the tail, {counted} counted"
        if self._listed is not None:
            self._listed.check([*(block for chunk in chunks for block in chunk.blocks), *tail])
        aging = self._aging
        assert 0 <= aging.settled <= aging.passed <= len(chunks), f"{aging} of {len(chunks)} chunks"
        taken_anew = Aging.of(chunks, aging.settled, aging.passed)
        assert aging == taken_anew, f"{taken_anew}, {aging} counted"


_new_tree = object.__new__


def _above(blocks: tuple[Block, ...], seq: int) -> tuple[Block, ...]:
    """Returns those of neighbouring blocks that end above ``seq``."""
    return blocks[bisect_right(blocks, seq, key=last_seq_of) :]


def _timestamp(block: Block) -> int:
    return block.header.timestamp


def _timestamp_of_chunk(chunk: Chunk) -> int:
    return chunk.blocks[-1].header.timestamp


def _last_seq_of_chunk(chunk: Chunk) -> int:
    return chunk.last_seq


def _wire_bytes(blocks: Sequence[Block]) -> int:
    return sum(block.nbytes for block in blocks)
