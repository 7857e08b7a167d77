"""Writers and stages that several tasks share, with time-outs at every await, against a peer that is slow or frozen.

The peer answers as an example says; time is virtual, so a task that is never woken shows as a time-out of the test.
"""

import random
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tiers import examples

from tailrace import Put
from tailrace.block import Block
from tailrace.errors import TailraceError, Unreachable
from tailrace.model import Level, Resolved, VersionRange
from tailrace.model.hashing import key_hash, partition_of_hash
from tailrace.requests.client_core import ClientCore
from tailrace.requests.feed_core import FeedCore
from tailrace.requests.outbox import Batching
from tailrace.requests.plan import WriteBlock
from tailrace.requests.staging import SealedStage
from tailrace.trio.stage import Stage
from tailrace.trio.writer import Writer
from tailrace.wire.stage_messages import StageBlock, Staged

PARTITIONS = 3
KEYS = [b"key %d" % number for number in range(7)]
# Longer than any example takes: what has not ended by then waits for ever.
EXAMPLE_SECONDS_MAX = 10_000.0
FRAME_HEADER_BYTES = 16
# The largest row here, with what it takes in a block of its own.
ROW_BYTES_MAX = 320


def partition_of(key):
    return partition_of_hash(key_hash(key), PARTITIONS)


def known_feed():
    """A feed of which the client has asked already."""
    client = ClientCore(
        "tailrace://node",
        token=None,
        name=None,
        connect_timeout=10.0,
        retry_for=30.0,
        state="leader",
        clock=lambda: 0.0,
        source=random.Random(1),
        new_session=lambda: "",
    )
    feed = FeedCore(client, "orders")
    feed.resolved = Resolved(b"f" * 16, PARTITIONS)
    return feed


def row_bytes(key, value):
    return len(key) + len(value or b"")


class Peer:
    """A node, and the runner through which a writer reaches it. Answers each block after its delay, in order."""

    def __init__(self, delays, fail_at, bytes_max):
        self._delays = delays
        self._fail_at = fail_at
        self._bytes_max = bytes_max
        self._queue = trio.open_memory_channel(10_000)
        self._in_flight_bytes = 0
        self._seq = 0
        self.rows = {partition: [] for partition in range(PARTITIONS)}
        self.answered = set()
        self.blocks = 0

    # The runner

    async def run(self, plan):
        with pytest.raises(StopIteration) as end:
            next(plan)
        return end.value.value

    def queue(self, step, done):
        if isinstance(step, WriteBlock):
            self._take(step.block, lambda error: done(*self._versions(step.block, error)))
            return
        frame = step.encode(1)
        if isinstance(frame, bytes):  # a seal
            self._later(lambda error: done(None if error else True, error))
            return
        staged = StageBlock.decode(memoryview(b"".join(frame))[FRAME_HEADER_BYTES:])
        answer = Staged(staged.number + 1)
        self._take(Block.parse(staged.block), lambda error: done(None if error else answer, error))

    def kick(self):
        pass

    def withdraw_lane(self, lane):
        pass

    # The node

    def _take(self, block, answer):
        self.blocks += 1
        self._in_flight_bytes += block.nbytes
        assert self._in_flight_bytes <= self._bytes_max + block.nbytes, "more in flight than the bound"
        columns = block.columns()
        rows = list(zip(columns.keys(), columns.values(), strict=True))

        def settle(error):
            self._in_flight_bytes -= block.nbytes
            self.answered.update(value for _, value in rows)
            answer(error)

        self.rows[block.header.partition] += rows
        self._later(settle)

    def _later(self, settle):
        self._queue[0].send_nowait(settle)

    def _versions(self, block, error):
        self._seq += block.rows
        versions = VersionRange(block.header.partition, 1, self._seq - block.rows + 1, self._seq)
        return (None, error) if error else (versions, None)

    async def answer(self):
        answered = 0
        async for settle in self._queue[1]:
            await trio.sleep(self._delays[answered % len(self._delays)])
            answered += 1
            settle(Unreachable("as planned") if answered == self._fail_at else None)


class Op(NamedTuple):
    """What a task does: ``rows`` rows by "put" or "write", a "flush" or a "seal"; cancelled after ``timeout``."""

    name: str
    rows: int
    timeout: float | None
    pause: float


