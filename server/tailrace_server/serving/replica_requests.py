"""The frames of replicas: REPLICA_ACK, LEADER_CONFIRM, and the answers to offers of segments."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.errors import ProtocolError
from tailrace.wire.frames import Frame
from tailrace.wire.opcodes import Opcode
from tailrace.wire.push_messages import SegmentAccept, SegmentAck, SegmentDecline
from tailrace.wire.replica_messages import ReplicaAck
from tailrace.wire.stream_messages import decode_number
from tailrace_server.serving.connection import Connection


def _on_replica_ack(connection: Connection, frame: Frame) -> None:
    """A replica has made something durable."""
    ack = ReplicaAck.decode(frame.body)
    if connection.replica is None:
        raise ProtocolError("REPLICA_ACK on a connection that no replica has asked for a stream on")
    connection.replica.acknowledged(frame.id, ack)


def _on_leader_confirm(connection: Connection, frame: Frame) -> None:
    """A replica still follows this leader."""
    number = decode_number(frame.body, "LEADER_CONFIRM")
    if connection.replica is None:
        raise ProtocolError("LEADER_CONFIRM on a connection that no replica has asked for a stream on")
    connection.replica.confirmed(number)


def _on_segment_answer(connection: Connection, frame: Frame) -> None:
    """A replica answers an offer, or has a part of the segment."""
    answer = _ANSWERS[frame.opcode].decode(frame.body)
    if connection.replica is None:
        raise ProtocolError(f"{frame.opcode.name} on a connection that no replica has asked for a stream on")
    connection.replica.offers.answered(frame.id, answer)


_ANSWERS: dict[Opcode, type[SegmentAccept] | type[SegmentDecline] | type[SegmentAck]] = {
    Opcode.SEGMENT_ACCEPT: SegmentAccept,
    Opcode.SEGMENT_DECLINE: SegmentDecline,
    Opcode.SEGMENT_ACK: SegmentAck,
}

HANDLERS: dict[Opcode, Callable[[Connection, Frame], None]] = {
    Opcode.REPLICA_ACK: _on_replica_ack,
    Opcode.LEADER_CONFIRM: _on_leader_confirm,
    **dict.fromkeys(_ANSWERS, _on_segment_answer),
}
