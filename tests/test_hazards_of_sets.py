"""Ways in which sets of nodes have lost data, by their numbers, told step by step with real nodes, sockets and disks.

Numbers are those of tests/README.md; `tests/test_hazards.py` tells those of one node. A node that loses power
forgets what was written after a copy of its directory was taken, while nothing of it becomes durable (`hold`); one
that is cut off answers no question of other nodes, and goes on otherwise.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import os
import shutil

import pytest
import trio
from tests.fake_host import fsync_on_loop
from tests.tailrace_server.replication.made_set import until
from tests.tailrace_server.replication.slow_path import never_now

import tailrace
from tailrace import Mutations, Put, Rollback
from tailrace.errors import NotLeader, TailraceError, Unreachable
from tailrace.indexes import MemoryIndex
from tailrace.model import Level
from tailrace.trio import request
from tailrace.wire.opcodes import Opcode
from tailrace_server.publishing import joining
from tailrace_server.replication import gathered_promises, handover
from tailrace_server.replication.pulled_snapshots import PulledSnapshots
from tailrace_server.replication.replica_puller import ReplicaPuller

# Long enough that what must not happen would have happened: nodes look at each other every 0.05 seconds.
AWHILE = 0.4


@pytest.fixture
async def client(members):
    async with members.client() as client:
        yield client


@pytest.fixture
async def feed(client):
    """A feed of one partition: each scenario is one of its history."""
    return await client.create_feed("orders", partitions=1)


@pytest.fixture
def hold(monkeypatch):
    """A function after which nothing becomes durable on a node until the event that it gives is set."""

    def hold(made):
        committer, gate = made.node.storage.committer, trio.Event()
        commit = committer.commit

        async def wait_and_commit():
            await gate.wait()
            await commit()

        monkeypatch.setattr(committer, "commit", wait_and_commit)
        fsync_on_loop(committer, on_loop=False)
        return gate

    return hold


@pytest.fixture
def cut_off(monkeypatch):
    """A set of nodes that answer no question of others; what streams to and from them goes on."""
    nodes, ask = set(), request.ask

    async def cut(address, *arguments, **options):
        if any(node.address == address for node in nodes):
            await trio.lowlevel.checkpoint()
            raise Unreachable(f"{address} is cut off")
        return await ask(address, *arguments, **options)

    monkeypatch.setattr(request, "ask", cut)
    return nodes


@pytest.fixture
def lose_power(tmp_path):
    """A context: what is done in its body the node forgets at its end; it is down then."""

    @contextlib.asynccontextmanager
    async def losing(made):
        copy = tmp_path / "copy"
        shutil.copytree(made.config.data, copy, ignore=shutil.ignore_patterns("*.new"))
        yield
        await made.kill()
        shutil.rmtree(made.config.data)
        shutil.move(copy, made.config.data)

    return losing


def partition_of(made, feed="orders"):
    [partition] = made.node.feeds.named(feed).partitions
    return partition


def log_of(made):
    return partition_of(made).log


def lost_rows(made):
    """Whether anything of the node was kept aside."""
    return [name for _, _, files in os.walk(os.path.join(made.config.data, "lost")) for name in files]


async def flush(made):
    """All that the node holds goes to a segment, which outlives the journal."""
    await made.node.storage.flusher.flush_all(partition_of(made))
    await made.node.storage.flusher.write_feeds()


async def folded(made):
    """The one segment that the node has made of four."""
    await until(lambda: len(partition_of(made).chain.segments) == 1)
    [segment] = partition_of(made).chain.segments
    return segment


async def only(made, *changes, level="memory"):
    """Writes that only this node is asked for."""
    async with tailrace.connect(made.url, retry_for=60) as client:
        await client.feed("orders").write(changes, level=level)


async def kill(*nodes):
    for node in nodes:
        await node.kill()


async def start(*nodes):
    for node in nodes:
        await node.start()


async def all_hold(members, rows):
    """Once all are level they hold ``rows``, and every invariant of each of them."""
    leader = await members.level("orders")
    assert [node.rows("orders") for node in members if node.is_up] == [rows] * sum(node.is_up for node in members)
    for node in members:
        if node.is_up:
            node.node.check()
    return leader


# 1. Rolling back by dropping what is above


async def test_hazard_01_a_node_goes_back_below_a_segment_that_superseded_an_older_value(members, feed):
    """k=old is in no file of the old leader any more when it has to go back to where it was true."""
    first, second, third = members
    await feed.write([Put(b"k", b"old"), Put(b"x", b"x")], level="quorum")
    await members.level("orders")
    await kill(second, third)
    partition_of(first).needs_quorum = False  # as where memory is short: it is flushed all the same
    await flush(first)
    for number in range(3):
        await only(first, Put(b"k", b"new %d" % number), level="disk")
        await flush(first)
    segment = await folded(first)
    assert segment.identity.last_seq == 5
    assert segment.identity.rows == 2, "k=old is superseded"
    await first.kill()
    await start(second, third)
    await second.promote()
    await feed.put(b"y", b"y", level="quorum")
    await first.start()
    assert await all_hold(members, {b"k": b"old", b"x": b"x", b"y": b"y"}) is second
    assert lost_rows(first)


# 3. One crash of the leader


async def test_hazard_03_a_leader_that_loses_power_gets_what_only_the_others_had_fsynced(
    members, feed, hold, lose_power, nursery
):
    first, second, third = members
    await feed.put(b"k", b"before", level="quorum")
    await members.level("orders")
    term, answered = log_of(first).term, trio.Event()

    async def write():
        await feed.put(b"m1", b"v", level="quorum")
        answered.set()

    async with lose_power(first):
        hold(first)
        nursery.start_soon(write)
        await until(lambda: partition_of(second).durable_seq == partition_of(third).durable_seq == 2)
        with trio.move_on_after(AWHILE):
            await answered.wait()
        assert not answered.is_set(), "quorum includes the leader's disk"
        assert partition_of(first).durable_seq == 1
    await first.start()
    await answered.wait()
    assert await all_hold(members, {b"k": b"before", b"m1": b"v"}) is first
    assert log_of(first).term > term, "it has led again by a promotion"
    assert log_of(first)[0].base == 2, "m1 was fetched, and not written once more"
    assert not lost_rows(second) + lost_rows(third)


async def test_hazard_03_a_leader_that_is_back_has_another_term_than_the_tail_that_it_lost(
    members, feed, hold, lose_power
):
    first, second, third = members
    await feed.put(b"k", b"before", level="quorum")
    await members.level("orders")
    await third.kill()
    async with lose_power(first):
        hold(first)
        await only(first, Put(b"m1", b"v"))
        await until(lambda: partition_of(second).durable_seq == 2)
        await second.kill()
    await start(first, third)
    await members.settled()
    await feed.put(b"m2", b"v", level="quorum")
    assert partition_of(third).high_seq == 2, "as long as the tail of the one that is down"
    await first.kill()
    await second.start()
    await second.promote()
    assert second.rows("orders") == {b"k": b"before", b"m2": b"v"}
    await first.start()
    assert await all_hold(members, {b"k": b"before", b"m2": b"v"}) is second


# 4. Promotion


async def never():
    await trio.sleep_forever()


async def test_hazard_04_who_has_told_how_far_it_is_acknowledges_nothing_more_to_the_old_leader(
    members, feed, nursery, cut_off
):
    first, second, third = members
    await feed.put(b"k", b"before", level="quorum")
    leader = await members.level("orders")
    cut_off.add(leader)
    leader.member.peers.look = never  # nor does it learn of anything
    answered = []

    async def write():
        async with tailrace.connect(first.url, retry_for=60) as client:
            try:
                await client.feed("orders").put(b"m", b"only here", level="quorum")
                answered.append("written")
            except TailraceError as error:
                answered.append(error)

    await second.promote()  # with the promise of the third
    assert first.leads, "and does not know better"
    nursery.start_soon(write)
    await until(lambda: partition_of(first).high_seq == 2)
    await trio.sleep(AWHILE)
    assert not answered
    assert second.rows("orders") == third.rows("orders") == {b"k": b"before"}


async def test_hazard_04_a_dead_tail_that_is_longer_does_not_win(members, feed):
    first, second, third = members
    await feed.put(b"k", b"before", level="quorum")
    await members.level("orders")
    await kill(second, third)
    await only(first, *(Put(b"dead %d" % number, b"v") for number in range(5)))
    await first.kill()
    await start(second, third)
    await second.promote()
    await feed.put(b"m", b"v", level="quorum")
    await members.level("orders")
    await second.kill()
    await first.start()
    assert partition_of(first).high_seq == 6 > partition_of(third).high_seq
    await first.promote()
    assert first.rows("orders") == {b"k": b"before", b"m": b"v"}
    await second.start()
    assert await all_hold(members, {b"k": b"before", b"m": b"v"}) is first


async def test_hazard_04_what_is_held_under_an_older_branch_acknowledges_nothing(members, feed, hold):
    """The second one's word is "as far as seq 1, on the branch before": it must not count for the new one."""
    first, second, third = members
    await feed.put(b"k", b"before", level="quorum")
    await members.level("orders")
    old_branch = log_of(first).branch
    await first.kill()
    await second.promote()
    await until(lambda: third.follows(second) and log_of(third) == log_of(second))
    placement_id = third.node.identity.placement_id
    seen = second.node.leaderships.system.replicas.peers[placement_id].acknowledged
    await until(lambda: partition_of(second) in seen and partition_of(second).quorum_seq == 1)
    gate = hold(third)
    await only(second, Put(b"m", b"v"))
    await until(lambda: partition_of(third).high_seq == 2 and partition_of(second).durable_seq == 2)
    puller = third.member.following._pullers[partition_of(third).feed_id]
    puller._stream.acknowledge(0, old_branch, 2)
    await until(lambda: seen[partition_of(second)].ack.branch == old_branch)
    assert partition_of(second).quorum_seq < 2
    gate.set()
    await until(lambda: partition_of(second).quorum_seq == 2)


