"""Finds where a consumer begins that names seqs, or the last mutations, in place of positions. Sans-IO.

    the partition map ──> EXPLAIN_RESUME for each partition ──> RESULT: its history, and the seqs that are there
                                                            ──> positions, as if the consumer had stored them

A start by seqs is that of a consumer that stood there in the node's present history: it may be told that rows are gone.
A start by a number of mutations is moved behind rows that were trimmed, and takes purged deletions as not written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NoReturn, Protocol

from tailrace.errors import BadPosition, NotLeader
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position
from tailrace.wire.bodies import decode_json, encode_json
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import ResumeAnswer, StreamEnd, StreamRequest

if TYPE_CHECKING:
    from tailrace.consuming.subscription import ChosenStart, Subscription
    from tailrace.errors import TailraceError
    from tailrace.requests.replies import PartitionMap
    from tailrace.wire.frames import Frame


def start_of(start: ChosenStart, partition: int, answer: ResumeAnswer) -> Position:
    """Returns the start in a partition. Raises BadPosition if the partition has not come to its seq."""
    log = answer.log
    if start.last is not None:
        seq = max(answer.visible_seq - start.last, answer.trim_seq, 0)
        return Position.at(log, seq, purge_seq=answer.purge_seq if 0 < seq < answer.purge_seq else None)
    assert start.seqs is not None, "a start has seqs, or a number"
    seq = start.seqs.get(partition, 0)
    if seq > answer.high_seq:
        raise BadPosition(
            f"since names seq {seq} of partition {partition}, which has come to seq {answer.high_seq} only"
        )
    return Position.at(log, seq) if seq else Position.at(FailoverLog(), 0)


class Streams(Protocol):
    """The streams that begin there."""

    @property
    def node_state(self) -> str: ...
    def new_id(self) -> int: ...
    def ids(self, known: Mapping[int, int]) -> list[int]: ...
    def begin(
        self, high_seqs: Mapping[int, int], logs: Mapping[int, FailoverLog], starts: Mapping[int, Position]
    ) -> None: ...
    def fail(self, error: TailraceError) -> NoReturn: ...


class Starts:
    """The questions on one connection, and the positions that they lead to."""

    def __init__(self, subscription: Subscription, found: PartitionMap, streams: Streams) -> None:
        """``found``: what the node has told of the feed."""
        assert subscription.start is not None, "it has a start"
        self._subscription = subscription
        self._start = subscription.start
        self._found = found
        self._streams = streams
        self._asked: dict[int, int] = {}  # the partition of each request's id
        self._positions: dict[int, Position] = {}

    def requests(self) -> list[bytes]:
        """Returns a question for each partition. Raises BadPosition, UnknownFeed if a partition is not there."""
        found, streams = self._found, self._streams
        missing = sorted(set(self._start.seqs or ()) - found.high_seqs.keys())
        if missing:
            streams.fail(
                BadPosition(f"since names partition {missing[0]}: the feed has {len(found.high_seqs)}, from 0 on")
            )
        frames = []
        level, filter = self._subscription.visibility, self._subscription.filter
        for partition in streams.ids(found.high_seqs):
            id = streams.new_id()
            self._asked[id] = partition
            ask = (found.feed_id, partition, FailoverLog(), 0, 0, 0, None, None, level, streams.node_state, filter)
            frames.append(encode_json(Opcode.EXPLAIN_RESUME, StreamRequest(*ask).to_json(), id))
        return frames

    def takes(self, frame: Frame) -> bool:
        """Takes an answer, and begins the streams after the last one. Returns False if it is of another request.

        Raises BadPosition; NotLeader if another node has to be asked.
        """
        partition = self._asked.pop(frame.id, None)
        if partition is None:
            return False
        answer = ResumeAnswer.of_json(decode_json(frame.body, "RESULT"))
        if isinstance(answer.answer, StreamEnd) or not answer.log:
            why = answer.answer.message if isinstance(answer.answer, StreamEnd) else "the node does not have it"
            raise NotLeader(f"partition {partition}: {why}")
        try:
            self._positions[partition] = start_of(self._start, partition, answer)
        except BadPosition as error:
            self._streams.fail(error)
        if not self._asked:
            self._streams.begin(self._found.high_seqs, self._found.logs, self._positions)
        return True
