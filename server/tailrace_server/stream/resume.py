"""Answers a STREAM_REQUEST, and makes the stream that begins with it. Pure."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.model import EndReason
from tailrace.model.failover import FailoverLog, resume_point
from tailrace.wire.filters import EVERYTHING
from tailrace.wire.stream_messages import ResumeAnswer, RollBack, StreamEnd, StreamOk, StreamRequest
from tailrace_server.partition.chain import Pins
from tailrace_server.partition.partition import Partition
from tailrace_server.stream.filter import FilterCache
from tailrace_server.stream.partition_stream import PartitionStream
from tailrace_server.stream.since import StreamStart


def begin_stream(
    id: int,
    request: StreamRequest,
    partition: Partition,
    pins: Pins,
    filtered: FilterCache | None = None,
    start: StreamStart | None = None,
    make: Callable[..., PartitionStream] = PartitionStream,
) -> tuple[StreamOk | RollBack | StreamEnd, PartitionStream | None]:
    """Returns the answer to ``request`` of ``partition``, and the stream ``id``; None if no stream begins.

    ``start``: the place of the time that the request names. ``make``: the class of the stream.
    """
    answer = answer_of(request, partition, start)
    if not isinstance(answer, StreamOk):
        return answer, None
    promised_seq = promised(request, answer.seq, partition.high_seq)
    if answer.snapshot is not None:
        _, promised_seq = answer.snapshot
    stream = make(
        id,
        partition,
        request.level,
        answer.seq,
        request.end_seq,
        promised_seq,
        pins=pins,
        purge_seq=request.purge_seq,
        until_us=request.until_us,
        wanted=request.filter if request.filter != EVERYTHING else None,
        filtered=filtered,
    )
    return answer, stream


def answer_of(
    request: StreamRequest, partition: Partition, start: StreamStart | None = None
) -> StreamOk | RollBack | StreamEnd:
    """Returns the answer to ``request`` of ``partition``, without a stream.

    A replica that gets segments may lack deletions and rows that are gone: it gets a segment without them, and that
    takes the place of all that it has.
    """
    needs_all = not is_pushed(request, partition)
    return answer_request(
        request,
        log=partition.log,
        state=partition.state,
        high_seq=partition.high_seq,
        visible_seq=partition.visible_seq(request.level),
        purge_seq=partition.purge_seq if needs_all else 0,
        trim_seq=partition.trim_seq if needs_all else 0,
        start=start,
    )


def resume_answer(request: StreamRequest, partition: Partition) -> ResumeAnswer:
    """Returns the answer to ``request`` of ``partition``, and what decides it."""
    return ResumeAnswer(
        answer_of(request, partition),
        partition.log,
        partition.high_seq,
        partition.visible_seq(request.level),
        partition.purge_seq,
        partition.trim_seq,
    )


def is_pushed(request: StreamRequest, partition: Partition) -> bool:
    """Returns whether ``request`` is of a replica that gets segments instead of rows. One that fetches gets rows."""
    follows = request.replica is not None and request.end_seq is None
    return follows and partition.state == "leader" and partition.pushes.by_segments


def promised(request: StreamRequest, seq: int, high_seq: int) -> int:
    """Returns the seq below which no snapshot of a stream ends that begins at ``seq``.

    A consumer that has a part of a snapshot, or has read keys again, needs the rest before it stands anywhere. If the
    snapshot reaches above ``high_seq``, the last seq of the partition, its rest was never written here. Then the
    consumer reads those keys again, and asks once more.
    """
    return max(seq, request.snapshot_last) if request.snapshot_last <= high_seq else seq


def answer_request(
    request: StreamRequest,
    *,
    log: FailoverLog,
    state: str,
    high_seq: int,
    visible_seq: int,
    purge_seq: int,
    trim_seq: int = 0,
    start: StreamStart | None = None,
) -> StreamOk | RollBack | StreamEnd:
    """Decides whether a stream may begin as ``request`` asks, or the step that the consumer takes instead.

    ``log``, ``state``, ``high_seq``, ``purge_seq`` and ``trim_seq`` are the partition's on this node. ``visible_seq``
    is the last seq that the level of the request shows. ``start``: the place of the time that the request names.
    Source: docs/protocol/streams.md, "Handshake"; the first row that fits decides.
    """
    partition = request.partition
    if request.state != state:
        message = f"partition {partition} is {state} here, not {request.state}"
        return StreamEnd(partition, EndReason.WRONG_STATE, message, log.term)
    if not log:
        message = f"this {state} holds nothing of partition {partition} yet"
        return StreamEnd(partition, EndReason.BEHIND, message)
    if request.log and log.term < request.log.term:
        message = f"this node is at term {log.term} of partition {partition}, the consumer has seen {request.log.term}"
        return StreamEnd(partition, EndReason.BEHIND, message, log.term)
    if request.seq is None:
        if start is None or start.seq > visible_seq:
            return StreamOk(partition, visible_seq, log, high_seq)
        seq, first, last, _ = start
        return StreamOk(partition, seq, log, high_seq, None if first == last else (first, last))
    same_branch = bool(request.log) and request.log.branch == log.branch
    if same_branch and request.snapshot_last > high_seq and state == "follower":
        message = f"this follower holds partition {partition} up to {high_seq}, not yet to {request.snapshot_last}"
        return StreamEnd(partition, EndReason.BEHIND, message, log.term)
    resume = resume_point(
        request.log,
        request.seq,
        request.snapshot_first,
        request.snapshot_last,
        request.purge_seq,
        log,
        high_seq,
        purge_seq,
    )
    if 0 < resume.seq < trim_seq and request.replica is not None:
        # The rows that it lacks are gone, and its own are older than all that are kept: it copies the partition anew.
        return RollBack(partition, 0, log, EndReason.TRIMMED.value)
    if 0 < resume.seq < trim_seq:
        message = f"the kept mutations begin above seq {trim_seq}"
        return StreamEnd(partition, EndReason.TRIMMED, message, log.term, trim_seq + 1)
    if resume.seq < request.seq:
        return RollBack(partition, resume.seq, log, resume.why.value)
    return StreamOk(partition, request.seq, log, high_seq)