async def test_hazard_04_a_branch_counts_from_its_base_on(members, feed, hold, lose_power):
    """The third one has heard of the new branch, and lost the blocks below its base."""
    first, _, third = members
    await feed.put(b"k", b"before", level="quorum")
    await members.level("orders")
    await until(lambda: partition_of(third).durable_seq == 1)  # a majority may be the other two
    async with lose_power(third):
        hold(third)
        await feed.put(b"m", b"v", level="quorum")  # with the second
        await until(lambda: partition_of(third).high_seq == 2)
        old_term = log_of(first).term
        await first.kill()
        # The third's promise waits for its disk: as long as it is held, that is a time-out of each step.
        patience = dataclasses.replace(first.config.replication, step_timeout_s=3.0)
        first.config = dataclasses.replace(first.config, replication=patience)
        await first.start()
        await members.settled()
        await until(lambda: log_of(third) == log_of(first))
        assert log_of(third).term > old_term
        assert partition_of(third).standing() == (old_term, 1), "the entry's base is 2, and 1 is on the disk"
    await third.start()
    await members.level("orders")
    await first.kill()
    await third.promote()
    assert third.rows("orders") == {b"k": b"before", b"m": b"v"}


async def test_hazard_04_a_disk_that_was_replaced_completes_no_majority(members, feed):
    first, second, third = members
    await members.level("orders")
    await second.kill()
    await feed.put(b"m", b"v", level="quorum")  # with the third
    await kill(first, third)
    third.replace_disk()
    await start(second, third)
    with pytest.raises(NotLeader, match="1 of the 2 voters"):
        await second.promote()
    await first.start()
    await until(lambda: third.is_up and third.member.local.votes)
    await all_hold(members, {b"m": b"v"})


