"""Barrier cookies of one connection. Pure: seqs in, cookies out.

A cookie remembers, for each stream of the connection that was behind when it arrived, the last seq that the partition
had accepted then (at any level). It comes back once all of these were delivered that far, in the order of arrival.
Source: the UPR design, "Barrier Cookies"; noting seqs instead of counting cycles survives levels and interleaving.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable
from typing import NamedTuple


class Returned(NamedTuple):
    """A cookie that goes back; ``lost_partition`` is set where a stream ended before it got that far."""

    cookie: bytes
    lost_partition: int | None = None


class _Barrier:
    __slots__ = ("cookie", "lost_partition", "pending")

    def __init__(self, cookie: bytes, pending: dict[int, int]) -> None:
        self.cookie = cookie
        self.pending = pending  # stream id -> seq that has to be delivered
        self.lost_partition: int | None = None


class Barriers:
    """The cookies that have not gone back yet."""

    def __init__(self) -> None:
        self.waiting: collections.deque[_Barrier] = collections.deque()

    def __len__(self) -> int:
        return len(self.waiting)

    def add(self, cookie: bytes, streams: Iterable[tuple[int, int, int]]) -> None:
        """A cookie arrived; ``streams`` are (stream id, accepted seq, delivered seq) of every stream."""
        self.waiting.append(
            _Barrier(cookie, {id: accepted for id, accepted, delivered in streams if delivered < accepted})
        )

    def delivered(self, stream_id: int, seq: int) -> None:
        """A stream has been delivered up to ``seq``, where a consumer may stand."""
        for barrier in self.waiting:
            if barrier.pending.get(stream_id, seq + 1) <= seq:
                del barrier.pending[stream_id]

    def finished(self, stream_id: int) -> None:
        """A stream reached its own end: it covers every cookie."""
        for barrier in self.waiting:
            barrier.pending.pop(stream_id, None)

    def lost(self, stream_id: int, partition: int) -> None:
        """A stream ended for another reason: the cookies that wait for it cannot be covered."""
        for barrier in self.waiting:
            if barrier.pending.pop(stream_id, None) is not None:
                barrier.lost_partition = partition
                barrier.pending.clear()

    def returned(self) -> list[Returned]:
        """The cookies that may go back now, oldest first; they are forgotten."""
        returned = []
        while self.waiting and not self.waiting[0].pending:
            barrier = self.waiting.popleft()
            returned.append(Returned(barrier.cookie, barrier.lost_partition))
        return returned
