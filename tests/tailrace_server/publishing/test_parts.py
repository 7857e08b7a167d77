"""Batches that come in parts, with a crash before every call of the disk: each part whole, each row once in the end."""

from __future__ import annotations

import dataclasses
import logging

import pytest
import trio
import trio.testing
from tests.memory_disk import MemoryDisk
from tests.tailrace_server.publishing import crashes
from tests.tailrace_server.publishing.blocks import keys_of
from tests.tailrace_server.publishing.crashes import (
    PARTITIONS,
    batch_of,
    check_all,
    crash_everywhere,
    is_noticed,
    run_the_rest,
)

from tailrace.block import encode_block
from tailrace.errors import BatchChanged, NoSpace
from tailrace.model.hashing import HASH_MAX, key_hash
from tailrace.wire.stage_messages import Publish
from tailrace_server.config import StorageConfig
from tailrace_server.journal import space
from tailrace_server.journal.published_record import PUBLISH_BYTES_MAX
from tailrace_server.publishing import cuts, cutting, publisher
from tailrace_server.publishing.cuts import AT_ONCE_MAX, KEPT_S_MAX
from tailrace_server.publishing.cutting import BatchPart, CutShare
from tailrace_server.state import last_batches

# A block of one row has about 150 bytes: a batch's four rows of a partition are two parts, or more.
PART_BYTES = 400
BATCHES = 2


@pytest.fixture(autouse=True)
def _small_steps(monkeypatch, caplog):
    """Each step is one part, and each crash is worth a warning."""
    monkeypatch.setattr(publisher, "STEP_S", 0.0)
    monkeypatch.setattr(cutting, "READ_BYTES", 1)
    monkeypatch.setattr(space, "ALLOCATE_BYTES", 300)
    caplog.set_level(logging.CRITICAL, "tailrace.server")


class World(crashes.World):
    """As there; each batch comes in parts, with a flush between some."""

    storage = dataclasses.replace(crashes.STORAGE, publish_bytes_max=PART_BYTES)
    steps = 0

    def request(self, batch, ids, **changes):
        feed_id = self.feed.info.feed_id
        message = Publish(feed_id, "job", "query", batch, tuple(ids), tuple(range(PARTITIONS)), in_steps=True)
        return message._replace(**changes)

    async def ask(self, batch, ids, **changes):
        while (await self.node.publisher.publish(self.request(batch, ids, **changes))).more:
            self.steps += 1
            if self.steps % 3 == 0:
                await self.node.storage.flusher.pass_once()

    def last(self, partition):
        return partition.sinks.find("job")


async def every_crash():
    """Returns each crash, but none of those that leave a sorted share: a start removes it."""
    return await crash_everywhere(World(MemoryDisk()), BATCHES, lambda path: ".cut" not in path)


async def check_crash(disk, answered):
    """What the node has of a batch are whole parts; once the job has gone on each row is there once."""
    world = World(disk, seed=2)
    if "orders" not in [feed.info.name for feed in world.node.feeds]:
        assert not answered, "a batch was answered, and its feed is not there"
        await world.create()
    world.node.check()
    assert not [name for name in disk.names("/data/staging") if name.endswith(".cut")] if answered else True
    parts = 0
    for partition in world.feed.partitions:
        keys, last = world.written(partition), world.last(partition)
        rows = {batch: [key for key in keys if batch_of(key) == batch] for batch in range(BATCHES)}
        newest = max([batch for batch, found in rows.items() if found], default=-1)
        assert (-1 if last is None else last.batch) == newest
        assert all(len(found) == 4 for batch, found in rows.items() if batch < newest or batch in answered)
        if last is not None and not last.is_complete:
            parts += 1
            assert 0 < len(rows[newest]) < 4, "a batch that is there, or not at all, is not there in part"
            assert all(key_hash(key) <= last.parts[-1].through for key in rows[newest])
        elif last is not None:
            assert len(rows[newest]) == 4, f"a part of a batch is taken for all of it: {rows}"
    await run_the_rest(world, answered, BATCHES)
    assert all(world.last(partition).is_complete for partition in world.feed.partitions)
    return parts