# 5. In the middle of a run


@pytest.fixture
def stopped_inside(monkeypatch):
    """A function after which a node never comes to the end of a run; gives what tells whether it is inside of one."""
    ended = ReplicaPuller._snapshot_ended

    def stop(made):
        inside = []

        async def snapshot_ended(puller, partition):
            follows = puller._node is made.node.services and puller._pulled.state == "leader"
            if follows and partition.id in puller._snapshots.runs:
                inside.append(partition)
                await trio.sleep_forever()
            await ended(puller, partition)

        monkeypatch.setattr(ReplicaPuller, "_snapshot_ended", snapshot_ended)
        return inside

    return stop


async def run_of_which_rows_are_missing(members, feed):
    """Seqs 1 to 5 are one run on the first two; the third has none of them."""
    first, second, third = members
    await members.level("orders")
    await third.kill()
    for changes in (
        [Put(b"k", b"old"), Put(b"x", b"x")],
        [Put(b"k", b"newer")],
        [Put(b"k", b"new")],
        [Put(b"y", b"y")],
    ):
        await feed.write(changes, level="quorum")
        for node in (first, second):
            await flush(node)
    for node in (first, second):
        segment = await folded(node)
        assert (segment.identity.last_seq, segment.identity.rows) == (5, 3)


@pytest.mark.parametrize("force", [False, True], ids=["finished by another", "by force"])
async def test_hazard_05_inside_a_run_nobody_acknowledges_nor_leads(members, feed, stopped_inside, force):
    first, second, third = members
    await run_of_which_rows_are_missing(members, feed)
    inside = stopped_inside(third)
    await third.start()
    await until(lambda: inside)
    assert partition_of(third).high_seq == partition_of(third).durable_seq == 0
    await second.kill()
    with trio.move_on_after(AWHILE) as scope:
        await feed.put(b"z", b"z", level="quorum")
    assert scope.cancelled_caught, "the third has nothing of the run, and so nothing above"
    await first.kill()
    if force:
        await third.promote(force=True)
        assert third.rows("orders") == {}, "it has gone back to where the run begins"
        assert partition_of(third).standing()[1] == 0
    else:
        await second.start()
        await third.promote()
        assert third.rows("orders") == {b"k": b"new", b"x": b"x", b"y": b"y"}
    third.node.check()


