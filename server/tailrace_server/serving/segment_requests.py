"""The frames that copy segments: the checkpoint of a partition, parts of its files, and its release."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.errors import NotDurable, TailraceError
from tailrace.model import Level
from tailrace.wire.bodies import encode_json
from tailrace.wire.frames import Frame
from tailrace.wire.opcodes import Opcode
from tailrace.wire.segment_messages import CheckpointRequest, SegmentFetch, decode_release
from tailrace_server.partition.partition import Partition
from tailrace_server.serving.connection import Connection


def _on_checkpoint(connection: Connection, frame: Frame) -> None:
    """Answers with the checkpoint of a partition, after a flush if one was asked for."""
    request = CheckpointRequest.decode(frame.body)
    node = connection.node
    partition = node.feeds.partition(request.feed_id, request.partition)
    if request.level == Level.QUORUM and not node.leaderships.of_partition(partition).in_set:
        raise NotDurable("a checkpoint of level quorum needs a set of nodes, and this node is in none: use disk")
    connection.waiting.begin()
    connection.nursery.start_soon(_take, connection, frame.id, request, partition)


async def _take(connection: Connection, id: int, request: CheckpointRequest, partition: Partition) -> None:
    checkpoints = connection.node.storage.checkpoints
    try:
        taken = await checkpoints.take(partition, request.level, flush=request.flush, with_state=request.state)
    except TailraceError as error:
        connection.answers.add_error(error, id)
    else:
        connection.answers.add(encode_json(Opcode.RESULT, taken.to_json(), id))
    finally:
        connection.waiting.end()
    connection.node.connections.turn_ended()


def _on_fetch(connection: Connection, frame: Frame) -> None:
    """Sends a part of a segment's file, in turns with everything else of the connection."""
    connection.segments.add(SegmentFetch.decode(frame.body), frame.id)


def _on_release(connection: Connection, frame: Frame) -> None:
    """Keeps the files of a checkpoint no longer."""
    connection.node.storage.checkpoints.release(decode_release(frame.body))
    connection.answers.add(encode_json(Opcode.RESULT, {}, frame.id))


HANDLERS: dict[Opcode, Callable[[Connection, Frame], None]] = {
    Opcode.SEGMENT_CHECKPOINT: _on_checkpoint,
    Opcode.SEGMENT_FETCH: _on_fetch,
    Opcode.SEGMENT_RELEASE: _on_release,
}
