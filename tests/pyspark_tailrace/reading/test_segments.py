"""Batches by segments, without Spark: the rows of the stream, whatever happens between the plan and the tasks."""

from __future__ import annotations

import os

import pytest
import trio
from tests.pyspark_tailrace.reading.conftest import Job
from tests.tailrace.trio.test_catch_up import asked, chains, compact, flush
from tests.tailrace_server.replication.made_set import until

from pyspark_tailrace.reading import batch_reader, splits
from tailrace import BadSegment, DataGone, Mutations, Put, StreamEnded
from tailrace.wire.opcodes import Opcode
from tailrace.wire.segment_messages import SegmentFetch

__all__ = ["asked", "chains"]

ROWS = 2_000
CUT = {"read": "mutations", "catch_up": "segments"}


async def write(feed, rows=ROWS, tag=b"", keys=ROWS // 2, **options):
    """Blocks of 100 rows with about 100 KB."""
    for first in range(0, rows, 100):
        changes = [Put(b"k%05d" % (number % keys), tag + os.urandom(1_000)) for number in range(first, first + 100)]
        await feed.write(changes, **options)


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch):
    monkeypatch.setattr(batch_reader, "TASK_BYTES", 512 * 1024)


def sorted_rows(rows):
    return sorted(rows, key=lambda row: (row["partition"], row["seq"]))


async def read_all(job, tasks):
    found = []
    for task in tasks:
        found += await job.read(task)
    return sorted_rows(found)


@pytest.fixture
async def history(running, client, chains):
    """A feed of one partition with four segments, and rows above them."""
    feed = await client.create_feed("orders", partitions=1, retention="history")
    for number in range(4):
        await write(feed, 500, b"%d" % number)
        await flush(running)
    await write(feed, 100, b"newest")
    return feed


async def streamed(job, **options):
    return sorted_rows(await job("orders", **CUT | {"catch_up": "stream"} | options).rows())


async def test_tasks_share_a_partition(history, job, asked):
    wanted = await streamed(job)
    assert [row["seq"] for row in wanted] == list(range(1, 2_101))
    assert Opcode.SEGMENT_CHECKPOINT not in asked
    asked.clear()
    reading = job("orders", **CUT)
    tasks = await reading.tasks()
    assert len(tasks) == 5  # 2.1 MB
    assert await read_all(reading, tasks) == wanted
    assert asked.count(Opcode.SEGMENT_CHECKPOINT) == 1, "the driver's"
    assert asked.count(Opcode.STREAM_REQUEST) == 1, "of the rows above the segments"


async def test_a_task_may_run_again_and_twice(history, job):
    """Spark repeats a task that failed, and runs a slow one twice: each gives the same rows in the same order."""
    reading = job("orders", **CUT)
    tasks = await reading.tasks()
    before = [await reading.read(task) for task in tasks]
    await write(history, 300, b"later")
    found = {}

    async def read(place, task):
        found[place] = await reading.read(task)

    async with trio.open_nursery() as nursery:
        for place, task in enumerate([*tasks, *tasks]):
            nursery.start_soon(read, place, task)
    assert [found[place] for place in range(2 * len(tasks))] == before + before


async def test_a_task_that_died_leaves_nothing_behind(running, history, job):
    reading = job("orders", **CUT)
    tasks = await reading.tasks()

    def first_batch():
        rows = reading.reader.read(tasks[1])
        next(rows)
        rows.close()

    await trio.to_thread.run_sync(first_batch)
    assert await read_all(reading, tasks) == await streamed(job)


@pytest.mark.parametrize("columns", [["key", "seq", "partition"], ["partition", "seq", "deleted", "timestamp"]])
async def test_columns(history, job, columns):
    await history.delete(b"k00001")
    rows = sorted_rows(await job("orders", columns, **CUT).rows())
    assert rows == sorted_rows(await job("orders", columns, **CUT | {"catch_up": "stream"}).rows())
    assert len(rows) == 2_101