@pytest.mark.long
async def test_a_crash_before_every_call():
    said = await check_all(await every_crash(), check_crash)
    assert len(said) > 200
    assert sum(said) > 30


class CutByPieces:
    """Parts are so many blocks, in the order in which they were staged."""

    def __init__(self, share, read, file, partition, *, hashes, after_hash, bytes_max):
        self.blocks = [block for stage, entries in share for block in read(stage, entries)]
        self.file, self.after_hash, self.is_sorted = file, after_hash, True

    def part(self):
        number = self.after_hash + 1
        is_last = 2 * number + 2 >= len(self.blocks)
        return BatchPart(self.blocks[2 * number : 2 * number + 2], HASH_MAX if is_last else number)

    def taken(self, part):
        self.after_hash = part.through

    def close(self):
        self.file.close()


def cut_by_pieces(monkeypatch):
    """What is there is told by a number of pieces, and the next try has other ones."""
    monkeypatch.setattr(cuts, "CutShare", CutByPieces)


def forget_the_parts(monkeypatch):
    """The journal and the manifest say that a batch is here, and not which parts of it."""
    write_last = last_batches._write_last
    monkeypatch.setattr(last_batches, "_write_last", lambda last: write_last(last._replace(parts=())))


def say_the_batch_at_its_end(monkeypatch):
    """A part says nothing, and the last one says that the batch is here."""
    is_complete = last_batches.LastBatch.is_complete
    encode = publisher.appending.encode_published

    def late(sinks, blocks):
        return encode({sink: last for sink, last in sinks.items() if is_complete.fget(last)}, blocks)

    monkeypatch.setattr(publisher.appending, "encode_published", late)


@pytest.mark.slow
@pytest.mark.planted
@pytest.mark.parametrize("plant", [cut_by_pieces, forget_the_parts, say_the_batch_at_its_end])
async def test_planted_bugs_are_found(monkeypatch, plant):
    plant(monkeypatch)
    assert await is_noticed(await every_crash(), check_crash)


@pytest.fixture
async def world(nursery):
    made = World(MemoryDisk())
    await made.create()
    nursery.start_soon(made.node.storage.committer.run)
    return made


async def test_steps_say_that_there_is_more_and_what_they_have_written(world):
    ids = [world.stage(0, 0, 1)]
    answers = []
    while not answers or answers[-1].more:
        answers.append(await world.node.publisher.publish(world.request(0, ids)))
    assert len(answers) > 4
    ranges = [versions for answer in answers for versions in answer.written]
    for number, partition in enumerate(world.feed.partitions):
        seqs = [range(v.first_seq, v.last_seq + 1) for v in ranges if v.partition == number]
        assert [seq for part in seqs for seq in part] == [1, 2, 3, 4]
        assert [part.seq for part in world.last(partition).parts] == [part[-1] for part in seqs]
        assert world.last(partition).digest is None
    assert [answer.files for answer in answers[:-1]] == [[]] * (len(answers) - 1)
    assert world.node.stages.statistics().sealed == 0


async def test_a_client_that_asks_in_no_steps_gets_all_in_one(world):
    answer = await world.node.publisher.publish(world.request(0, [world.stage(0, 0, 1)], in_steps=False))
    assert not answer.more
    assert len(answer.written) >= 4
    assert world.disk.names("/data/staging") == [path.rpartition("/")[2] for path in answer.files]


async def test_what_fits_into_a_record_is_not_cut(world, monkeypatch):
    monkeypatch.setattr(cuts, "CutShare", None)
    world.node.publisher._part_bytes_max = PUBLISH_BYTES_MAX
    ids = [world.stage(0, 0, 1)]
    while (await world.node.publisher.publish(world.request(0, ids))).more:
        pass
    assert [world.last(partition).parts for partition in world.feed.partitions] == [(), ()]


