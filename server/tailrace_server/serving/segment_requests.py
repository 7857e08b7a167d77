"""The frames that copy segments: the checkpoint of a partition, parts of its files, and its release."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio

from tailrace.errors import Forbidden, NotDurable, NotLeader, TailraceError
from tailrace.model import Level
from tailrace.wire.bodies import encode_json
from tailrace.wire.frames import Frame
from tailrace.wire.opcodes import Opcode
from tailrace.wire.segment_messages import CheckpointRequest, SegmentFetch, SegmentRelease
from tailrace_server.host.answers import answered
from tailrace_server.partition.partition import Partition
from tailrace_server.partition.ttls import first_with_ttls, unread_ttls
from tailrace_server.replication.role import Role
from tailrace_server.serving.connection import Connection
from tailrace_server.serving.services import Services

# A leader that hears of no majority gives a checkpoint of level disk after these seconds.
MAJORITY_WAIT_SECONDS = 1.0


def _on_checkpoint(connection: Connection, frame: Frame) -> None:
    """Answers with the checkpoint of a partition, after a flush if one was asked for.

    Raises NotLeader if the leader is asked for, and this node does not lead: it need not have heard of the feed.
    """
    request = CheckpointRequest.decode(frame.body)
    connection.access.require_whole(request.feed_id)
    node = connection.node
    leadership = node.leaderships.of(request.feed_id, request.partition)
    if request.leader:
        leadership.require_leader()
    partition = node.feeds.partition(request.feed_id, request.partition)
    if not connection.takes_ttls and (seq := first_with_ttls(partition, 0)):
        raise Forbidden(unread_ttls(partition, seq))
    if request.level == Level.QUORUM and not leadership.in_set:
        raise NotDurable("a checkpoint of level quorum needs a set of nodes, and this node is in none: use disk")
    connection.waiting.begin()
    connection.nursery.start_soon(_take, connection, frame.id, request, partition, leadership.term)


async def _take(connection: Connection, id: int, request: CheckpointRequest, partition: Partition, term: int) -> None:
    """Answers a request that came in ``term``. If the leader is asked for, it has to lead in that term to the end."""
    node, checkpoints = connection.node, connection.node.storage.checkpoints
    try:
        if request.flush:
            await _wait_for_majority(node, partition, request.level)
        taken = await checkpoints.take(
            partition,
            request.level,
            flush=request.flush,
            with_state=request.state,
            asker=request.asker,
            connected_at=connection.opened_at,
        )
        if request.leader:
            _require_term(node, partition, term, taken.id)
    except TailraceError as error:
        connection.answers.add_copy_error(error, id)
    else:
        connection.answers.add(encode_json(Opcode.RESULT, taken.to_json(), id))
    finally:
        connection.waiting.end()
    node.connections.turn_ended()


def _require_term(node: Services, partition: Partition, term: int, checkpoint_id: bytes) -> None:
    """Releases the checkpoint and raises NotLeader unless this node has led since ``term``.

    A follower knows less of what is stable. So the flush of a node that has stepped down may have left rows out.
    """
    try:
        node.leaderships.of_partition(partition).require_term(term)
    except NotLeader:
        node.storage.checkpoints.release(checkpoint_id)
        raise


async def _wait_for_majority(node: Services, partition: Partition, level: Level) -> None:
    """Waits until a majority has said that this node leads, and has all rows that it has now, if the node leads a set.

    Every row that was acknowledged at level quorum is among them: no other node has led since. A leader that has just
    begun does not know yet that a majority has them, and so they are not stable.

    Raises:
        NotLeader: at level quorum, another node leads.
    """
    leadership = node.leaderships.of_partition(partition)
    if not leadership.in_set or leadership.role is not Role.LEADER:
        return
    seq = partition.high_seq

    async def wait() -> None:
        await leadership.confirmed()
        await answered(partial(node.waiting.wait, Level.QUORUM, [(partition, seq)]), node.storage.committer.hurry)

    if level == Level.QUORUM:
        await wait()
        return
    with trio.move_on_after(MAJORITY_WAIT_SECONDS):
        try:
            await wait()
        except NotLeader:
            return


def _on_fetch(connection: Connection, frame: Frame) -> None:
    """Sends a part of a segment's file, in turns with everything else of the connection."""
    connection.segments.add(SegmentFetch.decode(frame.body), frame.id)


def _on_release(connection: Connection, frame: Frame) -> None:
    """Keeps the files of a checkpoint no longer. Those that came damaged to the client are checked."""
    release, storage = SegmentRelease.decode(frame.body), connection.node.storage
    storage.damage_checks.reported(storage.checkpoints.named(release.checkpoint_id, release.damaged))
    storage.checkpoints.release(release.checkpoint_id)
    connection.answers.add(encode_json(Opcode.RESULT, {}, frame.id))


HANDLERS: dict[Opcode, Callable[[Connection, Frame], None]] = {
    Opcode.SEGMENT_CHECKPOINT: _on_checkpoint,
    Opcode.SEGMENT_FETCH: _on_fetch,
    Opcode.SEGMENT_RELEASE: _on_release,
}
