"""Tables that a leader sent ahead of rows that never came do not go with the rows of the next leader."""

import random

import pytest
from tests.memory_disk import MemoryDisk

from tailrace_server.partition.replica_apply import apply_sinks, settle_producers
from tailrace_server.upkeep.snapshot_segment import SnapshotSegment

from .branching import Follower, History


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_batch_of_a_lost_leader_is_not_in_a_run_of_the_next_one(restarts):
    """The sink would take its batch for published, and its rows would be nowhere."""
    history = History(random.Random(1))
    follower = Follower(MemoryDisk(), history.rnd, history).open()
    history.write(2)
    await follower.agree()
    follower.take()
    base = history.seq
    history.write(3)
    storage = follower.node.storage
    apply_sinks(follower.partition, {"job": [7, "job", history.seq]}, history.seq, storage.journal)
    history.fork(base)
    history.write(3)
    await follower.agree()
    settle_producers(follower.partition, storage.journal, follower.clock.monotonic())  # as at STREAM_OK
    await storage.flusher.flush_all(follower.partition)
    filling = SnapshotSegment(storage, follower.partition, base, history.seq, 0)
    filling.add(history.block(base + 1, history.seq))
    await filling.finish(history.log)
    if restarts:
        follower.disk.kill()
        follower.open()
    assert follower.partition.high_seq == history.seq
    assert follower.partition.sinks.find("job") is None
