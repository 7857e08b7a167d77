"""The streams of one connection: rounds over the partitions that have news. Pure: seqs and blocks in, bytes out.

    turns: streams by (feed id, partition, stream id) ── a pass in this order, a slice or a whole snapshot each
                                                             │
                     SNAPSHOT_START, BLOCK ..., SNAPSHOT_END │ ... after the pass: ROUND_COMPLETE, and again

Partitions without news cost nothing. A large snapshot is sent by slices, one in each pass, so that it does not hold up
the other streams and their barriers. A round of one stream with one block, the result of a single write, takes a
shorter way to the same bytes.
Source: the UPR design, "How ep-engine sends snapshots to UPR clients".
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from tailrace.block import Block
from tailrace.model import EndReason
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import StreamEnd, encode_number, encode_seq
from tailrace_server.state.recent_traces import RecentTraces
from tailrace_server.stream.chunk_reads import ChunkReads, chunks_max
from tailrace_server.stream.deadlines import Deadlines
from tailrace_server.stream.feed_shares import FeedShares
from tailrace_server.stream.frames import block_header
from tailrace_server.stream.held_rows import HeldRows
from tailrace_server.stream.partition_stream import PartitionStream, examined_bytes
from tailrace_server.stream.segment_cursor import SegmentCursor
from tailrace_server.stream.small_snapshots import encode_snapshot, small_bytes
from tailrace_server.stream.stream_barriers import StreamBarriers
from tailrace_server.stream.stream_slot import NO_TURNS, Key, StreamSlot, turns
from tailrace_server.stream.stream_state import StreamEvent, StreamState
from tailrace_server.stream.window import Window

# The bytes that one partition may send in a pass before the next one has its turn: a few blocks of the usual size.
SLICE_BYTES = 1024 * 1024
# The turns that one call of ``next_buffers`` gives at most, about 5 ms of the processor: snapshots of ten thousand
# partitions may be small enough for one buffer.
TURNS_MAX = 128
# A block with a smaller body goes into one buffer with the frames around it.
JOIN_BYTES_MAX = 16 * 1024

# Each as a global: a round needs some of them for every stream, and an attribute of an Enum is slow to read.
_IDLE, _READY = StreamState.IDLE, StreamState.READY
_NEWS, _SNAPSHOT_STARTED, _SNAPSHOT_SENT = StreamEvent.NEWS, StreamEvent.SNAPSHOT_STARTED, StreamEvent.SNAPSHOT_SENT

_END_REACHED = "the end that was asked for is reached"
_TIME_REACHED = "the time that was asked for is reached"


class Rounds:
    """The streams of one connection. Only its own methods change its fields.

    ``window_bytes`` bounds the bytes of blocks that were sent and not yet granted again.
    """

    def __init__(self, window_bytes: int) -> None:
        self.window = Window(window_bytes)
        self.round_number = 0
        self.moves = 0  # how often a stream gave up blocks in memory to go on with segments
        self.examined_bytes = 0  # all that filtered streams have ever looked through
        self.turns_given = 0  # all turns that streams have ever had
        self.slots: dict[int, StreamSlot] = {}  # those of the open streams, by stream id
        self._of_feeds: dict[bytes, dict[StreamSlot, None]] = {}  # the same by feed id; none is empty
        self.deadlines = Deadlines()
        # Invariant, between two calls: the slots whose state has a turn, but those that wait for their feed's share.
        self._turns = NO_TURNS
        self._in_pass = False
        self._last_turn: Key | None = None  # of the stream that had the last turn of this pass
        self._interrupted: StreamSlot | None = None  # its turn was interrupted by a full window
        self._out: list[bytes | memoryview] = []  # always the same list, which the barriers add to
        self.barriers = StreamBarriers(self.slots, self._out.append)
        self._reads = ChunkReads()
        self._shares = FeedShares()
        self._held = HeldRows(self.slots)
        self._traces: RecentTraces | None = None  # if the peer takes contexts
        self._draining = ""  # the message with which streams end; "" until `drain`

    @property
    def waits_for_credit(self) -> bool:
        """Streams have something to send, and the consumer has granted no room for it."""
        return (bool(self._turns) and self.window.is_full) or self._shares.is_holding

    @property
    def has_news(self) -> bool:
        """There may be something to send, or to read."""
        if not self.slots:  # as on a connection that writes: no stream has a turn or reads
            return bool(self._out) or self._in_pass
        return bool(self._turns or self._out or self._reads.queue) or self._in_pass

    @property
    def waits_for_chunk(self) -> bool:
        """Whether a stream's next chunk is to be read."""
        return bool(self._reads.queue)

    @property
    def unsent_frames(self) -> int:
        """How many frames wait for the next ``next_buffers``."""
        return len(self._out)

    # Streams come and go

    def open(self, stream: PartitionStream, notify: Callable[[], None]) -> None:
        """Adds a stream; ``notify`` is called whenever it has news."""
        if self._turns is NO_TURNS:
            self._turns = turns()
        slot = StreamSlot(stream, notify, self)
        self.slots[stream.id] = slot
        self._of_feeds.setdefault(stream.partition.feed_id, {})[slot] = None
        slot.watch()
        self.news(slot)
        self.deadlines.add(slot)
        if stream.at_end:
            self._end(slot, EndReason.END_REACHED, _END_REACHED)
            notify()

    def news(self, slot: StreamSlot) -> None:
        """Gives a stream its turn: its partition shows more."""
        if slot.state is _IDLE:
            if not slot.stream.has_news:
                return
            slot.move(_NEWS)
            self._turns.add(slot)
        elif not slot.state.has_turn:
            return
        slot.notify()

    def slots_of(self, feed_id: bytes) -> list[StreamSlot]:
        """Returns the slots of the open streams of a feed."""
        return list(self._of_feeds.get(feed_id, ()))

    def close(self, stream_id: int, reason: EndReason, message: str = "") -> None:
        """Ends a stream and says so. Does nothing if no stream has this id."""
        if (slot := self.slots.get(stream_id)) is not None:
            self._end(slot, reason, message)

    def drain(self, message: str) -> None:
        """Ends each stream: at once if it is between snapshots, otherwise at the end of its snapshot."""
        self._draining = message
        for slot in list(self.slots.values()):
            if not slot.state.in_snapshot:
                self._end(slot, EndReason.DRAINING, message)

    def close_all(self) -> None:
        """Forgets every stream and sends nothing: the connection is gone."""
        self.close_some(len(self.slots))

    def close_some(self, count: int) -> bool:
        """Forgets so many streams, and sends nothing. Returns whether any are left."""
        for slot in list(itertools.islice(self.slots.values(), count)):
            self._forget(slot)
        return bool(self.slots)

    def _end(self, slot: StreamSlot, reason: EndReason, message: str, first_seq: int = 0) -> None:
        self._forget(slot)
        stream, partition = slot.stream, slot.stream.partition
        self._out.append(StreamEnd(partition.id, reason, message, partition.log.term, first_seq).encode(stream.id))
        self.barriers.ended(stream, is_complete=reason is EndReason.END_REACHED)

    def _forget(self, slot: StreamSlot) -> None:
        del self.slots[slot.stream.id]
        feed_id = slot.stream.partition.feed_id
        of_feed = self._of_feeds[feed_id]
        del of_feed[slot]
        if not of_feed:
            del self._of_feeds[feed_id]
        if slot.state.has_turn and not self._shares.holds(slot):
            self._turns.remove(slot)
        if slot.stream.is_credited:
            self._shares.forget(slot)
            self._release()
        self.deadlines.forget(slot)
        self._reads.forget(slot)
        self._held.forget(slot)
        slot.close()

    def time_passed(self, wall_us: int, accepted: Callable[[bytes, int], int] | None = None) -> bool:
        """Gives their end to streams whose time has come. Returns False if there were none; call it again if not.

        ``accepted(feed id, partition)``: on a follower, how far the leader has come.
        """
        passed = self.deadlines.take_passed(wall_us, accepted)
        for slot in passed:
            if slot.stream.at_end and not slot.state.in_snapshot:
                self._end(slot, EndReason.END_REACHED, _TIME_REACHED)
        return bool(passed)

    # Turns

    def set_window(self, window_bytes: int) -> None:
        """Sets the window that the client asked for in HELLO."""
        self.window.resize(window_bytes)

    def send_traces(self, traces: RecentTraces) -> None:
        """Sends the contexts of sampled writes before their blocks: the client has said that it takes them."""
        self._traces = traces

    def credit(self, consumed_bytes: int) -> None:
        """Takes back ``consumed_bytes``, which the consumer has consumed."""
        self.window.credited(consumed_bytes)
        self._release()

    def credit_stream(self, stream_id: int, consumed_bytes: int) -> None:
        """Notes that a replica has consumed so many bytes of one stream. They are taken back by `credit`, too."""
        if (slot := self.slots.get(stream_id)) is not None:
            self._shares.credited(slot, consumed_bytes)
            self._release()

    def _release(self) -> None:
        """Gives their turns back to streams whose feed has room again."""
        if self._shares.is_holding:
            for slot in self._shares.take_released(self.window.free_bytes):
                self._turns.add(slot)
                slot.notify()

    def next_buffers(self, bytes_max: int) -> list[bytes | memoryview]:
        """Returns the next buffers to send, about ``bytes_max`` bytes; empty if there is nothing, or no room.

        Bytes that filtered streams look through count as if they were sent: ``examined_bytes`` grows by them. At most
        TURNS_MAX streams have a turn: ``turns_given`` grows by them.
        """
        if len(self._turns) == 1:
            buffers = self._only_block(self._turns[0], bytes_max)
            if buffers:
                return buffers
        budget, turns_max, window = bytes_max, self.turns_given + TURNS_MAX, self.window
        while budget > 0 and self.turns_given < turns_max and window.free_bytes > 0:
            slot = self._next_slot()
            if slot is None:
                break
            self.turns_given += 1
            if not self._shares.has_room(slot, window.free_bytes):
                self._turns.remove(slot)
                self._shares.hold(slot)
                continue
            slot.stream.begin_turn()
            budget -= self._send_slice(slot, slot.stream) + slot.stream.examined_bytes
            self.examined_bytes += slot.stream.examined_bytes
        buffers = self._out.copy()
        self._out.clear()
        return buffers

    def _only_block(self, slot: StreamSlot, bytes_max: int) -> list[bytes | memoryview]:
        """Sends a whole round of one block of the only stream that has a turn; returns nothing if it needs more.

        The bytes, and the state after them, are those that ``_next_slot`` and ``_send_slice`` come to.
        """
        if self._in_pass or self._out or self.barriers.waiting or slot.state is not _READY:
            return []
        stream = slot.stream
        block = stream.only_block()
        if block is None:
            return []
        if stream.wanted is None:
            return self._round_of(slot, block, block, bytes_max)
        # A consumer that begins here does not need the purge seq: the tree has the partition's first row.
        examined = examined_bytes(block)
        if examined >= bytes_max or self.window.is_full:
            return []
        buffers = self._round_of(slot, block, stream.filtered(block), bytes_max - examined)
        if buffers:
            self.examined_bytes += examined
        return buffers

    def _round_of(self, slot: StreamSlot, block: Block, sent: Block | None, bytes_max: int) -> list[bytes | memoryview]:
        """Sends a whole round in which ``sent`` is all that is sent of ``block``; nothing if that is too much."""
        size = 0 if sent is None else sent.nbytes
        free_bytes = self.window.free_bytes
        if size >= bytes_max or size >= free_bytes:
            return []
        stream, frames = slot.stream, slot.frames
        if not self._shares.has_room(slot, free_bytes):
            return []
        self._shares.sent(slot, size)
        self.round_number += 1
        last_seq, after_seq = block.header.last_seq, stream.delivered_seq
        stream.sent_snapshot(last_seq)
        slot.move(_SNAPSHOT_SENT)
        self._turns.clear()
        if sent is None:
            return [frames.passed_over(last_seq, self.round_number)]
        partition = stream.partition
        before = frames.before_block(partition.log.branch, after_seq, last_seq, partition.purge_seq, size)
        after = frames.after_block(last_seq, self.round_number)
        if self._traces and stream.wanted is None:
            before = stream.traces_of(block, self._traces) + before
        self.window.sent(stream, sent, size)
        if size < JOIN_BYTES_MAX:
            return [b"".join((before, sent.head, sent.body, after))]
        return [before + sent.head, sent.body, after]

    def _next_slot(self) -> StreamSlot | None:
        """Returns the stream whose turn it is; begins and completes passes."""
        if not self._in_pass:
            if not self._turns:
                return None
            self._in_pass, self._last_turn = True, None
            self.round_number += 1
        interrupted, self._interrupted = self._interrupted, None
        if interrupted is not None and interrupted.state.has_turn:
            return interrupted
        index = 0 if self._last_turn is None else self._turns.bisect_key_right(self._last_turn)
        if index == len(self._turns):
            self._in_pass = False
            self._out.append(encode_number(Opcode.ROUND_COMPLETE, self.round_number))
            return self._next_slot()
        slot: StreamSlot = self._turns[index]
        return slot

    def _send_slice(self, slot: StreamSlot, stream: PartitionStream) -> int:
        """Sends a slice of a stream's snapshot. Returns its bytes."""
        if slot.state is _READY:
            if sent_bytes := self._send_few(slot, stream):
                return sent_bytes
            if not self._start_snapshot(slot):
                return 0
        self._last_turn = slot.key
        taken, window = 0, self.window
        # A replica gathers a publish until its end. One partition at a time, so that it never holds a whole batch.
        while (taken < SLICE_BYTES or stream.is_published) and (block := stream.next_block()) is not None:
            if not stream.is_announced:
                self._out.append(stream.announce().encode(stream.id))
            before = stream.before_block(block)
            if before:
                self._out += before
                taken += sum(map(len, before))
            taken += self._send_block(slot, block)
            if window.free_bytes <= 0 and not stream.all_sent and not stream.is_past_time:
                self._interrupted = slot  # its turn goes on when the consumer grants more
                self._load_next(slot)
                return taken
            if not self._shares.has_room(slot, window.free_bytes):
                break
        if stream.is_past_time:  # a row that was stamped too late was sent, or left out by the filter
            if stream.has_passed_over:
                passed = encode_seq(Opcode.SEQ_ADVANCED, stream.partition.id, stream.delivered_seq, stream.id)
                self._out.append(passed)
            self._end(slot, EndReason.END_REACHED, _TIME_REACHED)
        elif stream.all_sent:
            taken += self._end_snapshot(slot)
            self._end_turn(slot)
        else:
            if stream.examined_bytes:
                self._note_delivered(stream)
            self._load_next(slot)
        return taken

    def _send_few(self, slot: StreamSlot, stream: PartitionStream) -> int:
        """Sends a whole snapshot of a few small blocks, and returns its bytes; 0 if that needs the general way."""
        blocks = () if self._traces or self.barriers.waiting else stream.few_blocks()
        size = small_bytes(blocks)
        if not size or not self._shares.has_room_behind(slot, size, self.window.free_bytes):
            return 0
        self._out.append(encode_snapshot(slot, blocks))
        self._last_turn = slot.key
        self._shares.sent(slot, size)
        self.window.sent_few(len(blocks), size)
        stream.sent_snapshot(blocks[-1].header.last_seq)
        slot.move(_SNAPSHOT_SENT)
        self._end_turn(slot)
        return size

    def _end_turn(self, slot: StreamSlot) -> None:
        """Gives a stream whose snapshot has been sent its next turn, takes it away, or ends the stream."""
        stream = slot.stream
        if stream.has_news and not self._draining:
            slot.move(_NEWS)
            return
        self._turns.remove(slot)
        if stream.at_end:
            self._end(slot, EndReason.END_REACHED, _END_REACHED)
        elif self._draining:
            self._end(slot, EndReason.DRAINING, self._draining)

    # Snapshots

    def _start_snapshot(self, slot: StreamSlot) -> bool:
        """Announces a snapshot. Returns False if the stream had to be ended instead."""
        if self._end_if_gone(slot):
            return False
        stream = slot.stream
        stream.begin_snapshot()
        slot.move(_SNAPSHOT_STARTED)
        if stream.must_be_announced:
            self._out.append(stream.announce().encode(stream.id))
        return True

    def _end_if_gone(self, slot: StreamSlot) -> bool:
        """Ends a stream if mutations that its consumer lacks are gone. Returns whether it did."""
        if (gone := slot.stream.why_gone) is not None:
            self._end(slot, *gone)
        return gone is not None

    def _send_block(self, slot: StreamSlot, block: Block) -> int:
        stream, size = slot.stream, block.nbytes
        self._shares.sent(slot, size)
        if self._traces and stream.wanted is None:
            self._out.append(stream.traces_of(block, self._traces))
        self._out.append(block_header(size, stream.id) + block.head)
        self._out.append(block.body)
        self.window.sent(stream, block, size)
        self._note_delivered(stream)
        return size

    def _end_snapshot(self, slot: StreamSlot) -> int:
        """Sends the snapshot's end. Returns the bytes of the frames that go before it."""
        stream = slot.stream
        stream.end_snapshot()
        slot.move(_SNAPSHOT_SENT)
        self._reads.release(slot)
        before = stream.before_end()
        self._out += before
        opcode = Opcode.SNAPSHOT_END if stream.is_announced else Opcode.SEQ_ADVANCED
        self._out.append(encode_seq(opcode, stream.partition.id, stream.snapshot_last, stream.id))
        self._note_delivered(stream)
        return sum(map(len, before))

    def _note_delivered(self, stream: PartitionStream) -> None:
        if self.barriers.waiting:
            self.barriers.delivered(stream)

    # Segments

    def _load_next(self, slot: StreamSlot) -> None:
        """Takes the turn from a stream that cannot go on without its next chunk, until that is here."""
        if slot.stream.cursor_to_load is not None:
            if self._shares.holds(slot):  # it had no turn to take away: its feed has no room
                self._shares.let_go(slot)
            else:
                self._turns.remove(slot)
            self._reads.add(slot)
        elif slot.stream.is_in_memory:
            self._reads.release(slot)

    def next_loads(self) -> Iterator[tuple[StreamSlot, SegmentCursor]]:
        """Yields the parts of which a chunk is to be loaded now; call ``loaded`` or ``load_failed`` for each."""
        return self._reads.start(chunks_max(self.window.nbytes, is_full=self.window.is_full))

    def loaded(self, slot: StreamSlot, part: SegmentCursor, blocks: list[Block], index: int) -> None:
        """Takes the result of ``part.load()`` for a stream, which may have ended meanwhile."""
        if not self._reads.finish(slot):
            return
        part.loaded(blocks, index)
        slot.move(StreamEvent.CHUNK_READ)
        if slot.stream.cursor_to_load is not None:  # its filter left nothing of the chunk
            self._reads.add(slot)
        else:
            self._turns.add(slot)
            slot.notify()

    def load_failed(self, slot: StreamSlot, message: str) -> None:
        """Ends the stream if it has not ended meanwhile: the segment cannot be read."""
        if self._reads.finish(slot):
            self._reads.release(slot)  # nothing was read, and no thread reads any more
            self._end(slot, EndReason.DAMAGED, message)

    # Memory that a slow consumer holds

    def flushed(self, slot: StreamSlot) -> None:
        """Has streams that hold too much in memory go on with segments: the partition of ``slot`` has been flushed."""
        self._held.count(slot)
        if not slot.flushed_bytes:
            return
        for holder in self._held.to_let_go(slot):
            self._let_go(holder)
        slot.notify()

    def _let_go(self, slot: StreamSlot) -> None:
        if self._end_if_gone(slot):
            return
        self.moves += 1
        stream = slot.stream
        stream.let_go()
        self._held.count(slot)
        if stream.must_be_announced:
            self._out.append(stream.announce().encode(stream.id))
        self._load_next(slot)
