"""What a node does with the frames of a client that are about streams: open and close them, credit, barriers.

What the streams send afterwards is up to ``stream/``; here it is decided whether there is one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import NotDurable, Overloaded, ProtocolError, TailraceError, UnknownFeed
from tailrace.model import EndReason, Level
from tailrace.wire.frames import Frame, encode_frame
from tailrace.wire.messages import StreamEnd, StreamRequest, decode_cookie, decode_number
from tailrace.wire.opcodes import Opcode
from tailrace_server.stream.resume import begin_stream

if TYPE_CHECKING:
    from tailrace_server.connection import Connection


def on_stream_request(connection: Connection, frame: Frame) -> None:
    """Opens a stream, or says why it cannot begin as it was asked to."""
    request = StreamRequest.decode(frame.body)
    node, rounds = connection.node, connection.rounds
    if frame.id in rounds.streams:
        raise ProtocolError(f"STREAM_REQUEST: stream {frame.id} is open already")
    if request.filter.unknown:
        names = ", ".join(map(repr, request.filter.unknown))
        raise TailraceError(
            f"this node does not know the member {names} of a filter; it knows key_prefix and keys_only"
        )
    refusal = _refusal(connection, request)
    if refusal is not None:
        connection.answer(refusal.encode(frame.id))
        return
    if request.level == Level.QUORUM:
        raise NotDurable("visibility quorum needs a set of nodes, and this node is alone: use disk")
    if request.level == Level.MEMORY and node.committer.failure is not None:
        raise node.committer.failure.with_traceback(None)
    if len(rounds.streams) >= node.config.limits.streams_max:
        raise Overloaded(f"{len(rounds.streams)} streams are open on this connection; use another one")
    partition = node.feeds.of_id(request.feed_id).partitions[request.partition]
    answer, stream = begin_stream(frame.id, request, partition, node.pins, node.filtered)
    connection.answer(answer.encode(frame.id))
    if stream is None:
        return
    # The answer has to leave before anything of the stream.
    connection.send_answers()
    rounds.open(stream, connection.has_news)
    if request.level == Level.DISK and partition.high_seq > partition.durable_seq:
        node.committer.hurry()


def _refusal(connection: Connection, request: StreamRequest) -> StreamEnd | None:
    """Why there can be no such stream here; None where there can."""
    if connection.draining:
        return StreamEnd(request.partition, EndReason.DRAINING, "the node is stopping")
    try:
        feed = connection.node.feeds.of_id(request.feed_id)
    except UnknownFeed as error:
        return StreamEnd(request.partition, EndReason.FEED_DROPPED, str(error))
    if request.partition >= len(feed.partitions):
        message = f"feed {feed.info.name!r} has no partition {request.partition} here"
        return StreamEnd(request.partition, EndReason.NOT_MY_PARTITION, message)
    return None


def on_stream_close(connection: Connection, frame: Frame) -> None:
    """Ends a stream that the client wants no more of."""
    connection.rounds.close(frame.id, EndReason.CLOSED, "closed by the client")
    connection.has_news()


def on_credit(connection: Connection, frame: Frame) -> None:
    """The consumer has consumed so many bytes."""
    connection.rounds.credit(decode_number(frame.body, "CREDIT"))
    connection.has_news()


def on_barrier(connection: Connection, frame: Frame) -> None:
    """Takes a cookie, which comes back once all that was accepted before it has been delivered."""
    cookie = decode_cookie(frame.body, "BARRIER")
    rounds = connection.rounds
    if connection.draining:
        connection.answer(encode_frame(Opcode.BARRIER_LOST, cookie))
        return
    if len(rounds.barriers) >= connection.node.config.limits.barriers_max:
        raise ProtocolError(f"{len(rounds.barriers)} barriers are outstanding; wait for some to come back")
    rounds.barrier(cookie)
    connection.has_news()
    if rounds.barriers:
        connection.node.committer.hurry()
