"""Runs a long request in slices of about 2 ms, so that other tasks have the loop in between.

A request that needs the by-key index is handled at once if the index is nearly level with the tree, else in a task.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from tailrace.errors import ProtocolError, TailraceError
from tailrace_server.segment import NotCached, Segment
from tailrace_server.serving.connection import Connection
from tailrace_server.upkeep.storage import Storage

# The seconds of one slice: of catching up with the by-key index, or of looking keys up.
SLICE_SECONDS = 0.002

# Does a part of something, until the given function says that time is up; True once all is done.
Step = Callable[[Callable[[], bool]], bool]


def _nothing() -> int:
    return 0


def run_in_slices(
    connection: Connection,
    id: int,
    step: Step,
    then: Callable[[], None],
    *,
    nbytes: int,
    found: Callable[[], int] = _nothing,
) -> None:
    """Runs ``then`` at once if one ``step`` is enough; otherwise runs steps in a task, with the loop free in between.

    Nothing happens between the last step and ``then``. If either of them needs a block from the disk, a thread reads
    it, and the step is tried again.

    ``nbytes``: the size of the request, held while it waits. ``found``: the bytes that the steps hold by now for the
    answer. If the connection lacks room for more, ``then`` is run with these, so that they leave.
    """
    missing = None
    try:
        if step(_out_of_time(connection)):
            then()
            return
    except NotCached as error:
        missing = error
    connection.waiting.begin()
    connection.memory.hold_request(nbytes)
    held = found()
    connection.memory.hold_found(held)  # here, since other connections look for room before the task runs
    if missing is not None:
        _pin(connection.node.storage, missing)
    connection.nursery.start_soon(_step_until, connection, id, step, then, missing, nbytes, found, held)


def _out_of_time(connection: Connection) -> Callable[[], bool]:
    """True from about 2 ms on."""
    clock = connection.node.clock
    deadline = clock.monotonic() + SLICE_SECONDS
    return lambda: clock.monotonic() >= deadline


async def _step_until(
    connection: Connection,
    id: int,
    step: Step,
    then: Callable[[], None],
    missing: NotCached | None,
    nbytes: int,
    found: Callable[[], int],
    held: int,
) -> None:
    try:
        while True:
            if missing is None:
                await trio.lowlevel.checkpoint()
                await _room(connection, held)
            else:
                await _load(connection, missing, held)
            if connection.memory.lacks_answer_room() and not connection.is_closing:
                if held:
                    connection.memory.hold_found(-held)  # the answer counts it when it is queued
                    held = 0
                    then()
                    break
                if missing is not None:  # others took the room while the disk was waited for
                    missing.forget()
                    missing = None
                continue
            try:
                if step(_out_of_time(connection)):
                    connection.memory.hold_found(-held)
                    held = 0
                    then()
                    break
                missing = None
            except NotCached as error:
                missing = error
                _pin(connection.node.storage, missing)
            held, before = found(), held
            connection.memory.hold_found(held - before)
    except ProtocolError as error:
        connection.fail(error)
    except TailraceError as error:
        connection.answers.add_error(error, id)
    finally:
        connection.waiting.end()
        connection.memory.hold_found(-held)
        connection.memory.hold_request(-nbytes)
    connection.node.connections.turn_ended()


async def _room(connection: Connection, held: int) -> None:
    """Waits for room for an answer that holds nothing yet. One that does is answered early instead."""
    if not held:
        await connection.memory.wait_for_answer_room()


def _pin(storage: Storage, missing: NotCached) -> None:
    """Keeps the segment open until ``_load`` has read the missing block, even if it leaves its chain now."""
    assert isinstance(missing.segment, Segment), "a segment says that it is its own"
    storage.pins.pin(missing.segment)


async def _load(connection: Connection, missing: NotCached, held: int) -> None:
    """Reads the missing block of a pinned segment once there is room, and unpins it. Raises SegmentDamaged.

    The bytes under way count as held, so that few of many requests read at once.
    """
    assert isinstance(missing.segment, Segment)
    storage = connection.node.storage
    try:
        await _room(connection, held)
        if held and connection.memory.lacks_answer_room():
            return
        connection.memory.hold_found(missing.nbytes)
        try:
            await storage.host.workers.in_thread(missing.load)
        finally:
            connection.memory.hold_found(-missing.nbytes)
    finally:
        storage.pins.unpin(missing.segment)
