import threading

import pytest
import trio
from tests.fake_host import FakeClock

from tailrace.errors import NotDurable
from tailrace_server.runtime.workers import ThreadWorkers
from tailrace_server.upkeep import committer as module
from tailrace_server.upkeep.committer import Committer


class FakeJournal:
    """Counts bytes. ``gate`` holds an fsync up, ``seconds`` is what one takes, ``error`` what it raises."""

    def __init__(self, clock):
        self.clock = clock
        self.written = self.synced = 0
        self.is_next_due = False
        self.syncs = 0
        self.seconds = 0.0
        self.gate = None
        self.error = None
        self.threads = []

    def write(self, size=10):
        self.written += size

    def sync(self):
        self.threads.append(threading.current_thread())
        upto = self.written
        if self.gate is not None:
            self.gate.wait()
        self.clock.advance(self.seconds)
        if self.error is not None:
            raise self.error
        self.synced = max(self.synced, upto)
        self.syncs += 1


class FakePartition:
    def __init__(self):
        self.high_seq = self.durable_seq = 0

    def durable_through(self, seq):
        assert self.durable_seq < seq <= self.high_seq
        self.durable_seq = seq


class Made:
    def __init__(self):
        self.clock = FakeClock()
        self.journal = FakeJournal(self.clock)
        self.committer = Committer(self.journal, self.clock, ThreadWorkers())
        self.partitions = [FakePartition() for _ in range(3)]
        self.log = []
        self.committer.on_progress = lambda: self.log.append("flush")

    def write(self, number=0, *, size=10, answer=None):
        """A block of a partition; ``answer`` names the write of whoever waits for it."""
        partition = self.partitions[number]
        self.journal.write(size)
        partition.high_seq += 1
        self.committer.note(partition)
        if answer is not None:
            self.committer.when_durable(lambda error: self.log.append((answer, partition.durable_seq, error)))

    def answers(self):
        return [entry for entry in self.log if entry != "flush"]


@pytest.fixture
def made():
    return Made()


@pytest.fixture
async def run(nursery, made):
    """The same, with its committer running."""
    nursery.start_soon(made.committer.run)
    return made


async def settled(made):
    """Everything that was written has become durable, or never will."""
    committer, journal = made.committer, made.journal
    # The thread of an fsync has raised `synced` some time before the loop hears of its end.
    while (journal.synced < journal.written or committer._syncing) and committer.failure is None:
        await trio.lowlevel.checkpoint()
    await trio.testing.wait_all_tasks_blocked()


async def test_a_write_is_answered_once_it_is_durable(run):
    run.write(answer="a")
    assert run.answers() == []
    run.committer.turn_ended("asker")
    await settled(run)
    assert run.answers() == [("a", 1, None)]
    assert run.partitions[0].durable_seq == 1


async def test_streams_go_before_answers(run):
    run.write(answer="a")
    run.committer.turn_ended("asker")
    await settled(run)
    assert run.log.index("flush") < run.log.index(("a", 1, None)) < len(run.log) - 1


async def test_what_is_durable_already_is_answered_at_once(made):
    made.committer.when_durable(lambda error: made.log.append(("a", 0, error)))
    assert made.answers() == [("a", 0, None)]


async def test_what_nobody_waits_for_becomes_durable_too(run):
    run.write()
    run.committer.turn_ended("asker")
    await settled(run)
    assert run.partitions[0].durable_seq == 1
    assert run.journal.syncs == 1


async def test_what_nobody_waits_for_is_synced_beside_the_loop(run):
    """A write at level `memory` that comes meanwhile is answered without it."""
    run.journal.gate = threading.Event()
    run.write()
    run.committer.turn_ended("asker")
    while not run.journal.threads:
        await trio.lowlevel.checkpoint()
    assert run.journal.threads != [threading.current_thread()]
    run.write(answer="a")  # the loop goes on; one who waits gets the next fsync
    run.committer.turn_ended("asker")
    assert run.answers() == []
    run.journal.gate.set()
    await settled(run)
    assert run.answers() == [("a", 2, None)]
    assert run.journal.threads[1:] == [threading.current_thread()]


