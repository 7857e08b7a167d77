"""Handles the frames of stages and PUBLISH: functions of a connection and a frame.

Copies of stages between members are in stage_copy_requests.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import trio

from tailrace.block import FLAG_TTLS, Block
from tailrace.errors import BadBlock, Forbidden, NoSpace, TailraceError
from tailrace.model import Level
from tailrace.wire.bodies import encode_json
from tailrace.wire.frames import Frame
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stage_messages import Publish, StageBlock, Staged, StageSeal, published_to_json
from tailrace_server.blocks import detached
from tailrace_server.partition.validation import validate_block
from tailrace_server.publishing.open_stage import OpenStage
from tailrace_server.replication.in_turns import InTurns
from tailrace_server.state.last_batches import JOB_PREFIX

if TYPE_CHECKING:
    from tailrace_server.replication.leadership import Leadership
    from tailrace_server.serving.connection import Connection
    from tailrace_server.serving.services import Services

# The sinks of one key prefix: a node knows 1,000 of each partition, and forgets the oldest of more.
SINKS_OF_PREFIX_MAX = 100
# Going through the sinks of a partition takes some 0.1 ms, so eight are counted in a turn.
_COUNT_COST = 32


def _on_stage_block(connection: Connection, frame: Frame) -> None:
    node = connection.node
    message = StageBlock.decode(frame.body)
    block = detached(Block.parse(message.block))
    connection.access.require_block(message.feed_id, block)
    leadership = node.leaderships.of(message.feed_id, block.header.partition)
    leadership.require_writable()
    leadership.require_publishing()
    if leadership.in_set:  # a batch is answered at level quorum
        node.feeds.of_id(message.feed_id).require_quorum()
    partition = node.feeds.partition(message.feed_id, block.header.partition)
    if not partition.takes_writes:
        raise Forbidden("_feeds lists the feeds: it is written by creating and dropping them")
    validate_block(block, partition.hash_first, partition.hash_last)
    if block.header.flags & FLAG_TTLS:
        raise BadBlock(
            "a stage takes no ttls: leave them out, and give the feed one (tailrace feed set FEED --ttl TIME)"
        )
    if node.storage.space.low:
        raise NoSpace(node.storage.space.low)
    _reopen_left(connection, message.stage_id)
    blocks = node.stages.take(message.feed_id, message.stage_id, message.number, message.acknowledged, block)
    connection.answers.add(Staged(blocks).encode(frame.id))


def _on_stage_seal(connection: Connection, frame: Frame) -> None:
    seal = StageSeal.decode(frame.body)
    connection.access.require_feed(seal.feed_id)
    for leadership in connection.node.leaderships.of_feed(seal.feed_id):
        leadership.require_writable()
    _reopen_left(connection, seal.stage_id)
    stage = connection.node.stages.begin_seal(seal)
    if stage is not None:
        connection.nursery.start_soon(_seal, connection, frame.id, seal, stage)
    else:
        _answer_sealed(connection, frame.id, seal)


async def _seal(connection: Connection, id: int, seal: StageSeal, stage: OpenStage) -> None:
    node = connection.node
    with trio.CancelScope(shield=True):  # the connection may end meanwhile, but the stage needs the result
        try:
            sealed = await node.host.workers.in_thread(functools.partial(node.stages.directory.seal, stage))
        except NoSpace as error:
            node.stages.not_sealed(stage)
            connection.answers.add_error(error, id)
        except TailraceError as error:
            node.stages.lost(stage)
            connection.answers.add_error(error, id)
        else:
            node.stages.sealed(stage, sealed)
            _answer_sealed(connection, id, seal)
    node.connections.turn_ended()


def _answer_sealed(connection: Connection, id: int, seal: StageSeal) -> None:
    """Answers the seal of a stage that is on this disk; at level quorum once a majority of the set has it, too."""
    leaderships = connection.node.leaderships.of_feed(seal.feed_id)
    if seal.level is Level.QUORUM and any(leadership.in_set for leadership in leaderships):
        connection.nursery.start_soon(_spread, connection, id, seal, leaderships)
    else:
        connection.answers.add(encode_json(Opcode.RESULT, {}, id))


async def _spread(connection: Connection, id: int, seal: StageSeal, leaderships: Sequence[Leadership]) -> None:
    node = connection.node
    try:
        await node.publisher.spreader.spread(leaderships, seal.feed_id, seal.stage_id)
    except TailraceError as error:
        connection.answers.add_error(error, id)
    else:
        connection.answers.add(encode_json(Opcode.RESULT, {}, id))
    node.connections.turn_ended()


def _reopen_left(connection: Connection, id: bytes) -> None:
    """Has an unsealed stage of an earlier run opened again, whose writer goes on with it: it is told to wait."""
    if connection.node.stages.take_left(id):
        connection.nursery.start_soon(_reopen, connection.node, id)


async def _reopen(node: Services, id: bytes) -> None:
    with trio.CancelScope(shield=True):
        stage = await node.host.workers.in_thread(functools.partial(node.stages.directory.reopen, id))
        node.stages.reopened(id, stage)


def _on_publish(connection: Connection, frame: Frame) -> None:
    request = Publish.decode(frame.body)
    connection.access.require_sink(request.feed_id, request.sink)
    connection.waiting.begin()
    connection.nursery.start_soon(_publish, connection, frame.id, request)


async def _publish(connection: Connection, id: int, request: Publish) -> None:
    node = connection.node
    files: list[str] = []
    try:
        await _require_room(connection, request)
        published = await node.publisher.publish(request)
    except TailraceError as error:
        connection.answers.add_error(error, id)
    else:
        value = published_to_json(published.written, published.skipped, more=published.more)
        connection.answers.add(encode_json(Opcode.RESULT, value, id))
        files = published.files
        _drop_copies(connection.node, request.feed_id, published.copied)
    finally:
        connection.waiting.end()
    node.connections.turn_ended()
    if files:
        with trio.CancelScope(shield=True):  # the connection may end now, and only this task knows of the files
            await node.host.workers.in_thread(functools.partial(node.stages.directory.remove, files))


async def _require_room(connection: Connection, request: Publish) -> None:
    """Raises Forbidden if a writer of a key prefix uses too many sinks: the node would forget those of others.

    Raises UnknownFeed.
    """
    prefix, turns = connection.access.sink_prefix, InTurns()
    if not prefix or request.sink.startswith(JOB_PREFIX):
        return
    for partition in connection.node.feeds.of_id(request.feed_id).partitions:
        sinks = partition.sinks
        if len(sinks) < SINKS_OF_PREFIX_MAX or sinks.find(request.sink) is not None:
            continue
        await turns.look(_COUNT_COST)
        if sinks.count_beginning(prefix) >= SINKS_OF_PREFIX_MAX:
            raise Forbidden(
                f"{SINKS_OF_PREFIX_MAX} sinks have published with key prefix {prefix!r:.100}, and "
                f"{request.sink!r:.100} is none of them: use one of these, or a token without a key prefix"
            )


def _drop_copies(node: Services, feed_id: bytes, ids: tuple[bytes, ...]) -> None:
    """Has other members drop the copies of these stages. Nothing waits for it, not even the end of the connection."""
    for leadership in node.leaderships.of_feed(feed_id) if ids else ():
        member = node.members.get(leadership.group.number)
        if member is not None:
            member.start(functools.partial(node.publisher.spreader.drop, leadership, feed_id, ids))


HANDLERS: dict[Opcode, Callable[[Connection, Frame], None]] = {
    Opcode.STAGE_BLOCK: _on_stage_block,
    Opcode.STAGE_SEAL: _on_stage_seal,
    Opcode.PUBLISH: _on_publish,
}
