"""Publishes in a set of three: what is answered is held by a majority, with the batch that it is of, whoever leads."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from tests.tailrace_server.replication.made_set import MadeNode, free_addresses, make_config, until
from tests.tailrace_server.replication.slow_path import never_now

import tailrace
from tailrace.errors import NotLeader, TailraceError
from tailrace.model import Put
from tailrace.wire.stage_messages import Publish
from tailrace_server.publishing import joining
from tailrace_server.publishing.publisher import Publisher
from tailrace_server.replication.promises import answer_promise
from tailrace_server.replication.replica_puller import ReplicaPuller
from tailrace_server.serving import member_requests
from tailrace_server.state.last_batches import SINKS_MAX, LastBatch


@pytest.fixture(autouse=True)
def _blocks_stay_apart(monkeypatch):
    """Else these small ones would be joined, and nothing could be cut."""
    monkeypatch.setattr(joining, "JOINED_BYTES_MAX", 1)


def numbered(first, count, value=b"v"):
    return {b"%d" % number: value for number in range(first, first + count)}


async def staged(feed, rows, **options):
    async with feed.stage(**options) as stage:
        await stage.write([Put(key, value) for key, value in rows.items()])
        return await stage.seal()


async def publish(feed, batch, rows, **options):
    return await feed.publish("job", batch, [await staged(feed, rows, **options)])


def last_batches(node):
    """Of each partition that has one, and the runs that its tree has."""
    partitions = node.node.feeds.named("orders").partitions
    return [partition.sinks.find("job") for partition in partitions]


async def test_a_new_leader_skips_what_the_old_one_has_published(members):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=3)
        # Several blocks of each partition, so that there is something to be cut.
        for batch in range(3):
            await publish(feed, batch, numbered(100 * batch, 100), batch_rows=10)
            await feed.put(b"between-%d" % batch, b"v", level="disk")
        await members.level("orders")
        for node in members:
            assert [last.batch for last in last_batches(node)] == [2, 2, 2]
            node.node.check()
        wanted = members[0].rows("orders")
        assert [node.rows("orders") for node in members] == [wanted] * 3
        await members[0].kill()
        await members[1].promote()
        with pytest.raises(tailrace.BatchChanged, match="other rows"):
            await publish(feed, 2, numbered(200, 100, b"other"))
        again = await publish(feed, 2, numbered(200, 100), batch_rows=7)
        assert (again.written, again.skipped) == ({}, (0, 1, 2))
        assert sorted((await publish(feed, 3, numbered(300, 50))).written) == [0, 1, 2]
        await members[0].start()
        await members.level("orders")
        assert [node.rows("orders") for node in members] == [wanted | numbered(300, 50)] * 3
        assert [last.batch for last in last_batches(members[0])] == [3, 3, 3]


async def test_stages_are_the_leaders_own_and_a_new_leader_asks_for_others(members):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=3)
        sealed = await staged(feed, numbered(0, 50))
        await members.level("orders")
        await members[0].kill()
        await members[1].promote()
        with pytest.raises(tailrace.UnknownStage):
            await feed.publish("job", 0, [sealed])
        assert sorted((await publish(feed, 0, numbered(0, 50))).written) == [0, 1, 2]
        # The answer may have been lost with a leader: where all have the batch nobody asks for its stages.
        assert (await feed.publish("job", 0, [sealed])).skipped == (0, 1, 2)


@pytest.mark.parametrize("is_flushed", [False, True])
async def test_a_member_that_was_away_gets_the_last_batches_with_the_rows(members, is_flushed):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=2)
        await publish(feed, 0, numbered(0, 40), batch_rows=10)
        await members.level("orders")
        await members[2].stop()
        for batch in (1, 2):
            sealed = await staged(feed, numbered(40 * batch, 40), batch_rows=10)
            await feed.publish("job", batch, [sealed])
            if is_flushed:
                for partition in members[0].node.feeds.named("orders").partitions:
                    await members[0].node.storage.flusher.flush_all(partition)
        await members[2].start()
        await members.level("orders")
        assert [last.batch for last in last_batches(members[2])] == [2, 2]
        assert last_batches(members[2]) == last_batches(members[0])
        assert members[2].rows("orders") == numbered(0, 120)
        members[2].node.check()
        await members[2].kill()
        await members[2].start()
        await members.level("orders")
        assert last_batches(members[2]) == last_batches(members[0])
        assert {last.digest for last in last_batches(members[2])} == {sealed.digest}


async def test_a_handover_takes_the_last_batches_along(members):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=2)
        await publish(feed, 7, numbered(0, 40))
        await members.level("orders")
        await members[0].hand_over(members[1])
        with pytest.raises(tailrace.BatchChanged):
            await publish(feed, 7, numbered(0, 40, b"other"))
        assert (await publish(feed, 7, numbered(0, 40))).skipped == (0, 1)
        assert (await feed.get(b"1")).value == b"v"


async def test_what_only_the_old_leader_had_is_published_again(members):
    """A batch that no majority has is lost with its rows; so its number is free."""
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=2)
        await publish(feed, 0, numbered(0, 40))
        await members.level("orders")
        leader, *others = members
        for node in others:
            await node.kill()
        partitions = leader.node.feeds.named("orders").partitions
        before = [partition.high_seq for partition in partitions]
        async with tailrace.connect(leader.url) as alone, trio.open_nursery() as nursery:
            nursery.start_soon(partial(publish, alone.feed("orders"), 1, numbered(40, 40), batch_rows=10))
            await until(lambda: all(p.high_seq > seq for p, seq in zip(partitions, before, strict=True)))
            nursery.cancel_scope.cancel()
        await leader.kill()
        for node in others:
            await node.start()
        await others[0].promote()
        assert sorted((await publish(feed, 1, numbered(40, 40, b"again"))).written) == [0, 1]
        await leader.start()
        await members.level("orders")
        assert leader.rows("orders") == numbered(0, 40) | numbered(40, 40, b"again")
        leader.node.check()
        ends = [partition.high_seq for partition in leader.node.feeds.named("orders").partitions]
        assert [last[:3] for last in last_batches(leader)] == [(1, "job", seq) for seq in ends]


@pytest.fixture
def held_up(monkeypatch):
    """A function that stops the publishes of a node at a call of ``Publisher``, in partition order, the first excepted.

    It gives two events: a publish stands there, and it may go on.
    """

    def hold(node, method):
        call, calls = getattr(Publisher, method), []
        stands, goes_on = trio.Event(), trio.Event()

        async def call_later(publisher, *arguments):
            calls.append(publisher)
            if publisher is node.node.publisher and (method == "_settled" or len(calls) > 1):
                stands.set()
                await goes_on.wait()
            return await call(publisher, *arguments)

        monkeypatch.setattr(Publisher, method, call_later)
        return stands, goes_on

    return hold


@pytest.fixture
def shut_off(monkeypatch):
    """A function after which nobody gets a block or a promise of a node, until its event is set."""

    def shut(node):
        take, is_over = ReplicaPuller._take, trio.Event()

        async def take_later(puller, *arguments):
            if puller._node is not node.node.services:
                await is_over.wait()
            await take(puller, *arguments)

        async def promise_nothing(member, promise):
            if member is node.member and not is_over.is_set():
                raise TailraceError("shut off")
            return await answer_promise(member, promise)

        monkeypatch.setattr(ReplicaPuller, "_take", take_later)
        monkeypatch.setattr(ReplicaPuller, "_take_now", never_now)
        monkeypatch.setattr(member_requests, "answer_promise", promise_nothing)
        return is_over

    return shut


@pytest.mark.parametrize("method", ["_blocks", "_settled"], ids=["between two partitions", "before it is settled"])
async def test_a_publish_ends_where_its_leader_was_deposed_and_leads_again(members, held_up, shut_off, method):
    """What it had written before was rolled back: an answer would say that all of it is there."""
    old, new, _ = members
    rows = numbered(0, 40)
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=2)
        await members.level("orders")
        stage = await staged(feed, rows)
        feed_id = (await feed.resolve()).feed_id
        request = Publish(feed_id, "job", "job", 0, (stage.stage_id,), (0, 1))
        stands, goes_on = held_up(old, method)
        is_over = shut_off(old)
        refused = []

        async def publish_there():
            try:
                refused.append(await old.node.publisher.publish(request))
            except NotLeader as error:
                refused.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish_there)
            await stands.wait()
            assert last_batches(old)[0] == LastBatch(0, "job", old.seqs("orders")[0])
            await new.promote()
            is_over.set()
            await members.level("orders")
            assert last_batches(old) == [None, None]
            for number in range(60):  # above what was lost
                await feed.put(b"other %d" % number, b"v", level="quorum")
            await old.promote()
            await members.level("orders")
            goes_on.set()
        assert [type(found) for found in refused] == [NotLeader]
        assert sorted((await feed.publish("job", 0, [stage])).written) == [0, 1]
        await members.level("orders")
        for node in members:
            assert node.rows("orders").items() >= rows.items()
            assert [last.batch for last in last_batches(node)] == [0, 0]


async def test_a_publish_waits_for_a_majority_though_other_sinks_displace_its_own(members, held_up):
    """A partition forgets the oldest of many sinks, at any time: what was written has to be held all the same."""
    leader, *others = members
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=2)
        await members.level("orders")
        stage = await staged(feed, numbered(0, 40))
        for node in others:
            await node.kill()
        stands, goes_on = held_up(leader, "_blocks")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(feed.publish, "job", 0, [stage])
            await stands.wait()
            others = {f"{number}": LastBatch(0, "", 1) for number in range(SINKS_MAX)}
            leader.node.feeds.named("orders").partitions[0].sinks.tell(others)
            assert last_batches(leader)[0] is None
            goes_on.set()
            await until(lambda: len(leader.node.waiting))
            assert len(leader.node.waiting) == 2
            nursery.cancel_scope.cancel()


async def test_a_node_with_a_plain_replica_publishes_nothing(tmp_path, nursery):
    """That may be promoted without a batch that was answered; what was published before it came is no news."""
    first, second = free_addresses(2)
    source = MadeNode(make_config(tmp_path / "source", first), nursery)
    replica = MadeNode(make_config(tmp_path / "replica", second, replica_of=first), nursery)
    await source.start()
    async with tailrace.connect(source.url, retry_for=20) as client:
        feed = await client.create_feed("orders", partitions=2)
        await publish(feed, 0, numbered(0, 10))
        sealed = await staged(feed, numbered(10, 10))
        await replica.start()
        await until(lambda: replica.seqs("orders") == source.seqs("orders"))
        for is_away in (False, True):
            if is_away:
                await replica.kill()
            with pytest.raises(tailrace.Forbidden, match=f"{second} follows this node.*--members.*at_least_once"):
                await feed.publish("job", 1, [sealed])
            with pytest.raises(tailrace.Forbidden, match="plain replica"):
                await staged(feed, numbered(20, 10))
        await feed.put(b"at least once", b"v", level="disk")
        await source.stop()
        await source.start()  # what is away for good nobody promotes
        assert not (await feed.publish("job", 1, [sealed])).skipped
