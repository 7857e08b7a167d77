"""Barrier cookies of one connection. Pure: seqs in, cookies out.

A cookie remembers, for each stream of the connection that was behind when it arrived, the last seq that the partition
had accepted then (at any level). It comes back once all of these were delivered that far, in the order of arrival.
Source: the UPR design, "Barrier Cookies"; noting seqs instead of counting cycles survives levels and interleaving.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import NamedTuple

from tailrace.model.failover import SEQ_MAX


class Returned(NamedTuple):
    """A cookie that goes back; ``lost_partition`` is set if a stream ended before it got that far."""

    cookie: bytes
    lost_partition: int | None = None


class Barrier:
    """A cookie that has not gone back yet."""

    __slots__ = ("cookie", "lost_partition", "pending")

    def __init__(self, cookie: bytes) -> None:
        self.cookie = cookie
        self.pending = 0  # needs that are not met
        self.lost_partition: int | None = None


class WaitingBarriers:
    """The cookies that have not gone back yet.

    A cookie waits for the cookies before it anyway, so it notes a stream only if it needs more of it than they do.
    Otherwise a client that reads none of its many streams could fill the memory with cookies.
    """

    def __init__(self) -> None:
        self.waiting: list[Barrier] = []  # a deque takes 700 bytes more, which most connections never need
        # stream id -> seqs that have to be delivered, and what for; both ascend
        self._needs: dict[int, collections.deque[tuple[int, Barrier]]] = {}

    def __len__(self) -> int:
        return len(self.waiting)

    def add(self, cookie: bytes, streams: Iterable[tuple[int, int, int]], *, held: bool = False) -> Barrier:
        """Adds a cookie that arrived; ``streams`` are (stream id, accepted seq, delivered seq) of every stream.

        ``held``: it also waits for ``release``.
        """
        barrier = Barrier(cookie)
        barrier.pending = int(held)
        self.waiting.append(barrier)
        for id, accepted, delivered in streams:
            if delivered < accepted:
                needs = self._needs.setdefault(id, collections.deque())
                if not needs or needs[-1][0] < accepted:
                    needs.append((accepted, barrier))
                    barrier.pending += 1
        return barrier

    def release(self, barrier: Barrier) -> None:
        """Ends the wait of a barrier that was ``held``. Does nothing if it was lost meanwhile."""
        if barrier.lost_partition is None:
            barrier.pending -= 1

    def expect(self, barrier: Barrier, stream_ids: Iterable[int]) -> None:
        """Lets ``barrier`` wait for these streams until ``settle`` tells how far they have to come.

        If one of them ends before, the barrier is lost. Streams that it waits for already are left as they are. At most
        two barriers may wait like this; ``settle`` them in their order.
        """
        for id in stream_ids:
            needs = self._needs.get(id)
            if needs is None:
                needs = self._needs[id] = collections.deque()
            if not needs or needs[-1] != (SEQ_MAX, barrier):
                needs.append((SEQ_MAX, barrier))
                barrier.pending += 1

    def settle(self, barrier: Barrier, streams: Iterable[tuple[int, int, int]]) -> None:
        """Sets the seqs that ``expect`` left open: (stream id, accepted seq, delivered seq). Skips ended streams."""
        for id, accepted, delivered in streams:
            needs = self._needs.get(id)
            if needs is None:
                continue
            # The one that is expected next may be behind it.
            later = needs.pop() if len(needs) > 1 and needs[-2] == (SEQ_MAX, barrier) else None
            if needs[-1] == (SEQ_MAX, barrier):
                needs.pop()
                if accepted > max(delivered, needs[-1][0] if needs else 0):
                    needs.append((accepted, barrier))
                else:
                    barrier.pending -= 1
            if later is not None:
                needs.append(later)
            if not needs:
                del self._needs[id]

    def lose_all(self, partition: int) -> None:
        """Loses every cookie that waits."""
        for barrier in self.waiting:
            if barrier.lost_partition is None:
                barrier.lost_partition = partition
            barrier.pending = 0
        self._needs.clear()

    def delivered(self, stream_id: int, seq: int) -> None:
        """Notes that a stream has been delivered up to ``seq``, at which a consumer may stand."""
        needs = self._needs.get(stream_id)
        if needs is None:
            return
        while needs and needs[0][0] <= seq:
            needs.popleft()[1].pending -= 1
        if not needs:
            del self._needs[stream_id]

    def finished(self, stream_id: int) -> None:
        """Notes that a stream reached the end that was asked for: it covers every cookie."""
        for _, barrier in self._needs.pop(stream_id, ()):
            barrier.pending -= 1

    def lost(self, stream_id: int, partition: int) -> None:
        """Loses the cookies that wait for a stream that ended for another reason."""
        if stream_id not in self._needs:
            return
        _, first = self._needs[stream_id][0]
        for barrier in reversed(self.waiting):
            if barrier.lost_partition is None:
                barrier.lost_partition = partition
            barrier.pending = 0
            if barrier is first:
                break
        for id, needs in list(self._needs.items()):
            while needs and needs[-1][1].lost_partition is not None:
                needs.pop()
            if not needs:
                del self._needs[id]

    def returned(self) -> list[Returned]:
        """Returns the cookies that may go back now, oldest first, and forgets them."""
        returned = []
        for barrier in self.waiting:
            if barrier.pending:
                break
            returned.append(Returned(barrier.cookie, barrier.lost_partition))
        del self.waiting[: len(returned)]
        return returned