# 13. A batch that is published once


@pytest.fixture
async def published_feed(client, monkeypatch):
    """A feed of two partitions, in which each row that is staged is a block of its own, and stays one."""
    monkeypatch.setattr(joining, "JOINED_BYTES_MAX", 1)
    return await client.create_feed("orders", partitions=2)


def batch_of(number):
    """Rows of both partitions."""
    return {b"%d-%d" % (number, row): b"v" for row in range(12)}


async def publish(feed, number, *, parts=1):
    """Stages the rows of a batch in so many pieces, as tasks do, and publishes them."""
    stages = []
    rows = list(batch_of(number).items())
    for part in range(parts):
        async with feed.stage(batch_rows=1) as stage:
            await stage.write([Put(key, value) for key, value in rows[part::parts]])
            stages.append(await stage.seal())
    return await feed.publish("job", number, stages)


async def times_written(feed):
    """How often each key was, by the stream."""
    found = collections.Counter()
    async with feed.consume(until="now") as stream:
        async for event in stream:
            if isinstance(event, Mutations):
                found.update(event.keys())
    return found


def once(*numbers):
    return {key: 1 for number in numbers for key in batch_of(number)}


async def test_hazard_13_the_new_leader_has_a_part_of_a_batch(members, published_feed, nursery, monkeypatch):
    """One partition's share and not the other's: neither is it there twice, nor is the other one missing."""
    first, second, _ = members
    await publish(published_feed, 6)
    publisher, is_partly_done = first.node.publisher, trio.Event()
    write = publisher._write

    async def write_one_share(feed, request, shares, term, step):
        number = min(shares)
        await write(feed, request, {number: shares[number]}, term, step)
        [versions] = step.written
        await publisher._settled(feed, {number: versions.last_seq}, term)
        is_partly_done.set()
        await trio.sleep_forever()

    async def publish_and_fail():
        with pytest.raises(tailrace.UnknownStage):  # the same call, to the new leader
            await publish(published_feed, 7)
        failed.set()

    failed = trio.Event()
    monkeypatch.setattr(publisher, "_write", write_one_share)
    nursery.start_soon(publish_and_fail)
    await is_partly_done.wait()
    await first.kill()
    await second.promote()
    await failed.wait()
    assert [p.sinks.find("job").batch for p in second.node.feeds.named("orders").partitions] == [7, 6]
    published = await publish(published_feed, 7, parts=3)
    assert (list(published.written), published.skipped) == ([1], (0,))
    assert await times_written(published_feed) == once(6, 7)
    await first.start()
    await all_hold(members, batch_of(6) | batch_of(7))


