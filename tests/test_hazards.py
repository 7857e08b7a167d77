"""Ways in which changefeeds have lost data, by their numbers, each told with a whole node and its clients.

Numbers are those of tests/README.md, whose table also has the tests of single parts. Nodes and clients are
real, over sockets and a disk; `lose` is a crash that takes the last writes. What a scenario needs several nodes for
is in `tests/test_hazards_of_sets.py`, or left out here and tested with models of nodes in tailrace/consuming:

 2a, 2c  the old leader comes back: a node knows one history at a time
 11      the half about partitions that have moved, followers, and deposed leaders: one node leads all that it has
 14      the half about a follower that rolls back beneath its streams: here a history changes in a start only, which
         ends all of them
 16      the half about lagging followers and deposed leaders; a restored older copy stands for them
 19      the half about partitions that are split
"""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
import trio
from tests.crashing_indexes import AtomicIndex, Crash, CrashingSQLiteIndex, RowByRowIndex, TruncatingIndex
from tests.fake_host import fsync_on_loop
from tests.tailrace_server.raw_requests import block_of, write

import tailrace
from tailrace import (
    BatchChanged,
    Delete,
    Mutations,
    Positions,
    Put,
    Rollback,
    SnapshotEnd,
    StreamEnded,
    Unreachable,
    VersionConflict,
    VersionLost,
)
from tailrace.indexes import MemoryIndex
from tailrace.wire.messages import WriteFlag, Written, decode_error
from tailrace.wire.opcodes import Opcode

KINDS = {
    "in memory": lambda path: AtomicIndex(),
    "in a file": lambda path: CrashingSQLiteIndex(path / "index.db"),
    "row by row": lambda path: RowByRowIndex(),
    "truncating": lambda path: TruncatingIndex(),
}

# What a follower's body raises when its index dies: the second where it was just waiting for the follower.
DEATHS = (Crash, StreamEnded)


@pytest.fixture
async def feed(client):
    """A feed of one partition: each scenario is one of its history."""
    return await client.create_feed("orders", partitions=1)


@pytest.fixture(params=KINDS)
def index(request, tmp_path):
    return KINDS[request.param](tmp_path)


@pytest.fixture
def hold(node, monkeypatch):
    """A function after which nothing becomes durable until the event that it gives is set."""

    def hold():
        gate, commit = trio.Event(), node.storage.committer.commit

        async def wait_and_commit():
            await gate.wait()
            await commit()

        monkeypatch.setattr(node.storage.committer, "commit", wait_and_commit)
        fsync_on_loop(node.storage.committer, on_loop=False)
        return gate

    return hold


def state_of(index):
    return {key: value for key, (_, value) in index.held().items()}


async def items_of(feed):
    return {item.key: item.value async for item in feed.items()}


async def write_lost(feed, *changes):
    """A write that a crash is about to take: at the level that allows that."""
    await feed.write(changes, level="memory")


# 1. Rolling back by dropping what is above


async def test_hazard_01_an_older_value_below_the_fork_comes_back(feed, lose, index):
    await feed.write([Put(b"k", b"old"), Put(b"x", b"x")])
    async with feed.follow(index, visibility="memory") as follower:
        await follower.barrier()
        async with lose():
            await write_lost(feed, Put(b"k", b"new"), Delete(b"x"))
            await follower.barrier()
            assert state_of(index) == {b"k": b"new"}
        await follower.barrier()
        assert state_of(index) == {b"k": b"old", b"x": b"x"}


async def test_hazard_01_a_program_is_given_the_older_value(feed, lose):
    await feed.put(b"k", b"old")
    events = []
    async with feed.consume(visibility="memory") as stream:
        async with lose():
            await write_lost(feed, Put(b"k", b"new"))
            while not any(isinstance(event, Mutations) and event.values() == [b"new"] for event in events):
                events.append(await anext(stream))
        while not (isinstance(events[-1], Mutations) and events[-1].refetched):
            events.append(await anext(stream))
    (rollback,) = (event for event in events if isinstance(event, Rollback))
    assert (rollback.seq, list(rollback.keys)) == (1, [b"k"])
    assert (events[-1].keys(), events[-1].values()) == ([b"k"], [b"old"])


