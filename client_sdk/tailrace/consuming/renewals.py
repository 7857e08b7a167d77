"""Keeps the checkpoints of a plan alive while one of its consumers reads. Sans-IO.

    driver   checkpoint A ── plan ── checkpoint B
    tasks    reads from A ......... waits, reads from B
             asks for a byte of B now and then

A node keeps the files of a checkpoint for a time after the last fetch from it. A job with many tasks comes to the last
ones much later. So each of its processes asks for one byte of each checkpoint, one after the other, several times
within that time. One object serves all consumers of a plan in a process, so that short ones need not begin anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tailrace.wire.segment_messages import SegmentFetch

# A checkpoint is renewed so often within the time for which it is kept: one renewal may be late.
RENEWALS = 3


class RenewedCheckpoint(NamedTuple):
    """A checkpoint of a plan: its id, one of its segments, and the seconds for which the node keeps it."""

    id: bytes
    segment_id: bytes
    kept_s: float


class Renewals:
    """The checkpoints of one plan. Only this file sets the fields."""

    def __init__(self, checkpoints: Sequence[RenewedCheckpoint]) -> None:
        self._left = list(checkpoints)
        self._number = 0  # of the checkpoint that is renewed next
        self._due_at = float("-inf")  # when the next round begins, in monotonic seconds
        self._round_at = float("-inf")  # when the present round began
        self._asked: tuple[int, RenewedCheckpoint] | None = None  # the request on this connection without an answer

    def connection_made(self) -> None:
        """Forgets the request of an earlier connection. Its checkpoint is asked for again."""
        self._asked = None

    def request(self, now: float, new_id: Callable[[], int]) -> list[bytes]:
        """Returns the next request, if one is due. ``new_id`` returns its id."""
        if self._asked is not None or not self._left or now < self._due_at:
            return []
        if not self._number:
            self._round_at = now
        checkpoint = self._left[self._number]
        id = new_id()
        self._asked = id, checkpoint
        return [SegmentFetch(checkpoint.id, checkpoint.segment_id, 0, 1).encode(id)]

    def takes(self, id: int, *, is_kept: bool) -> bool:
        """Takes the answer to a request. Returns False if it is not one of this object's.

        ``is_kept``: the node has the checkpoint. Otherwise it is not asked for again.
        """
        if self._asked is None or self._asked[0] != id:
            return False
        _, checkpoint = self._asked
        self._asked = None
        if is_kept:
            self._number += 1
        else:
            self._left.remove(checkpoint)
        if self._number >= len(self._left):
            self._number = 0
            self._due_at = self._round_at + checkpoint.kept_s / RENEWALS
        return True
