"""Hands the messages of a leader that pushes segments to the partitions, which work beside each other.

    stream ──> one queue for each partition ──> PushedSegments: offer, tables, parts ──> answer

A partition's messages are handled in their order, one at a time, or some parts of a file together. The fsyncs of one
partition do not hold up the others. An error is the partition's own, too: the leader is told to offer the segment again
later, and status names the partition (receive_failures.py). Errors of the leader itself, and of the node's journal, go
to the owner of the stream.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import trio

from tailrace.errors import NotDurable, ProtocolError, TailraceError, UnknownFeed
from tailrace.model.failover import FailoverLog
from tailrace.wire.push_messages import (
    DeclineReason,
    SegmentAnswer,
    SegmentDecline,
    SegmentOffered,
    SegmentTransit,
)
from tailrace.wire.replica_messages import Producers
from tailrace.wire.stage_messages import SinksTold

if TYPE_CHECKING:
    from tailrace_server.partition.partition import Partition
    from tailrace_server.replication.pushed_segments import PushedSegments
    from tailrace_server.upkeep.receive_failures import ReceiveFailures

log = logging.getLogger("tailrace.server")

PushMessage: TypeAlias = SegmentOffered | SegmentTransit | Producers | SinksTold
Answer: TypeAlias = "Callable[[Partition, SegmentAnswer], None]"

Start: TypeAlias = "Callable[[Callable[[], Awaitable[None]]], None]"
OnError: TypeAlias = "Callable[[Partition, Exception], Awaitable[None]]"

# The messages of a partition that wait at most. A leader sends an offer, two tables and four parts without an answer.
WAITING_MAX = 8
# The parts that are written at a time at least, but for the last ones of a file: each time takes a thread. A leader
# sends as many, at least, before it waits for an answer.
PARTS_TOGETHER = 2


class PushedPartitions:
    """The pushed segments of one feed, for one following of its leader."""

    def __init__(
        self, segments: PushedSegments, failures: ReceiveFailures, answer: Answer, start: Start, on_error: OnError
    ) -> None:
        """Prepares for messages.

        Args:
            segments: receives them.
            failures: the partitions that status tells of.
            answer: sends an answer; the partition's state is that of the answer.
            start: runs a task until the pull ends.
            on_error: handles an error of the leader or of the journal, when the messages of the partition are dropped.
        """
        self._segments = segments
        self._failures = failures
        self._answer = answer
        self._start = start
        self._on_error = on_error
        self._waiting: dict[Partition, collections.deque[tuple[PushMessage, FailoverLog]]] = {}
        self._working: set[Partition] = set()  # those of them that have a task
        self._handled = trio.Event()  # set when a partition has handled a message

    def interrupt(self) -> None:
        """Ends all transfers; no task runs any more. The half files stay."""
        self._segments.interrupt()

    def is_receiving(self, partition: Partition) -> bool:
        """Returns whether tables that come now belong to a segment of ``partition``."""
        return partition in self._waiting or self._segments.is_receiving(partition)

    def is_transferring(self, partition: Partition) -> bool:
        """Returns whether parts of an accepted segment of ``partition`` are missing."""
        return self._segments.is_receiving(partition)

    async def take(self, partition: Partition, message: PushMessage, leaders_log: FailoverLog) -> None:
        """Handles a message behind the partition's earlier ones. Waits only if too many of these wait."""
        while len(self._waiting.get(partition, ())) >= WAITING_MAX:
            await self._next()
        waiting = self._waiting.setdefault(partition, collections.deque())
        waiting.append((message, leaders_log))
        if partition not in self._working and not self._is_early(partition):
            self._working.add(partition)
            self._start(partial(self._work, partition))

    def _is_early(self, partition: Partition) -> bool:
        """Returns whether the waiting messages are parts, and too few to write them yet."""
        waiting = self._waiting[partition]
        return len(waiting) < PARTS_TOGETHER and all(
            isinstance(message, SegmentTransit) and self._segments.may_wait(partition, message)
            for message, _ in waiting
        )

    async def end(self, partition: Partition) -> None:
        """Ends the transfer of a partition whose stream has ended, begins anew, or rolls back. The half file stays.

        Returns when no step is under way. Later answers are to another stream.
        """
        while partition in self._working:
            self._waiting[partition].clear()  # the task has taken the ones that it handles
            await self._next()
        self._waiting.pop(partition, None)
        self._segments.forget(partition)
        await self._segments.settle(partition)

    async def _next(self) -> None:
        """Returns when a partition has handled a message."""
        await self._handled.wait()

    async def _work(self, partition: Partition) -> None:
        """Handles the waiting messages of a partition, and ends after the last one that need not wait for others."""
        waiting = self._waiting[partition]
        failure: Exception | None = None
        try:
            while waiting and not self._is_early(partition):
                await self._handle(partition, *_next_together(waiting))
                self._tell_handled()
        except Exception as error:
            failure = error
            waiting.clear()
        finally:
            self._working.discard(partition)
            if not waiting:
                del self._waiting[partition]
            self._tell_handled()
        if failure is not None:
            await self._on_error(partition, failure)

    def _tell_handled(self) -> None:
        handled, self._handled = self._handled, trio.Event()
        handled.set()

    async def _handle(self, partition: Partition, messages: Sequence[PushMessage], leaders_log: FailoverLog) -> None:
        """Handles one message, or some parts together. Raises the errors that are not the partition's alone."""
        answer: SegmentAnswer | None
        message = messages[0]
        if isinstance(message, Producers):
            self._segments.told_producers(partition, message)
            return
        if isinstance(message, SinksTold):
            self._segments.told_sinks(partition, message)
            return
        try:
            if isinstance(message, SegmentOffered):
                answer = await self._segments.offered(partition, message, leaders_log)
            else:
                parts = [part for part in messages if isinstance(part, SegmentTransit)]
                answer = await self._segments.got_parts(partition, parts, leaders_log)
        except (ProtocolError, NotDurable, UnknownFeed):
            raise
        except (TailraceError, OSError) as error:
            answer = self._failed(partition, message.number, error)
        except Exception as error:  # a bug, as in ``Connections.handle``: the other partitions go on
            log.exception("a segment of partition %s ended by an internal error", partition.id)
            answer = self._failed(partition, message.number, error)
        if answer is not None:
            self._answer(partition, answer)

    def _failed(self, partition: Partition, number: int, error: Exception) -> SegmentDecline:
        """Ends the transfer. Returns the answer to the offer ``number``: it is repeated after a pause."""
        self._segments.forget(partition)
        return SegmentDecline(number, DeclineReason.OVERLOADED, self._failures.failed(partition, error))


def _next_together(
    waiting: collections.deque[tuple[PushMessage, FailoverLog]],
) -> tuple[list[PushMessage], FailoverLog]:
    """Takes the next message, and if it is a part the parts behind it, and returns them."""
    message, leaders_log = waiting.popleft()
    messages = [message]
    while waiting and isinstance(message, SegmentTransit) and isinstance(waiting[0][0], SegmentTransit):
        messages.append(waiting.popleft()[0])
    return messages, leaders_log
