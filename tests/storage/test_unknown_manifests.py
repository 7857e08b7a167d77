"""A manifest whose write fails may be on the disk all the same: a follower goes on as it was, whatever comes next."""

import errno
import random

import pytest
from tests.memory_disk import MemoryDisk

from tailrace_server.upkeep.received_chain import prepare_to_receive

from .branching import FEED_ID, Follower, History


@pytest.fixture
def history():
    return History(random.Random(1))


@pytest.fixture
async def follower(history):
    follower = Follower(MemoryDisk(), history.rnd, history).open()
    for _ in range(4):
        history.write(2)
    await follower.agree()
    while follower.partition.high_seq < history.seq:
        follower.take()
    await follower.commit()
    return follower


def fail_behind_the_rename(disk, *, forever=False):
    """The next manifest of the feed gets its name, and the fsync of the directory fails; then perhaps all writes do."""
    named = failed = False

    def before(name, path):
        nonlocal named, failed
        if FEED_ID.hex() not in path:
            return
        if (named and not failed and name == "sync_directory") or (failed and forever and name == "create"):
            failed = True
            raise OSError(errno.EIO, "a bad disk", path)
        named |= name == "rename" and "MANIFEST" in path

    disk.before = before


async def test_a_run_that_could_not_be_installed_hides_no_rows_of_the_next_leader(follower, history):
    base = history.seq
    for _ in range(4):
        history.write(2)
    await follower.agree()
    await follower.node.storage.flusher.flush_all(follower.partition)
    fail_behind_the_rename(follower.disk)
    with pytest.raises(OSError, match="a bad disk"):
        await follower.fill()
    follower.disk.before = None
    history.fork(base)
    for _ in range(2):
        history.write(1)
    await follower.agree()
    while follower.partition.high_seq < history.seq:
        follower.take()
    await follower.commit()
    follower.check()
    follower.disk.kill()
    follower.open()
    follower.check()
    follower.check_acknowledged()


async def test_a_rollback_behind_copied_segments_that_could_not_be_installed_is_known_to_the_start(follower, history):
    """Both have raised the count of rollbacks by one, so the start could not tell them apart."""
    base = history.ends[-2]
    for _ in range(4):
        history.write(2)
    await follower.agree()
    await prepare_to_receive(follower.node.storage, follower.partition)
    fail_behind_the_rename(follower.disk, forever=True)
    with pytest.raises(OSError, match="a bad disk"):
        await follower.copy()
    assert follower.node.storage.installer.is_unsure(follower.partition)
    follower.disk.before = None
    history.fork(base)
    history.write(1)
    await follower.agree()
    follower.take()
    await follower.commit()
    follower.check()
    follower.disk.kill()
    follower.open()
    follower.check()
    follower.check_acknowledged()
