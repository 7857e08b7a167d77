"""What is left on the disk: the reserve, and when writes are refused."""

import pytest
from tests.fake_host import InlineWorkers

from tailrace_server.host.host import Host
from tailrace_server.journal import Reserve
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
