"""Handles the frames of a client about streams: open and close them, credit, barriers.

The handlers decide whether a stream begins; ``stream/`` sends its frames afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import trio

from tailrace.errors import Forbidden, NotDurable, NotLeader, Overloaded, ProtocolError, TailraceError, UnknownFeed
from tailrace.model import EndReason, Level
from tailrace.wire.bodies import encode_json
from tailrace.wire.frames import Frame, encode_frame
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import ResumeAnswer, StreamEnd, StreamRequest, decode_cookie, decode_number
from tailrace_server.partition.partition import Partition
from tailrace_server.replication.eligibility import why_other_cluster
from tailrace_server.replication.leaderships import confirm_all, lead_all
from tailrace_server.replication.role import Role
from tailrace_server.segment import Segment, SegmentDamaged
from tailrace_server.serving.starts import checked
from tailrace_server.stream.barriers import Barrier
from tailrace_server.stream.partition_stream import PartitionStream
from tailrace_server.stream.replication_stream import ReplicationStream, SegmentStream
from tailrace_server.stream.resume import begin_stream, is_pushed, resume_answer
from tailrace_server.stream.since import StreamStart, find_start, find_start_in

if TYPE_CHECKING:
    from tailrace_server.serving.connection import Connection
    from tailrace_server.serving.services import Services

_CLOSED = "closed by the client"


def _on_stream_request(connection: Connection, frame: Frame) -> None:
    """Opens a stream, or says why it cannot begin as it was asked to."""
    request = StreamRequest.decode(frame.body)
    connection.access.require_stream(request.feed_id, request.filter)
    _check_replica(connection, request)
    is_open = frame.id in connection.rounds.slots or frame.id in connection.pending_streams
    if not is_open and _is_unknown(connection, request):
        _end_once_sure(connection, frame.id, request)
        return
    partition = _checked(connection, frame.id, request)
    if partition is not None:
        _open(connection, frame.id, request, partition)


def _open(connection: Connection, id: int, request: StreamRequest, partition: Partition) -> None:
    if request.since_us is None:
        _begin(connection, id, request, partition)
        return
    found = find_start(partition, request.since_us)
    if isinstance(found, StreamStart):
        _begin(connection, id, request, partition, found)
        return
    connection.waiting.begin()
    connection.pending_streams.add(id, request)
    # The segment may leave its chain, and the feed be dropped, before it has been read.
    connection.node.storage.pins.pin(found)
    connection.nursery.start_soon(_find_and_begin, connection, id, request, found)


def _on_explain_resume(connection: Connection, frame: Frame) -> None:
    """Says what would be answered to a STREAM_REQUEST, and what that is decided by. No stream is opened."""
    request = StreamRequest.decode(frame.body)
    connection.access.require_stream(request.feed_id, request.filter)
    if not _is_unknown(connection, request):
        _explain(connection, frame.id, request, _refusal(connection, request))
        return

    def answer(failure: TailraceError | None) -> None:
        _explain(connection, frame.id, request, _refusal_once_sure(connection, request, failure))

    connection.missing_feeds.confirm(answer)


def _explain(connection: Connection, id: int, request: StreamRequest, refusal: StreamEnd | None) -> None:
    if refusal is not None:
        explained = ResumeAnswer(refusal)
    else:
        partition = connection.node.feeds.of_id(request.feed_id).partitions[request.partition]
        explained = resume_answer(request, partition)
    connection.answers.add(encode_json(Opcode.RESULT, explained.to_json(), id))


async def _find_and_begin(connection: Connection, id: int, request: StreamRequest, segment: Segment) -> None:
    """Finds the time of ``request`` in ``segment``, which is pinned, in a thread; then opens the stream."""
    node, since_us = connection.node, request.since_us
    assert since_us is not None, "only a time has to be looked for"
    try:
        start = await node.host.workers.in_thread(partial(find_start_in, segment, since_us))
        await connection.memory.wait_for_room()
        # The wait for a thread goes on after the connection has ended. A stream opened then would never be closed.
        await trio.lowlevel.checkpoint_if_cancelled()
        if connection.is_closing or not connection.pending_streams.has(id, request):
            return
        connection.pending_streams.pop(id)
        partition = _checked(connection, id, request)
        if partition is not None:
            _begin(connection, id, request, partition, start)
    except SegmentDamaged as error:
        node.storage.found_damage(error)
        if connection.pending_streams.has(id, request):
            connection.answers.add(StreamEnd(request.partition, EndReason.DAMAGED, str(error)).encode(id))
    except TailraceError as error:
        connection.answers.add_error(error, id)
    finally:
        connection.waiting.end()
        node.storage.pins.unpin(segment)
        if connection.pending_streams.has(id, request):
            connection.pending_streams.pop(id)
    node.connections.turn_ended()


def _check_replica(connection: Connection, request: StreamRequest) -> None:
    """Raises NotLeader if the replica has promised a later term, or follows a leader of an earlier one.

    It has to know, and to keep, the term that it follows. Raises Forbidden if the replica is of another cluster, was
    started on a copy of a member's directory, or if another process on its directory follows since; ProtocolError if
    the connection serves it in another group, or another process.
    """
    node, replica = connection.node, request.replica
    if replica is None:
        return
    connection.access.require_replica()
    connection.require_node("STREAM_REQUEST of a replica")
    why = why_other_cluster(node.identity.cluster_id, f"the replica at {replica.address!r}", replica.cluster_id)
    if why:
        raise Forbidden(f"{why}: nothing is sent")
    leadership = node.leaderships.of(request.feed_id, request.partition)
    if connection.replica is not None and connection.replica.leadership is not leadership:
        raise ProtocolError("STREAM_REQUEST: a replica follows another group on this connection; use one for each")
    if connection.replica is not None and connection.replica.start != replica.start:
        raise ProtocolError("STREAM_REQUEST: another process follows on this connection; use one for each")
    member = node.members.get(leadership.group.number)
    if member is not None and replica.address in leadership.members.other_names:
        copy = member.peers.why_copy(replica.address, replica.placement_id)
        if copy:
            raise Forbidden(f"{copy}: nothing is sent")
        member.peers.knows_disk(replica.address, replica.placement_id)
    why = leadership.replicas.why_replaced(replica)
    if why:
        raise Forbidden(why)
    if request.state != "leader" or replica.term == leadership.term:
        return
    if replica.term > leadership.term:
        leadership.on_higher_term(replica.term)
    raise NotLeader(
        f"this node is of term {leadership.term}, the replica at {replica.address!r} has promised term {replica.term}",
        leader=leadership.leader_address or None,
    )


def _is_unknown(connection: Connection, request: StreamRequest) -> bool:
    """The state is right, and there is no such feed here.

    A replica is told so at once: it hears of feeds by ``_feeds``, and a majority may need it to be heard.
    """
    node = connection.node
    if request.replica is not None or connection.draining or request.state != _role(connection, request):
        return False
    return request.feed_id not in node.feeds


def _role(connection: Connection, request: StreamRequest) -> str:
    """Returns what this node is to the partition that is asked for, as the wire names it."""
    return connection.node.leaderships.of(request.feed_id, request.partition).role.value


def _end_once_sure(connection: Connection, id: int, request: StreamRequest) -> None:
    """Answers that the feed was dropped, or that this node is behind if the former is not sure."""
    connection.pending_streams.add(id, request)

    def answer(failure: TailraceError | None) -> None:
        if not connection.pending_streams.has(id, request):
            return
        connection.pending_streams.pop(id)
        connection.answers.add(_refusal_once_sure(connection, request, failure).encode(id))

    try:
        connection.missing_feeds.confirm(answer)
    except Overloaded:
        connection.pending_streams.pop(id)
        raise


def _refusal_once_sure(connection: Connection, request: StreamRequest, failure: TailraceError | None) -> StreamEnd:
    """Returns the refusal of a stream of an unknown feed, after `MissingFeeds` has confirmed it or failed."""
    refusal = _refusal(connection, request)
    if refusal is not None and refusal.reason not in (EndReason.BEHIND, EndReason.FEED_DROPPED):
        return refusal
    unknown = f"there is no feed of id {request.feed_id.hex()} here"
    term = connection.node.leaderships.of(request.feed_id, request.partition).term
    if failure is None:
        return StreamEnd(request.partition, EndReason.FEED_DROPPED, unknown, term)
    message = f"{unknown}, and that it was dropped is not sure: {failure}"
    return StreamEnd(request.partition, EndReason.BEHIND, message, term)


def _checked(connection: Connection, id: int, request: StreamRequest) -> Partition | None:
    """Returns the partition of a stream that may be opened; None after an answer that refuses it."""
    node, rounds = connection.node, connection.rounds
    if id in rounds.slots or id in connection.pending_streams:
        raise ProtocolError(f"STREAM_REQUEST: stream {id} is open already")
    if request.filter.unknown:
        names = ", ".join(map(repr, request.filter.unknown))
        raise TailraceError(
            f"this node does not know the member {names} of a filter; it knows key_prefix and keys_only"
        )
    refusal = _refusal(connection, request)
    if refusal is not None:
        connection.answers.add(refusal.encode(id))
        return None
    if request.level == Level.QUORUM and not node.leaderships.of(request.feed_id, request.partition).in_set:
        raise NotDurable("visibility quorum needs a set of nodes, and this node is in none: use disk")
    if request.level == Level.QUORUM:
        node.feeds.of_id(request.feed_id).require_quorum()
    if request.level == Level.MEMORY and node.storage.committer.failure is not None:
        raise node.storage.committer.failure.with_traceback(None)
    if len(rounds.slots) >= _streams_max(node, request):
        raise Overloaded(
            f"{len(rounds.slots)} streams are open on this connection, and limits.streams_max allows no more: "
            "use another connection"
        )
    return node.feeds.of_id(request.feed_id).partitions[request.partition]


def _streams_max(node: Services, request: StreamRequest) -> int:
    """Returns the number of streams that a connection may have: a replica needs one for each partition."""
    limit = node.config.limits.streams_max
    return limit if request.replica is None else max(limit, node.feeds.count_partitions())


def _begin(
    connection: Connection, id: int, request: StreamRequest, partition: Partition, start: StreamStart | None = None
) -> None:
    """Answers, and opens the stream if the answer is STREAM_OK. Raises DataGone."""
    node, rounds = connection.node, connection.rounds
    if start is not None:
        assert request.since_us is not None, "only a time has to be looked for"
        start = checked(node, partition, start, request.since_us)
    make: Callable[..., PartitionStream] = PartitionStream
    if request.replica is not None:
        kind = SegmentStream if is_pushed(request, partition) else ReplicationStream
        make = partial(kind, now=node.clock.monotonic, is_credited=request.replica.credits_streams)
    if not connection.takes_ttls:
        make = partial(make, lacks_ttls=True)
    answer, stream = begin_stream(id, request, partition, node.storage.pins, node.filtered, start, make)
    connection.answers.add(answer.encode(id))
    if stream is None:
        return
    # Rows that a follower has not received yet may have been written before that time, whatever its clock says.
    wall_us = node.clock.wall_us() if partition.state == Role.LEADER.value else 0
    if request.until_us is not None and request.until_us <= max(wall_us, partition.last_timestamp):
        stream.time_passed()
    # The answer has to leave before anything of the stream.
    if isinstance(stream, ReplicationStream):
        for frame in stream.at_start():
            connection.answers.add(frame)
    connection.send_answers()
    node.traffic.stream_opened()
    rounds.open(stream, connection.has_news if request.replica is None else connection.has_replica_news)
    connection.deadline_timer.check()
    if id not in rounds.slots:  # it has had its end already
        return
    if isinstance(stream, ReplicationStream) and request.replica is not None and request.state == "leader":
        connection.serve_replica(stream, request.replica, node.leaderships.of_partition(partition))
    if request.level >= Level.DISK and partition.high_seq > partition.durable_seq:
        node.storage.committer.hurry()


def _refusal(connection: Connection, request: StreamRequest) -> StreamEnd | None:
    """Returns the refusal of a stream that this node cannot serve; None if it can.

    The state comes first: a node in another one need not know of the feed.
    """
    node = connection.node
    if connection.draining:
        return StreamEnd(request.partition, EndReason.DRAINING, "the node is stopping")
    leadership = node.leaderships.of(request.feed_id, request.partition)
    if request.state != leadership.role.value:
        message = f"this node is a {leadership.role.value}, and a {request.state} was asked for"
        return StreamEnd(request.partition, EndReason.WRONG_STATE, message, leadership.term)
    try:
        feed = node.feeds.of_id(request.feed_id)
    except UnknownFeed as error:
        if leadership.role is Role.FOLLOWER:  # which may not have heard of it yet
            return StreamEnd(request.partition, EndReason.BEHIND, str(error), leadership.term)
        return StreamEnd(request.partition, EndReason.FEED_DROPPED, str(error))
    if request.partition >= len(feed.partitions):
        message = f"feed {feed.info.name!r} has no partition {request.partition} here"
        return StreamEnd(request.partition, EndReason.NOT_MY_PARTITION, message)
    return None


def _on_stream_close(connection: Connection, frame: Frame) -> None:
    """Ends a stream that the client closes."""
    request = connection.pending_streams.pop(frame.id)
    if request is not None:  # the search for its start is under way, and its result is dropped
        connection.answers.add(StreamEnd(request.partition, EndReason.CLOSED, _CLOSED).encode(frame.id))
        return
    connection.rounds.close(frame.id, EndReason.CLOSED, _CLOSED)
    connection.has_news()


def _on_credit(connection: Connection, frame: Frame) -> None:
    """Grants the bytes that the consumer has consumed; with the id of a stream, notes those of that stream."""
    nbytes = decode_number(frame.body, "CREDIT")
    if frame.id:
        connection.rounds.credit_stream(frame.id, nbytes)
    else:
        connection.rounds.credit(nbytes)
    connection.has_news()


def _on_barrier(connection: Connection, frame: Frame) -> None:
    """Takes a cookie, which returns once all rows accepted before it were delivered."""
    cookie = decode_cookie(frame.body, "BARRIER")
    rounds = connection.rounds
    if connection.draining:
        connection.answers.add(encode_frame(Opcode.BARRIER_LOST, cookie))
        return
    if len(rounds.barriers) >= connection.node.config.limits.barriers_max:
        raise ProtocolError(f"{len(rounds.barriers)} barriers are outstanding; wait for some to come back")
    node = connection.node
    leaderships = node.leaderships.of_partitions(slot.stream.partition for slot in rounds.slots.values())
    if not lead_all(leaderships):
        connection.follower_barriers.add(cookie)
    elif any(leadership.in_set for leadership in leaderships):
        barrier = rounds.barriers.add(cookie, held=True)
        connection.answers.until(partial(confirm_all, leaderships), partial(_confirmed, connection, barrier))
    else:
        rounds.barriers.add(cookie)
    connection.has_news()
    if rounds.barriers:
        node.storage.committer.hurry()


def _confirmed(connection: Connection, barrier: Barrier, error: TailraceError | None) -> None:
    """Releases ``barrier`` if this node led when it came: then no other node had accepted more rows."""
    if error is None:
        connection.rounds.barriers.release(barrier)
    else:
        connection.rounds.barriers.lose_all()
    connection.has_news()


HANDLERS: dict[Opcode, Callable[[Connection, Frame], None]] = {
    Opcode.EXPLAIN_RESUME: _on_explain_resume,
    Opcode.STREAM_REQUEST: _on_stream_request,
    Opcode.STREAM_CLOSE: _on_stream_close,
    Opcode.CREDIT: _on_credit,
    Opcode.BARRIER: _on_barrier,
}