class Trial:
    """Runs tasks on one writer or stage, and keeps what they were told."""

    def __init__(self, peer, sender, bytes_max):
        self.peer = peer
        self.sender = sender
        self.bytes_max = bytes_max
        self.accepted = {}  # rows whose call has returned, in order, by task and partition
        self.parts = []  # of calls that were cancelled: (task, partition, rows)
        self.accepted_bytes = 0
        self.count = 0

    async def task(self, number, ops):
        for op in ops:
            await trio.sleep(op.pause)
            with trio.move_on_after(float("inf") if op.timeout is None else op.timeout):
                await getattr(self, op.name)(number, op.rows)

    def row(self, task):
        self.count += 1
        return KEYS[self.count * 5 % len(KEYS)], b"%d %06d %s" % (task, self.count, b"x" * (self.count % 50))

    async def put(self, task, rows):
        for _ in range(rows):
            key, value = self.row(task)
            await self.sender.put(key, value)
            self._accept(task, [(key, value)])

    async def write(self, task, rows):
        made = [self.row(task) for _ in range(rows)]
        try:
            await self.sender.write([Put(key, value) for key, value in made])
        except BaseException:
            for partition in range(PARTITIONS):
                self.parts.append((task, partition, [row for row in made if partition_of(row[0]) == partition]))
            raise
        self._accept(task, made)

    async def flush(self, task, rows):
        values = {value for partition in range(PARTITIONS) for _, value in self.accepted.get((task, partition), ())}
        if isinstance(self.sender, Writer):
            await self.sender.flush()
            assert values <= self.peer.answered, "flush has returned before the rows were acknowledged"

    def _accept(self, task, rows):
        for key, value in rows:
            self.accepted.setdefault((task, partition_of(key)), []).append((key, value))
        self.accepted_bytes += sum(row_bytes(*row) for row in rows)
        answered = sum(len(value) for value in self.peer.answered)
        keys = sum(len(key) for rows in self.peer.rows.values() for key, value in rows if value in self.peer.answered)
        assert self.accepted_bytes - answered - keys <= self.bytes_max + ROW_BYTES_MAX, "more was taken than the bound"

    def check(self):
        """Every accepted row has come, in the order of its task, with parts of cancelled calls in their places."""
        for partition, received in self.peer.rows.items():
            values = [value for _, value in received]
            assert len(set(values)) == len(values), "a row has come twice"
            for task in range(4):
                mine = [row for row in received if row[1].startswith(b"%d " % task)]
                assert mine == sorted(mine, key=lambda row: row[1][:8]), "the order of a task's rows is not kept"
                parts = [rows for number, where, rows in self.parts if (number, where) == (task, partition)]
                possible = {row for rows in parts for row in rows}
                assert [row for row in mine if row not in possible] == self.accepted.get((task, partition), [])
                for rows in parts:
                    came = [row for row in mine if row in set(rows)]
                    assert came == rows[: len(came)], "not the first rows of a cancelled call"


delays = st.lists(st.sampled_from([0.0, 0.0005, 0.01, 0.2, 30.0]), min_size=1, max_size=6)
ops = st.builds(
    Op,
    st.sampled_from(["put", "put", "write", "write", "flush"]),
    st.integers(1, 30),
    st.none() | st.sampled_from([0.0, 0.0004, 0.003, 0.02, 0.5]),
    st.sampled_from([0.0, 0.0, 0.001, 0.02]),
)
tasks = st.lists(st.lists(ops, max_size=6), min_size=1, max_size=4)
bounds = st.sampled_from([1, 300, 1_000, 5_000, 1_000_000])
batch_rows = st.sampled_from([1, 3, 10, 1_000])


async def run_tasks(nursery, trial, scripts):
    async with trio.open_nursery() as tasks:
        for number, script in enumerate(scripts):
            tasks.start_soon(trial.task, number, script)


def run(main):
    async def in_time():
        with trio.fail_after(EXAMPLE_SECONDS_MAX):
            async with trio.open_nursery() as nursery:
                await main(nursery)
                nursery.cancel_scope.cancel()

    trio.run(in_time, clock=trio.testing.MockClock(autojump_threshold=0))


