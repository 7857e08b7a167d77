"""Errors on the wire: a code, a sentence, and the fields of the exception. Pure."""

from __future__ import annotations

from typing import Any

from tailrace import errors
from tailrace.errors import TailraceError
from tailrace.model import EndReason, Version, VersionRange


class OutOfOrder(TailraceError):
    """The number of a producer's block is not the next one, ``expected``.

    Internal to the protocol: the SDK resends or renumbers, and users never see it.
    """

    def __init__(self, message: str, *, expected: int) -> None:
        super().__init__(message)
        self.expected = expected


_CODES: dict[str, type[TailraceError]] = {
    "unreachable": errors.Unreachable,
    "not_leader": errors.NotLeader,
    "overloaded": errors.Overloaded,
    "not_durable": errors.NotDurable,
    "no_space": errors.NoSpace,
    "outcome_unknown": errors.OutcomeUnknown,
    "writes_lost": errors.WritesLost,
    "version_lost": errors.VersionLost,
    "version_conflict": errors.VersionConflict,
    "not_owner": errors.NotOwner,
    "unknown_feed": errors.UnknownFeed,
    "feed_exists": errors.FeedExists,
    "unknown_stage": errors.UnknownStage,
    "batch_behind": errors.BatchBehind,
    "batch_changed": errors.BatchChanged,
    "bad_position": errors.BadPosition,
    "bad_block": errors.BadBlock,
    "bad_segment": errors.BadSegment,
    "unknown_checkpoint": errors.UnknownCheckpoint,
    "too_large": errors.TooLarge,
    "forbidden": errors.Forbidden,
    "protocol_error": errors.ProtocolError,
    "data_gone": errors.DataGone,
    "stream_ended": errors.StreamEnded,
    "out_of_order": OutOfOrder,
    "failed": TailraceError,
}


def _code_of(error: TailraceError) -> str:
    for kind in type(error).__mro__:
        for code, known in _CODES.items():
            if known is kind:
                return code
    return "failed"


def version_to_wire(version: Version | None) -> list[Any] | None:
    """Returns ``[partition, branch in hex, seq]``."""
    return None if version is None else [version.partition, version.branch.hex(), version.seq]


def version_from_wire(value: list[Any] | None) -> Version | None:
    """Reads the result of ``version_to_wire``."""
    return None if value is None else Version(int(value[0]), bytes.fromhex(value[1]), int(value[2]))


def error_to_wire(error: TailraceError) -> dict[str, Any]:
    """Returns the body of an ERROR frame."""
    body: dict[str, Any] = {"code": _code_of(error), "message": str(error)}
    match error:
        case errors.VersionConflict():
            body["current"] = version_to_wire(error.current)
        case errors.Unreachable():
            body["outcome"] = error.outcome
        case errors.NotLeader():
            body["leader"] = error.leader
        case errors.DataGone():
            body["first_seq"] = error.first_seq
        case errors.NotOwner():
            body["partitions"] = list(error.partitions)
        case errors.BatchBehind():
            body["first_batch"] = error.first_batch
        case errors.StreamEnded():
            body["reason"] = error.reason.value
        case OutOfOrder():
            body["expected"] = error.expected
        case errors.WritesLost():
            body["ranges"] = [[r.partition, r.branch.hex(), r.first_seq, r.last_seq] for r in error.ranges]
    return body


def error_from_wire(body: dict[str, Any]) -> TailraceError:
    """Returns the exception of an ERROR frame. An unknown code, of a newer peer, becomes a plain TailraceError."""
    kind = _CODES.get(str(body.get("code")), TailraceError)
    message = str(body.get("message", "the peer gave no reason"))
    if kind is errors.VersionConflict:
        return errors.VersionConflict(message, current=version_from_wire(body.get("current")))
    if kind is errors.Unreachable:
        return errors.Unreachable(message, outcome=str(body.get("outcome", "unknown")))
    if kind is errors.NotLeader:
        leader = body.get("leader")
        return errors.NotLeader(message, leader=leader if isinstance(leader, str) else None)
    if kind is errors.DataGone:
        return errors.DataGone(message, first_seq=int(body.get("first_seq", 0)))
    if kind is errors.NotOwner:
        return errors.NotOwner(message, partitions=[int(each) for each in body.get("partitions", [])])
    if issubclass(kind, errors.BatchBehind):
        return kind(message, first_batch=int(body.get("first_batch", 0)))
    if kind is errors.StreamEnded:
        return errors.StreamEnded(message, reason=EndReason(body.get("reason", "error")))
    if kind is errors.WritesLost:
        ranges = [VersionRange(int(p), bytes.fromhex(b), int(f), int(s)) for p, b, f, s in body.get("ranges", [])]
        return errors.WritesLost(message, ranges=ranges)
    if kind is OutOfOrder:
        return OutOfOrder(message, expected=int(body.get("expected", 1)))
    return kind(message)
