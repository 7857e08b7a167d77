"""What is left on the disk: the reserve, and when writes are refused."""

import pytest
from tests.fake_host import InlineWorkers

from tailrace.errors import NoSpace
from tailrace_server.journal import Reserve
from tailrace_server.runtime.host import Host
from tailrace_server.upkeep.space import Space

RESERVE_BYTES, FREE_BYTES_MIN = 1_000, 5_000


@pytest.fixture
def made(memory_disk):
    disk = memory_disk()
    disk.make_directory("/data")
    reserve = Reserve(disk, "/data", RESERVE_BYTES)
    return disk, Space(Host(disk=disk, workers=InlineWorkers(disk)), "/data", reserve, FREE_BYTES_MIN)


async def test_with_room_the_reserve_is_kept_and_writes_are_taken(made):
    disk, space = made
    disk.size_bytes = 100_000
    await space.look()
    assert space.reserved_bytes == RESERVE_BYTES
    assert space.free_bytes == disk.free_bytes("/data")
    assert space.low == ""


async def test_below_the_bound_writes_are_refused_and_readers_let_go(made):
    disk, space = made
    told = []
    space.on_low = lambda: told.append(space.free_bytes)
    disk.size_bytes = 100_000
    await space.look()
    disk.size_bytes = 100_000 - disk.free_bytes("/data") + FREE_BYTES_MIN - 1
    await space.look()
    assert "free some" in space.low
    assert told == [FREE_BYTES_MIN - 1]
    disk.size_bytes += 1
    await space.look()
    assert space.low == ""


async def test_the_reserve_is_given_up_once_and_made_again_when_there_is_room(made):
    disk, space = made
    disk.size_bytes = 100_000
    await space.look()
    assert await space.release()
    assert not await space.release()
    assert space.reserved_bytes == 0
    await space.look()
    assert space.reserved_bytes == RESERVE_BYTES


@pytest.mark.parametrize(
    ("free", "nbytes", "has_room"),
    [
        (100_000, 95_000, True),
        (100_000, 95_001, False),
        (FREE_BYTES_MIN, FREE_BYTES_MIN // 4, True),  # what it drops may be what is missing
        (FREE_BYTES_MIN, FREE_BYTES_MIN // 4 + 1, False),
        (1_000, 1_000, True),
        (1_000, 1_001, False),
    ],
)
async def test_what_takes_space_for_a_while_leaves_writers_theirs(made, free, nbytes, has_room):
    disk, space = made
    disk.size_bytes += free - disk.free
    if has_room:
        await space.check_room(nbytes, "it")
    else:
        with pytest.raises(NoSpace, match="it takes 0 MiB for a while"):
            await space.check_room(nbytes, "it")


async def test_on_a_disk_that_is_nearly_full_the_journal_is_flushed_away(make_engine):
    """A few bytes that nobody writes to any more keep all of its files."""
    engine = make_engine(free_bytes_min=50_000, flush_age_s=1e9)
    old, busy = engine.create("old"), engine.create("busy")
    engine.put(old, (b"k", b"v"))
    for _ in range(10):
        engine.put(busy, (b"k", bytes(900)))
    await engine.flusher.flush(busy)
    await engine.flusher.pass_once()
    assert engine.node.storage.space.low == ""
    assert len(engine.journal_files) > 10
    engine.disk.size_bytes -= engine.disk.free - 40_000
    for _ in range(12):
        engine.clock.advance(1)
        await engine.flusher.pass_once()
    assert len(engine.journal_files) == 1
    assert engine.node.storage.space.low == "" or engine.disk.free < 50_000
    for name in ("old", "busy"):
        engine.check_rows(engine.partition(name))
    engine.kill()
    for name in ("old", "busy"):
        engine.check_rows(engine.partition(name))


async def test_with_room_the_same_is_left_for_its_age(make_engine):
    engine = make_engine(free_bytes_min=50_000, flush_age_s=1e9)
    partition = engine.create()
    for _ in range(10):
        engine.put(partition, (b"k", bytes(900)))
    await engine.flusher.pass_once()
    await engine.flusher.pass_once()
    assert partition.flushed_seq == 0


async def test_a_disk_that_was_full_is_tight_until_half_more_than_writes_need_is_free(made):
    disk, space = made
    disk.size_bytes = 100_000
    await space.look()
    taken = disk.size_bytes - disk.free_bytes("/data")
    for free, low, tight in [
        (FREE_BYTES_MIN, False, False),
        (FREE_BYTES_MIN - 1, True, True),
        (FREE_BYTES_MIN * 3 // 2 - 1, False, True),
        (FREE_BYTES_MIN - 1, True, True),
        (FREE_BYTES_MIN * 3 // 2, False, False),
    ]:
        disk.size_bytes = taken + free
        await space.look()
        assert (bool(space.low), space.is_tight) == (low, tight)
