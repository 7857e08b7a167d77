"""One partition's stream to one consumer: how far it has come, and the rest of its snapshot.

    delivered_seq <  flushed_seq: the snapshot is of segments   [SegmentCursor][SegmentCursor] [the tree, if the
    delivered_seq >= flushed_seq: the snapshot is of the tree                                  promised seq is above]

A snapshot of segments ends at the end of a segment: superseded rows of it may be missing, so the rows up to a place
inside it are no state of the partition. Source: docs/protocol/streams.md, runs.

A filtered stream announces a snapshot with the first block that has a matching row. If no row matches, it sends only
SEQ_ADVANCED at the snapshot's end. Rows that do not match count as delivered.
"""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import TypeAlias, TypeVar

from tailrace.block import Block
from tailrace.model import EndReason, Level
from tailrace.wire.filters import StreamFilter
from tailrace.wire.stream_messages import SnapshotStartMessage
from tailrace_server.partition.chain import Pins
from tailrace_server.partition.partition import Partition
from tailrace_server.partition.ttls import first_with_ttls, unread_ttls
from tailrace_server.state.recent_traces import RecentTraces
from tailrace_server.stream.filter import FilterCache
from tailrace_server.stream.segment_cursor import SegmentCursor

# A snapshot of the tree ends at the next block after either bound, and the rest follows in the next snapshot. They
# limit the rows that a consumer repeats after a break, and the cost of the walk to a snapshot's end.
SNAPSHOT_BYTES_MAX = 64 * 1024 * 1024
SNAPSHOT_BLOCKS_MAX = 4_096
# A stream that still holds more bytes of flushed blocks than this gives them up, and reads the segment.
HELD_BYTES_MAX = 1024 * 1024
# The raw bytes that a filtered stream may look through in a turn: about 2 ms if they are compressed. A small block
# counts as EXAMINED_BLOCK_BYTES: the search of one takes 10 to 70 us.
EXAMINED_BYTES_MAX = 1024 * 1024
EXAMINED_BLOCK_BYTES = 32 * 1024

_T = TypeVar("_T")
# An empty deque takes 760 bytes, and most of a hundred thousand streams have nothing to send.
_Queue: TypeAlias = collections.deque[_T] | tuple[()]


def examined_bytes(block: Block) -> int:
    """Returns the bytes that ``block`` counts for when a filtered stream looks through it."""
    return max(block.header.raw_bytes, EXAMINED_BLOCK_BYTES)