# 2. What a consumer stores


async def follow_until_it_dies(feed, index):
    async with feed.follow(index, visibility="memory") as follower:
        while True:
            await follower.barrier()


async def test_hazard_02b_what_was_read_again_and_lost_is_no_phantom(feed, lose, index):
    await feed.write([Put(b"k", b"old"), Put(b"x", b"x")])
    async with feed.follow(index, visibility="memory") as follower:
        await follower.barrier()
        for number in range(2):
            async with lose():
                await write_lost(feed, Put(b"k", b"lost %d" % number))
                await follower.barrier()
        await feed.put(b"x", b"another one at its seq")
        await follower.barrier()
        assert state_of(index) == {b"k": b"old", b"x": b"another one at its seq"}


@pytest.mark.parametrize("steps", range(6))
async def test_hazard_02c_a_rollback_that_was_begun_is_finished(feed, lose, index, steps):
    """The consumer dies before each of its steps, and the next one begins with what was stored."""
    await feed.write([Put(b"k", b"old"), Put(b"x", b"x")])
    async with lose(), feed.follow(index, visibility="memory") as follower:
        await follower.barrier()
        await write_lost(feed, Put(b"k", b"lost"), Put(b"x", b"lost"), Put(b"new", b"lost"))
        await follower.barrier()
    await feed.put(b"y", b"y")
    index.steps.left = steps
    with contextlib.suppress(*DEATHS):
        async with feed.follow(index, visibility="memory") as follower:
            await follower.barrier()
    index.steps.left = None
    async with feed.follow(index, visibility="memory") as follower:
        await follower.barrier()
        assert state_of(index) == await items_of(feed) == {b"k": b"old", b"x": b"x", b"y": b"y"}


async def test_hazard_02d_rows_that_were_applied_before_their_position(feed, lose):
    """An index without transactions has rows that its position says nothing of, and they are lost then."""
    index = RowByRowIndex()
    await feed.write([Put(b"k", b"old"), Put(b"x", b"x")])
    async with feed.follow(index, visibility="memory") as follower:
        await follower.barrier()
    async with lose():
        await write_lost(feed, Put(b"k", b"lost"), Put(b"x", b"lost"))
        index.steps.left = 2  # the promise and one row
        with pytest.raises(DEATHS):
            await follow_until_it_dies(feed, index)
        assert sorted(state_of(index).values()) == [b"lost", b"x"]
    async with feed.follow(index, visibility="memory") as follower:
        await follower.barrier()
        assert state_of(index) == {b"k": b"old", b"x": b"x"}


# 7. What a clean stop is


async def test_hazard_07_a_copy_of_a_directory_is_another_history(running, feed, tmp_path):
    """Both go on from the same seq, and a consumer of the one hears of it at the other."""
    index = MemoryIndex()
    await feed.put(b"k", b"of both")
    await running.stop()
    running.copy_data(tmp_path / "copy")
    await running.start()
    assert running.node.services.unclean_start is None
    async with feed.follow(index) as follower:
        await feed.write([Put(b"k", b"of the original"), Put(b"x", b"of the original")])
        await follower.barrier()
    await running.stop()
    running.put_back(tmp_path / "copy")
    await running.start()
    assert running.node.services.unclean_start is not None
    await feed.write([Put(b"y", b"of the copy"), Put(b"z", b"of the copy")])
    async with feed.follow(index) as follower:
        await follower.barrier()
        assert index.state == {b"k": b"of both", b"y": b"of the copy", b"z": b"of the copy"}


# 8. Records of another history