async def test_a_prefix(history, job, asked):
    rows = sorted_rows(await job("orders", **CUT, key_prefix="k0001").rows())
    assert rows == await streamed(job, key_prefix="k0001")
    assert {row["key"][:5] for row in rows} == {b"k0001"}
    asked.clear()
    await job("orders", read="mutations", key_prefix="k0001").rows()
    assert Opcode.SEGMENT_CHECKPOINT not in asked, "the node sends less"


async def test_at_least_so_many_tasks(history, job):
    reading = job("orders", **CUT, minPartitions="9")
    tasks = await reading.tasks()
    assert len(tasks) >= 9
    assert await read_all(reading, tasks) == await streamed(job)


async def test_a_range_within_segments(history, job):
    async with history.consume(until="now") as stream:
        async for event in stream:
            if isinstance(event, Mutations) and event.last_seq > 700:
                break
        start = str(stream.latest_positions)
    rows = await streamed(job, startingOffsets=start)
    assert 700 < rows[0]["seq"] < 1_000
    assert sorted_rows(await job("orders", **CUT, startingOffsets=start).rows()) == rows
    first = await streamed(job, endingOffsets=start)
    assert [*first, *rows] == await streamed(job)
    assert sorted_rows(await job("orders", **CUT, endingOffsets=start).rows()) == first


async def test_the_rule_leaves_small_ranges_to_the_stream(history, job, asked, monkeypatch):
    await job("orders", read="mutations").rows()
    assert Opcode.SEGMENT_CHECKPOINT not in asked
    monkeypatch.setattr("pyspark_tailrace.reading.segment_plan.BYTES_MIN", 1_000_000)
    reading = job("orders", read="mutations")
    assert await read_all(reading, await reading.tasks()) == await streamed(job)
    assert asked.count(Opcode.SEGMENT_CHECKPOINT) == 1
    asked.clear()
    assert len(await job("orders", ["key"], read="mutations").rows()) == 2_100
    assert Opcode.SEGMENT_CHECKPOINT not in asked, "the node sends keys only"


# Between the plan and the tasks


async def expire(running):
    checkpoints = running.node.storage.checkpoints
    assert len(checkpoints), "the plan's is kept"
    checkpoints._release_all(list(checkpoints._kept.values()))


async def test_a_task_keeps_the_checkpoints_of_the_tasks_that_wait(running, client, chains, job, asked, monkeypatch):
    """The second partition's tasks wait while those of the first one read, for longer than its checkpoint is kept."""
    monkeypatch.setattr(splits, "TOGETHER_ROWS", 1)
    feed = await client.create_feed("orders", partitions=2, retention="history")
    for number in range(4):
        await write(feed, 1_000, b"%d" % number)
        await flush(running)
    wanted = await streamed(job)
    reading = job("orders", **CUT)
    tasks = await reading.tasks()
    kept = running.node.storage.checkpoints._kept
    planned = {id: one.until for id, one in kept.items()}
    assert len(planned) == 2
    first = [task for task in tasks if set(task.checkpoints) == {0}]
    assert first
    found = await read_all(reading, first)
    checkpoints = running.node.storage.checkpoints
    checkpoints._release_all([one for id, one in kept.items() if one.until == planned[id]])
    await compact(running)
    asked.clear()
    found += await read_all(reading, [task for task in tasks if task not in first])
    assert Opcode.SEGMENT_CHECKPOINT not in asked
    assert sorted_rows(found) == wanted


@pytest.mark.parametrize("is_expired", [False, True])
async def test_a_compaction(running, history, job, asked, is_expired):
    wanted = await streamed(job)
    reading = job("orders", **CUT)
    tasks = await reading.tasks()
    first = await reading.read(tasks[0])
    if is_expired:
        await expire(running)
    await compact(running)
    asked.clear()
    assert sorted_rows(first + await read_all(reading, tasks[1:])) == wanted
    assert asked.count(Opcode.SEGMENT_CHECKPOINT) == (4 if is_expired else 0)


async def test_a_restart_of_the_node(running, history, job):
    """It knows no checkpoint any more."""
    wanted = await streamed(job)
    reading = job("orders", **CUT)
    tasks = await reading.tasks()
    await running.kill()
    await running.start()
    assert await read_all(reading, tasks) == wanted