class PartitionStream:
    """How far a stream has come, and the rest of its snapshot. Only this class and its subclass change its fields."""

    # Its connection notes which blocks the consumer has not handled yet. A replica acknowledges seqs instead.
    notes_unhandled = True

    def __init__(
        self,
        id: int,
        partition: Partition,
        level: Level,
        after_seq: int,
        end_seq: int | None,
        promised_seq: int,
        *,
        pins: Pins,
        purge_seq: int | None = None,
        until_us: int | None = None,
        wanted: StreamFilter | None = None,
        filtered: FilterCache | None = None,
        lacks_ttls: bool = False,
    ) -> None:
        """Makes a stream that begins above ``after_seq``.

        ``purge_seq``: the purge seq that the consumer was told when it began at 0, if it has not come that far (P).
        ``until_us``: the stream ends with the first block that has a row which was stamped then or later (microseconds
        since 1970 UTC), or after `time_passed`. ``wanted``: the filter, None for everything. ``filtered``: the cache of
        filtered blocks that all streams share. ``lacks_ttls``: the consumer cannot read blocks with ttls.
        """
        self.id = id
        self.lacks_ttls = lacks_ttls
        self.is_credited = False  # its consumer credits the stream by itself, besides the connection
        self.partition = partition
        self.level = level
        self.wanted = wanted
        # The last seq sent at which a consumer may stand. Invariant: it never falls, and
        # snapshot_after <= delivered_seq <= snapshot_last.
        self.delivered_seq = after_seq
        # The last seq that was sent or passed over. A consumer cannot stand there inside a run, nor inside a publish.
        # Invariant: sent_seq >= delivered_seq.
        self.sent_seq = after_seq
        # The bounds of the snapshot that was taken last. Invariant, between snapshots: snapshot_last == delivered_seq.
        self.snapshot_after = after_seq
        self.snapshot_last = after_seq
        # The end of the snapshot that the consumer was in, or of the keys that it has read again. No snapshot ends
        # below it. Invariant: end_seq is None or end_seq >= promised_seq.
        self.promised_seq = promised_seq
        self.end_seq = end_seq if end_seq is None else max(end_seq, promised_seq)
        self.until_us = until_us
        # The time is still to come. Invariant: False without until_us; it never becomes True again.
        self.awaits_time = until_us is not None
        self.is_past_time = False  # a row was sent that was stamped too late; the stream ends in the same turn
        # Nothing superseded is missing in the snapshot: its consumer may stand at the end of each block.
        self.is_complete = True
        # To a replica, which takes the snapshot over in one step. Invariant: not both this and is_complete.
        self.is_published = False
        self.is_announced = False  # the consumer knows of the snapshot that it is in
        self.examined_bytes = 0  # looked through in this turn
        self._filtered = FilterCache() if filtered is None else filtered
        self._pins = pins
        self._purge_seq = purge_seq
        self._taken_purge_seq = 0  # the partition's when the present snapshot was taken
        # Invariant, between snapshots: both are ().
        self._cursors: _Queue[SegmentCursor] = ()
        self._blocks: _Queue[Block] = ()

    @property
    def has_news(self) -> bool:
        """Whether the stream's level shows mutations that were not delivered; asked between snapshots."""
        visible_seq = self.partition.visible_seq(self.level)
        if visible_seq <= self.delivered_seq or visible_seq < self.promised_seq:
            return False
        return self.end_seq is None or self.delivered_seq < self.end_seq

    @property
    def at_end(self) -> bool:
        """Whether the stream has reached the end that was asked for."""
        return self.is_past_time or self._at_end_seq

    @property
    def has_passed_over(self) -> bool:
        """Whether its consumer may stand at ``delivered_seq`` and was not told, since no row up to there matched."""
        return not self.is_announced and self.delivered_seq > max(self.snapshot_after, self.promised_seq - 1)

    @property
    def _at_end_seq(self) -> bool:
        return self.end_seq is not None and self.delivered_seq >= self.end_seq

    def time_passed(self, accepted_seq: int | None = None) -> None:
        """Sets the end when ``until_us`` has come: behind all rows that were accepted before.

        ``accepted_seq``: on a follower, the last seq that the leader has accepted.
        """
        self.awaits_time = False
        last_seq = max(self.partition.high_seq if accepted_seq is None else accepted_seq, self.promised_seq)
        self.end_seq = last_seq if self.end_seq is None else min(self.end_seq, last_seq)

    @property
    def is_purged(self) -> bool:
        """Whether deletions that the consumer has not seen are gone: it has to begin at 0."""
        purge_seq = self.partition.purge_seq
        return 0 < self.delivered_seq < purge_seq and self._purge_seq != purge_seq

    @property
    def is_trimmed(self) -> bool:
        """Whether rows that the consumer has not seen are gone, from a feed that drops old history."""
        return 0 < self.delivered_seq < self.partition.trim_seq

    @property
    def why_gone(self) -> tuple[EndReason, str, int] | None:
        """The end of a stream if mutations that its consumer lacks are gone: reason, message, and the first seq left.

        None if nothing is gone; 0 for the seq if deletions have been purged. Rows that its consumer cannot read count
        as gone, too.
        """
        partition = self.partition
        if self.lacks_ttls and (seq := first_with_ttls(partition, self.delivered_seq)):
            return EndReason.FORBIDDEN, unread_ttls(partition, seq), 0
        if self.is_purged:
            return EndReason.PURGED, f"deletions up to seq {partition.purge_seq} have been purged", 0
        if self.is_trimmed:
            message = f"the kept mutations begin above seq {partition.trim_seq}"
            return EndReason.TRIMMED, message, partition.trim_seq + 1
        return None

    def few_blocks(self) -> Sequence[Block]:
        """Returns the blocks of a whole snapshot that begins now and needs no frames but theirs; () for all others."""
        return ()

    def only_block(self) -> Block | None:
        """Returns the block of a snapshot that begins now and has no other block.

        None if it has several, or if the stream has an end.
        """
        block = self.partition.newest_block
        if block is None or self.lacks_ttls or self.end_seq is not None or self.until_us is not None:
            return None
        header = block.header
        if header.first_seq > self.delivered_seq + 1 or header.last_seq > self.partition.visible_seq(self.level):
            return None
        return block

    def sent_snapshot(self, last_seq: int) -> None:
        """Notes that a whole snapshot up to ``last_seq``, as of ``only_block``, was sent, or skipped by the filter."""
        self.snapshot_after = self.delivered_seq
        self.snapshot_last = self.delivered_seq = self.sent_seq = last_seq

    def begin_snapshot(self) -> None:
        """Takes a snapshot of the visible rows: references to segments or to a part of the tree, and its last seq."""
        partition = self.partition
        self._taken_purge_seq = partition.purge_seq
        if self.delivered_seq == 0:
            self._purge_seq = partition.purge_seq
        visible_seq = partition.visible_seq(self.level)
        if self.end_seq is not None:
            visible_seq = min(visible_seq, self.end_seq)
        self.snapshot_after = self.snapshot_last = self.delivered_seq
        self.is_announced = self.is_published = False
        self.is_complete = self.delivered_seq >= partition.trim_seq
        if self.delivered_seq < partition.flushed_seq:
            self._take_segments(self.promised_seq)
            if not self._cursors:  # all flushed rows have been trimmed since
                self.snapshot_last = partition.flushed_seq
            elif self.snapshot_last >= self.promised_seq:
                return
        self._take_blocks(visible_seq)

    def _take_blocks(self, visible_seq: int) -> None:
        """Adds the blocks of the tree up to ``visible_seq``, or up to the first possible end above the bounds."""
        partition, runs = self.partition, self.partition.published
        blocks = self._blocks = collections.deque()
        size = 0
        is_end = True
        for block in partition.tree.blocks_after(self.snapshot_last):
            bounded = size > SNAPSHOT_BYTES_MAX or len(blocks) >= SNAPSHOT_BLOCKS_MAX
            reached = self.snapshot_last >= visible_seq or (bounded and self.snapshot_last >= self.promised_seq)
            if reached and is_end:
                break
            blocks.append(block)
            self.snapshot_last = block.header.last_seq
            size += block.nbytes
            if runs:
                is_end = runs.around(self.snapshot_last) is None
                self.is_complete &= is_end  # a consumer cannot stand between the blocks of a publish

    @property
    def must_be_announced(self) -> bool:
        """Whether the snapshot is to be announced (again) as it is now, before any block of it is sent.

        A consumer that begins at 0 has to learn the purge seq before it stands anywhere.
        """
        return self.wanted is None or self.is_announced or (self.snapshot_after == 0 and self._taken_purge_seq > 0)

    def announce(self) -> SnapshotStartMessage:
        """Returns the announcement of the snapshot, and notes that the consumer knows of it.

        It names the purge seq as of the moment when the snapshot was taken. Deletions that were purged since are still
        in the snapshot. If it named the newer purge seq, a consumer that begins would later resume above a deletion
        that it was not sent.
        """
        self.is_announced = True
        partition = self.partition
        return SnapshotStartMessage(
            partition.id,
            self.is_complete,
            partition.log.branch,
            self.snapshot_after,
            self.snapshot_last,
            self._taken_purge_seq,
            self.is_published,
        )

    def _take_segments(self, least_seq: int) -> None:
        """Adds the next segment, and further ones until ``least_seq`` is reached."""
        cursors = self._cursors = self._cursors or collections.deque()
        for segment in self.partition.chain.after(self.delivered_seq):
            cursors.append(SegmentCursor(segment, self.delivered_seq, self._pins, self.wanted))
            self.snapshot_last = segment.identity.last_seq
            # The bounds of publishes in a segment are no longer known, and a consumer cannot stand inside a publish.
            self.is_complete &= not segment.identity.deduplicated and not len(self.partition.sinks)
            if self.snapshot_last >= least_seq:
                return

    @property
    def flushed_bytes(self) -> int:
        """The bytes that wait to be sent and are held in memory, although they are in segments too."""
        if not self._blocks or self._cursors:
            return 0
        flushed_seq = self.partition.flushed_seq
        if self.partition.visible_seq(self.level) < flushed_seq:  # the segment would show more than its level has
            return 0
        return sum(block.nbytes for block in self._blocks if block.header.last_seq <= flushed_seq)

    @property
    def holds_flushed(self) -> bool:
        """Whether it holds more than HELD_BYTES_MAX of flushed blocks: it should give them up, and read segments."""
        return self.flushed_bytes > HELD_BYTES_MAX

    def let_go(self) -> None:
        """Gives up the blocks that segments have now. They must not be purged or trimmed above ``delivered_seq``.

        The snapshot has to be announced again, since it may end at a higher seq now.
        """
        flushed_seq = self.partition.flushed_seq
        self._taken_purge_seq = self.partition.purge_seq
        if self.delivered_seq == 0:
            self._purge_seq = self.partition.purge_seq
        self.is_complete &= self.delivered_seq >= self.partition.trim_seq
        later = [block for block in self._blocks if block.header.first_seq > flushed_seq]
        self._blocks = ()
        # Small blocks may have been merged before they were flushed, so the snapshot has to end with the segment.
        last_seq = self.snapshot_last
        self._take_segments(min(flushed_seq, last_seq))
        if last_seq > flushed_seq:
            self._blocks = collections.deque(later)
            self.snapshot_last = last_seq

    @property
    def cursor_to_load(self) -> SegmentCursor | None:
        """The cursor that needs a chunk before the stream can send more; None if nothing has to be loaded."""
        part = self._cursors[0] if self._cursors else None
        return part if part is not None and part.needs_load else None

    @property
    def keeps_files(self) -> bool:
        """Whether replaced segments stay on disk for this stream."""
        return any(self._pins.is_retired(part.segment) for part in self._cursors)

    @property
    def is_in_memory(self) -> bool:
        """Whether no segment is left to be sent in this snapshot."""
        return not self._cursors

    @property
    def all_sent(self) -> bool:
        """Whether the last block of the snapshot has been sent."""
        return not self._cursors and not self._blocks

    def begin_turn(self) -> None:
        """Lets a filtered stream look through EXAMINED_BYTES_MAX again."""
        self.examined_bytes = 0

    def next_block(self) -> Block | None:
        """Returns the next block of the snapshot; None at its end, or if other streams should have their turn.

        They should if the next block has to be loaded first, and if EXAMINED_BYTES_MAX were looked through.
        """
        if self.is_past_time:
            return None
        while self._cursors:
            part = self._cursors[0]
            block = part.next_block()
            if block is None and not part.is_done:
                return None
            if part.is_done:
                self._cursors.popleft().close()
            if block is not None and (self.wanted is None or self._is_new(block)):
                return self._passed(block)
        if self.wanted is not None:
            return self._next_matching(self.wanted)
        return self._passed(self._blocks.popleft()) if self._blocks else None

    def _next_matching(self, wanted: StreamFilter) -> Block | None:
        """Returns the matching rows of the next block that has any."""
        while self._blocks and self.examined_bytes < EXAMINED_BYTES_MAX and not self.is_past_time:
            block = self._passed(self._blocks.popleft())
            self.examined_bytes += examined_bytes(block)
            found = self._filtered.filter_block(block, wanted)
            if found is not None and self._is_new(found):
                return found
        return None

    def filtered(self, block: Block) -> Block | None:
        """Returns the rows to send of ``block``, the first of a snapshot; None if no row matches."""
        if self.wanted is None:
            return block
        found = self._filtered.filter_block(block, self.wanted)
        return found if found is not None and found.header.last_seq > self.delivered_seq else None

    def _is_new(self, found: Block) -> bool:
        """Tells whether the consumer lacks rows of ``found``, the matching rows of a block; it may have some."""
        return found.header.last_seq > self.snapshot_after

    def _passed(self, block: Block) -> Block:
        """Returns ``block``, and notes that it is sent or skipped now.

        Inside a run ``delivered_seq`` stays: a consumer cannot stand there.
        """
        self.sent_seq = block.header.last_seq
        if self.until_us is not None and block.header.timestamp >= self.until_us:
            self.is_past_time = True  # delivered_seq stays: its first rows may not be too late
        elif self.is_complete:
            self.delivered_seq = block.header.last_seq
        return block

    def end_snapshot(self) -> None:
        """Ends the snapshot: the stream is between snapshots again."""
        assert self.all_sent, "a snapshot ends at its announced seq"
        self._blocks = self._cursors = ()
        self.delivered_seq = self.sent_seq = self.snapshot_last  # the row of the last seq may have been purged

    def before_block(self, block: Block) -> Sequence[bytes]:
        """Returns the frames that go before ``block`` of the snapshot that was announced."""
        return ()

    def traces_of(self, block: Block, traces: RecentTraces) -> bytes:
        """Returns a TRACE for each sampled write with rows in ``block``."""
        partition, header = self.partition, block.header
        branch = partition.log.branch_at(header.last_seq)
        found = traces.of(partition.feed_id, partition.id, branch, header.first_seq, header.last_seq)
        return b"".join([trace.encode(self.id) for trace in found])

    def before_end(self) -> Sequence[bytes]:
        """Returns the frames that go before the end of the snapshot."""
        return ()

    def close(self) -> None:
        """Drops the rest of the snapshot, and unpins its segments."""
        self._blocks = ()
        cursors, self._cursors = self._cursors, ()
        for cursor in cursors:
            cursor.close()