def made_writer(peer, bytes_max, rows, linger_s):
    return Writer(peer, known_feed(), Level.DISK, Batching(2_000, rows, bytes_max), linger_s=linger_s)


@asynccontextmanager
async def writer_on_trial(nursery, delays, bytes_max, rows, linger_s):
    """The trial of a writer whose peer answers after these delays."""
    peer = Peer(delays, None, bytes_max)
    nursery.start_soon(peer.answer)
    async with made_writer(peer, bytes_max, rows, linger_s) as writer:
        yield Trial(peer, writer, bytes_max)


@settings(max_examples=examples(100))
@given(tasks, delays, bounds, batch_rows, st.sampled_from([0.0, 0.001, 3600.0]))
def test_every_row_of_a_shared_writer_is_written_in_order(scripts, delays, bytes_max, rows, linger_s):
    async def main(nursery):
        async with writer_on_trial(nursery, delays, bytes_max, rows, linger_s) as trial:
            await run_tasks(nursery, trial, scripts)
        trial.check()
        assert all(value in trial.peer.answered for rows in trial.peer.rows.values() for _, value in rows)

    run(main)


@settings(max_examples=examples(100))
@given(tasks, delays, bounds, batch_rows)
def test_every_row_of_a_shared_stage_is_sealed_in_order(scripts, delays, bytes_max, rows):
    async def main(nursery):
        peer = Peer(delays, None, bytes_max)
        nursery.start_soon(peer.answer)
        async with Stage(peer, known_feed(), Batching(2_000, rows, bytes_max)) as stage:
            trial = Trial(peer, stage, bytes_max)
            await run_tasks(nursery, trial, scripts)
            sealed = {}

            async def seal(number, timeout):
                with trio.move_on_after(timeout):
                    sealed[number] = await stage.seal()

            async with trio.open_nursery() as sealing:
                for number, timeout in enumerate((0.0, 0.001, 1e6, 1e6)):
                    sealing.start_soon(seal, number, timeout)
        trial.check()
        count = sum(map(len, peer.rows.values()))
        assert isinstance(sealed[2], SealedStage)
        assert sealed[2] == sealed[3]
        assert (sealed[2].rows, sealed[2].blocks) == (count, peer.blocks)
        if count:
            with pytest.raises(ValueError, match="sealed"):
                await stage.put(b"k", b"v")

    run(main)


@settings(max_examples=examples(100))
@given(tasks, delays, bounds, batch_rows, st.integers(1, 8), st.booleans())
def test_an_error_reaches_every_task_of_a_shared_writer(scripts, delays, bytes_max, rows, fail_at, staged):
    """Every waiting task is woken, and leaving or sealing raises."""

    async def main(nursery):
        peer = Peer(delays, fail_at, bytes_max)
        nursery.start_soon(peer.answer)
        raised = []

        async def task(trial, number, script):
            try:
                await trial.task(number, script)
            except TailraceError as error:
                raised.append(error)

        try:
            if staged:
                manager = Stage(peer, known_feed(), Batching(2_000, rows, bytes_max))
            else:
                manager = made_writer(peer, bytes_max, rows, 0.001)
            async with manager as sender:
                trial = Trial(peer, sender, bytes_max)
                async with trio.open_nursery() as tasks:
                    for number, script in enumerate(scripts):
                        tasks.start_soon(task, trial, number, script)
                if staged:
                    await sender.seal()
        except Unreachable as error:
            raised.append(error)
        else:
            assert peer.blocks + staged < fail_at or not peer.blocks, "an answer was an error, and nothing was raised"
            assert raised == []
        assert {str(error) for error in raised} <= {"as planned"}

    run(main)


def test_tasks_that_wait_as_the_body_fails_are_woken():
    """The writer's owner leaves by an exception while another task waits for room."""

    async def main(nursery):
        peer = Peer([1e9], None, 100)
        nursery.start_soon(peer.answer)
        ended = []

        async def write(writer):
            with pytest.raises((TailraceError, ValueError), match="writer"):
                await writer.write([Put(b"k", bytes(100))] * 10)
            ended.append(1)

        async def leave():
            async with made_writer(peer, 100, 1, 0.0) as writer:
                nursery.start_soon(write, writer)
                nursery.start_soon(write, writer)
                await trio.testing.wait_all_tasks_blocked()
                raise KeyError

        with pytest.raises(KeyError):
            await leave()
        await trio.testing.wait_all_tasks_blocked()
        assert ended == [1, 1]

    run(main)