@pytest.mark.parametrize("answer", [None, "a"])
async def test_a_cancelled_commit_holds_up_no_later_one(made, nursery, answer):
    """It is cancelled before its thread begins."""
    made.committer.usual_sync_seconds = 1.0  # a slow disk
    made.write(answer=answer)
    with trio.CancelScope() as scope:
        scope.cancel()
        await made.committer.commit()
    assert scope.cancelled_caught
    assert made.journal.syncs == 0
    nursery.start_soon(made.committer.run)
    made.write(answer="b")
    made.committer.turn_ended(None)
    await settled(made)
    assert [name for name, *_ in made.answers()] == ([answer] if answer else []) + ["b"]


async def test_an_fsync_that_fails_while_another_one_waits_is_told_once(made, nursery, monkeypatch):
    async def a_pass():
        made.journal.error = NotDurable("the disk is gone")
        made.committer._commit_here(0.0)

    made.committer.on_committed = lambda: made.log.append("committed")
    with monkeypatch.context() as patched:
        patched.setattr(made.committer, "_gather", a_pass)
        made.write(answer="a")
        made.committer._wanted.set()
        await made.committer.run()
    assert made.log.count("committed") == 1
    assert [entry[0] for entry in made.answers() if entry != "committed"] == ["a"]


async def gathered(made, monkeypatch, sizes):
    """How many of these writes, one in each pass of the loop, the committer waits for."""
    taken = 0

    async def a_pass():
        nonlocal taken
        if taken < len(sizes):
            made.write(size=sizes[taken])
        taken += 1

    made.write()
    with monkeypatch.context() as patched:
        patched.setattr(trio.lowlevel, "checkpoint", a_pass)
        await made.committer._gather()
    return taken


async def test_the_writes_of_following_passes_share_an_fsync(made, monkeypatch):
    assert await gathered(made, monkeypatch, [10] * 3) == 3 + 1, "and a pass that brings none"


async def test_an_fsync_waits_for_some_passes_only(made, monkeypatch):
    assert await gathered(made, monkeypatch, [10] * 100) == module.GATHER_PASSES_MAX


async def test_an_fsync_waits_for_no_more_bytes_than_are_synced_on_the_loop(made, monkeypatch):
    assert await gathered(made, monkeypatch, [10, module.INLINE_BYTES_MAX, 10]) == 2


async def test_a_slow_fsync_waits_for_no_pass(made, monkeypatch):
    made.committer._note_duration(2 * module.INLINE_SECONDS_MAX)
    assert await gathered(made, monkeypatch, [10]) == 0


async def test_writes_that_arrive_during_an_fsync_share_the_next_one(run):
    run.journal.gate = threading.Event()
    run.write(size=module.INLINE_BYTES_MAX + 1, answer="first")
    run.committer.turn_ended("a")
    while not run.journal.threads:
        await trio.lowlevel.checkpoint()
    for number in range(5):
        run.write(number % 3, answer=number)
        run.committer.turn_ended(number)
    assert run.answers() == []
    begun_at = run.committer._began_at
    assert run.committer.busy_s(begun_at + 7.0) == 7.0
    run.journal.gate.set()
    await settled(run)
    assert run.committer.busy_s(begun_at + 7.0) == 0.0
    assert [entry[0] for entry in run.answers()] == ["first", 0, 1, 2, 3, 4]
    assert run.journal.syncs == 2
    assert [p.durable_seq for p in run.partitions] == [3, 2, 1]


async def test_small_and_fast_is_done_on_the_loops_thread(run):
    run.write(answer="a")
    run.committer.turn_ended("asker")
    await settled(run)
    run.write(size=module.INLINE_BYTES_MAX + 1, answer="b")
    run.committer.turn_ended("asker")
    await settled(run)
    here = threading.current_thread()
    assert [thread is here for thread in run.journal.threads] == [True, False]


async def test_a_slow_disk_is_synced_in_a_thread(run):
    run.journal.seconds = 1.0
    for _ in range(3):
        run.write(answer="a")
        run.committer.turn_ended("asker")
        await settled(run)
    here = threading.current_thread()
    assert [thread is here for thread in run.journal.threads] == [True, False, False]
    assert run.committer.usual_sync_seconds == 1.0