async def test_hazard_08_nothing_of_a_dropped_feed_is_in_the_next_one(running, client, feed):
    index = MemoryIndex()
    async with feed.follow(index) as follower:
        await feed.write([Put(b"k", b"old"), Put(b"x", b"old")])
        await follower.barrier()
    await client.drop_feed("orders")
    again = await client.create_feed("orders", partitions=1)
    await again.put(b"y", b"new")
    await running.kill()
    await running.start()
    assert await items_of(again) == {b"y": b"new"}
    with pytest.raises(tailrace.BadPosition, match="another feed"):
        async with again.follow(index):
            raise AssertionError("it goes on with positions of another feed")


async def test_hazard_08_what_was_rolled_back_does_not_come_back_at_the_next_start(running, feed, lose):
    await feed.put(b"k", b"kept")
    async with lose():
        await write_lost(feed, Put(b"k", b"lost"), Put(b"x", b"lost"))
    await feed.put(b"k", b"after")
    for _ in range(2):
        await running.kill()
        await running.start()
        assert await items_of(feed) == {b"k": b"after"}


async def folded_until(running, is_done):
    """Until the node's compactor has come so far."""
    fold = running.node.storage.compactor.compact
    folded = trio.Event()

    async def fold_and_tell(*arguments):
        nonlocal folded
        result = await fold(*arguments)
        folded.set()
        folded = trio.Event()
        return result

    running.node.storage.compactor.compact = fold_and_tell
    while not is_done():
        await folded.wait()


# 10. Ends inside of what is deduplicated


async def test_hazard_10_no_snapshot_ends_where_a_row_is_missing(running, client):
    """k@1 is superseded by k@3 in a folded segment: who has read to 2 is not at the end of anything."""
    feed = await client.create_feed("folded", partitions=1)
    node = running.node
    partition = node.feeds.named("folded").partitions[0]
    for keys in ((b"k", b"a"), (b"k", b"b"), (b"c",), (b"d",)):
        await feed.write([Put(key, b"v") for key in keys])
        await node.storage.flusher.flush(partition)
    await folded_until(running, lambda: partition.chain.segments[0].identity.deduplicated)
    folded = partition.chain.segments[0].identity
    async with feed.consume(until="now", window_bytes=1) as stream:
        async for event in stream:
            if isinstance(event, SnapshotEnd):
                assert event.last_seq >= folded.last_seq
            position = stream.latest_positions.get(0)
            if position is not None and 0 < position.seq < folded.last_seq:
                assert position.snapshot_first < position.seq < position.snapshot_last, "it says that it is inside"


# 11. Barriers that come back early


async def test_hazard_11_a_barrier_waits_for_what_is_not_durable_yet(feed, hold):
    """Acknowledged at level memory, and not visible at level disk: there is something to wait for."""
    index, passed, gate = MemoryIndex(), [], hold()

    async def barrier(follower):
        await follower.barrier()
        passed.append(dict(index.state))

    async with feed.follow(index) as follower, trio.open_nursery() as nursery:
        await feed.put(b"k", b"v", level="memory")
        nursery.start_soon(barrier, follower)
        async with feed.follow(MemoryIndex(), visibility="memory") as other:
            await other.barrier()  # the node has had time enough to answer the first one
        assert not passed
        gate.set()
    assert passed == [{b"k": b"v"}]


async def test_hazard_11_a_barrier_waits_for_a_stream_that_is_being_opened_again(running, feed, lose, nursery):
    """For a rollback, or after an outage: what was acknowledged before it was asked for is there when it returns."""
    index = MemoryIndex()
    await feed.put(b"k", b"old")
    async with feed.follow(index, visibility="memory") as follower:
        await follower.barrier()
        async with lose():
            await write_lost(feed, Put(b"k", b"lost"))
            await follower.barrier()
        await feed.put(b"x", b"after the loss")
        await follower.barrier()
        assert index.state == {b"k": b"old", b"x": b"after the loss"}
        await feed.put(b"y", b"before an outage")
        await running.stop()
        returned = trio.Event()

        async def barrier():
            await follower.barrier()
            assert b"y" in index.state
            returned.set()

        nursery.start_soon(barrier)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert not returned.is_set()
        await running.start()
        await returned.wait()


