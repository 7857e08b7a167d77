"""Collects the blocks that a start reads from the journal, so that many small blocks of a partition become few.

    stretches of the journal ── add ──>  columns of blocks, in file order
                                apply ─> sorted by partition; neighbouring small blocks joined; appended to the trees

A published batch is one row of the columns. It is never joined with other blocks, and is appended as a whole.

The table of journal/replay.py decides about each block, here by columns: voided and flushed blocks are left out, and
all others have to follow the rows that are held. If one does not, nothing is applied here. Then the caller applies the
blocks one at a time, in file order, which skips blocks that are held and names a gap.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tailrace.block import FLAG_COMPRESSED, HEADER_BYTES, ROWS_MAX, Block
from tailrace.model.failover import FailoverLog
from tailrace_server.blocks.small import JoinedBlock, SmallBlocks, SmallRows, encode_groups, open_small
from tailrace_server.feeds.feed import Feed
from tailrace_server.journal import JournalRollback, Record, Stretch
from tailrace_server.journal.format import FILE_BYTES_MAX, RECORD_HEADER_BYTES
from tailrace_server.partition.partition import Partition
from tailrace_server.partition.published import recover_batch
from tailrace_server.state.last_batches import LastBatch
from tailrace_server.state.producer_columns import ProducerResults
from tailrace_server.state.use_times import UseTimes
from tailrace_server.tree.aging import MERGED_BYTES_MAX, SMALL_BYTES_MAX

# Unpacked bytes of blocks that wait until they are applied. They take several times that in memory. They are far more
# records than partitions, each of which costs some microseconds each time.
PENDING_BYTES_MAX = 64 * 1024 * 1024
# The most bytes that are unpacked at once. A stretch of the journal, 1 MiB, may become 255 MiB.
_UNPACKED_BYTES_MAX = 16 * 1024 * 1024
# Compressed blocks of more raw bytes are not joined: unpacking, copying and compressing one takes longer than appending
# it. The flusher merges them when the node runs, in a thread.
_PACKED_BYTES_MAX = 1024
# The rows of a joined block, which leaves room for one more small block.
_JOINED_ROWS_MAX = ROWS_MAX // 2

Array = npt.NDArray[Any]

_ROW_FIELDS = [SmallBlocks._fields.index(name) for name in SmallRows._fields[:5]]
_KEY_FIELDS = SmallBlocks._fields.index("key_begins"), SmallBlocks._fields.index("key_ends")
_VALUE_FIELDS = SmallBlocks._fields.index("value_begins"), SmallBlocks._fields.index("value_ends")


class _StretchBlocks(NamedTuple):
    """Blocks of a stretch: their places in it, the slots of their partitions, and the result of `open_small`."""

    stretch: Stretch
    indices: Array
    slots: Array
    opened: SmallBlocks


class FeedsOf(NamedTuple):
    """The ``feeds`` of some records, and for each record the index of its feed; None for a dropped feed."""

    feeds: list[Feed | None]
    which: Array

    def part(self, begin: int, end: int) -> FeedsOf:
        """Returns the feeds of some of the records."""
        return FeedsOf(self.feeds, self.which[begin:end])


class _PendingBatch(NamedTuple):
    """A published batch in the journal's ``file``."""

    blocks: tuple[Block, ...]
    sinks: dict[str, LastBatch]
    file: int


class _Places:
    """The feeds of the blocks. Each of their partitions has a slot: a number of its own."""

    def __init__(self) -> None:
        self.partitions: list[Partition] = []
        self.flushed: Array = np.zeros(0, "<u8")
        self._firsts: dict[bytes, tuple[Feed, int]] = {}

    def first_of(self, feed: Feed) -> int:
        """Returns the slot of the feed's first partition; the others follow."""
        known = self._firsts.get(feed.info.feed_id)
        if known is not None and known[0] is feed:
            return known[1]
        first = len(self.partitions)
        self.partitions += feed.partitions
        flushed = np.array([partition.flushed_seq for partition in feed.partitions], "<u8")
        self.flushed = np.concatenate((self.flushed, flushed))
        self._firsts[feed.info.feed_id] = feed, first
        return first