async def test_a_disk_that_is_slow_now_and_then_is_still_synced_on_the_loops_thread(run):
    for number in range(60):
        run.journal.seconds = 0.1 if number % 5 == 4 else 0.0001
        run.write(answer="a")
        run.committer.turn_ended("asker")
        await settled(run)
    here = threading.current_thread()
    assert all(thread is here for thread in run.journal.threads)


async def test_a_disk_that_is_fast_again_is_synced_on_the_loops_thread_again(run):
    run.journal.seconds = 1.0
    for number in range(40):
        if number == 20:
            run.journal.seconds = 0.0001
        run.write(answer="a")
        run.committer.turn_ended("asker")
        await settled(run)
    here = threading.current_thread()
    assert run.journal.threads[20] is not here
    assert run.journal.threads[-1] is here


async def test_a_large_fsync_says_nothing_of_small_ones(run):
    run.journal.seconds = 1.0
    run.write(size=module.INLINE_BYTES_MAX + 1, answer="a")
    run.committer.turn_ended("asker")
    await settled(run)
    run.write(answer="b")
    run.committer.turn_ended("asker")
    await settled(run)
    assert run.journal.threads[-1] is threading.current_thread()


@pytest.mark.parametrize("size", [10, module.INLINE_BYTES_MAX + 1])
async def test_after_a_failed_fsync_nothing_is_acknowledged_any_more(run, size):
    run.journal.error = NotDurable("input/output error")
    run.write(size=size, answer="a")
    run.committer.turn_ended("asker")
    await settled(run)
    run.journal.error = None
    run.write(answer="b")
    run.committer.turn_ended("asker")
    await trio.testing.wait_all_tasks_blocked()
    assert [(name, durable) for name, durable, _ in run.answers()] == [("a", 0), ("b", 0)]
    assert all(str(error) == "input/output error" for _, _, error in run.answers())
    assert run.journal.syncs == 0
    assert run.partitions[0].durable_seq == 0
    assert run.committer.failure is not None


async def test_a_failure_while_more_arrives_reaches_all_of_them(run):
    run.journal.gate = threading.Event()
    run.journal.error = NotDurable("input/output error")
    run.write(size=module.INLINE_BYTES_MAX + 1, answer="a")
    run.committer.turn_ended("asker")
    while not run.journal.threads:
        await trio.lowlevel.checkpoint()
    run.write(1, answer="b")
    run.committer.turn_ended("other")
    run.journal.gate.set()
    await settled(run)
    assert [(name, str(error)) for name, _, error in run.answers()] == [
        ("a", "input/output error"),
        ("b", "input/output error"),
    ]


async def test_hurry_makes_durable_what_nobody_asked_to_be(run):
    """A barrier waits for it."""
    run.write()
    run.committer.hurry()
    run.committer.turn_ended("asker")
    await settled(run)
    assert run.partitions[0].durable_seq == 1


async def test_many_writers_at_random(run):
    """Every answer comes once, in order, and only when its write is durable."""
    expected = []
    for number in range(300):
        run.write(number % 3, size=1 + number * 997 % 70_000, answer=number if number % 4 else None)
        if number % 4:
            expected.append(number)
        if number % 7 == 0:
            run.committer.turn_ended(number % 5)
            await trio.lowlevel.checkpoint()
    run.committer.turn_ended(None)
    await settled(run)
    assert [entry[0] for entry in run.answers()] == expected
    assert all(durable >= number // 3 + 1 for number, durable, _ in run.answers())
    assert [p.durable_seq for p in run.partitions] == [100, 100, 100]
    assert run.journal.syncs < 150


async def test_what_a_rotation_has_made_durable_is_told(run):
    """The journal syncs a file before it begins the next one: here that one then finds no space."""
    run.write(answer="a")
    run.journal.synced = run.journal.written
    run.committer.turn_ended("asker")
    await settled(run)
    assert [entry[0] for entry in run.answers()] == ["a"]
    assert run.partitions[0].durable_seq == 1


async def test_who_asks_before_the_partitions_were_told_is_answered_after_them(run):
    """An fsync in a thread, or a rotation, has made it durable; what it means has not come to the loop yet."""
    run.write()
    run.journal.synced = run.journal.written
    run.committer.when_durable(lambda error: run.log.append(("a", run.partitions[0].durable_seq, error)))
    assert run.answers() == []
    run.committer.turn_ended("asker")
    await settled(run)
    assert run.answers() == [("a", 1, None)]
