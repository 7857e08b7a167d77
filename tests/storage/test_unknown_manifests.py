"""A manifest whose write fails may be on the disk all the same: a follower goes on as it was, whatever comes next."""

import errno
import random

import pytest
from tests.memory_disk import MemoryDisk

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


def fail_behind_the_rename(disk, times=1):
    """The next manifests of the feed get their name, and the fsync of the directory fails."""
    named, left = False, times

    def before(name, path):
        nonlocal named, left
        if FEED_ID.hex() not in path:
            return
        if named and left and name == "sync_directory":
            named, left = False, left - 1
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
