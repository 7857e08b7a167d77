"""A flush that a client has asked for is cancelled when its connection ends, at any of its waits."""

import errno

import pytest
import trio

from tailrace.errors import NoSpace
from tailrace.model import Level


def cancel_at(engine, number, *, inside):
    """The scope that is cancelled at the begin of wait ``number`` of the workers, or inside of the work itself."""
    scope = trio.CancelScope()
    begin, waits = engine.workers.begin, 0

    async def counted():
        nonlocal waits
        waits += 1
        if waits == number and not inside:
            scope.cancel()
        await begin()

    def working():
        if waits == number and inside:
            scope.cancel()

    engine.workers.begin, engine.workers.before = counted, working
    return scope


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("number", range(1, 5))
async def test_a_cancelled_flush_loses_no_row(engine, number, inside):
    partition = engine.create()
    engine.put(partition, (b"a", b"1"))
    await engine.flusher.flush(partition)
    engine.put(partition, (b"b", b"2"))
    engine.fail("write_at", "MANIFEST", errno.ENOSPC)  # its segment is removed when the next manifest is durable
    with pytest.raises(NoSpace):
        await engine.flusher.flush(partition)
    with cancel_at(engine, number, inside=inside):
        await engine.node.storage.checkpoints.take(partition, Level.DISK, flush=True)
    engine.check_rows(partition)
    for value in (b"3", b"4"):
        engine.put(partition, (b"c", value))
        await engine.flusher.flush(partition)
    engine.check_rows(partition)
    assert len(engine.segments(partition)) == len(partition.chain.segments)
    engine.kill()
    engine.check_rows(engine.partition())


async def test_a_cancelled_flush_serves_no_other_request(engine, autojump_clock):
    engine.clock._passing = trio.current_time
    partition = engine.create()
    checkpoints, taken = engine.node.storage.checkpoints, []
    engine.put(partition, (b"a", b"1"))
    await checkpoints.take(partition, Level.DISK, flush=True)
    engine.put(partition, (b"b", b"2"))

    async def take_and_leave():
        with cancel_at(engine, 1, inside=False):
            await checkpoints.take(partition, Level.DISK, flush=True)

    async def take():
        taken.append(await checkpoints.take(partition, Level.DISK, flush=True))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(take_and_leave)  # has to wait, so both have come when its flush begins
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(take)
    assert [checkpoint.seq for checkpoint in taken] == [2]
