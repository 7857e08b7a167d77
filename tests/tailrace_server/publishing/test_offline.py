"""The offline tools, on a directory with stages and with what was published from them."""

from __future__ import annotations

import pytest
from tests.memory_disk import MemoryDisk
from tests.tailrace_server.publishing.crashes import DATA, World, life

from tailrace_server.host.randomness import SystemRandomness
from tailrace_server.offline.backup import backup
from tailrace_server.offline.repair import repair
from tailrace_server.offline.restore import restore
from tailrace_server.offline.verify import verify

TIME = "20260131-154500"
BATCHES = 4


@pytest.fixture
async def world():
    """All batches, the last of them in the journal only, and a stage that nobody has published."""
    made = World(MemoryDisk())
    await life(made, BATCHES)
    await made.run_batch(BATCHES, parts=1)
    made.stage(BATCHES + 1, 0, 1)
    return made


def lasts(world):
    return [partition.sinks.find("job") for partition in world.feed.partitions]


async def test_what_was_published_is_no_problem(world):
    world.disk.kill()
    report = verify(world.disk, DATA)
    assert report.problems == []


async def test_a_damaged_publish_is_found_and_repaired_as_a_whole(world):
    """What is lost of a publish is all of it, and so is its batch: it can be published again."""
    before = lasts(world)
    world.disk.kill()
    path = max(name for name in world.disk.names_now if "/journal/" in name and name.endswith(".log"))
    content = world.disk.content(path)
    place = bytes(content).rfind(b"TRBK")
    world.disk.flip(path, 8 * (place + 100))  # in the body of the last block
    again = World(world.disk.fork(), seed=3)  # it was the journal's torn tail, as far as a start can tell
    assert lasts(again)[1].batch == BATCHES - 1
    assert lasts(again)[0] == before[0]
    repair(world.disk, DATA, SystemRandomness(), world.clock, TIME)
    mended = World(world.disk, seed=4)
    assert mended.feed.partitions[1].sinks.find("job").batch <= BATCHES
    mended.node.check()


async def test_a_backup_has_the_last_batches_and_no_stages(world):
    before = lasts(world)
    world.disk.make_directory("/backups")
    backup(world.disk, DATA, "/backups/one", world.clock.wall_us())
    disk = world.disk.fork()
    disk.kill()
    assert not any("/staging/" in name for name in disk.names_now if name.startswith("/backups/"))
    restore(disk, "/backups/one", "/restored", SystemRandomness())
    assert lasts(World(disk, seed=5, data="/restored")) == before


async def test_a_repair_of_a_good_directory_keeps_all(world):
    before = lasts(world)
    world.disk.kill()
    repair(world.disk, DATA, SystemRandomness(), world.clock, TIME)
    again = World(world.disk, seed=3)
    assert lasts(again) == before
    await again.run_batch(BATCHES, parts=2)
    assert lasts(again) == before
