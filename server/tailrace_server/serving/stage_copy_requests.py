"""Handles the frames by which members of a set copy sealed stages: functions of a connection and a frame."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from tailrace.errors import Forbidden, NoSpace, ProtocolError, TailraceError, UnknownStage
from tailrace.link.address import Address, parse_address
from tailrace.wire.bodies import encode_json
from tailrace.wire.frames import Frame
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stage_copy_messages import CopyAction, StageCopies, StageCopiesResult, StageData, StageFetch

if TYPE_CHECKING:
    from tailrace_server.serving.connection import Connection


def _on_stage_copies(connection: Connection, frame: Frame) -> None:
    """A member asks this one to take, find or drop copies of stages."""
    connection.require_node("STAGE_COPIES")
    node, request = connection.node, StageCopies.decode(frame.body)
    own = node.identity.cluster_id
    if request.cluster_id != own:
        raise Forbidden(f"STAGE_COPIES: the asker is of cluster {request.cluster_id.hex()}, this node of {own.hex()}")
    spreader, feed_id, ids = node.publisher.spreader, request.feed_id, request.stages
    if request.action is CopyAction.FIND:
        _answer(connection, frame.id, spreader.find(feed_id, ids))
    elif request.action is CopyAction.DROP:
        _answer_later(connection, frame, functools.partial(spreader.forget, feed_id, ids))
    else:
        address = _address_of_member(connection, request)
        if node.storage.space.low:
            raise NoSpace(node.storage.space.low)

        async def take() -> None:
            for id in ids:
                await spreader.take(feed_id, id, address)

        _answer_later(connection, frame, take)


def _answer(connection: Connection, id: int, stages: Sequence[bytes]) -> None:
    result = StageCopiesResult(connection.node.identity.placement_id, tuple(stages))
    connection.answers.add(encode_json(Opcode.RESULT, result.to_json(), id))


def _address_of_member(connection: Connection, request: StageCopies) -> Address:
    """Returns the address to copy from. Raises Forbidden unless it is that of another member."""
    try:
        address = parse_address(request.address)
    except ValueError as error:
        raise ProtocolError(f"STAGE_COPIES: field 'address': {error}") from None
    if not any(address in leadership.members.others for leadership in connection.node.leaderships):
        raise Forbidden(f"STAGE_COPIES: {address} is no member of this set: nothing is copied from there")
    return address


def _answer_later(connection: Connection, frame: Frame, work: Callable[[], Awaitable[None]]) -> None:
    connection.waiting.begin()
    connection.nursery.start_soon(_work, connection, frame.id, work)


async def _work(connection: Connection, id: int, work: Callable[[], Awaitable[None]]) -> None:
    try:
        await work()
    except TailraceError as error:
        connection.answers.add_error(error, id)
    else:
        _answer(connection, id, ())
    finally:
        connection.waiting.end()
    connection.node.connections.turn_ended()


def _on_stage_fetch(connection: Connection, frame: Frame) -> None:
    """Sends a part of a sealed stage's file."""
    connection.require_node("STAGE_FETCH")
    fetch = StageFetch.decode(frame.body)
    if not connection.node.stages.held(fetch.feed_id, (fetch.stage_id,)):
        raise UnknownStage(f"stage {fetch.stage_id.hex()} is not here")
    connection.waiting.begin()
    connection.nursery.start_soon(_send_part, connection, frame.id, fetch)


async def _send_part(connection: Connection, id: int, fetch: StageFetch) -> None:
    """Answers a fetch. The bytes count as an answer from before they are read, so that the peer has to take them."""
    node, memory = connection.node, connection.memory
    read = functools.partial(node.stages.directory.read_part, fetch.stage_id, fetch.offset, fetch.nbytes)
    try:
        await memory.wait_for_answer_room()
        memory.hold_found(fetch.nbytes)
        try:
            file_bytes, data = await node.host.workers.in_thread(read)
        finally:
            memory.hold_found(-fetch.nbytes)
    except TailraceError as error:
        connection.answers.add_error(error, id)
    else:
        connection.answers.add(StageData(file_bytes, data).encode(id))
    finally:
        connection.waiting.end()
    node.connections.turn_ended()


HANDLERS: dict[Opcode, Callable[[Connection, Frame], None]] = {
    Opcode.STAGE_COPIES: _on_stage_copies,
    Opcode.STAGE_FETCH: _on_stage_fetch,
}