async def test_hazard_13_half_of_a_share_is_none_and_has_no_number(members, published_feed, monkeypatch):
    """A follower is cut off within a share: it has nothing of it, and the number neither."""
    first, second, third = members
    await publish(published_feed, 6)
    await members.level("orders")
    gathered, gather, inside = [], PulledSnapshots._gather, trio.Event()

    async def take_half(puller, event):
        await take(puller, event)
        if puller._node is third.node.services and gathered:
            inside.set()
            await trio.sleep_forever()

    def gather_and_tell(published, block):
        gather(published, block)
        gathered.append(block)

    take = ReplicaPuller._take
    monkeypatch.setattr(PulledSnapshots, "_gather", staticmethod(gather_and_tell))
    monkeypatch.setattr(ReplicaPuller, "_take", take_half)
    monkeypatch.setattr(ReplicaPuller, "_take_now", never_now)
    await publish(published_feed, 7)  # the second node makes it a majority
    await inside.wait()
    assert [p.sinks.find("job").batch for p in third.node.feeds.named("orders").partitions] == [6, 6]
    assert third.rows("orders") == batch_of(6)
    await kill(first, second)
    monkeypatch.undo()
    await third.promote(force=True)  # otherwise it would get the rest from who has it
    await first.start()
    assert sorted((await publish(published_feed, 7, parts=2)).written) == [0, 1]
    assert await times_written(published_feed) == once(6, 7)
    await all_hold(members, batch_of(6) | batch_of(7))


async def test_hazard_13_what_was_answered_outlives_the_leader(members, published_feed, hold):
    """With the number: Spark has noted the batch, or runs it again, and both are right."""
    first, second, third = members
    await members.level("orders")
    await third.kill()
    gate = hold(second)
    with trio.move_on_after(AWHILE) as scope:
        await publish(published_feed, 7)
    assert scope.cancelled_caught, "on one disk of three it is not safe"
    gate.set()
    await publish(published_feed, 7)
    await first.kill()
    await third.start()
    await third.promote()
    assert await times_written(published_feed) == once(7)
    assert (await publish(published_feed, 7, parts=2)).skipped == (0, 1)
    assert await times_written(published_feed) == once(7)
    await first.start()
    await all_hold(members, batch_of(7))


# 9. Segments of another history


async def test_hazard_09_a_segment_of_a_history_that_is_none_is_given_to_nobody(members, feed):
    first, second, third = members
    await feed.put(b"k", b"before", level="quorum")
    await members.level("orders")
    await kill(second, third)
    await only(first, *(Put(b"dead %d" % number, b"v") for number in range(5)), Put(b"k", b"dead"), level="disk")
    partition_of(first).needs_quorum = False
    await flush(first)
    await first.kill()
    await first.start()
    assert partition_of(first).flushed_seq == 7
    await first.kill()
    await start(second, third)
    await second.promote()
    await feed.write([Put(b"m", b"v"), Put(b"k", b"after")], level="quorum")
    before = members[1].seqs("orders")
    await first.start()
    assert await all_hold(members, {b"k": b"after", b"m": b"v"}) is second
    assert second.seqs("orders") == before
    assert lost_rows(first)
    assert not lost_rows(second)
    await second.kill()  # nor when it leads again
    await first.promote()
    assert first.rows("orders") == {b"k": b"after", b"m": b"v"}


# 14. A history that changes beneath a stream


async def fork_by_force(members, cut_off):
    """The first is gone, and the third is made to lead without the second, which does not know of it yet."""
    first, second, third = members
    await first.kill()
    await until(lambda: second.member.following is None)
    second.member.peers._look_at, look_at = stay_away(second), second.member.peers._look_at
    cut_off.add(second)
    await third.start()
    await third.promote(force=True)

    def mend():
        cut_off.clear()
        second.member.peers._look_at = look_at

    return mend


def stay_away(made):
    async def look_at(address, found):
        found[str(address)] = None
        await trio.lowlevel.checkpoint()

    return look_at


@pytest.mark.parametrize("tail", [2, 0], ids=["it goes back", "it goes on"])
async def test_hazard_14_a_follower_takes_another_history_under_its_streams(members, feed, cut_off, tail):
    _, second, third = members
    index = MemoryIndex()
    await feed.write([Put(b"k", b"old"), Put(b"x", b"x")], level="quorum")
    await members.level("orders")
    await third.kill()
    reader = tailrace.connect(second.url, state="follower", retry_for=60)
    async with reader, reader.feed("orders").follow(index, visibility="disk") as follower:
        await follower.barrier()
        if tail:
            await feed.write([Put(b"k", b"dead"), Put(b"dead", b"v")], level="quorum")
            await until(lambda: index.state.get(b"dead") == b"v")
        mend = await fork_by_force(members, cut_off)
        await only(third, Put(b"a", b"a"), Put(b"b", b"b"), Put(b"c", b"c"), level="disk")
        mend()
        await until(lambda: second.follows(third) and second.seqs("orders") == third.seqs("orders"))
        assert bool(lost_rows(second)) == bool(tail)
        rows = {b"k": b"old", b"x": b"x", b"a": b"a", b"b": b"b", b"c": b"c"}
        await until(lambda: b"c" in index.state)
        assert index.state == rows
        assert index.open().positions[0].log.branch == log_of(third).branch, "it knows whose history it has"