async def test_a_bound_of_a_part_is_that_of_a_record():
    assert StorageConfig.__dataclass_fields__["publish_bytes_max"].default == PUBLISH_BYTES_MAX


async def test_what_is_sorted_outlives_a_cancelled_request_and_goes_when_it_is_not_used(world):
    ids = [world.stage(0, 0, 1)]
    with trio.CancelScope() as scope:
        memory_room = world.node.storage.memory.room

        async def room():
            scope.cancel()
            await memory_room()
            await trio.lowlevel.checkpoint()

        world.node.storage.memory.room = room
        while (await world.node.publisher.publish(world.request(0, ids))).more:
            pass
    world.node.storage.memory.room = memory_room
    assert scope.cancelled_caught
    [kept] = world.node.publisher._cuts._kept.values()
    assert any(name.endswith(".cut") for name in world.disk.names("/data/staging"))
    await world.node.publisher.publish(world.request(0, ids))
    assert [kept] == list(world.node.publisher._cuts._kept.values())
    world.clock.advance(KEPT_S_MAX - 1)
    await world.node.publisher.expire()
    assert [kept] == list(world.node.publisher._cuts._kept.values())
    world.clock.advance(1)
    await world.node.publisher.expire()
    assert not any(name.endswith(".cut") for name in world.disk.names("/data/staging"))
    while (await world.node.publisher.publish(world.request(0, ids))).more:
        pass
    assert [len(set(world.written(partition))) for partition in world.feed.partitions] == [4, 4]


async def cancel_while_sorting(world, monkeypatch, request):
    """Cancels a publish when some rows are sorted; returns what stays of its share."""
    advance = CutShare.advance
    with trio.CancelScope() as scope, monkeypatch.context() as context:

        def sort_some(cut):
            scope.cancel()
            advance(cut)
            return False

        context.setattr(CutShare, "advance", sort_some)
        context.setattr(publisher, "STEP_S", 60.0)
        await world.node.publisher.publish(request)
    assert scope.cancelled_caught
    return list(world.node.publisher._cuts._kept.values())


async def test_a_cancelled_publish_leaves_no_rows_in_memory(world, monkeypatch):
    """A client that goes away does not hold the memory of one that works."""
    request = world.request(0, [world.stage(0, 0, 1)])
    [kept] = await cancel_while_sorting(world, monkeypatch, request)
    buckets = kept.cut._spread.buckets
    assert any(bucket.extents for bucket in buckets)
    assert not any(bucket.pieces for bucket in buckets)
    while (await world.node.publisher.publish(request)).more:
        pass
    assert [len(set(world.written(partition))) for partition in world.feed.partitions] == [4, 4]


async def test_a_cancelled_publish_keeps_nothing_that_a_full_disk_does_not_take(world, monkeypatch):
    request = world.request(0, [world.stage(0, 0, 1)])

    def no_room(*_):
        raise NoSpace("the disk is full")

    with monkeypatch.context() as context:
        context.setattr(cutting.Spread, "write", no_room)
        assert await cancel_while_sorting(world, monkeypatch, request) == []
    assert not any(name.endswith(".cut") for name in world.disk.names("/data/staging"))
    while (await world.node.publisher.publish(request)).more:
        pass
    assert [len(set(world.written(partition))) for partition in world.feed.partitions] == [4, 4]


async def test_what_a_publish_uses_again_does_not_expire_while_another_one_is_removed(world, monkeypatch):
    """Else it would have no rows to sort any more, and no end."""
    requests = [world.request(0, [world.stage(0, 0, 1)], sink=sink) for sink in ("one", "two")]
    for request in requests:
        assert (await world.node.publisher.publish(request)).more
    world.clock.advance(KEPT_S_MAX)
    cuts_of_node = world.node.publisher._cuts
    two = cuts_of_node._kept[world.feed.info.feed_id, "two"]
    removing, goes_on = trio.Event(), trio.Event()
    workers = world.node.storage.host.workers
    in_thread = workers.in_thread

    async def slowly(function):
        if not removing.is_set():
            removing.set()
            await goes_on.wait()
        return await in_thread(function)

    monkeypatch.setattr(workers, "in_thread", slowly)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.node.publisher.expire)
        await removing.wait()
        async with cuts_of_node.turn(world.feed.info.feed_id, "two"):
            goes_on.set()
            await trio.testing.wait_all_tasks_blocked()
            assert cuts_of_node._kept[world.feed.info.feed_id, "two"] is two
    for request in requests:
        while (await world.node.publisher.publish(request)).more:
            pass
    assert [len(world.written(partition)) for partition in world.feed.partitions] == [8, 8]