def test_rows_of_a_task_that_goes_on_as_the_writer_is_left_are_refused():
    """A row that is accepted then would never be sent."""

    async def main(nursery):
        peer = Peer([1.0], None, 1_000)
        nursery.start_soon(peer.answer)
        trial = None

        async def put_for_ever():
            while True:
                await trial.put(0, 1)
                await trio.sleep(0.1)

        async def put():
            with pytest.raises(ValueError, match="the writer was left"):
                await put_for_ever()

        async with made_writer(peer, 1_000, 10, 0.001) as writer:
            trial = Trial(peer, writer, 1_000)
            nursery.start_soon(put)
            await trio.sleep(2.5)
        trial.check()
        await trio.sleep(1.0)
        assert trial.accepted

    run(main)


# One example for each of the bugs that were found from outside


def test_a_write_that_waits_for_room_is_not_overtaken_by_linger():
    async def main(nursery):
        async with writer_on_trial(nursery, [0.01], 4_000, 10, 0.005) as trial:
            for _ in range(5):
                await trial.write(0, 200)
        trial.check()

    run(main)


@pytest.mark.parametrize("kind", ["writer", "stage"])
def test_a_cancelled_write_leaves_the_rows_of_earlier_puts(kind):
    async def main(nursery):
        peer = Peer([1.0], None, 1_000)
        nursery.start_soon(peer.answer)
        if kind == "writer":
            manager = made_writer(peer, 1_000, 1_000, 3600.0)
        else:
            manager = Stage(peer, known_feed(), Batching(2_000, 1_000, 1_000))
        async with manager as sender:
            trial = Trial(peer, sender, 1_000)
            await trial.put(0, 5)
            with trio.move_on_after(0.5):
                await trial.write(0, 400)
            await (sender.flush() if kind == "writer" else sender.seal())
            assert sum(map(len, trial.accepted.values())) == 5
            assert trial.parts
        trial.check()

    run(main)


def test_every_flush_returns():
    async def main(nursery):
        async with writer_on_trial(nursery, [1.0], 10_000, 10, 3600.0) as trial:
            await trial.put(0, 5)
            async with trio.open_nursery() as flushing:
                for _ in range(3):
                    flushing.start_soon(trial.flush, 0, 0)

    run(main)


def test_a_flush_does_not_wait_for_the_rows_of_other_tasks():
    async def main(nursery):
        async with writer_on_trial(nursery, [1.0], 10_000, 10, 0.01) as trial:

            async def put_for_ever():
                while True:
                    await trial.put(1, 1)
                    await trio.sleep(0.3)

            async with trio.open_nursery() as others:
                others.start_soon(put_for_ever)
                await trial.put(0, 1)
                await trial.flush(0, 0)
                others.cancel_scope.cancel()
            assert trio.current_time() < 100.0

    run(main)


@pytest.mark.parametrize("linger_s", [0.0, 0.005, 3600.0])
@pytest.mark.parametrize("kind", ["put", "write"])
def test_a_frozen_peer_stops_every_task_at_the_bound(linger_s, kind):
    """Rows of partitions whose batches are never full count as well."""

    async def main(nursery):
        peer = Peer([1e9], None, 10_000)
        nursery.start_soon(peer.answer)
        trial = None

        async def put_for_ever(number):
            while True:
                await getattr(trial, kind)(number, 1)
                await trio.sleep(0.0001)

        with trio.move_on_after(100.0):
            async with made_writer(peer, 10_000, 1_000, linger_s) as writer:
                trial = Trial(peer, writer, 10_000)
                async with trio.open_nursery() as tasks:
                    for number in range(3):
                        tasks.start_soon(put_for_ever, number)
        # What rows and blocks take beside keys and values counts, which is more than half of such small ones.
        assert 1_000 < trial.accepted_bytes < 10_000 + ROW_BYTES_MAX

    run(main)
