"""A repair after a rollback: rows that were rolled back do not come back from the journal or from old segments."""

import copy
import random

import pytest
import trio
from tests.fake_host import InlineWorkers, SeededRandomness
from tests.tailrace_server.upkeep.conftest import DATA, Engine

from tailrace_server.offline.repair import repair
from tailrace_server.offline.verify import verify
from tailrace_server.partition.branching import begin_branch
from tailrace_server.runtime.host import Host
from tailrace_server.upkeep.rollback import roll_back

KEYS = [b"a", b"b", b"c", b"d", b"x", b"y", b"z"]


def rolled_back_to(seq, *, flushed):
    """Segments (0, 2] and (2, 4] and blocks up to 7, rolled back to ``seq``, and three rows of another leader."""
    engine = Engine()
    partition = engine.create()

    async def run():
        await engine.flusher.write_feeds()
        for first in (1, 3):
            engine.put(partition, (b"a", b"%d" % first), (b"b", b"%d" % (first + 1)), ttl=3_600)
            await engine.flusher.flush(partition)
        engine.put(partition, (b"c", b"5"))
        engine.put(partition, (b"d", b"6"), (b"a", b"7"), ttl=3_600)
        await roll_back(engine.node.storage, partition, seq, partition.log, lambda *_: None)
        begin_branch(partition, b"w" * 16, engine.node.storage.journal, 5)
        engine.put(partition, (b"x", b"new"), (b"y", b"new"), producer=9, ttl=3_600)
        engine.put(partition, (b"z", b"new"), producer=9)
        if flushed:
            await engine.flusher.flush(partition)

    trio.run(run)
    engine.sync(partition)
    engine.disk.kill()
    return engine


def started_on(engine, disk):
    """Another engine over ``disk``, started."""
    other = copy.copy(engine)
    other.disk, other.workers = disk, InlineWorkers(disk)
    other.host = Host(clock=engine.clock, randomness=SeededRandomness(), disk=disk, workers=other.workers)
    other.start()
    other.node.check()
    return other


@pytest.mark.parametrize("flushed", [False, True], ids=["in the journal", "flushed"])
@pytest.mark.parametrize("seq", range(1, 7))
def test_whatever_file_is_lost_it_starts_and_has_no_row_that_was_rolled_back(seq, flushed):
    engine = rolled_back_to(seq, flushed=flushed)
    assert verify(engine.disk.fork(), DATA).problems == []
    directory = engine.node.storage.store.partition_directory(engine.partition().feed_id, 0)
    for name in engine.disk.names(directory):
        disk = engine.disk.fork()
        disk.remove(f"{directory}/{name}")
        repair(disk, DATA, SeededRandomness(random.Random(1)), engine.clock, "20260131-154500")
        assert verify(disk, DATA).problems == []
        other = started_on(engine, disk)
        found = set(other.get(other.partition(), *KEYS))
        assert found <= {None, b"new", *(b"%d" % kept for kept in range(1, seq + 1))}, f"without {name}"
        assert other.get(other.partition(), b"x", b"y", b"z") == [b"new"] * 3, f"without {name}"