# 12. Purged deletions


async def purge(running, feed):
    """k is deleted, and then the deletion is purged."""
    node = running.node
    (partition,) = node.feeds.named("purging").partitions
    await node.storage.flusher.flush(partition)
    await feed.delete(b"k")
    for key in (b"x", b"y", b"z"):
        await node.storage.flusher.flush(partition)
        await feed.put(key, b"v")
    await node.storage.flusher.flush(partition)
    await folded_until(running, lambda: partition.purge_seq)


async def test_hazard_12_a_deletion_that_was_purged_while_nobody_followed(running, client):
    feed = await client.create_feed("purging", partitions=1, tombstone_age_s=0.0)
    index = MemoryIndex()
    async with feed.follow(index) as follower:
        await feed.write([Put(b"k", b"v"), Put(b"other", b"v")])
        await follower.barrier()
    await purge(running, feed)
    async with feed.follow(index) as follower:
        await follower.barrier()
        assert index.state == await items_of(feed)
        assert b"k" not in index.state


# 13. A batch that is published once


async def publish(feed, number, value=b"v"):
    async with feed.stage() as stage:
        await stage.write([Put(b"%d-%d" % (number, row), value) for row in range(4)])
        return await feed.publish("job", number, [await stage.seal()])


async def test_hazard_13_the_number_outlives_the_journal_that_had_it(running, feed):
    """Nor does a stage that nobody publishes keep the journal."""
    storage = dataclasses.replace(running.config.storage, journal_file_bytes_max=1_000)
    running.config = dataclasses.replace(running.config, storage=storage)
    await running.stop()
    await running.start()
    async with feed.stage() as left:
        await left.put(b"never published", b"v")
        await left.seal()
    await publish(feed, 7)
    written_to = running.node.storage.journal.end[0]
    for number in range(20):
        await feed.put(b"other", b"%d" % number * 100)
    for partition in running.node.feeds.partitions():
        await running.node.storage.flusher.flush_all(partition)
    await running.node.storage.flusher.pass_once()
    assert running.node.storage.journal.oldest_number > written_to
    await running.kill()
    await running.start()
    with pytest.raises(BatchChanged):
        await publish(feed, 7, b"other rows")
    assert (await publish(feed, 7)).skipped == (0,)
    assert await items_of(feed) == {b"7-%d" % row: b"v" for row in range(4)} | {b"other": b"19" * 100}


async def test_hazard_13_rows_that_are_lost_take_the_number_along(feed, lose):
    await publish(feed, 6)
    async with lose():
        await publish(feed, 7, b"lost")
    assert list((await publish(feed, 7)).written) == [0]
    assert (await publish(feed, 7)).skipped == (0,)
    assert await items_of(feed) == {b"%d-%d" % (number, row): b"v" for number in (6, 7) for row in range(4)}


# 14. A history that changes beneath a stream


async def test_hazard_14_no_rollback_and_yet_another_history(running, feed):
    """The stream goes on on a new branch: with the first row of it a consumer's log has it, or it ends wrong later."""
    await feed.put(b"k", b"v")
    async with feed.consume(visibility="memory") as stream:
        while not isinstance(event := await anext(stream), SnapshotEnd):
            pass
        before = stream.latest_positions[0]
        await running.kill()
        await running.start()
        await feed.put(b"x", b"v")
        while not isinstance(event := await anext(stream), Mutations):
            assert not isinstance(event, Rollback)
        after = stream.latest_positions[0]
    (partition,) = running.node.feeds.named("orders").partitions
    assert (before.seq, after.seq) == (1, 2)
    assert after.log == partition.log != before.log
    assert after.branch == partition.log.branch


