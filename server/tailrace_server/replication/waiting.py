"""Answers that wait until something is visible at a level: on a majority's disks, or on the leader's disk.

Answers that wait only for this node's own disk wait in the committer. Each answer is called exactly once: when every
seq that it needs is there, or with the error that ends the waiting. Those of one partition and level are called in the
order in which they came. A connection may have a bounded number of unanswered requests (serving/answers.py), so the
number of waiting answers is bounded. Cancelled ones are removed soon, since a majority may be away for a long time
while clients come and go.
"""

from __future__ import annotations

import collections
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator

from tailrace.errors import TailraceError, UnknownFeed
from tailrace.model import Level
from tailrace_server.host.answers import Answer, Cancel
from tailrace_server.partition.partition import Partition

# As globals: an attribute of an Enum is slow to read, and each write needs them.
_QUORUM = Level.QUORUM


class Waiter(ABC):
    """What waits for seqs. Only its own methods and its queues change its fields."""

    __slots__ = ("is_over", "pending", "queues")

    def __init__(self) -> None:
        self.is_over = False  # it was ended or cancelled
        self.queues: tuple[_Queue, ...] = ()
        self.pending = 0  # the number of seqs that are not there yet

    def reached(self) -> None:
        """Notes that one of the seqs is there."""
        self.pending -= 1
        if not self.pending:
            self.call(None)

    def call(self, error: TailraceError | None) -> None:
        """Calls ``end``, unless it was called or the waiting was cancelled."""
        if not self.is_over:
            self.is_over = True
            self.end(error)

    @abstractmethod
    def end(self, error: TailraceError | None) -> None:
        """Takes the end of the waiting, or the error that ends it. It may not raise."""

    def cancel(self) -> None:
        """Ends the waiting without a call."""
        self.is_over = True
        for queue in self.queues:
            queue.cancelled()


class _WaitingAnswer(Waiter):
    __slots__ = ("_answer",)

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self._answer = answer

    def end(self, error: TailraceError | None) -> None:
        self._answer(error)

    def cancel(self) -> None:
        super().cancel()
        del self._answer  # this may stay in a queue for long


class _Queue:
    """The answers that wait for seqs of one partition at one level, in order."""

    def __init__(self, partition: Partition, level: Level) -> None:
        self.partition = partition
        self.level = level
        self.waiting: collections.deque[tuple[int, Waiter]] = collections.deque()
        self._cancelled = 0  # an upper bound of the cancelled answers in ``waiting``
        partition.watchers.watch(level, self.advanced)

    def add(self, seq: int, waiting: Waiter) -> None:
        # A block that was sent again has a lower seq. Its answer goes behind the answers that came before it.
        self.waiting.append((max(seq, self.waiting[-1][0]) if self.waiting else seq, waiting))
        waiting.queues = (*waiting.queues, self)
        waiting.pending += 1

    def advanced(self) -> None:
        """Calls the answers whose seqs have become visible."""
        if not self.waiting:
            return
        seq = _reached(self.partition, self.level)
        while self.waiting and self.waiting[0][0] <= seq:
            self.waiting.popleft()[1].reached()

    def cancelled(self) -> None:
        """Notes that an answer was cancelled, and removes the cancelled ones once they may be the majority."""
        self._cancelled += 1
        if 2 * self._cancelled > len(self.waiting):
            self.waiting = collections.deque(item for item in self.waiting if not item[1].is_over)
            self._cancelled = 0

    def fail(self, error: TailraceError) -> None:
        """Fails all answers of the queue with ``error``, and watches the partition no more."""
        self.partition.watchers.unwatch(self.level, self.advanced)
        while self.waiting:
            self.waiting.popleft()[1].call(error)


class WaitingAnswers:
    """The answers of a node that wait."""

    def __init__(self) -> None:
        self._queues: dict[tuple[Partition, Level], _Queue] = {}

    def __len__(self) -> int:
        """Returns the number of places in queues: at most one for each partition that an answer needs."""
        return sum(len(queue.waiting) for queue in self._queues.values())

    def wait(self, level: Level, needs: Iterable[tuple[Partition, int]], answer: Answer) -> Cancel | None:
        """Calls ``answer(None)`` once each partition shows its seq at ``level``. Returns None if that was at once.

        Else returns a function that cancels the waiting. The answer gets UnknownFeed if the feed of a partition was
        dropped.
        """
        missing = []
        for partition, seq in needs:
            if _reached(partition, level) < seq:
                if partition.is_dropped:  # while the request waited for something else
                    answer(UnknownFeed(f"feed {partition.feed_id.hex()} was dropped"))
                    return None
                missing.append((partition, seq))
        if not missing:
            answer(None)
            return None
        waiting = _WaitingAnswer(answer)
        for partition, seq in missing:
            self._queue(partition, level).add(seq, waiting)
        return waiting.cancel

    def wait_for(self, level: Level, partition: Partition, seq: int, waiting: Waiter) -> None:
        """Does as ``wait`` for one partition, whose feed was not dropped, with a ``waiting`` that the caller has made.

        It is cancelled by its own method.
        """
        if _reached(partition, level) >= seq:
            waiting.call(None)
        else:
            self._queue(partition, level).add(seq, waiting)

    def _queue(self, partition: Partition, level: Level) -> _Queue:
        queue = self._queues.get((partition, level))
        if queue is None:
            queue = self._queues[partition, level] = _Queue(partition, level)
        return queue

    def awaited(self, level: Level) -> Iterator[Partition]:
        """Returns the partitions for which answers wait at ``level``. They must not change meanwhile."""
        return (queue.partition for queue in self._queues.values() if queue.level == level and queue.waiting)

    def fail_where(self, is_concerned: Callable[[Partition], bool], error: TailraceError) -> None:
        """Fails every answer that waits for a partition for which ``is_concerned`` is true."""
        for partition in dict.fromkeys(partition for partition, _ in self._queues if is_concerned(partition)):
            self.fail(error, partition)

    def fail(self, error: TailraceError, partition: Partition | None = None) -> None:
        """Fails every answer that waits for ``partition``, or every answer if that is None."""
        if partition is None:
            queues, self._queues = list(self._queues.values()), {}
        else:  # a dropped feed has thousands of partitions, so the other queues are not searched for each
            queues = [queue for level in Level if (queue := self._queues.pop((partition, level), None)) is not None]
        for queue in queues:
            queue.fail(error)


def _reached(partition: Partition, level: Level) -> int:
    if level == _QUORUM and partition.state == "leader":
        return min(partition.quorum_seq, partition.durable_seq)
    return partition.visible_seq(level)
