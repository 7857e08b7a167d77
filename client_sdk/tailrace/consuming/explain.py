"""Explains in words how a consumer with stored positions would resume now. Pure, for `Feed.explain_resume`.

The node answers EXPLAIN_RESUME as it would answer the request for a stream. `consuming.resume.decide` decides as the
consumer would. The explanation is for a consumer without a ring of recent keys, because positions do not hold one.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from tailrace.consuming.resume import ResumeAction, ResumeDecision, ResumeState, bounds, decide, floor_without_ring
from tailrace.consuming.ring import Ring
from tailrace.consuming.stream_ends import FINAL
from tailrace.errors import ProtocolError
from tailrace.model import EndReason, Level
from tailrace.model.failover import SNAPSHOT_LAST_UNKNOWN, FailoverLog, ResumeReason, common_seq
from tailrace.model.position import Position
from tailrace.wire.stream_messages import ResumeAnswer, RollBack, StreamEnd, StreamRequest


class Outcome(enum.Enum):
    """The decision of a consumer that resumes. The value is for people and for JSON."""

    GOES_ON = "goes on"  # from its position
    STARTS_OVER = "starts over"  # from the beginning; the message says if a ring would avoid that
    WAITS = "waits"  # it asks again until this node or another one can serve it
    ENDS = "ends"  # with an error, for good


class Explanation(NamedTuple):
    """The explanation for one partition: the decision of a consumer that resumes, and the reason.

    Attributes:
        partition: The partition, from 0.
        outcome: The decision.
        reason: The value of a `ResumeReason` or an `EndReason`, "unfinished_rollback" or "ahead".
        seq: The seq of the position.
        goes_back_to: The seq that the node tells the consumer to roll back to; None if it does not.
        resumes_at: The seq at which the stream would begin; None if there would be no stream.
        behind: The number of seqs above ``resumes_at`` that the node shows at the level of the consumer.
        message: The explanation in one or two sentences.
        branch: The newest branch of the position, 16 bytes.
        term: The term of that branch.
        node_branch: The newest branch of the node, 16 bytes.
        node_term: The term of that branch.
        node_base: The last seq before that branch.
        high_seq: The newest seq of the node.
        purge_seq: Deletions up to this seq may be gone.
        trim_seq: Mutations up to this seq are gone.
    """

    partition: int
    outcome: Outcome
    reason: str
    seq: int
    goes_back_to: int | None
    resumes_at: int | None
    behind: int | None
    message: str
    branch: bytes
    term: int
    node_branch: bytes
    node_term: int
    node_base: int
    high_seq: int
    purge_seq: int
    trim_seq: int

    def to_json(self) -> dict[str, Any]:
        """Returns the explanation as an object for JSON.

        Returns:
            The attributes by name; branches are hexadecimal.
        """
        return {
            **self._asdict(),
            "outcome": self.outcome.value,
            "branch": self.branch.hex(),
            "node_branch": self.node_branch.hex(),
        }


def request_of(
    feed_id: bytes, partition: int, position: Position, level: Level, state: str = "leader"
) -> StreamRequest:
    """Returns the request of a consumer that resumes at ``position`` without a ring."""
    seq, first, last = bounds(_stored(position))
    return StreamRequest(feed_id, partition, position.log, seq, first, last, position.purge_seq, None, level, state)


def explain(partition: int, position: Position, answer: ResumeAnswer) -> Explanation:
    """Explains ``answer`` for a consumer at ``position``. ProtocolError if the answer fits no request."""
    stored, decided = _stored(position), answer.answer
    log = answer.log
    if isinstance(decided, StreamEnd):
        outcome = Outcome.ENDS if decided.reason in FINAL else Outcome.WAITS
        goes_back_to = resumes_at = None
        reason, message = decided.reason.value, _of_end(decided, position)
    else:
        decision = decide(stored, decided)
        goes_back_to, resumes_at = _seqs(position, decision)
        outcome = Outcome.GOES_ON if decision.action is ResumeAction.STREAM else Outcome.STARTS_OVER
        if isinstance(decided, RollBack):
            reason, message = decided.why, _of_rollback(decided, position, answer)
        else:
            reason, message = _of_ok(position, stored, decision, answer)
        if outcome is Outcome.STARTS_OVER:
            message += _effect(goes_back_to or 0)
    return Explanation(
        partition,
        outcome,
        reason,
        position.seq,
        goes_back_to,
        resumes_at,
        None if resumes_at is None else max(answer.visible_seq - resumes_at, 0),
        message,
        position.log.branch,
        position.log.term,
        log.branch,
        log.term,
        log[0].base if log else 0,
        answer.high_seq,
        answer.purge_seq,
        answer.trim_seq,
    )


def _stored(position: Position) -> ResumeState:
    return ResumeState.of(position, Ring(0, 0, floor_without_ring(position)))


def _seqs(position: Position, decision: ResumeDecision) -> tuple[int | None, int]:
    if decision.seq > position.seq:
        raise ProtocolError(
            f"the node answers with seq {decision.seq}, which is above the position, seq {position.seq}"
        )
    if decision.action is ResumeAction.STREAM:
        return None, decision.seq
    return decision.seq, 0


def _of_ok(position: Position, stored: ResumeState, decision: ResumeDecision, answer: ResumeAnswer) -> tuple[str, str]:
    seq, last = position.seq, position.snapshot_last
    if decision.action is ResumeAction.STREAM:
        if seq == 0:
            return ResumeReason.NOTHING_STORED.value, "It has no row of this partition, and begins at the beginning."
        inside = f", in the middle of a snapshot up to seq {last}" if last > seq else ""
        return ResumeReason.STANDS.value, (
            f"The node's history has all its rows ({_branch(position.log)}): it goes on above seq {seq}{inside}."
        )
    if last == SNAPSHOT_LAST_UNKNOWN:
        return "unfinished_rollback", (
            f"It was in the middle of a rollback to seq {seq}: the keys that it had above have to be read again first."
        )
    _, _, promised = bounds(stored)
    upper = common_seq(position.log, promised, answer.log, answer.high_seq)
    return "ahead", (
        f"It has received rows up to seq {max(last, promised)}, but its history and the node's agree up to seq "
        f"{upper or 0} only ({_branch(answer.log)}): the rows above may be lost."
    )


def _of_rollback(rollback: RollBack, position: Position, answer: ResumeAnswer) -> str:
    seq, first, last = position.seq, position.snapshot_first, position.snapshot_last
    theirs = _branch(answer.log)
    match rollback.why:
        case ResumeReason.NO_COMMON_BRANCH.value:
            return (
                f"The node's history has none of its {len(position.log)} branches. Its newest is "
                f"{_branch(position.log)}; the node's is {theirs}. Its data is of another origin, or the "
                "node has had more unclean stops since than its history can hold."
            )
        case ResumeReason.HALF_SNAPSHOT.value:
            return (
                f"It has read the snapshot from seq {first} to {last} only up to seq {seq}, and the node's history "
                f"({theirs}) has lost a part of it. Half a snapshot is not a consistent state, so it goes back to its "
                f"start, seq {first}."
            )
        case ResumeReason.FORKED.value:
            return (
                f"It is at seq {seq} of {_branch(position.log)}, and both histories agree up to seq {rollback.seq} "
                f"only: above that the node's history differs ({theirs}), and has lost its rows."
            )
        case ResumeReason.PURGED.value:
            return (
                f"Deletions have been purged up to seq {answer.purge_seq}, and it would go on below that: it may have "
                "missed some of them."
            )
    return f"The node tells it to go back to seq {rollback.seq} ({rollback.why})."


def _effect(goes_back_to: int) -> str:
    if not goes_back_to:
        return " It forgets the partition, and reads it from the beginning."
    return (
        f" It has to go back to seq {goes_back_to}. Positions do not tell which keys it received above, so it "
        "forgets the partition, and reads it from the beginning. A consumer or an index that still has these keys "
        "(its ring) reads only them again."
    )


def _of_end(end: StreamEnd, position: Position) -> str:
    match end.reason:
        case EndReason.BEHIND:
            return (
                f"The node is at term {end.term}, and it has seen term {position.log.term}: this node is behind, for "
                "example because it was restored from an older copy. It asks again until a node has caught up, and "
                "does not roll back."
            )
        case EndReason.TRIMMED:
            if position.seq + 1 < end.first_seq:
                why = f"It is at seq {position.seq}, and {end.message}: the rows in between are gone."
            else:
                why = f"It has rows that the node has lost, and would have to go back, but {end.message}."
            return f'{why} It ends with DataGone. Begin anew, with since="beginning" or a time.'
        case reason if reason in FINAL:
            return f"It ends: {end.message}."
    return f"It asks again: {end.message}."


def _branch(log: FailoverLog) -> str:
    return f"branch {log.branch.hex()[:8]} of term {log.term}, from seq {log[0].base if log else 0} on"