# 16. Wrong answers to a consumer that is ahead


async def test_hazard_16_nobody_rolls_back_for_an_older_copy(running, feed, tmp_path):
    """It is behind, and may come to know better: the consumer waits, says why, and keeps what it has."""
    index = MemoryIndex()
    await feed.put(b"k", b"old")
    running.copy_data(tmp_path / "copy")
    for _ in range(3):  # each raises the term
        await feed.put(b"k", b"new")
        await running.kill()
        await running.start()
    async with feed.follow(index) as follower:
        await follower.barrier()
    await running.kill()
    running.put_back(tmp_path / "copy")
    await running.start()
    async with tailrace.connect(running.url, retry_for=1.5) as client:
        with pytest.raises(Unreachable, match="behind: this node is at term"):
            async with client.feed("orders").follow(index):
                raise AssertionError("it follows a node that knows less than it does")
    assert index.state == {b"k": b"new"}


async def test_hazard_16_an_older_copy_that_is_said_to_be_restored_is_followed(running, feed, tmp_path):
    index = MemoryIndex()
    await feed.put(b"k", b"old")
    running.copy_data(tmp_path / "copy")
    for _ in range(3):
        await feed.put(b"k", b"new")
        await running.kill()
        await running.start()
    async with feed.follow(index) as follower:
        await follower.barrier()
    await running.kill()
    running.put_back(tmp_path / "copy")
    running.config = dataclasses.replace(running.config, restored=True)
    await running.start()
    async with feed.follow(index) as follower:
        await follower.barrier()
        assert index.state == {b"k": b"old"}


# 17. What a position holds


@pytest.mark.parametrize(("lost_rows", "goes_back"), [(0, False), (1, True)])
async def test_hazard_17_at_a_base_nobody_goes_back_and_one_above_everybody(feed, lose, lost_rows, goes_back):
    """base is the last seq before a branch. Nothing is written after the fork, where an off-by-one shows."""
    await feed.write([Put(b"k", b"v"), Put(b"x", b"v")])
    async with lose():
        for _ in range(lost_rows):
            await write_lost(feed, Put(b"k", b"lost"))
        async with feed.consume(visibility="memory", until="now") as stream:
            async for _ in stream:
                pass
            stored = Positions.parse(str(stream.latest_positions))
    assert stored[0].seq == 2 + lost_rows
    async with feed.consume(stored, visibility="memory", until="now") as stream:
        events = [event async for event in stream]
    assert any(isinstance(event, Rollback) for event in events) == goes_back
    assert any(isinstance(event, Mutations) for event in events) == goes_back


async def test_hazard_17_two_forks_while_away_and_the_whole_log_is_in_a_position(feed, lose):
    await feed.put(b"k", b"v")
    async with lose():
        await write_lost(feed, Put(b"x", b"lost"))
    await feed.put(b"x", b"kept")
    async with feed.consume(visibility="memory", until="now") as stream:
        async for _ in stream:
            pass
        stored = Positions.parse(str(stream.latest_positions))
    assert len(stored[0].log) == 2
    async with lose():
        await write_lost(feed, Put(b"x", b"lost too"))
    async with feed.consume(stored, visibility="memory", until="now") as stream:
        events = [event async for event in stream]
    assert not any(isinstance(event, Rollback | Mutations) for event in events), "all that it has is there"


# 18. Reads and conditions


async def test_hazard_18_a_version_that_was_lost_is_no_version(feed, lose):
    await feed.put(b"k", b"kept")
    async with lose():
        lost = await feed.put(b"k", b"lost", level="memory")
    after = await feed.put(b"k", b"after")
    assert (lost.seq, lost.branch) != (after.seq, after.branch)
    assert lost.seq == after.seq
    with pytest.raises(VersionLost):
        await feed.get(b"k", at_least=lost)
    with pytest.raises((VersionLost, VersionConflict)):
        await feed.put(b"k", b"on top of it", if_version=lost)
    assert (await feed.get(b"k", at_least=after)).value == b"after"