class PendingBlocks:
    """The blocks that wait, in one start, after the manifests were read."""

    def __init__(self, rollbacks: Mapping[tuple[bytes, int], Sequence[JournalRollback]], times: UseTimes) -> None:
        """``rollbacks`` are those in the journal, by feed and partition; entries may be added later."""
        self._rollbacks = rollbacks
        self._times = times
        self._places = _Places()
        self._parts: list[_StretchBlocks] = []
        self._partitions: set[Partition] = set()
        self.nbytes = 0

    @property
    def is_full(self) -> bool:
        """Whether it is time to apply the blocks."""
        return self.nbytes >= PENDING_BYTES_MAX

    def has_of(self, partition: Partition) -> bool:
        """Returns whether some blocks may be of ``partition``."""
        return partition in self._partitions

    def add(self, stretch: Stretch, begin: int, end: int, feeds: FeedsOf) -> None:
        """Adds the records ``begin`` to ``end``, the latter excluded, of a stretch: blocks and published batches.

        It skips records of dropped feeds. The records are one of ``pieces``, so that the bytes that wait stay bounded.
        """
        slots = self._slots(stretch, begin, end, feeds)
        heads = stretch.block_heads[begin:end]
        picked = np.flatnonzero(slots >= 0)
        picked = picked[heads["last_seq"][picked] > self._places.flushed[slots[picked]]]
        if not len(picked):
            return
        slots, indices = slots[picked], picked + begin
        bodies = stretch.starts[indices] + RECORD_HEADER_BYTES + HEADER_BYTES
        # (A published batch is not opened: its row is flagged to have a column of seqs.)
        opened = open_small(stretch.data, bodies, stretch.block_heads[indices], SMALL_BYTES_MAX, _PACKED_BYTES_MAX)
        self._parts.append(_StretchBlocks(stretch, indices, slots, opened))
        partitions = self._places.partitions
        self._partitions.update([partitions[slot] for slot in np.unique(slots).tolist()])
        self.nbytes += len(opened.raw)

    def _slots(self, stretch: Stretch, begin: int, end: int, feeds: FeedsOf) -> Array:
        """Returns the slot of each block's partition; -1 if its feed was dropped."""
        firsts = np.array([-1 if feed is None else self._places.first_of(feed) for feed in feeds.feeds])[feeds.which]
        return np.where(firsts < 0, -1, firsts + stretch.heads["partition"][begin:end].astype(np.intp))

    def take(self) -> tuple[_StretchBlocks, ...]:
        """Returns all blocks, and forgets them."""
        parts = tuple(self._parts)
        self._parts, self._partitions, self.nbytes = [], set(), 0
        return parts

    def apply(self) -> Iterator[Record]:
        """Applies all in a few large blocks, or yields their records in file order, to be applied one at a time."""
        parts = self.take()
        if not parts:
            return
        blocks = _Blocks(parts)
        blocks.sort()
        kept = ~self._voided(blocks)
        if not kept.all():
            blocks.keep(kept)
        if not len(blocks.slots):
            return
        if self._follows(blocks):
            self._append(blocks)
        else:
            yield from blocks.records()

    def _voided(self, blocks: _Blocks) -> Array:
        """Returns which blocks end above a later rollback."""
        voided = np.zeros(len(blocks.slots), np.bool_)
        if self._rollbacks:
            for slot, begin, end in blocks.partitions():
                partition = self._places.partitions[slot]
                for rollback in self._rollbacks.get((partition.feed_id, partition.id), ()):
                    of_partition = slice(begin, end)
                    gone = blocks.lsns[of_partition] < rollback.lsn
                    voided[of_partition] |= gone & (blocks.last_seqs[of_partition] > rollback.seq)
        return voided

    def _follows(self, blocks: _Blocks) -> bool:
        """Returns whether each block begins right above the rows that its partition has when its turn comes."""
        held = np.concatenate(([0], blocks.last_seqs[:-1]))
        for slot, begin, _ in blocks.partitions():
            partition = self._places.partitions[slot]
            held[begin] = partition.high_seq
            if not partition.log:
                return False
        return bool((blocks.first_seqs == held + np.uint64(1)).all())

    def _append(self, blocks: _Blocks) -> None:
        partitions = self._places.partitions
        made = blocks.joined([partitions[slot].merge_cuts for slot, _, _ in blocks.partitions()])
        for (slot, begin, end), own in zip(blocks.partitions(), made, strict=True):
            partition = partitions[slot]
            partition.restore_references(blocks.files(begin, end))
            _restore(partition, own)
            used_at = self._times.at_each(blocks.lsns[begin:end])
            for branch, first, last in _branches(partition.log, blocks.last_seqs[begin:end]):
                results = ProducerResults(*(column[begin + first : begin + last] for column in blocks.results))
                partition.restore_results(branch, results, used_at[first:last])


