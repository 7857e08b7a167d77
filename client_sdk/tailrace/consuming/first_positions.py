"""Finds the first position of partitions that have none under a name or in a group yet: by a time, seqs or a number.

    a partition without a position ──> EXPLAIN_RESUME ──RESULT──> its position by seqs or a number (``chosen_starts``)
                                  └──> STREAM_REQUEST since the time ──STREAM_OK──> its position, STREAM_CLOSE

Partitions with a position are not asked for, so ``since`` costs a later start nothing. Sans-IO.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tailrace.consuming.chosen_starts import start_of
from tailrace.errors import BadPosition, NotLeader, Retryable
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position
from tailrace.wire.bodies import decode_json, encode_json
from tailrace.wire.frames import encode_frame
from tailrace.wire.messages import decode_error
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import ResumeAnswer, StreamEnd, StreamOk, StreamRequest

if TYPE_CHECKING:
    from tailrace.consuming.named_streams import NamedStreams
    from tailrace.consuming.subscription import Subscription
    from tailrace.wire.frames import Frame


class FirstPositions:
    """The partitions of one membership that wait for their first position. Only this file sets its fields."""

    def __init__(self, subscription: Subscription, streams: NamedStreams) -> None:
        """Takes a subscription with a time, or with a chosen start."""
        self._subscription = subscription
        self._streams = streams
        self._unasked: set[int] = set()
        self._asked: dict[int, int] = {}  # the partition of each request's id, on this connection
        self._closing: list[bytes] = []

    @property
    def is_waiting(self) -> bool:
        """True if a partition waits."""
        return bool(self._unasked or self._asked)

    def add(self, partition: int) -> None:
        """Has the node asked for the first position of a partition."""
        self._unasked.add(partition)

    def discard(self, partitions: Iterable[int]) -> None:
        """Forgets partitions that are not owned any more."""
        gone = set(partitions)
        self._unasked -= gone
        ids = [id for id, partition in self._asked.items() if partition in gone]
        for id in ids:
            del self._asked[id]
            if self._subscription.since_us is not None:  # the node has opened a stream, or will
                self._closing.append(encode_frame(Opcode.STREAM_CLOSE, id=id))

    def connection_lost(self) -> None:
        """Has all questions without an answer asked again on the next connection."""
        self._unasked.update(self._asked.values())
        self._asked.clear()
        self._closing.clear()

    def data_to_send(self, feed_id: bytes) -> list[bytes]:
        """Returns the questions that are due, and what closes the streams of answered ones."""
        out, self._closing = self._closing, []
        asked, self._unasked = sorted(self._unasked), set()
        level, filter, since_us = self._subscription.visibility, self._subscription.filter, self._subscription.since_us
        for partition in asked:
            id = self._streams.new_id()
            self._asked[id] = partition
            seq = 0 if since_us is None else None
            ask = feed_id, partition, FailoverLog(), seq, 0, 0, None, None, level, "leader", filter, since_us
            request = StreamRequest(*ask)
            is_timed = since_us is not None
            out.append(request.encode(id) if is_timed else encode_json(Opcode.EXPLAIN_RESUME, request.to_json(), id))
        return out

    def takes(self, frame: Frame) -> dict[int, Position] | None:
        """Returns the position that a frame tells, by its partition; None if it is about something else.

        Raises Retryable if the node has to be asked again, and the error that ends the consumer for good.
        """
        partition = self._asked.get(frame.id)
        if partition is None or frame.opcode not in _ANSWERS:
            return None
        if frame.opcode is Opcode.ERROR:
            error = decode_error(frame.body)
            if isinstance(error, Retryable):
                raise error
            self._streams.fail(error)
        if frame.opcode is Opcode.RESULT:
            position = self._by_choice(partition, ResumeAnswer.of_json(decode_json(frame.body, "RESULT")))
        elif frame.opcode is Opcode.STREAM_OK:
            answer = StreamOk.decode(frame.body)
            first, last = answer.snapshot or (answer.seq, answer.seq)
            position = Position.at(answer.log, answer.seq, first, last)
            self._closing.append(encode_frame(Opcode.STREAM_CLOSE, id=frame.id))
        else:
            raise NotLeader(f"partition {partition}: {StreamEnd.decode(frame.body).message}")
        del self._asked[frame.id]
        return {partition: position}

    def _by_choice(self, partition: int, answer: ResumeAnswer) -> Position:
        start = self._subscription.start
        assert start is not None, "it has a time, or a chosen start"
        if isinstance(answer.answer, StreamEnd) or not answer.log:
            why = answer.answer.message if isinstance(answer.answer, StreamEnd) else "the node does not have it"
            raise NotLeader(f"partition {partition}: {why}")
        try:
            return start_of(start, partition, answer)
        except BadPosition as error:
            self._streams.fail(error)


_ANSWERS = frozenset((Opcode.RESULT, Opcode.ERROR, Opcode.STREAM_OK, Opcode.STREAM_END))
