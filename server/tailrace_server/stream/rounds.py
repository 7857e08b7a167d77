"""The streams of one connection: rounds over the partitions that have news. Pure: seqs and blocks in, bytes out.

    turns: streams by (feed id, partition, stream id) ── a pass in this order, a slice or a whole snapshot each
                                                             │
                     SNAPSHOT_START, BLOCK ..., SNAPSHOT_END │ ... after the pass: ROUND_COMPLETE, and again

Partitions without news are not looked at and cost nothing. A partition with a large snapshot has a slice of it in each
pass, so that it does not hold up the others and their barriers. A round of one stream with one block, which a single
write brings about, has a way of its own to the same bytes.
Source: the UPR design, "How ep-engine sends snapshots to UPR clients".
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from operator import attrgetter

from sortedcontainers import SortedKeyList

from tailrace.block import Block
from tailrace.model import EndReason
from tailrace.wire.frames import encode_frame, frame_header
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import StreamEnd, encode_number, encode_seq
from tailrace_server.stream.barriers import Barrier, Barriers
from tailrace_server.stream.disk_part import CHUNK_BYTES, DiskPart
from tailrace_server.stream.frames import SnapshotFrames
from tailrace_server.stream.partition_stream import PartitionStream, examined_bytes

# What one partition may send in a pass before it is the next one's turn: a few blocks of the usual size.
SLICE_BYTES = 1024 * 1024
# So many streams may have a chunk of a segment in memory, or on its way there, that is not sent yet; fewer if the
# window has room for fewer.
LOADS_MAX = 8
# Blocks that have been flushed, and that the streams of a connection hold together: above that they all let go of them.
HELD_BYTES_MAX = 8 * 1024 * 1024
# So many streams end at once where their time has come, which takes 25 us each.
ENDS_MAX = 64
# A block with a smaller body goes into one buffer with the frames around it.
JOIN_BYTES_MAX = 16 * 1024

_Key = tuple[bytes, int, int]


class Rounds:
    """What one connection streams. ``window_bytes`` bounds what is sent and not yet consumed."""

    def __init__(self, window_bytes: int) -> None:
        self.window_bytes = window_bytes
        self.outstanding_bytes = 0
        self.credited_bytes = 0  # all that was ever granted again
        self.round_number = 0
        self.streams: dict[int, PartitionStream] = {}
        self._notifiers: dict[int, Callable[[], None]] = {}
        self._frames: dict[int, SnapshotFrames] = {}
        self._turns: SortedKeyList[PartitionStream] = SortedKeyList(key=attrgetter("key"))  # streams with news
        self._last_turn: _Key | None = None  # of the stream that had the last turn of this pass
        self._interrupted: PartitionStream | None = None  # whose turn a full window has interrupted
        self._in_pass = False
        self._out: list[bytes | memoryview] = []
        self.examined_bytes = 0  # that filtered streams have looked through since somebody set this to 0
        self._moved: dict[int, Callable[[], None]] = {}
        self._to_load: collections.OrderedDict[PartitionStream, None] = collections.OrderedDict()
        self._loads: set[PartitionStream] = set()
        self._loading: set[PartitionStream] = set()  # a thread reads for them, though they may be gone by now
        self._draining = ""
        self._held: dict[PartitionStream, int] = {}  # flushed bytes that a stream held when they were flushed
        self.moves = 0  # how often a stream has let go of memory, to go on with segments
        # Those whose time is to come. Many end at the same one, and each has to be found among them at once.
        self._timed: SortedKeyList[PartitionStream] = SortedKeyList(key=attrgetter("until_us", "key"))
        self.barriers = Barriers()

    @property
    def window_full(self) -> bool:
        """No block may be sent before the consumer grants more."""
        return self.outstanding_bytes >= self.window_bytes

    @property
    def waits_for_credit(self) -> bool:
        """There is something to send, and the consumer has not granted the room."""
        return bool(self._turns) and self.window_full

    @property
    def has_news(self) -> bool:
        """There may be something to send."""
        return bool(self._turns or self._out or self._to_load) or self._in_pass

    @property
    def unsent_frames(self) -> int:
        """How many frames wait for the next ``next_buffers``."""
        return len(self._out)

    def open(self, stream: PartitionStream, notify: Callable[[], None]) -> None:
        """Adds a stream; ``notify`` is called whenever it has news."""

        def news() -> None:
            if stream.has_news:
                if stream not in self._turns:
                    self._turns.add(stream)
                notify()

        def moved() -> None:
            if stream.flushed_bytes:
                self._flushed(stream)
                notify()

        self.streams[stream.id] = stream
        self._moved[stream.id] = moved
        stream.partition.on_flush(moved)
        self._frames[stream.id] = SnapshotFrames(stream.id, stream.partition.id)
        self._notifiers[stream.id] = news
        stream.partition.watch(stream.level, news)
        news()
        if stream.awaits_time:
            self._timed.add(stream)
        if stream.at_end:
            self._end(stream, EndReason.END_REACHED, "the end that was asked for is reached")
            notify()

    def close(self, stream_id: int, reason: EndReason, message: str = "") -> None:
        """Ends a stream and says so; nothing where there is none of this id."""
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._end(stream, reason, message)

    def drain(self, message: str) -> None:
        """Ends each stream when the snapshot that it is in has been sent, and now where it is in none."""
        self._draining = message
        for stream in list(self.streams.values()):
            if not stream.in_snapshot:
                self._end(stream, EndReason.DRAINING, message)

    @property
    def next_until_us(self) -> int | None:
        """The earliest time of the wall clock (microseconds since 1970 UTC) that a stream ends at; None without one."""
        return self._timed[0].until_us if self._timed else None

    def timed_feeds(self) -> list[bytes]:
        """The ids of the feeds with streams whose time is to come."""
        return sorted({stream.partition.feed_id for stream in self._timed})

    def time_passed(self, wall_us: int, accepted: Callable[[bytes, int], int] | None = None) -> bool:
        """It is so late: the streams that end now do so behind what was taken before; whether there were any.

        Where there are many, some are left for the next call. ``accepted(feed id, partition)``: on a follower, how far
        the leader has come.
        """
        passed: list[PartitionStream] = []
        while self._timed and len(passed) < ENDS_MAX and self._timed[0].until_us <= wall_us:
            stream = self._timed.pop(0)
            partition = stream.partition
            stream.time_passed(None if accepted is None else accepted(partition.feed_id, partition.id))
            passed.append(stream)
        for stream in passed:
            if stream.at_end and not stream.in_snapshot:
                self._end(stream, EndReason.END_REACHED, "the time that was asked for is reached")
        return bool(passed)

    def close_all(self) -> None:
        """Forgets every stream, without a word: the connection is gone."""
        for stream in list(self.streams.values()):
            self._forget(stream)

    def _forget(self, stream: PartitionStream) -> None:
        del self.streams[stream.id], self._frames[stream.id]
        stream.partition.unwatch(stream.level, self._notifiers.pop(stream.id))
        stream.partition.off_flush(self._moved.pop(stream.id))
        self._turns.discard(stream)
        if stream.awaits_time:
            self._timed.remove(stream)
        self._to_load.pop(stream, None)
        self._loads.discard(stream)
        self._held.pop(stream, None)
        stream.close()

    def _end(self, stream: PartitionStream, reason: EndReason, message: str, first_seq: int = 0) -> None:
        self._forget(stream)
        partition = stream.partition
        self._out.append(StreamEnd(partition.id, reason, message, partition.log.term, first_seq).encode(stream.id))
        if reason is EndReason.END_REACHED:
            self.barriers.finished(stream.id)
        else:
            self.barriers.lost(stream.id, partition.id)
        self._return_barriers()

    def barrier(self, cookie: bytes, *, held: bool = False) -> Barrier:
        """A cookie arrived; it goes back from a later ``next_buffers``, where it is ``held`` not before its release."""
        # Most have been sent everything: of a thousand, finding that out is nearly all that a barrier costs.
        behind = [s for s in self.streams.values() if s.delivered_seq < s.partition.high_seq]
        needs = [(s.id, _covered(s, s.partition.high_seq), s.delivered_seq) for s in behind]
        barrier = self.barriers.add(cookie, needs, held=held)
        self._return_barriers()
        return barrier

    def barrier_behind(self, cookie: bytes, first: Barrier | None = None) -> None:
        """A cookie arrived at a follower that those before it cover; with ``first`` of `barrier_elsewhere` among them.

        What was opened since then it has to be covered on, too.
        """
        self.barriers.add(cookie, ())
        if first is not None:
            self.barriers.expect(first, self.streams)
        self._return_barriers()

    def barrier_elsewhere(self, cookie: bytes) -> Barrier:
        """A cookie arrived at a follower: how far its streams have to come is up to the leader, who is to be asked.

        It is lost with the first of them that ends before.
        """
        barrier = self.barriers.add(cookie, (), held=True)
        self.barriers.expect(barrier, self.streams)
        return barrier

    def asked(self, barrier: Barrier) -> None:
        """The leader is asked now, for ``barrier`` and those behind it that have come by now."""
        self.barriers.release(barrier)

    def settle(self, barrier: Barrier, accepted: Callable[[bytes, int], int]) -> None:
        """The leader has answered: ``accepted(feed id, partition)`` is how far it has come there."""
        streams = self.streams.values()
        self.barriers.settle(
            barrier,
            [(s.id, _covered(s, accepted(s.partition.feed_id, s.partition.id)), s.delivered_seq) for s in streams],
        )
        self._return_barriers()

    def release(self, barrier: Barrier) -> None:
        """What ``barrier`` was held for has come."""
        self.barriers.release(barrier)
        self._return_barriers()

    def lose_barriers(self) -> None:
        """Nobody can tell any more what was accepted before the cookies that wait."""
        self.barriers.lose_all(0)
        self._return_barriers()

    def credit(self, consumed_bytes: int) -> None:
        """The consumer has consumed so much."""
        self.credited_bytes += consumed_bytes
        self.outstanding_bytes = max(self.outstanding_bytes - consumed_bytes, 0)

    def next_buffers(self, bytes_max: int) -> list[bytes | memoryview]:
        """What is to be sent next, about ``bytes_max`` bytes; empty where there is nothing, or no room.

        What filtered streams look through counts as if it were sent: ``examined_bytes`` says how much that was.
        """
        if len(self._turns) == 1:
            buffers = self._only_block(self._turns[0], bytes_max)
            if buffers:
                return buffers
        budget = bytes_max
        while budget > 0 and not self.window_full:
            stream = self._next_stream()
            if stream is None:
                break
            budget -= self._give_turn(stream)
        buffers, self._out = self._out, []
        return buffers

    def _only_block(self, stream: PartitionStream, bytes_max: int) -> list[bytes | memoryview]:
        """A whole round of ``stream``, which alone has news; empty where it is about more than one block.

        The same bytes, and the same state after them, as ``_next_stream`` and ``_give_turn`` come to.
        """
        if self._in_pass or self._out or self.barriers.waiting:
            return []
        block = stream.only_block()
        if block is None:
            return []
        if stream.wanted is None:
            return self._round_of(stream, block, block, bytes_max)
        # A consumer that begins here is in no need of a purge seq: the tree has the partition's first row.
        examined = examined_bytes(block)
        if examined >= bytes_max or self.window_full:
            return []
        buffers = self._round_of(stream, block, stream.filtered(block), bytes_max - examined)
        if buffers:
            self.examined_bytes += examined
        return buffers

    def _round_of(
        self, stream: PartitionStream, block: Block, sent: Block | None, bytes_max: int
    ) -> list[bytes | memoryview]:
        """A whole round in which ``sent`` is all that is sent of ``block``; empty where it would take too much."""
        size = 0 if sent is None else sent.nbytes
        if size >= bytes_max or self.outstanding_bytes + size >= self.window_bytes:
            return []
        partition, frames = stream.partition, self._frames[stream.id]
        self.round_number += 1
        last_seq, after_seq = block.header.last_seq, stream.delivered_seq
        stream.sent_only_block(block)
        self._turns.clear()
        if sent is None:
            return [frames.passed_over(last_seq, self.round_number)]
        before = frames.before_block(partition.log.branch, after_seq, last_seq, partition.purge_seq, size)
        after = frames.after_block(last_seq, self.round_number)
        self.outstanding_bytes += size
        if size < JOIN_BYTES_MAX:
            return [b"".join((before, sent.head, sent.body, after))]
        return [before + sent.head, sent.body, after]

    def _next_stream(self) -> PartitionStream | None:
        """Whose turn it is; begins and completes passes."""
        if not self._in_pass:
            if not self._turns:
                return None
            self._in_pass, self._last_turn = True, None
            self.round_number += 1
        interrupted, self._interrupted = self._interrupted, None
        if interrupted is not None and interrupted in self._turns:
            return interrupted
        index = 0 if self._last_turn is None else self._turns.bisect_key_right(self._last_turn)
        if index == len(self._turns):
            self._in_pass = False
            self._out.append(encode_number(Opcode.ROUND_COMPLETE, self.round_number))
            return self._next_stream()
        stream: PartitionStream = self._turns[index]
        return stream

    def _give_turn(self, stream: PartitionStream) -> int:
        """One slice of a stream's snapshot; the bytes that it took, what was looked through included."""
        stream.examined_bytes = 0
        taken = self._send_slice(stream)
        self.examined_bytes += stream.examined_bytes
        return taken + stream.examined_bytes

    def _send_slice(self, stream: PartitionStream) -> int:
        if not stream.in_snapshot and not self._start_snapshot(stream):
            return 0
        self._last_turn = stream.key
        taken = 0
        # A replica gathers what was published: of one partition at a time, lest it hold all of a publish at once.
        while (taken < SLICE_BYTES or stream.is_published) and (block := stream.next_block()) is not None:
            if not stream.is_announced:
                self._announce(stream)
            before = stream.before_block(block)
            self._out += before
            taken += self._send_block(stream, block) + sum(map(len, before))
            if self.window_full and not stream.all_sent and not stream.is_past_time:
                self._interrupted = stream  # its turn goes on where the consumer grants more
                self._load_next(stream)
                return taken
        if stream.is_past_time:  # a row that is too late was sent, or left out by the filter
            if stream.has_passed_over:
                passed = encode_seq(Opcode.SEQ_ADVANCED, stream.partition.id, stream.delivered_seq, stream.id)
                self._out.append(passed)
            self._end(stream, EndReason.END_REACHED, "the time that was asked for is reached")
            return taken
        if stream.all_sent:
            taken += self._end_snapshot(stream)
        elif stream.examined_bytes:
            self._note_delivered(stream)
        self._load_next(stream)
        if not stream.has_news:
            self._turns.discard(stream)
        if stream.at_end and not stream.in_snapshot:
            self._end(stream, EndReason.END_REACHED, "the end that was asked for is reached")
        elif self._draining and not stream.in_snapshot:
            self._end(stream, EndReason.DRAINING, self._draining)
        return taken

    # Segments

    def _load_next(self, stream: PartitionStream) -> None:
        """After a turn: a stream that cannot go on without its next chunk has no turn until that is here."""
        if stream.part_to_load is not None:
            self._loads.discard(stream)
            self._turns.discard(stream)
            self._to_load[stream] = None
        elif stream in self._loads and stream.is_in_memory:
            self._loads.discard(stream)

    @property
    def _loads_max(self) -> int:
        """How many streams may have a chunk. A window of less than a chunk has none read before it may be sent."""
        if self.window_bytes < CHUNK_BYTES and self.window_full:
            return 0
        return min(max(self.window_bytes // CHUNK_BYTES, 1), LOADS_MAX)

    def next_loads(self) -> list[tuple[PartitionStream, DiskPart]]:
        """What is to be loaded now, each elsewhere: call ``loaded`` or ``load_failed`` then."""
        loads = []
        loads_max = self._loads_max
        while self._to_load and len(self._loads | self._loading) < loads_max:
            stream, _ = self._to_load.popitem(last=False)
            part = stream.part_to_load
            assert part is not None, "a stream waits for its next chunk"
            self._loads.add(stream)
            self._loading.add(stream)
            loads.append((stream, part))
        return loads

    def loaded(self, stream: PartitionStream, part: DiskPart, blocks: list[Block], index: int) -> None:
        """What ``part.load()`` gave, of a stream that may be gone by now."""
        self._loading.discard(stream)
        if self.streams.get(stream.id) is stream:
            part.loaded(blocks, index)
            self._notifiers[stream.id]()
            self._load_next(stream)  # of a filtered chunk nothing may be left

    def load_failed(self, stream: PartitionStream, message: str) -> None:
        """The segment cannot be read: the stream ends."""
        self._loading.discard(stream)
        if self.streams.get(stream.id) is stream:
            self._end(stream, EndReason.ERROR, message)

    # Memory that a slow consumer holds

    def _flushed(self, stream: PartitionStream) -> None:
        """The partition of ``stream`` has been flushed: those that now hold too much go on with segments."""
        self._held[stream] = stream.flushed_bytes
        if stream.holds_flushed:
            self._let_go(stream)
        elif sum(self._held.values()) > HELD_BYTES_MAX:
            self._held = {holder: holder.flushed_bytes for holder in self._held}  # some was sent meanwhile
            if sum(self._held.values()) > HELD_BYTES_MAX:
                for holder in [holder for holder, held_bytes in self._held.items() if held_bytes]:
                    self._let_go(holder)

    def _let_go(self, stream: PartitionStream) -> None:
        del self._held[stream]
        if not self._end_where_gone(stream):
            self.moves += 1
            stream.let_go()
            if stream.must_be_announced:
                self._announce(stream)
            self._load_next(stream)

    # Snapshots

    def _start_snapshot(self, stream: PartitionStream) -> bool:
        """Announces a snapshot; False where the stream had to be ended instead."""
        if self._end_where_gone(stream):
            return False
        stream.begin_snapshot()
        if stream.must_be_announced:
            self._announce(stream)
        return True

    def _end_where_gone(self, stream: PartitionStream) -> bool:
        """Ends a stream that can't go on from where it stands, since what its consumer needs is not there any more."""
        if stream.is_purged:
            self._end(stream, EndReason.PURGED, f"deletions up to seq {stream.partition.purge_seq} have been purged")
        elif stream.is_trimmed:
            trim_seq = stream.partition.trim_seq
            self._end(stream, EndReason.TRIMMED, f"what is kept begins above seq {trim_seq}", trim_seq + 1)
        else:
            return False
        return True

    def _announce(self, stream: PartitionStream) -> None:
        stream.is_announced = True
        self._out.append(stream.announcement().encode(stream.id))

    def _send_block(self, stream: PartitionStream, block: Block) -> int:
        size = block.nbytes
        self._out.append(frame_header(Opcode.BLOCK, size, stream.id) + block.head)
        self._out.append(block.body)
        self.outstanding_bytes += size
        self._note_delivered(stream)
        return size

    def _end_snapshot(self, stream: PartitionStream) -> int:
        """Says so; how much had to be told before."""
        stream.end_snapshot()
        before = stream.before_end()
        self._out += before
        opcode = Opcode.SNAPSHOT_END if stream.is_announced else Opcode.SEQ_ADVANCED
        self._out.append(encode_seq(opcode, stream.partition.id, stream.snapshot_last, stream.id))
        self._note_delivered(stream)
        return sum(map(len, before))

    def _note_delivered(self, stream: PartitionStream) -> None:
        if self.barriers:
            self.barriers.delivered(stream.id, stream.delivered_seq)
            self._return_barriers()

    def _return_barriers(self) -> None:
        for returned in self.barriers.returned():
            if returned.lost_partition is None:
                self._out.append(encode_frame(Opcode.BARRIER_REACHED, returned.cookie))
            else:
                self._out.append(encode_frame(Opcode.BARRIER_LOST, returned.cookie, returned.lost_partition))


def _covered(stream: PartitionStream, accepted: int) -> int:
    """How far a barrier needs a stream to be delivered, of a partition whose leader had accepted so much."""
    return accepted if stream.end_seq is None else min(accepted, stream.end_seq)