def _restore(partition: Partition, items: Sequence[Block | _PendingBatch]) -> None:
    """Appends blocks and published batches, in order."""
    blocks: list[Block] = []
    for item in items:
        if isinstance(item, Block):
            blocks.append(item)
            continue
        if blocks:
            partition.restore_blocks(blocks)
            blocks = []
        recover_batch(partition, item.blocks, item.sinks, item.file)
    if blocks:
        partition.restore_blocks(blocks)


def pieces(stretch: Stretch, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Divides blocks ``begin`` to ``end`` of a stretch, the latter excluded, into pieces of bounded raw bytes."""
    heads = stretch.block_heads[begin:end]
    raw = heads["raw_bytes"].astype(np.intp)
    is_unpacked = ((heads["flags"] & FLAG_COMPRESSED) != 0) & (raw <= min(SMALL_BYTES_MAX, _PACKED_BYTES_MAX))
    filled = np.cumsum(np.where(is_unpacked, raw, 0)) // _UNPACKED_BYTES_MAX
    borders = np.flatnonzero(filled[1:] != filled[:-1]) + 1
    yield from itertools.pairwise([begin, *(begin + borders).tolist(), end])


def _branches(log: FailoverLog, last_seqs: Array) -> list[tuple[bytes, int, int]]:
    """Returns (branch, first, end) for the branches of blocks that end at ``last_seqs``; ``end`` is excluded."""
    if int(last_seqs[0]) > log[0].base:
        return [(log.branch, 0, len(last_seqs))]
    # Blocks up to the base of the oldest entry belong to its branch too.
    entries = list(reversed(log))
    borders = [0, *np.searchsorted(last_seqs, [entry.base for entry in entries[1:]], side="right").tolist()]
    spans = zip(entries, borders, [*borders[1:], len(last_seqs)], strict=True)
    return [(entry.branch, first, last) for entry, first, last in spans if first < last]


class _Blocks:
    """The blocks of all parts as columns of one length, sorted by slot and then in file order."""

    def __init__(self, parts: Sequence[_StretchBlocks]) -> None:
        self._parts = parts
        heads = [part.stretch.block_heads[part.indices] for part in parts]
        sizes = [len(part.indices) for part in parts]
        self.slots: Array = np.concatenate([part.slots for part in parts])
        self.lsns: Array = np.concatenate([part.stretch.lsns[part.indices] for part in parts])
        self._part = np.repeat(np.arange(len(parts)), sizes)
        self._index: Array = np.concatenate([part.indices for part in parts])
        self._place = np.arange(len(self.slots))  # in file order: the index in the joined `SmallBlocks`
        self.first_seqs: Array = np.concatenate([head["first_seq"] for head in heads])
        self.last_seqs: Array = np.concatenate([head["last_seq"] for head in heads])
        self.producers: Array = np.concatenate([head["producer_id"] for head in heads])
        self.numbers: Array = np.concatenate([head["producer_seq"] for head in heads])
        self._timestamps: Array = np.concatenate([head["timestamp"] for head in heads])
        self._raw_bytes: Array = np.concatenate([head["raw_bytes"].astype(np.intp) for head in heads])
        self._is_packed: Array = np.concatenate([(head["flags"] & FLAG_COMPRESSED) != 0 for head in heads])
        rows = np.concatenate([part.opened.rows for part in parts])
        self._rows = rows
        self._row_begins = np.cumsum(rows) - rows  # in all rows, in file order
        self._bounds: list[tuple[int, int, int]] = []

    def sort(self) -> None:
        """Sorts the columns. Call it once, before any other method."""
        self.keep(np.lexsort((self.lsns, self.slots)))

    def keep(self, chosen: Array) -> None:
        """Keeps only the ``chosen`` blocks, or puts all into that order."""
        for name, column in vars(self).items():
            if isinstance(column, np.ndarray):
                setattr(self, name, column[chosen])
        borders = np.flatnonzero(self.slots[1:] != self.slots[:-1]) + 1
        edges = [0, *borders.tolist(), len(self.slots)] if len(self.slots) else []
        self._bounds = [(int(self.slots[begin]), begin, end) for begin, end in itertools.pairwise(edges)]

    def partitions(self) -> list[tuple[int, int, int]]:
        """Returns (slot, begin, end) of the blocks of each slot."""
        return self._bounds

    def records(self) -> Iterator[Record]:
        """Yields the records in file order."""
        for place in np.argsort(self.lsns).tolist():
            yield self._parts[self._part[place]].stretch.record(int(self._index[place]))

    def files(self, begin: int, end: int) -> list[tuple[int, int]]:
        """Returns (file, last seq in it) for the journal's files with the blocks ``begin`` to ``end`` of a slot."""
        files = self.lsns[begin:end] // FILE_BYTES_MAX
        if files[0] == files[-1]:
            return [(int(files[0]), int(self.last_seqs[end - 1]))]
        lasts = [*np.flatnonzero(files[1:] != files[:-1]).tolist(), end - begin - 1]
        return list(zip(files[lasts].tolist(), self.last_seqs[begin:end][lasts].tolist(), strict=True))

    @property
    def results(self) -> tuple[Array, Array, Array, Array]:
        """The columns of `ProducerResults`."""
        return self.producers, self.numbers, self.first_seqs, self.last_seqs

    def joined(self, cuts: Sequence[Sequence[int]]) -> list[list[Block | _PendingBatch]]:
        """Returns the blocks and batches of each slot, small blocks joined, but not across a seq of ``cuts``."""
        begins = np.flatnonzero(self._group_begins(cuts))
        ends = np.append(begins[1:], len(self.slots))
        is_small = self._rows[begins] > 0
        small = np.repeat(is_small, ends - begins)
        made = iter(
            encode_groups(self._all_rows(np.flatnonzero(small)), self._groups(begins[is_small], ends[is_small]))
        )
        found = [
            next(made) if joined else self._item(begin)
            for joined, begin in zip(is_small.tolist(), begins.tolist(), strict=True)
        ]
        counts = np.searchsorted(begins, [begin for _, begin, _ in self._bounds] + [len(self.slots)]).tolist()
        return [found[a:b] for a, b in itertools.pairwise(counts)]

    def _group_begins(self, cuts: Sequence[Sequence[int]]) -> Array:
        """Returns which blocks begin a group that becomes one block."""
        begins = np.ones(len(self.slots), np.bool_)
        is_small = self._rows > 0
        begins[1:] = ~(is_small[1:] & is_small[:-1]) | (self.slots[1:] != self.slots[:-1])
        begins[1:] |= self._timestamps[1:] < self._timestamps[:-1]
        for sizes, most in ((self._raw_bytes, MERGED_BYTES_MAX), (self._rows, _JOINED_ROWS_MAX)):
            filled = np.cumsum(sizes) // most
            begins[1:] |= filled[1:] != filled[:-1]
        for (_, begin, end), borders in zip(self._bounds, cuts, strict=True):
            first, last = int(self.first_seqs[begin]), int(self.last_seqs[end - 1])
            for border in borders:
                if first <= border < last:
                    begins[begin + int(np.searchsorted(self.last_seqs[begin:end], border, side="right"))] = True
        return begins

    def _groups(self, begins: Array, ends: Array) -> list[JoinedBlock]:
        if not len(begins):
            return []
        totals, packed = np.append(0, np.cumsum(self._rows)), np.append(0, np.cumsum(self._is_packed))
        columns = (
            totals[ends] - totals[begins],
            [self._parts[self._part[begin]].stretch.block_heads["partition"][self._index[begin]] for begin in begins],
            self.first_seqs[begins],
            packed[ends] > packed[begins],
        )
        return [
            JoinedBlock(*values) for values in zip(*(np.asarray(column).tolist() for column in columns), strict=True)
        ]

    def _all_rows(self, chosen: Array) -> SmallRows:
        """Returns the rows of the ``chosen`` blocks, in order."""
        opened = [part.opened for part in self._parts]
        counts = self._rows[chosen]
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        indices = np.arange(total) + np.repeat(self._row_begins[chosen] - (ends - counts), counts)
        numbers = [np.concatenate([each[field] for each in opened])[indices] for field in _ROW_FIELDS]
        places = self._place[chosen]
        strings = []
        for first, last in (_KEY_FIELDS, _VALUE_FIELDS):
            firsts = np.concatenate([each[first] for each in opened])
            lasts = np.concatenate([each[last] for each in opened])
            spans = zip(self._part[chosen].tolist(), firsts[places].tolist(), lasts[places].tolist(), strict=True)
            raws = [each.raw for each in opened]
            strings.append(b"".join([raws[part][a:b] for part, a, b in spans]))
        return SmallRows(*numbers, *strings)

    def _item(self, place: int) -> Block | _PendingBatch:
        """Returns the block or the published batch of one row."""
        stretch: Stretch = self._parts[self._part[place]].stretch
        index = int(self._index[place])
        if stretch.is_block[index]:
            return stretch.block(index)
        sinks, blocks = stretch.published(index)
        return _PendingBatch(blocks, sinks, stretch.file.number)