# 15. Followers that are ahead of their leader's disk


async def test_hazard_15_a_follower_shows_and_flushes_nothing_that_its_leader_may_lose(members, feed, hold, lose_power):
    first, second, third = members
    await feed.put(b"k", b"before", level="quorum")
    await members.level("orders")
    await third.kill()
    events = []
    reader = tailrace.connect(second.url, state="follower", retry_for=60)

    async def read():
        async with reader.feed("orders").consume(visibility="disk") as stream:
            async for event in stream:
                events.append(event)  # noqa: PERF401 (looked at while it grows)

    def keys():
        return {row.key for event in events if isinstance(event, Mutations) for row in event}

    async with reader, trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await until(lambda: keys() == {b"k"})
        async with lose_power(first):
            hold(first)
            await only(first, Put(b"k", b"lost"), Put(b"lost", b"v"))
            ahead = partition_of(second)
            await until(lambda: ahead.durable_seq == 3)
            await trio.sleep(AWHILE)
            assert ahead.visible_seq(Level.DISK) == ahead.visible_seq(Level.QUORUM) == 1
            assert ahead.stable_seq == ahead.safe_seq == 1, "no more is flushed, though memory be short"
            assert keys() == {b"k"}
            await second.kill()
        await start(first, third)
        await until(lambda: first.leads)
        await feed.put(b"m", b"v", level="quorum")
        await second.start()
        await until(lambda: b"m" in keys())
        assert keys() == {b"k", b"m"}
        assert not [event for event in events if isinstance(event, Rollback)]
        nursery.cancel_scope.cancel()
    await all_hold(members, {b"k": b"before", b"m": b"v"})


# 16. Consumers that are ahead of who they ask


async def follow_once(client, index, visibility="quorum"):
    async with client, client.feed("orders").follow(index, visibility=visibility) as follower:
        await follower.barrier()


@contextlib.asynccontextmanager
async def following(made, index, visibility):
    """The index follows what this node has as a follower, which may not be there yet."""

    async def follow():
        reader = tailrace.connect(made.url, state="follower", retry_for=60)
        async with reader, reader.feed("orders").follow(index, visibility=visibility):
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        yield
        nursery.cancel_scope.cancel()


class RecordingIndex(MemoryIndex):
    """Remembers that it was told to go back."""

    def __init__(self):
        super().__init__()
        self.rollbacks = []

    def rollback(self, partition, seq):
        self.rollbacks.append(seq)
        super().rollback(partition, seq)

    def clear(self, partition):
        self.rollbacks.append("clear")
        super().clear(partition)


async def test_hazard_16_a_follower_that_is_behind_takes_nothing_back(members, feed):
    first, second, third = members
    index = RecordingIndex()
    await feed.put(b"k", b"v", level="quorum")
    await members.level("orders")
    await third.kill()
    await feed.write([Put(b"%d" % number, b"v") for number in range(5)], level="quorum")
    await follow_once(members.client(), index)
    index.rollbacks.clear()
    await kill(first, second)
    await third.start()  # all that there is has not heard of what the consumer has
    held = dict(index.state)
    async with following(third, index, "quorum"):
        await trio.sleep(AWHILE)
        assert (index.state, index.rollbacks) == (held, [])
        await start(first, second)
        await members.settled()
        await feed.put(b"after", b"v", level="quorum")
        await until(lambda: b"after" in index.state)
    assert index.state == held | {b"after": b"v"}
    assert not index.rollbacks


async def test_hazard_16_a_dead_tail_is_given_to_nobody_who_knows_more(members, feed):
    """The old leader is alone and has never heard of the branch that the consumer is on."""
    first, second, third = members
    index = RecordingIndex()
    await feed.put(b"k", b"v", level="quorum")
    await members.level("orders")
    await kill(second, third)
    await only(first, *(Put(b"dead %d" % number, b"v") for number in range(5)), level="disk")
    await first.kill()
    await start(second, third)
    await second.promote()
    await feed.put(b"m", b"v", level="quorum")
    await follow_once(members.client(), index)
    index.rollbacks.clear()
    await kill(second, third)
    await first.start()
    async with following(first, index, "disk"):
        await trio.sleep(AWHILE)
        assert (index.state, index.rollbacks) == ({b"k": b"v", b"m": b"v"}, [])
        await start(second, third)
        await second.promote()
        await feed.put(b"after", b"v", level="quorum")
        await until(lambda: b"after" in index.state)
    assert index.state == {b"k": b"v", b"m": b"v", b"after": b"v"}
    assert not index.rollbacks


