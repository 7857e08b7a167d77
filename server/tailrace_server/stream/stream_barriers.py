"""Barrier cookies over the open streams of one connection: what each stream has to deliver before a cookie returns.

    BARRIER ──> seqs accepted now: here, or asked of the leader ──> WaitingBarriers ──> BARRIER_REACHED or BARRIER_LOST

Pure: seqs in, frames out. `tailrace_server.stream.barriers` counts what is still to be delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sized

from tailrace.wire.frames import encode_frame
from tailrace.wire.opcodes import Opcode
from tailrace_server.stream.barriers import Barrier, WaitingBarriers
from tailrace_server.stream.partition_stream import PartitionStream
from tailrace_server.stream.stream_slot import StreamSlot


class StreamBarriers:
    """The cookies of one connection that have not gone back yet. Only its own methods change its fields."""

    def __init__(self, slots: Mapping[int, StreamSlot], send: Callable[[bytes], None]) -> None:
        """``slots`` are always those of the open streams, by stream id. ``send`` takes the frames of cookies."""
        self._slots = slots
        self._send = send
        self._waiting = WaitingBarriers()
        self.waiting: Sized = self._waiting.waiting  # empty if no cookie waits: each round asks, at no cost of a call

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, cookie: bytes, *, held: bool = False) -> Barrier:
        """Adds a cookie. It returns when all that its streams' partitions have accepted by now was sent.

        If it is ``held``, it also waits for `release`.
        """
        # Most have been sent everything: of a thousand, finding that out is nearly all that a barrier costs.
        streams = [slot.stream for slot in self._slots.values()]
        behind = [s for s in streams if s.delivered_seq < s.partition.high_seq]
        needs = [(s.id, _covered(s, s.partition.high_seq), s.delivered_seq) for s in behind]
        barrier = self._waiting.add(cookie, needs, held=held)
        self._return()
        return barrier

    def add_behind(self, cookie: bytes, first: Barrier | None = None) -> None:
        """Adds a cookie on a follower that the cookies before it cover.

        ``first`` is the one of `add_elsewhere` among those. It then waits for the streams opened since, too.
        """
        self._waiting.add(cookie, ())
        if first is not None:
            self._waiting.expect(first, self._slots)
        self._return()

    def add_elsewhere(self, cookie: bytes) -> Barrier:
        """Adds a cookie on a follower: the leader is to be asked how far the streams have to come.

        It is lost with the first stream that ends before that.
        """
        barrier = self._waiting.add(cookie, (), held=True)
        self._waiting.expect(barrier, self._slots)
        return barrier

    def asked(self, barrier: Barrier) -> None:
        """Notes that the leader is asked now, for ``barrier`` and for those that came after it."""
        self._waiting.release(barrier)

    def settle(self, barrier: Barrier, accepted: Callable[[bytes, int], int]) -> None:
        """Takes the leader's answer: ``accepted(feed id, partition)`` is how far it has come there."""
        streams = [slot.stream for slot in self._slots.values()]
        self._waiting.settle(
            barrier,
            [(s.id, _covered(s, accepted(s.partition.feed_id, s.partition.id)), s.delivered_seq) for s in streams],
        )
        self._return()

    def release(self, barrier: Barrier) -> None:
        """Lets a barrier that was ``held`` return."""
        self._waiting.release(barrier)
        self._return()

    def lose_all(self) -> None:
        """Loses every cookie that waits: the seqs that were accepted before it can no longer be learned."""
        self._waiting.lose_all(0)
        self._return()

    def delivered(self, stream: PartitionStream) -> None:
        """Notes how far a stream has come."""
        self._waiting.delivered(stream.id, stream.delivered_seq)
        self._return()

    def ended(self, stream: PartitionStream, *, is_complete: bool) -> None:
        """Notes that a stream has ended; ``is_complete``: all that was asked for was sent."""
        if is_complete:
            self._waiting.finished(stream.id)
        else:
            self._waiting.lost(stream.id, stream.partition.id)
        self._return()

    def _return(self) -> None:
        for returned in self._waiting.returned():
            if returned.lost_partition is None:
                self._send(encode_frame(Opcode.BARRIER_REACHED, returned.cookie))
            else:
                self._send(encode_frame(Opcode.BARRIER_LOST, returned.cookie, returned.lost_partition))


def _covered(stream: PartitionStream, accepted: int) -> int:
    """Returns how far a barrier needs a stream whose partition's leader had accepted ``accepted``."""
    return accepted if stream.end_seq is None else min(accepted, stream.end_seq)
