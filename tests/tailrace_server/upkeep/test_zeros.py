"""The node's task that writes zeros into the journal."""

from __future__ import annotations

import errno

import pytest
import trio
import trio.testing

from tailrace.errors import NotDurable


@pytest.fixture
def engine(make_engine):
    return make_engine(journal_file_bytes_max=64 << 20)


@pytest.fixture
async def commit(engine):
    """Runs the storage's task. The function commits, and lets the task do what there is to do."""
    storage = engine.node.storage

    async def committed():
        await storage.committer.commit()
        await trio.testing.wait_all_tasks_blocked()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(storage._write_zeros)
        yield committed
        nursery.cancel_scope.cancel()


def count_writes(disk):
    """Returns a list that gets an element for each write to the disk from now on."""
    writes = []

    def before(name, path):
        if name == "write_at":
            writes.append(path)

    disk.before = before
    return writes


async def test_small_records_get_zeros_in_front_of_them(engine, commit):
    partition = engine.create()
    writes = count_writes(engine.disk)
    engine.put(partition, (b"a", b"1"), sync=False)
    assert len(writes) == 1
    await commit()
    count = len(writes)
    assert count > 10
    engine.put(partition, (b"b", b"2"), sync=False)
    await commit()
    assert len(writes) == count + 1  # there are enough of them
    engine.kill()
    engine.check_rows(engine.partition())


async def test_a_failed_fsync_of_zeros_ends_all_writes(engine, commit):
    partition = engine.create()
    syncs = []

    def before(name, path):
        if name == "sync":
            syncs.append(path)
            if len(syncs) > 1:
                raise OSError(errno.EIO, "the disk is broken", path)

    engine.disk.before = before
    engine.put(partition, (b"a", b"1"), sync=False)
    await commit()
    engine.disk.before = None
    assert len(syncs) == 2
    with pytest.raises(NotDurable, match="an fsync failed"):
        engine.put(partition, (b"b", b"2"), sync=False)