async def test_hazard_16_a_deposed_leader_takes_nothing_back(members, feed, cut_off):
    first, second, _ = members
    index = RecordingIndex()
    await feed.put(b"k", b"v", level="quorum")
    await members.level("orders")
    cut_off.add(first)
    first.member.peers.look = never
    await second.promote()
    assert first.leads, "and does not know better"
    await only(first, Put(b"dead", b"v"), level="disk")
    await only(second, Put(b"m", b"v"), Put(b"n", b"v"), level="quorum")
    await follow_once(tailrace.connect(second.url, retry_for=60), index)
    index.rollbacks.clear()
    with pytest.raises(TailraceError):
        await follow_once(tailrace.connect(first.url, retry_for=AWHILE), index, visibility="disk")
    assert (index.state, index.rollbacks) == ({b"k": b"v", b"m": b"v", b"n": b"v"}, [])


# 20. A handover whose answers are lost


@pytest.fixture
def lose_answer(monkeypatch):
    """A function after which the answers to an opcode never come; with ``asks`` False the question neither."""

    def lose(module, opcode, *, asks=True):
        ask = module.ask

        async def losing(node, address, asked, value, timeout_s):
            if asked != opcode:
                return await ask(node, address, asked, value, timeout_s)
            if asks:
                await ask(node, address, asked, value, timeout_s)
            await trio.lowlevel.checkpoint()
            raise Unreachable(f"the answer to {opcode.name} is lost")

        monkeypatch.setattr(module, "ask", losing)

    return lose


async def handed_over_badly(members, feed):
    """The leader is told that it failed; gives its branch and term before."""
    first, second, _ = members
    await feed.put(b"k", b"v", level="quorum")
    assert await members.level("orders") is first
    before = log_of(first).branch, first.node.leaderships.system.term
    with pytest.raises(TailraceError, match="lost"):
        await first.hand_over(second)
    return before


async def test_hazard_20_the_answer_of_who_took_over_is_lost(members, feed, lose_answer):
    """It leads on the same branch; the one that was not told so must not."""
    first, second, _ = members
    lose_answer(handover, Opcode.TAKE_OVER)
    branch, term = await handed_over_badly(members, feed)
    assert not first.leads
    assert second.leads
    with pytest.raises(NotLeader):
        async with tailrace.connect(first.url, state="follower", retry_for=2.0) as client:
            await client.feed("orders").put(b"twice", b"at the old one")
    await feed.put(b"m", b"v", level="quorum")
    assert await all_hold(members, {b"k": b"v", b"m": b"v"}) is second
    assert log_of(first).branch == branch
    assert second.node.leaderships.system.term > term


async def test_hazard_20_the_promise_of_the_leader_is_lost(members, feed, monkeypatch, lose_answer):
    """Nobody takes over, and the branch is nobody's any more: who leads begins another one."""
    first, second, _ = members
    with monkeypatch.context() as lost:
        ask = gathered_promises.ask

        async def losing(node, address, *arguments):
            answer = await ask(node, address, *arguments)
            if node is second.node.services:
                raise Unreachable("the answer to PROMISE is lost")
            return answer

        lost.setattr(gathered_promises, "ask", losing)
        branch, term = await handed_over_badly(members, feed)
        assert not second.leads
        assert first.member.local.file.now.term > term, "it has promised"
    await feed.put(b"m", b"v", level="quorum")
    leader = await all_hold(members, {b"k": b"v", b"m": b"v"})
    assert log_of(leader).branch != branch
    assert leader.node.leaderships.system.term > term + 1, "the term that was promised is nobody's"


async def test_hazard_20_nobody_was_asked_to_take_over(members, feed, lose_answer):
    first, _, _ = members
    lose_answer(handover, Opcode.TAKE_OVER, asks=False)
    branch, term = await handed_over_badly(members, feed)
    assert first.leads
    await feed.put(b"m", b"v", level="quorum")
    assert (log_of(first).branch, first.node.leaderships.system.term) == (branch, term)
