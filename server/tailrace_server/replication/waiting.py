"""Answers that wait until something is visible at a level: a majority has it, or the leader's disk.

What waits only for this node's own disk waits in the committer. Each answer is called exactly once: when every seq that
it needs is there, or with the error that ends the waiting. Per partition and level they go in the order in which they
came. What waits is bounded by what a connection may have unanswered (see `Connection.answer_when`).
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable

from tailrace.errors import TailraceError
from tailrace.model import Level
from tailrace_server.partition import Partition

Answer = Callable[[TailraceError | None], None]
_Key = tuple[Partition, Level]


class _Waiting:
    __slots__ = ("answer", "pending")

    def __init__(self, answer: Answer, pending: int) -> None:
        self.answer: Answer | None = answer  # None once it was called
        self.pending = pending  # seqs that are not there yet


class WaitingAnswers:
    """The answers of one node that wait. What is no more watched at a failure is forgotten with it."""

    def __init__(self) -> None:
        self._queues: dict[_Key, collections.deque[tuple[int, _Waiting]]] = {}
        self._notifiers: dict[_Key, Callable[[], None]] = {}

    def __len__(self) -> int:
        return len({id(waiting) for queue in self._queues.values() for _, waiting in queue if waiting.answer})

    def wait(self, level: Level, needs: Iterable[tuple[Partition, int]], answer: Answer) -> None:
        """Calls ``answer(None)`` once each partition shows its seq at ``level``: at once, or later."""
        missing = [(partition, seq) for partition, seq in needs if _reached(partition, level) < seq]
        if not missing:
            answer(None)
            return
        waiting = _Waiting(answer, len(missing))
        for partition, seq in missing:
            queue = self._queue((partition, level))
            # A block that was sent again has a lower seq, and its turn behind what came before it.
            queue.append((max(seq, queue[-1][0]) if queue else seq, waiting))

    def _queue(self, key: _Key) -> collections.deque[tuple[int, _Waiting]]:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = collections.deque()
            partition, level = key

            def advanced() -> None:
                if queue:
                    self._advanced(queue, _reached(partition, level))

            self._notifiers[key] = advanced
            partition.watch(level, advanced)
        return queue

    def _advanced(self, queue: collections.deque[tuple[int, _Waiting]], seq: int) -> None:
        while queue and queue[0][0] <= seq:
            _, waiting = queue.popleft()
            waiting.pending -= 1
            if not waiting.pending:
                _call(waiting, None)

    def fail(self, error: TailraceError, partition: Partition | None = None) -> None:
        """All that waits, or what waits for this partition too, is told ``error``."""
        keys = [key for key in self._queues if partition is None or key[0] is partition]
        queues = []
        for key in keys:
            key[0].unwatch(key[1], self._notifiers.pop(key))
            queues.append(self._queues.pop(key))
        for queue in queues:
            for _, waiting in queue:
                _call(waiting, error)


def _call(waiting: _Waiting, error: TailraceError | None) -> None:
    answer, waiting.answer = waiting.answer, None
    if answer is not None:
        answer(error)


def _reached(partition: Partition, level: Level) -> int:
    if level == Level.QUORUM and partition.state == "leader":
        return min(partition.quorum_seq, partition.durable_seq)
    return partition.visible_seq(level)