async def test_what_an_error_of_any_kind_has_ended_is_not_used_again(world, monkeypatch):
    request = world.request(0, [world.stage(0, 0, 1)])
    with monkeypatch.context() as context:
        context.setattr(cutting.Spread, "add", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await world.node.publisher.publish(request)
    for _ in range(50):
        if not (await world.node.publisher.publish(request)).more:
            break
    else:
        pytest.fail("it is asked again for ever")
    assert [len(world.written(partition)) for partition in world.feed.partitions] == [4, 4]


async def test_a_batch_that_goes_on_from_other_stages_begins_above_what_is_there(world):
    """And what was sorted of the first ones is not used."""
    ids = [world.stage(0, 0, 1)]
    while not world.last(world.feed.partitions[0]):
        await world.node.publisher.publish(world.request(0, ids))
    await world.publish(0, [world.stage(0, part, 4) for part in (3, 1, 0, 2)])
    assert [len(set(world.written(partition))) for partition in world.feed.partitions] == [4, 4]
    assert [len(world.written(partition)) for partition in world.feed.partitions] == [4, 4]


async def test_a_batch_that_goes_on_with_other_rows_has_those_of_one_try_by_key_hash(world):
    """Rows that are not compared: up to the last part they are those of the first try, and above of the second."""
    partition = world.feed.partitions[0]
    first = keys_of(0, PARTITIONS, 6, b"a-")
    second = [*first[:3], *keys_of(0, PARTITIONS, 3, b"b-")]
    stages = [
        world.seal([encode_block([key], [value], partition=0) for key in keys for value in values])
        for keys, values in ((first, [b"1", b"2"]), (second, [b"3", b"4"]))
    ]
    while not world.last(partition):
        await world.node.publisher.publish(world.request(0, stages[:1], partitions=(0,), digest=1))
    through = world.last(partition).parts[0].through
    with pytest.raises(BatchChanged):
        await world.node.publisher.publish(world.request(0, stages[1:], partitions=(0,), digest=2))
    while (await world.node.publisher.publish(world.request(0, stages[1:], partitions=(0,)))).more:
        pass
    expected = {key: [b"1", b"2"] for key in first if key_hash(key) <= through}
    assert 0 < len(expected) < len(first)
    expected |= {key: [b"3", b"4"] for key in second if key_hash(key) > through}
    found = {}
    for made in world.blocks(partition):
        columns = made.open_columns()
        for row in range(len(columns)):
            found.setdefault(columns.key_at(row), []).append(columns.value_at(row))
    assert found == expected
    assert world.last(partition).is_complete
    # The digest stays that of the first try: neither try is taken for the whole batch without a word.
    assert world.last(partition).digest == 1


async def test_publishes_of_several_sinks_are_cut_at_a_time_and_more_wait(world):
    ids = {f"sink {number}": [world.stage(number, 0, 1)] for number in range(AT_ONCE_MAX + 2)}

    async def publish(sink):
        while (await world.node.publisher.publish(world.request(0, ids[sink], sink=sink))).more:
            pass

    async with trio.open_nursery() as nursery:
        for sink in ids:
            nursery.start_soon(publish, sink)
    for partition in world.feed.partitions:
        assert len(set(world.written(partition))) == len(world.written(partition)) == 4 * len(ids)
        assert all(partition.sinks.find(sink).is_complete for sink in ids)