async def test_hazard_18_a_get_tells_nothing_that_a_crash_can_take(feed, hold, nursery):
    gate, found = hold(), []
    await feed.put(b"k", b"v", level="memory")

    async def get(level):
        found.append((level, (await feed.get(b"k", level=level)).value))

    await get("memory")
    nursery.start_soon(get, "disk")
    for number in range(3):  # the node has had time enough to answer
        await feed.put(b"other", b"%d" % number, level="memory")
    assert found == [("memory", b"v")]
    gate.set()
    while len(found) < 2:
        await trio.lowlevel.checkpoint()
    assert found[1] == ("disk", b"v")


async def test_hazard_18_of_many_conditional_writes_of_a_version_one_wins(feed):
    version = await feed.put(b"k", b"v")
    won = []

    async def put(number):
        with contextlib.suppress(VersionConflict):
            won.append(await feed.put(b"k", b"%d" % number, if_version=version))

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(put, number)
    assert len(won) == 1
    assert (await feed.get(b"k")).version == won[0]


# 19. Producers


@pytest.fixture
async def told(raw, feed):
    """A function that sends a producer's block, and gives the version that it got or the error."""
    feed_id = (await feed.resolve()).feed_id
    async with raw() as connection:
        await connection.hello()

        async def send(number, value, flags=0, version=None):
            block = block_of(b"k", number=number, partition=0, value=value)
            frame = await connection.ask(Opcode.WRITE, write(feed_id, block, flags=flags, version=version))
            return Written.decode(frame.body) if frame.opcode is Opcode.WRITTEN else decode_error(frame.body)

        yield send


async def test_hazard_19_after_a_refusal_later_blocks_wait_for_the_one_before(told, feed):
    """2 is refused, 3 was on its way behind it: taken, it would be older than the 2 that comes again."""
    await told(1, b"1")
    refused = await told(2, b"2", flags=WriteFlag.IF_ABSENT)
    assert isinstance(refused, VersionConflict)
    out_of_order = await told(3, b"3")
    assert isinstance(out_of_order, tailrace.TailraceError)
    assert (await feed.get(b"k")).value == b"1"
    await told(2, b"2")
    await told(3, b"3")
    assert (await feed.get(b"k")).value == b"3"


async def test_hazard_19_a_resend_does_not_overwrite_what_came_after_it(told, feed):
    first = await told(1, b"mine")
    other = await feed.put(b"k", b"of another client")
    assert await told(1, b"mine", flags=WriteFlag.RESEND) == first
    item = await feed.get(b"k")
    assert (item.value, item.version) == (b"of another client", other)


async def test_hazard_19_a_resent_condition_does_not_conflict_with_itself(running, told, feed):
    version = await feed.put(b"k", b"v")
    first = await told(1, b"mine", flags=WriteFlag.IF_VERSION, version=version)
    assert await told(1, b"mine", flags=WriteFlag.IF_VERSION | WriteFlag.RESEND, version=version) == first


async def test_hazard_19_a_pipelined_writer_keeps_its_order_through_broken_connections(running, feed, nursery):
    """What is unanswered is sent again in order, and each block is written once."""

    async def break_them():
        for _ in range(10):
            await trio.sleep(0.01)
            running.cut_connections()

    nursery.start_soon(break_them)
    async with feed.writer(batch_rows=1) as writer:
        for number in range(300):
            await writer.put(b"k", b"%d" % number)
            if number % 10 == 0:
                await trio.sleep(0.003)
    values = []
    async with feed.consume(until="now") as stream:
        async for event in stream:
            if isinstance(event, Mutations):
                values += event.values()
    assert values == [b"%d" % number for number in range(300)]
