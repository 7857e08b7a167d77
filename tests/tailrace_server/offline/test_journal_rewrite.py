"""A journal that is written anew by a repair."""

from __future__ import annotations

import random

from tests.fake_host import SeededRandomness
from tests.tailrace_server.made_directory import DATA
from tests.tailrace_server.offline.test_rolled_back import started_on
from tests.tailrace_server.upkeep.conftest import Engine

from tailrace_server.offline.repair import repair
from tailrace_server.offline.verify import verify


async def test_without_its_first_file_it_names_the_branch_of_the_list_of_feeds():
    """The list's branch was in that file alone. A start refuses rows of a branch that nothing names."""
    engine = Engine()
    partition = engine.create()
    await engine.flusher.write_feeds()
    engine.put(partition, (b"a", b"1" * 1_000))
    engine.put(partition, (b"b", b"2"))
    await engine.flusher.flush(partition)
    engine.disk.kill()
    disk = engine.disk.fork()
    disk.remove(f"{DATA}/journal/00000001.log")
    repair(disk, DATA, SeededRandomness(random.Random(1)), engine.clock, "20260131-154500")
    assert verify(disk, DATA).problems == []
    other = started_on(engine, disk)
    assert other.get(other.partition(), b"a", b"b") == [b"1" * 1_000, b"2"]
    assert [feed.info.name for feed in other.node.feeds] == ["orders"]
