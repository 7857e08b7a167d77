"""The answers of one connection: queued at once, or when what they tell is as safe as they say.

    answer ───────────────────────────────────────────────┐
    answer_when_durable, answer_written ── committer ─────┤
    answer_when ── node.waiting (a majority) ─────────────┼──> queue ──> Connection.flush
    answer_when_confirmed ── node.confirm (who leads) ────┘

``_answer_bytes`` counts an answer from the moment that it waits, and a connection with too many of them is not read
from: that bounds what waits.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from tailrace.errors import TailraceError
from tailrace.model import Level, VersionRange
from tailrace.wire.messages import encode_error
from tailrace_server.frames import WRITTEN_FRAME_BYTES, written
from tailrace_server.partition import Partition
from tailrace_server.replication.role import Role
from tailrace_server.replication.waiting import Answer, Cancel
from tailrace_server.segment import SegmentDamaged

if TYPE_CHECKING:
    from tailrace_server.node import Node


class Answers:
    """What a connection has to answer with; ``Connection`` sends it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._answers: list[bytes] = []
        self._answer_bytes = 0  # of answers that have not left, those included that wait for something
        self._closing = False
        # What waits for other nodes may do so for ever: it has to end with the connection.
        self._waits: dict[int, Cancel] = {}
        self._wait_numbers = itertools.count()

    def answer(self, data: bytes) -> None:
        """Queues an answer; ``flush`` sends it together with others. Nothing is said after the last word."""
        self._answer_bytes += len(data)
        self._queue(data)

    def answer_error(self, error: TailraceError, id: int) -> None:
        """Queues an ERROR."""
        if isinstance(error, SegmentDamaged):
            self.node.found_damage(error)
        self.answer(encode_error(error, id))

    def answer_when_durable(self, data: bytes, id: int) -> None:
        """Queues an answer once all that is written now is durable, or an ERROR where that fails."""
        self._answer_bytes += len(data)
        self.node.committer.when_durable(partial(self._waited, data, id))

    def answer_written(self, versions: VersionRange, id: int) -> None:
        """Queues a WRITTEN once all that is written now is durable, or an ERROR where that fails.

        It is made when the streams have been sent, since a consumer has done its waiting.
        """
        self._answer_bytes += WRITTEN_FRAME_BYTES

        def durable(error: TailraceError | None) -> None:
            if error is None:
                self._queue(written(versions, id))
            else:
                self._answer_bytes -= WRITTEN_FRAME_BYTES
                self.answer_error(error, id)

        self.node.committer.when_durable(durable)

    def answer_when(self, level: Level, needs: Iterable[tuple[Partition, int]], data: bytes, id: int) -> None:
        """Queues an answer once each of these partitions shows its seq at ``level``, or an ERROR where that fails.

        On a leader's own disk that is once all that is written now is durable.
        """
        node = self.node
        if level == Level.MEMORY:
            self.answer(data)
        elif level == Level.DISK and node.role is Role.LEADER:
            self.answer_when_durable(data, id)
        elif node.committer.failure is not None:
            self.answer_error(node.committer.failure, id)
        else:
            self._answer_bytes += len(data)
            self.until(partial(node.waiting.wait, level, needs), partial(self._waited, data, id))
            node.committer.hurry()

    def answer_when_confirmed(self, data: bytes, id: int) -> None:
        """Queues an answer once a majority has said that this node leads."""
        self._answer_bytes += len(data)
        self.until(self.node.confirm, partial(self._waited, data, id))

    def answer_confirmed(self, needs: Iterable[tuple[Partition, int]], data: bytes, id: int) -> None:
        """Queues an answer once a majority has said that this node leads, and these seqs are at quorum."""
        needs = list(needs)
        self._answer_bytes += len(data)

        def confirmed(error: TailraceError | None) -> None:
            self._answer_bytes -= len(data)
            if error is None:
                self.answer_when(Level.QUORUM, needs, data, id)
            else:
                self.answer_error(error, id)

        self.until(self.node.confirm, confirmed)

    def until(self, begin: Callable[[Answer], Cancel | None], then: Answer) -> None:
        """Calls ``then`` when what ``begin(callback)`` waits for is there, or has failed; never once this has ended."""
        number = next(self._wait_numbers)

        def done(error: TailraceError | None) -> None:
            self._waits.pop(number, None)
            then(error)

        cancel = begin(done)
        if cancel is not None:
            self._waits[number] = cancel

    def stop_waiting(self) -> None:
        """The connection is over: nobody is left to answer."""
        waits, self._waits = self._waits, {}
        for cancel in waits.values():
            cancel()

    def _waited(self, data: bytes, id: int, error: TailraceError | None) -> None:
        """What an answer has waited for is there; ``_answer_bytes`` counts it."""
        if error is None:
            self._queue(data)
        else:
            self._answer_bytes -= len(data)
            self.answer_error(error, id)

    def _queue(self, data: bytes) -> None:
        """Queues what ``_answer_bytes`` counts already."""
        if self._closing:
            self._answer_bytes -= len(data)
            return
        self._answers.append(data)
        self.node.to_flush[self] = None  # type: ignore[index]  # a Connection
