"""Chooses the write queues to flush now, and their order. Pure.

SIZE      a queue is as large as a segment should be
AGE       a queue's oldest block has waited long enough: the journal's files, or followers of a feed in replication
          mode ``segment``, should not wait for it
MEMORY    all queues together are over half of the node's bound: the largest first, until they are below
JOURNAL   the journal is over one of its bounds: the queues that need its oldest file
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

P = TypeVar("P")

# With this number of partitions the journal may cost a start half as much as with few: a start reads the files of each
# partition, and looks up each record among all. With very many the bound stays at a third; otherwise all writes would
# be flushed at once.
HALVING_PARTITIONS = 8_192
REPLAY_SHARE_MIN = 1 / 3


class Cause(enum.Enum):
    """The cause of a flush; the table above."""

    SIZE = "size"
    AGE = "age"
    MEMORY = "memory"
    JOURNAL = "journal"
    RETRY = "retry"  # set by the flusher: the last flush has failed, a while ago


class FlushLimits(NamedTuple):
    """The bytes of a queue that make a segment, its age in seconds, the bound of memory in bytes, and those of the
    journal in bytes and in seconds that a start takes to read it.

    ``pushed_age_s`` is the age of the queues that followers get by segments only.
    """

    segment_bytes: int
    age_s: float
    memory_bytes: int
    journal_bytes: int
    journal_replay_s: float
    pushed_age_s: float = math.inf

    def age_bound_s(self, *, is_pushed: bool) -> float:
        """Returns the age in seconds at which a queue is flushed; ``is_pushed``: followers get it by segments only."""
        return min(self.age_s, self.pushed_age_s) if is_pushed else self.age_s

    def replay_bound_s(self, partitions: int) -> float:
        """Returns the seconds that a start of a node with this count of partitions may read the journal."""
        return self.journal_replay_s * replay_share(partitions)

    def is_journal_long(self, nbytes: int, replay_s: float, partitions: int) -> bool:
        """Returns True if a journal with these bytes, and seconds of a start, is over one of its bounds."""
        return nbytes > self.journal_bytes or replay_s > self.replay_bound_s(partitions)


def replay_share(partitions: int) -> float:
    """Returns the share of ``journal_replay_s`` that the journal may cost a start with this count of partitions."""
    return max(1 / (1 + partitions / HALVING_PARTITIONS), REPLAY_SHARE_MIN)


class WriteQueue(NamedTuple, Generic[P]):
    """A write queue that may be flushed.

    ``stable_bytes`` can be flushed now; ``age_s`` is the time since it was last empty; ``oldest_file`` is the oldest
    file of the journal that it needs, or None. ``is_pushed``: followers get it by segments only.
    """

    partition: P
    stable_bytes: int
    age_s: float
    oldest_file: int | None
    is_pushed: bool = False


class Due(NamedTuple, Generic[P]):
    """A partition to flush, and the cause."""

    partition: P
    cause: Cause


def choose(
    queues: Iterable[WriteQueue[P]],
    limits: FlushLimits,
    *,
    memory_used: int,
    journal_is_long: bool,
    journal_oldest: int,
) -> Sequence[Due[P]]:
    """Returns the partitions to flush now, the most urgent first; each partition once."""
    ordered = sorted(queues, key=lambda queue: -queue.stable_bytes)
    due: list[Due[P]] = []
    excess = memory_used - limits.memory_bytes // 2
    for queue in ordered:
        if not queue.stable_bytes:
            continue
        if queue.stable_bytes >= limits.segment_bytes:
            cause = Cause.SIZE
        elif excess > 0:
            cause = Cause.MEMORY
        elif journal_is_long and queue.oldest_file == journal_oldest:
            cause = Cause.JOURNAL
        elif queue.age_s >= limits.age_bound_s(is_pushed=queue.is_pushed):
            cause = Cause.AGE
        else:
            continue
        due.append(Due(queue.partition, cause))
        excess -= queue.stable_bytes
    return due
