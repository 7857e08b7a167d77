"""A follower lives through forks, rollbacks, runs and crashes, and always holds the beginning of one history.

The crash comes before any call of the disk that changes something; what was not synced is there in part.
"""

import random

import pytest
from tests.memory_disk import LOSE, Crashed, MemoryDisk
from tests.tiers import first_in_test

from tailrace.errors import TailraceError
from tailrace_server.directory.identity import BadDirectory
from tailrace_server.feeds import recovery as feed_recovery
from tailrace_server.feeds.pending_blocks import PendingBlocks
from tailrace_server.journal import decide_block
from tailrace_server.offline.verify import verify
from tailrace_server.partition import replica_apply as taking
from tailrace_server.state.producers import ProducerTable
from tailrace_server.upkeep import rollback

from .branching import DATA, Follower, History

STEPS = 60


async def step(follower, history, rnd):
    """Something of all that may happen; what the follower takes, it takes from the leader of now."""
    what = rnd.choices(
        ("write", "fork", "take", "fill", "copy", "commit", "told", "flush", "fold", "trim"),
        (8, 1, 10, 2, 2, 6, 4, 4, 1, 2),
    )[0]
    match what:
        case "write":
            history.write(rnd.randint(1, 4))
        case "fork":
            history.fork(rnd.choice(history.ends[-6:]))
            await follower.agree()
        case "take":
            await follower.agree()
            follower.take()
            follower.check_producers()
        case "fill":
            await follower.agree()
            await follower.fill()
            follower.check_producers()
        case "copy":
            await follower.agree()
            await follower.copy()
            follower.check_producers()
        case "commit":
            await follower.agree()
            await follower.commit()
        case "told":
            await follower.agree()
            follower.told()
        case "flush":
            await follower.flush()
        case "fold":
            await follower.fold()
        case "trim":
            await follower.trim()
    follower.check()


async def live(seed, steps=STEPS):
    rnd = random.Random(seed)
    history = History(rnd)
    disk = MemoryDisk()
    follower = Follower(disk, rnd, history).open()
    crash_in = rnd.randrange(60)
    disk.crash_at(crash_in)
    for _ in range(steps):
        try:
            await step(follower, history, rnd)
        except Crashed:
            while True:
                match rnd.randrange(3):
                    case 0:
                        disk.kill()
                    case 1:
                        disk.cut_power(LOSE)
                    case 2:
                        disk.cut_power(rnd)
                if rnd.random() < 0.3:
                    disk.crash_at(rnd.randrange(20))  # in the middle of the start
                try:
                    follower.open()
                except Crashed:
                    continue
                break
            follower.check()
            follower.check_acknowledged()
            assert verify(disk.fork(), DATA).problems == []
            disk.before = None
            disk.crash_at(rnd.randrange(60))
    disk.before = None
    await follower.agree()
    while follower.partition.high_seq < history.seq:
        follower.take()
    follower.check()
    follower.check_producers()


@pytest.mark.slow
@pytest.mark.parametrize("seed", first_in_test(range(60), 20))
async def test_what_a_follower_holds_is_the_beginning_of_one_history(seed):
    await live(seed)


def _forget_rollbacks(**arguments):
    return decide_block(**{**arguments, "rollbacks": ()})


_begin_pending = PendingBlocks.__init__


def _begin_without_rollbacks(pending, rollbacks, times):
    _begin_pending(pending, {}, times)


def _keep_segments(partition, *_):
    """A start that leaves a rollback half-finished."""


BUGS = {
    # In both ways of a replay, by columns and one record at a time.
    "a start forgets what was rolled back": [
        (feed_recovery, "decide_block", _forget_rollbacks),
        (PendingBlocks, "__init__", _begin_without_rollbacks),
    ],
    "a rollback that was cut short is not finished": [(feed_recovery, "_finish_rollback", _keep_segments)],
    "a segment goes whole that could have been cut": [(rollback, "straddling", lambda chain, seq: None)],
    "a start does not cut what a rollback would have": [(feed_recovery, "straddling", lambda chain, seq: None)],
    "an entry is taken over before its base is reached": [(taking, "entries_through", lambda log, seq: log)],
    "producers outlive their results": [(ProducerTable, "drop_above", lambda table, seq: None)],
}


@pytest.mark.planted
@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS)
async def test_a_planted_bug_is_found(bug, monkeypatch):
    for patch in BUGS[bug]:
        monkeypatch.setattr(*patch)
    for seed in range(300):
        try:
            await live(seed)
        except (AssertionError, TailraceError, ValueError, BadDirectory):
            return
    pytest.fail("nobody has noticed")
