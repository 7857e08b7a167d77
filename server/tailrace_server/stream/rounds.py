"""The streams of one connection: rounds over the partitions that have news. Pure: seqs and blocks in, bytes out.

    news: (feed id, partition, stream id), kept sorted ── a pass in this order, a slice or a whole snapshot each
                                                             │
                     SNAPSHOT_START, BLOCK ..., SNAPSHOT_END │ ... after the pass: ROUND_COMPLETE, and again

Partitions without news are not looked at and cost nothing. A partition with a large snapshot has a slice of it in each
pass, so that it does not hold up the others and their barriers.
Source: the UPR design, "How ep-engine sends snapshots to UPR clients".
"""

from __future__ import annotations

from collections.abc import Callable

from sortedcontainers import SortedSet

from tailrace.block import Block
from tailrace.model import EndReason
from tailrace.wire.frames import encode_frame, frame_header
from tailrace.wire.messages import SnapshotStartMessage, StreamEnd, encode_number, encode_seq
from tailrace.wire.opcodes import Opcode
from tailrace_server.stream.barriers import Barriers
from tailrace_server.stream.partition_stream import PartitionStream

# What one partition may send in a pass before it is the next one's turn: a few blocks of the usual size.
SLICE_BYTES = 1024 * 1024

_Key = tuple[bytes, int, int]


class Rounds:
    """What one connection streams. ``window_bytes`` bounds what is sent and not yet consumed."""

    def __init__(self, window_bytes: int) -> None:
        self.window_bytes = window_bytes
        self.outstanding_bytes = 0
        self.round_number = 0
        self.streams: dict[int, PartitionStream] = {}
        self._notifiers: dict[int, Callable[[], None]] = {}
        self._news: SortedSet = SortedSet()
        self._turn: _Key | None = None  # the last one that had its turn in this pass
        self._interrupted: _Key | None = None  # whose turn a full window has interrupted
        self._in_pass = False
        self._out: list[bytes | memoryview] = []
        self.barriers = Barriers()

    @property
    def window_full(self) -> bool:
        """There is something to send, and the consumer has not granted the room."""
        return self.outstanding_bytes >= self.window_bytes

    @property
    def has_news(self) -> bool:
        """There may be something to send."""
        return bool(self._news) or self._in_pass or bool(self._out)

    def open(self, stream: PartitionStream, notify: Callable[[], None]) -> None:
        """Adds a stream; ``notify`` is called whenever it has news."""
        key = (stream.partition.feed_id, stream.partition.id, stream.id)

        def news() -> None:
            if stream.has_news:
                self._news.add(key)
                notify()

        self.streams[stream.id] = stream
        self._notifiers[stream.id] = news
        stream.partition.watch(stream.level, news)
        news()
        if stream.at_end:
            self._end(stream, EndReason.END_REACHED, "the end that was asked for is reached")
            notify()

    def close(self, stream_id: int, reason: EndReason, message: str = "") -> None:
        """Ends a stream and says so; nothing where there is none of this id."""
        stream = self.streams.get(stream_id)
        if stream is not None:
            self._end(stream, reason, message)

    def close_all(self) -> None:
        """Forgets every stream, without a word: the connection is gone."""
        for stream in list(self.streams.values()):
            self._forget(stream)

    def _forget(self, stream: PartitionStream) -> None:
        del self.streams[stream.id]
        stream.partition.unwatch(stream.level, self._notifiers.pop(stream.id))
        self._news.discard((stream.partition.feed_id, stream.partition.id, stream.id))

    def _end(self, stream: PartitionStream, reason: EndReason, message: str) -> None:
        self._forget(stream)
        partition = stream.partition
        self._out.append(StreamEnd(partition.id, reason, message, partition.log.term).encode(stream.id))
        if reason is EndReason.END_REACHED:
            self.barriers.finished(stream.id)
        else:
            self.barriers.lost(stream.id, partition.id)
        self._return_barriers()

    def barrier(self, cookie: bytes) -> None:
        """A cookie arrived; it goes back from a later ``next_buffers``."""
        streams = self.streams.values()
        self.barriers.add(cookie, ((s.id, _covered(s), s.delivered_seq) for s in streams))
        self._return_barriers()

    def credit(self, consumed_bytes: int) -> None:
        """The consumer has consumed so much."""
        self.outstanding_bytes = max(self.outstanding_bytes - consumed_bytes, 0)

    def next_buffers(self, bytes_max: int) -> list[bytes | memoryview]:
        """What is to be sent next, about ``bytes_max`` bytes; empty where there is nothing, or no room."""
        budget = bytes_max
        while budget > 0 and not self.window_full:
            key = self._next_key()
            if key is None:
                break
            budget -= self._give_turn(key)
        buffers, self._out = self._out, []
        return buffers

    def _next_key(self) -> _Key | None:
        """Whose turn it is; begins and completes passes."""
        if not self._in_pass:
            if not self._news:
                return None
            self._in_pass, self._turn = True, None
            self.round_number += 1
        interrupted, self._interrupted = self._interrupted, None
        if interrupted in self._news:
            return interrupted
        index = 0 if self._turn is None else self._news.bisect_right(self._turn)
        if index >= len(self._news):
            self._in_pass = False
            self._out.append(encode_number(Opcode.ROUND_COMPLETE, self.round_number))
            return self._next_key()
        key: _Key = self._news[index]
        return key

    def _give_turn(self, key: _Key) -> int:
        """One slice of a stream's snapshot; the bytes that it took."""
        stream = self.streams[key[2]]
        if not stream.in_snapshot:
            self._start_snapshot(stream)
        taken = 0
        while taken < SLICE_BYTES and (block := stream.next_block()) is not None:
            taken += self._send_block(stream, block)
            if self.window_full and not stream.all_sent:
                self._interrupted = key  # its turn goes on where the consumer grants more
                return taken
        if stream.all_sent:
            self._end_snapshot(stream)
        self._turn = key
        if not stream.has_news:
            self._news.discard(key)
        if stream.at_end and not stream.in_snapshot:
            self._end(stream, EndReason.END_REACHED, "the end that was asked for is reached")
        return taken

    def _start_snapshot(self, stream: PartitionStream) -> None:
        stream.begin_snapshot()
        partition = stream.partition
        start = SnapshotStartMessage(
            partition.id,
            True,
            partition.log.branch,
            stream.snapshot_after,
            stream.snapshot_last,
            partition.purge_seq,
        )
        self._out.append(start.encode(stream.id))

    def _send_block(self, stream: PartitionStream, block: Block) -> int:
        size = block.nbytes
        self._out.append(frame_header(Opcode.BLOCK, size, stream.id) + block.head)
        self._out.append(block.body)
        self.outstanding_bytes += size
        if self.barriers:
            self.barriers.delivered(stream.id, stream.delivered_seq)
            self._return_barriers()
        return size

    def _end_snapshot(self, stream: PartitionStream) -> None:
        stream.end_snapshot()
        self._out.append(encode_seq(Opcode.SNAPSHOT_END, stream.partition.id, stream.snapshot_last, stream.id))

    def _return_barriers(self) -> None:
        for returned in self.barriers.returned():
            if returned.lost_partition is None:
                self._out.append(encode_frame(Opcode.BARRIER_REACHED, returned.cookie))
            else:
                self._out.append(encode_frame(Opcode.BARRIER_LOST, returned.cookie, returned.lost_partition))


def _covered(stream: PartitionStream) -> int:
    """How far a barrier that arrives now needs a stream to be delivered."""
    accepted = stream.partition.high_seq
    return accepted if stream.end_seq is None else min(accepted, stream.end_seq)