@pytest.fixture
async def trimmed(running, client, chains):
    """A feed whose history up to seq 1,200 is trimmed by ``trim``."""
    feed = await client.create_feed("orders", partitions=1, retention="history", history_bytes=700_000)
    for number in range(3):
        await write(feed, 600, b"%d" % number)
        await flush(running)
    (partition,) = running.node.feeds.named("orders").partitions

    async def trim():
        await running.node.storage.compactor.trim(partition, running.node.feeds.named("orders").info)
        assert 600 <= partition.trim_seq < 1_800

    return trim


async def test_a_trim_after_the_plan(trimmed, job):
    """The plan's checkpoint keeps the rows."""
    wanted = await streamed(job)
    assert len(wanted) == 1_800
    reading = job("orders", **CUT)
    tasks = await reading.tasks()
    await trimmed()
    assert await read_all(reading, tasks) == wanted
    assert len(await streamed(job)) < 1_800


async def test_a_trim_of_rows_that_no_checkpoint_keeps(running, trimmed, job):
    """By either way it is an error, and with 'failOnDataLoss' false the rest is read."""
    strict, lenient, by_stream = (
        job("orders", **CUT),
        job("orders", **CUT, failOnDataLoss="false"),
        job("orders", read="mutations"),
    )
    plans = [(reading, await reading.tasks()) for reading in (strict, by_stream, lenient)]
    wanted = await streamed(job)
    await expire(running)
    await trimmed()
    for reading, tasks in plans[:2]:
        with pytest.raises(DataGone, match="trimmed"):
            await reading.read(tasks[0])
    left = await read_all(lenient, plans[2][1])
    assert left
    assert left == wanted[-len(left) :] == await streamed(job)


async def test_a_rollback_after_the_plan(running, client, job, lose, chains):
    """The task that reads a lost row is refused, as it is by the stream. Others give the rows that are still there."""
    feed = await client.create_feed("orders", partitions=1, retention="history")
    await write(feed, 1_000)
    await flush(running)
    async with lose():
        await write(feed, 1_000, b"lost")
        await flush(running)
        readings = [job("orders", **CUT), job("orders", **CUT | {"catch_up": "stream"}, minPartitions="4")]
        plans = [await reading.tasks() for reading in readings]
        wanted = await streamed(job)
    await write(feed, 1_500, b"other")
    for reading, tasks in zip(readings, plans, strict=True):
        for task in tasks:
            (part,) = task.parts
            if part.stop_seq <= 1_000:
                assert await reading.read(task) == wanted[part.start.seq : part.stop_seq]
            else:
                with pytest.raises(StreamEnded):
                    await reading.read(task)


async def test_segments_that_the_node_cannot_send(running, history, job, asked):
    reading = job("orders", **CUT)
    tasks = await reading.tasks()

    def find(checkpoint_id, segment_id):
        raise BadSegment("planted")

    running.node.storage.checkpoints.find = find
    assert await read_all(reading, tasks) == await streamed(job)
    assert Opcode.SEGMENT_FETCH in asked


