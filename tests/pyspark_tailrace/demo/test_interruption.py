"""The moment of the kill, and the proof that writes were in flight."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tailrace.demo import interruption
from pyspark_tailrace.demo.failure import DemoFailed
from pyspark_tailrace.demo.interruption import batch_of, interrupt, is_good_moment, was_in_flight
from pyspark_tailrace.demo.job import MicroBatch

pytestmark = pytest.mark.slow

NOW = 1_000_000_000.0
LONG_AFTER = 4_000_000_000.0


def make_batches(sizes, ended=NOW):
    ends = list(itertools.accumulate(sizes))
    return [
        MicroBatch(number, size, end - size + 1, end, NOW, ended)
        for number, (size, end) in enumerate(zip(sizes, ends, strict=True))
    ]


@given(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=8))
def test_good_moment_is_always_within_a_micro_batch(files_by_batch):
    ends = set(itertools.accumulate(itertools.chain(*files_by_batch)))
    batches = make_batches([sum(files) for files in files_by_batch], ended=LONG_AFTER)
    total = max(ends)
    good = [count for count in range(total + 1) if is_good_moment(count, total, ends)]
    assert all(3 * count >= total for count in good)
    for written in good:
        assert was_in_flight(batch_of(batches, written + 1), written)
    # Nothing but the ends of files and the first third is passed over.
    assert set(good) == {count for count in range(total) if 3 * count >= total and count not in ends}


@pytest.mark.parametrize(
    ("written", "expected"),
    [(10, False), (11, True), (19, True), (20, False)],
)
def test_in_flight_is_a_batch_of_which_the_next_leader_had_some(written, expected):
    batch = MicroBatch(id=1, changes=10, first_order=11, last_order=20, started=1.0, ended=5.0)
    assert was_in_flight(batch, written) is expected


def test_no_batch_has_a_change_that_is_still_to_come():
    assert batch_of(make_batches([3, 3]), 7) is None
    assert batch_of(make_batches([3, 3]), 4).id == 1


class FakeServers:
    """Counts what is done to them."""

    def __init__(self):
        self.done = []
        self.killed = None

    async def leader(self, client):
        return "leader"

    async def kill(self, server):
        self.killed = server
        self.done.append(f"kill {server}")

    async def successor(self, client):
        self.done.append("wait")
        return "other"

    async def revive(self):
        if self.killed is not None:
            self.done.append(f"revive {self.killed}")


class FakeFeed:
    """A feed with, at each look, so many durable mutations in two partitions."""

    name = "feed"

    def __init__(self, counts):
        self.counts = iter(counts)

    async def partitions(self):
        await trio.lowlevel.checkpoint()
        return [SimpleNamespace(durable_seq=next(self.counts) - 1), SimpleNamespace(durable_seq=1)]


class FakeClient:
    """A client of the leaders that come, each with so many mutations of two partitions; the first look is too early."""

    def __init__(self, counts):
        self.counts = iter(counts)
        self.roles = itertools.cycle(["follower", "leader"])

    async def status(self):
        await trio.lowlevel.checkpoint()
        role = next(self.roles)
        bases = [next(self.counts) - 1, 1] if role == "leader" else [0, 0]
        states = [{"branches": [["b", 2, base], ["a", 1, 0]]} for base in bases]
        feeds = [{"name": "other", "states": []}, {"name": "feed", "states": states}]
        return SimpleNamespace(details={"replication": {"role": role}, "feeds": feeds})


class FakeJob:
    """Gives one report after the other, each a list of micro-batches."""

    def __init__(self, reports):
        self.reports = iter(reports)

    def micro_batches(self):
        return next(self.reports)


@pytest.fixture
def _no_waiting(monkeypatch):
    for name in ("POLL_S", "BATCH_POLL_S"):
        monkeypatch.setattr(interruption, name, 0)


@pytest.mark.usefixtures("_no_waiting")
async def test_leader_is_killed_within_a_batch_and_another_one_comes():
    servers = FakeServers()
    batches = make_batches([10, 10, 10], ended=LONG_AFTER)
    producer = SimpleNamespace(ends={10, 15, 20, 30})
    feed = FakeFeed([1, 9, 10, 10, 15, 17])
    job = FakeJob([[], batches[:1], batches[:2]])
    kill = await interrupt(servers, FakeClient([18]), feed, job, producer, 30)
    assert servers.done == ["kill leader", "wait"]
    assert (kill.killed, kill.successor) == ("leader", "other")
    assert (kill.written, kill.batch.id, kill.written_of_batch, kill.kills) == (18, 1, 8, 1)


@pytest.mark.usefixtures("_no_waiting")
async def test_batch_that_had_ended_before_leads_to_another_kill():
    servers = FakeServers()
    batches = make_batches([10, 10])
    job = FakeJob([batches, batches])
    kill = await interrupt(servers, FakeClient([10, 18]), FakeFeed([7, 17]), job, SimpleNamespace(ends={10, 20}), 20)
    assert servers.done == ["kill leader", "wait", "revive leader", "kill leader", "wait"]
    assert (kill.written, kill.kills) == (18, 2)


@pytest.mark.usefixtures("_no_waiting")
async def test_no_moment_is_a_failure_that_says_so():
    servers = FakeServers()
    with pytest.raises(DemoFailed, match="all 20 changes were written before the leader could be killed"):
        await interrupt(servers, None, FakeFeed([3, 10, 20]), FakeJob([]), SimpleNamespace(ends={10, 20}), 20)
    assert servers.done == []
