"""The answers of one connection: queued at once, or when their rows have the level that they promise.

    add ──────────────────────────────────────────────────────┐
    add_when_durable, add_written ── committer ───────────────┤
    add_at ── waiting (a majority) ───────────────────────────┼──> queue ──> Connection.flush
    add_when_confirmed ── leadership.confirm (who leads) ─────┘

``held_bytes`` counts an answer from the moment that it waits. A connection with too many of them is not read from,
which bounds the answers that wait. `answer_memory` counts the answers of all connections together.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from tailrace.errors import BadSegment, TailraceError
from tailrace.model import Level, VersionRange
from tailrace.wire.frames import frame_id
from tailrace.wire.messages import encode_error
from tailrace_server.host.answers import Answer, Cancel
from tailrace_server.partition.partition import Partition
from tailrace_server.replication.leadership import Leadership
from tailrace_server.replication.leaderships import confirm_all, lead_all
from tailrace_server.replication.waiting import Waiter
from tailrace_server.segment import SegmentDamaged
from tailrace_server.stream.frames import WRITTEN_FRAME_BYTES, written

if TYPE_CHECKING:
    from tailrace_server.serving.services import Services

# As globals: an attribute of an Enum is slow to read, and each write needs them.
_MEMORY, _DISK, _QUORUM = Level.MEMORY, Level.DISK, Level.QUORUM


class _Written(Waiter):
    """The answer to a WRITE that waits for a majority."""

    __slots__ = ("_answers", "_began_at", "_id", "_versions")

    def __init__(self, answers: Answers, versions: VersionRange, id: int, began_at: float) -> None:
        super().__init__()
        self._answers = answers
        self._versions = versions
        self._id = id
        self._began_at = began_at

    def end(self, error: TailraceError | None) -> None:
        self._answers.end_written(self, self._versions, self._id, self._began_at, error)

    def cancel(self) -> None:
        super().cancel()
        del self._answers  # this may stay in a queue for long


class Answers:
    """The answers that one connection owes its peer; ``Connection`` sends them."""

    def __init__(self, node: Services, on_queued: Callable[[], None], pass_by: Callable[[bytes], bool]) -> None:
        """``on_queued`` is called if there is something to ``take``. ``pass_by`` sends an answer at once, if it may."""
        self._node = node
        self._on_queued = on_queued
        self._pass_by = pass_by
        self.queued: list[bytes] = []  # until ``take``
        self.held_bytes = 0  # of answers that were not taken, those that wait for something included
        self._is_closed = False
        # A wait for other nodes may never end by itself, so it has to end with the connection.
        self._waits: dict[int, Cancel] = {}
        self._written: dict[_Written, None] = {}  # likewise, of writes at quorum
        # By the id of the request: what hears of the next answer with that id. Several requests may have one id.
        self._watched: dict[int, list[Callable[[bytes | None], None]]] = {}
        self._wait_numbers = itertools.count()

    def add(self, data: bytes) -> None:
        """Queues an answer; ``flush`` sends it together with others. Does nothing after `close`."""
        self.held_bytes += len(data)
        self._queue(data)

    @property
    def may_pass(self) -> bool:
        """Whether an answer may be sent at once: none is queued, and nothing hears of answers."""
        return not (self.queued or self._watched or self._is_closed)

    def add_error(self, error: TailraceError, id: int) -> None:
        """Queues an ERROR."""
        if isinstance(error, SegmentDamaged):
            self._node.storage.found_damage(error)
        self._node.traffic.error(error)
        self.add(encode_error(error, id))

    def add_copy_error(self, error: TailraceError, id: int) -> None:
        """Queues an ERROR about a copy of segments: who copies learns by its name that a segment is damaged."""
        if isinstance(error, SegmentDamaged):
            self._node.storage.found_damage(error)
            error = BadSegment(str(error))
        self.add_error(error, id)

    def add_when_durable(self, data: bytes, id: int) -> None:
        """Queues an answer once all that is written now is durable, or an ERROR if that fails."""
        self.held_bytes += len(data)
        self._node.storage.committer.when_durable(partial(self._waited, data, id))

    def add_written(self, versions: VersionRange, id: int, *, is_alone: bool = False) -> None:
        """Queues a WRITTEN once all that is written now is durable, or an ERROR if that fails.

        ``is_alone``: no answer is likely to follow soon, so it need not wait for others. The frame is made before the
        fsync, for which a disk that has begun to write lets us wait in any case.
        """
        self.held_bytes += WRITTEN_FRAME_BYTES
        node, began_at, data = self._node, self._node.turn.now, written(versions, id)

        def durable(error: TailraceError | None) -> None:
            self.held_bytes -= WRITTEN_FRAME_BYTES
            if error is None:
                if not (is_alone and self._pass_by(data)):
                    self.add(data)
                node.traffic.write_durations[_DISK].add(node.clock.monotonic() - began_at)
            else:
                self.add_error(error, id)

        self._node.storage.committer.when_durable(durable)

    def add_written_at_quorum(self, partition: Partition, versions: VersionRange, id: int) -> None:
        """Queues a WRITTEN once a majority has the rows on disk, or an ERROR if that fails."""
        node, committer = self._node, self._node.storage.committer
        if committer.failure is not None:
            self.add_error(committer.failure, id)
            return
        self.held_bytes += WRITTEN_FRAME_BYTES
        waiting = _Written(self, versions, id, node.turn.now)
        self._written[waiting] = None
        node.waiting.wait_for(_QUORUM, partition, versions.last_seq, waiting)
        committer.hurry()

    def end_written(
        self, waiting: _Written, versions: VersionRange, id: int, began_at: float, error: TailraceError | None
    ) -> None:
        """Queues a WRITTEN that has waited for a majority, or the ERROR that ended the wait."""
        self._written.pop(waiting, None)
        if error is None:
            node = self._node
            self._queue(written(versions, id))
            node.traffic.write_durations[_QUORUM].add(node.clock.monotonic() - began_at)
        else:
            self.held_bytes -= WRITTEN_FRAME_BYTES
            self.add_error(error, id)

    def add_at(self, level: Level, needs: Sequence[tuple[Partition, int]], data: bytes, id: int) -> None:
        """Queues an answer once each of these partitions shows its seq at ``level``, or an ERROR if that fails.

        On a leader's own disk that is once all that is written now is durable.
        """
        node = self._node
        if level == _MEMORY:
            self.add(data)
        elif level == _DISK and lead_all(node.leaderships.of_partitions(partition for partition, _ in needs)):
            self.add_when_durable(data, id)
        elif node.storage.committer.failure is not None:
            self.add_error(node.storage.committer.failure, id)
        else:
            self._wait(level, needs, len(data), partial(self._waited, data, id))

    def _wait(self, level: Level, needs: Sequence[tuple[Partition, int]], nbytes: int, then: Answer) -> None:
        """Calls ``then`` once these seqs are at ``level``, or that fails. The answer counts ``nbytes`` from now on."""
        self.held_bytes += nbytes
        self.until(partial(self._node.waiting.wait, level, needs), then)
        self._node.storage.committer.hurry()

    def add_when_confirmed(self, leadership: Leadership, data: bytes, id: int) -> None:
        """Queues an answer once a majority has confirmed that this node leads."""
        self.held_bytes += len(data)
        self.until(leadership.confirm, partial(self._waited, data, id))

    def add_confirmed(
        self,
        leaderships: Sequence[Leadership],
        needs: Sequence[tuple[Partition, int]],
        data: bytes,
        id: int,
        level: Level = _QUORUM,
    ) -> None:
        """Queues an answer once majorities have said that this node leads, and these seqs are at ``level``."""
        self.held_bytes += len(data)

        def confirmed(error: TailraceError | None) -> None:
            self.held_bytes -= len(data)
            if error is None:
                self.add_at(level, needs, data, id)
            else:
                self.add_error(error, id)

        self.until(partial(confirm_all, leaderships), confirmed)

    def until(self, begin: Callable[[Answer], Cancel | None], then: Answer) -> None:
        """Calls ``then`` when the wait that ``begin(callback)`` starts ends or fails; never after `stop_waiting`."""
        number = next(self._wait_numbers)

        def done(error: TailraceError | None) -> None:
            self._waits.pop(number, None)
            then(error)

        cancel = begin(done)
        if cancel is not None:
            self._waits[number] = cancel

    def stop_waiting(self) -> None:
        """Cancels every wait: the connection is over."""
        waits, self._waits = self._waits, {}
        for cancel in waits.values():
            cancel()
        writes, self._written = self._written, {}
        for waiting in writes:
            waiting.cancel()
        self._tell_all()

    def watch(self, id: int, answered: Callable[[bytes | None], None]) -> None:
        """Calls ``answered`` with the frame that answers request ``id``; with None if the connection ends before."""
        self._watched.setdefault(id, []).append(answered)

    def _tell_all(self) -> None:
        """Tells who watches that no answer will be sent."""
        watched, self._watched = self._watched, {}
        for answered in itertools.chain.from_iterable(watched.values()):
            answered(None)

    def _tell(self, data: bytes) -> None:
        """Tells who watches that this answer was made."""
        id = frame_id(data)
        waiting = self._watched.get(id)
        if waiting is not None:
            waiting.pop(0)(data)
            if not waiting:
                del self._watched[id]

    def _waited(self, data: bytes, id: int, error: TailraceError | None) -> None:
        """Queues an answer whose wait is over; ``held_bytes`` counts it already."""
        if error is None:
            self._queue(data)
        else:
            self.held_bytes -= len(data)
            self.add_error(error, id)

    def _queue(self, data: bytes) -> None:
        """Queues an answer that ``held_bytes`` counts already."""
        if self._watched:
            self._tell(data)
        if self._is_closed:
            self.held_bytes -= len(data)
            return
        self.queued.append(data)
        self._on_queued()

    # For the connection

    def add_beside(self, data: bytes) -> None:
        """Queues a frame while the connection is being flushed, so that it leaves with the answers."""
        self.held_bytes += len(data)
        self.queued.append(data)

    def take(self) -> bytes:
        """Returns the answers that are queued, in their order, and forgets them."""
        queued, self.queued = self.queued, []
        data = queued[0] if len(queued) == 1 else b"".join(queued)
        self.held_bytes -= len(data)
        return data

    def close(self) -> None:
        """Queues nothing from now on: the last frame is about to be sent."""
        self._is_closed = True
        self._tell_all()