async def test_bytes_that_were_changed_on_the_way(history, job, monkeypatch):
    """Its block is refused; after three checkpoints the stream has the rows."""
    flips = []
    decode = SegmentFetch.decode_answer

    def flipping(self, frame):
        body = bytearray(decode(self, frame))
        if self.nbytes > 100_000:
            flips.append(self.offset)
            body[len(body) // 2] ^= 1
        return memoryview(bytes(body))

    monkeypatch.setattr(SegmentFetch, "decode_answer", flipping)
    assert sorted_rows(await job("orders", **CUT).rows()) == await streamed(job)
    assert flips


async def test_wrong_bytes_of_a_planned_segment_are_told_to_the_node(running, history, job, monkeypatch, asked):
    """By the release of a checkpoint of the task's own. That of the plan is kept, for the other tasks."""
    reading, reported = job("orders", **CUT), []
    tasks = await reading.tasks()
    decode_answer, checks = SegmentFetch.decode_answer, running.node.storage.damage_checks

    def flipping(self, frame):
        body = bytearray(decode_answer(self, frame))
        if self.nbytes > 100_000:
            body[len(body) // 2] ^= 1
        return memoryview(bytes(body))

    monkeypatch.setattr(checks, "reported", lambda segments: reported.extend(segments))
    with monkeypatch.context() as wrong:
        wrong.setattr(SegmentFetch, "decode_answer", flipping)
        rows = await reading.read(tasks[0])
    (partition,) = running.node.feeds.named("orders").partitions
    assert reported
    assert reported[0] is partition.chain.segments[0]
    asked.clear()
    assert sorted_rows(rows + await read_all(reading, tasks[1:])) == await streamed(job)
    assert Opcode.SEGMENT_CHECKPOINT not in asked, "the plan's is kept"


def flip_a_bit(path, offset):
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


async def test_a_segment_that_is_damaged_on_the_disk(running, history, job, asked):
    """Neither way reads its block: the task waits, as a stream does, until the segment is mended. Others read on."""
    wanted = await streamed(job)
    (partition,) = running.node.feeds.named("orders").partitions
    segment = partition.chain.segments[1]
    reading = job("orders", **CUT)
    tasks = await reading.tasks()
    flip_a_bit(segment.path, segment.nbytes // 2)
    first, damaged, *others = tasks
    assert damaged.parts[0].start.seq < segment.identity.last_seq - 250 < damaged.parts[0].stop_seq
    rows = await read_all(reading, [first, *others])
    asked.clear()
    async with trio.open_nursery() as nursery:

        @nursery.start_soon
        async def read():
            rows.extend(await reading.read(damaged))

        await until(lambda: Opcode.STREAM_REQUEST in asked)
        flip_a_bit(segment.path, segment.nbytes // 2)
    assert sorted_rows(rows) == wanted


# Compact feeds: one task a partition


@pytest.mark.parametrize("read", ["state", "mutations"])
async def test_a_compact_feed(running, client, job, chains, asked, read):
    feed = await client.create_feed("orders", partitions=2)
    for number in range(3):
        await write(feed, 600, b"%d" % number, keys=900)
        await flush(running)
    await feed.delete(b"k00003")
    await write(feed, 100, b"newest")
    wanted = sorted_rows(await job("orders", read=read, catch_up="stream").rows())
    asked.clear()
    reading = job("orders", read=read, catch_up="segments", minPartitions="8")
    tasks = await reading.tasks()
    assert len(tasks) == 2
    assert await read_all(reading, tasks) == wanted
    assert asked.count(Opcode.SEGMENT_CHECKPOINT) == 2, "the tasks' own"
    await compact(running)
    again = await read_all(reading, tasks)
    if read == "state":
        assert again == wanted
    else:
        newest = {row["key"]: row for row in wanted}
        assert {row["key"]: row for row in again} == newest


async def test_the_state_of_an_earlier_moment(history, job):
    async with history.consume(until="now") as stream:
        async for _ in stream:
            pass
    moment = str(stream.positions)
    wanted = sorted_rows(await job("orders", catch_up="stream").rows())
    await write(history, 300, b"later")
    for catch_up in ("stream", "segments"):
        assert sorted_rows(await job("orders", endingOffsets=moment, catch_up=catch_up).rows()) == wanted


# Sets


async def test_a_leader_that_dies_between_the_plan_and_the_tasks(members):
    """The new leader has other segments, and knows no checkpoint of the old one."""
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=1, retention="history")
        await write(feed, 1_000, level="quorum")
        for node in members:
            for partition in node.node.feeds.named("orders").partitions:
                await node.node.storage.flusher.flush(partition)
        reading = Job(members.url, "orders", visibility="quorum", **CUT)
        tasks = await reading.tasks()
        assert len(tasks) == 2
        first = await reading.read(tasks[0])
        leader = await members.level("orders")
        follower = next(node for node in members if node is not leader)
        await leader.kill()
        await follower.promote()
        await write(feed, 200, b"later", level="quorum")
        rows = sorted_rows(first + await read_all(reading, tasks[1:]))
    assert [row["seq"] for row in rows] == list(range(1, 1_001))
    assert not any(row["value"].startswith(b"later") for row in rows)
