"""Processes that follow a leader of a set from one directory, made by hand: the leader keeps one of them."""

import pytest
import trio
from tests.conftest import RawClient
from tests.tailrace_server.raw_requests import KEY, PARTITION, block_of, write
from tests.tailrace_server.replication.made_set import until
from tests.tailrace_server.replication.replicas import STREAM, VOTERS, HandMade, replica_request

from tailrace.errors import Forbidden, NotLeader, ProtocolError
from tailrace.wire.messages import decode_error
from tailrace.wire.opcodes import Opcode
from tailrace.wire.replica_messages import Replica

FIRST, SECOND = (VOTERS[0]._replace(start=each * 8) for each in (b"1", b"2"))


def peers_of(running):
    return list(running.node.leaderships.system.replicas.peers.values())


async def is_refused(running, raw, feed_id):
    """The process of ``FIRST`` is told that there are two."""
    async with raw() as connection:
        again = HandMade(await connection.hello(), running.node, FIRST)
        await again.connection.send(replica_request(feed_id, FIRST).encode(STREAM))
        error = decode_error((await again.until(Opcode.ERROR)).body)
        assert isinstance(error, Forbidden)
        assert "two processes follow this node as 127.0.0.1:1, from the directory 01" in str(error)
        assert "Stop one of the two" in str(error)


@pytest.fixture
async def feed_id(running, raw):
    """Of a feed of four partitions; a majority has it, by its word only."""
    feed = running.node.feed_changes.create({"name": "orders", "feed_id": "11" * 16, "partitions": 4})
    await running.node.storage.all_durable()
    [system] = running.node.feeds.system.partitions
    system.set_quorum_seq(system.high_seq)
    return feed.info.feed_id


@pytest.fixture
def partition(running, feed_id):
    return running.node.feeds.of_id(feed_id).partitions[PARTITION]


@pytest.fixture
def two_needed(running):
    """As in a set of five."""
    running.node.leaderships.system.replicas._needed = 2


@pytest.fixture
async def first(running, raw, feed_id):
    """The process of ``FIRST``, which follows."""
    async with raw() as connection:
        made = HandMade(await connection.hello(), running.node, FIRST)
        await made.follow_feeds()
        await made.follow(feed_id)
        yield made


@pytest.fixture
async def second(running, raw):
    """The process of ``SECOND``, which is connected."""
    async with raw() as connection:
        yield HandMade(await connection.hello(), running.node, SECOND)


async def test_the_connection_of_an_earlier_process_ends(running, first, second, feed_id):
    await second.follow(feed_id)
    error = await first.connection.error()
    assert isinstance(error, NotLeader)
    assert (
        "another process on the directory 01010101010101010101010101010101 follows this node as 127.0.0.1:1 now"
        in str(error)
    )
    assert [peer.start for peer in running.node.leaderships.system.replicas.peers.values()] == [SECOND.start]


async def test_what_an_earlier_process_has_acknowledged_counts_no_more(
    two_needed, greeted, raw, running, first, second, feed_id, partition
):
    """Its rows may be lacking in the directory of the later one."""
    await greeted.ask(Opcode.WRITE, write(feed_id, block_of(KEY)), id=5)
    await first.acknowledge(partition)
    await first.handled()
    await second.follow(feed_id)
    async with raw() as connection:
        other = HandMade(await connection.hello(), running.node, VOTERS[1])
        await other.follow(feed_id)
        await other.acknowledge(partition)
        await other.handled()
        assert partition.quorum_seq == 0
        await second.acknowledge(partition)
        await second.handled()
        assert partition.quorum_seq == 1


async def test_what_an_earlier_process_acknowledges_afterwards_is_ignored(
    running, greeted, raw, second, feed_id, partition
):
    """Its connection has no stream of ``_feeds``, so it is not ended."""
    async with raw() as connection:
        first = HandMade(await connection.hello(), running.node, FIRST)
        await first.follow(feed_id)
        await second.follow(feed_id)
        await greeted.ask(Opcode.WRITE, write(feed_id, block_of(KEY)), id=5)
        await first.acknowledge(partition)
        await first.handled()
        assert partition.quorum_seq == 0
        [peer] = running.node.leaderships.system.replicas.peers.values()
        assert (peer.start, peer.acknowledged) == (SECOND.start, {})


async def test_a_process_that_was_replaced_is_refused_and_the_log_says_so_once(
    running, raw, first, second, feed_id, caplog
):
    """Two processes run then: one that has ended asks for nothing."""
    await second.follow(feed_id)
    for _ in range(2):
        await is_refused(running, raw, feed_id)
    told = [each for each in caplog.records if "two processes follow" in each.message]
    assert [each.levelname for each in told] == ["WARNING"]
    await second.handled()
    assert running.node.leaderships.system.replicas.is_voter(SECOND.placement_id)


async def test_a_process_is_refused_also_if_the_later_one_has_gained_its_vote_since(running, raw, first, feed_id):
    """A peer without a vote is forgotten with its last stream, and a process that gains its vote connects anew.

    The leader served the former process then, in the place of the later one, which votes without its rows.
    """
    for replica in (SECOND._replace(votes=False), SECOND):
        async with raw() as connection:
            second = HandMade(await connection.hello(), running.node, replica)
            await second.follow(feed_id)
        await until(lambda: not any(peer.is_connected for peer in peers_of(running) if peer.start == SECOND.start))
    await is_refused(running, raw, feed_id)
    assert [peer.start for peer in peers_of(running)] == [SECOND.start]


async def test_a_process_is_refused_also_after_a_change_of_leadership(running, raw, first, second, feed_id):
    await second.follow(feed_id)
    running.node.leaderships.system.replicas.clear()
    await is_refused(running, raw, feed_id)


async def test_a_process_that_connects_again_keeps_what_it_has_acknowledged(
    two_needed, greeted, raw, running, first, feed_id, partition
):
    await greeted.ask(Opcode.WRITE, write(feed_id, block_of(KEY)), id=5)
    await first.acknowledge(partition)
    await first.handled()
    async with raw() as connection, raw() as third:
        again = HandMade(await connection.hello(), running.node, FIRST)
        await again.follow(feed_id)
        await first.handled()
        other = HandMade(await third.hello(), running.node, VOTERS[1])
        await other.follow(feed_id)
        await other.acknowledge(partition)
        await other.handled()
        assert partition.quorum_seq == 1


async def test_processes_of_an_earlier_version_tell_no_start_and_are_one(running, first, raw, feed_id):
    async with raw() as connection:
        older = HandMade(await connection.hello(), running.node, VOTERS[0])
        await older.follow(feed_id)
        await first.handled()
        await older.handled()
        assert len(running.node.leaderships.system.replicas.peers) == 1


async def test_two_processes_on_one_connection_are_refused(first, feed_id):
    await first.connection.send(replica_request(feed_id, SECOND).encode(STREAM + 1))
    error = await first.connection.error()
    assert isinstance(error, ProtocolError)
    assert "another process" in str(error)


async def test_a_copy_of_a_plain_replica_is_told(source_and_replica, caplog):
    """Of two processes without a vote the earlier one is refused too, and both logs say why."""
    source, replica = source_and_replica
    peers = source.node.leaderships.system.replicas.peers
    await until(lambda: peers and replica.follows(source))
    [told] = peers.values()
    copy = Replica(told.placement_id, 0, told.address, False, source.node.identity.cluster_id, start=b"c" * 8)
    async with await trio.open_tcp_stream(*source.address) as stream:
        made = HandMade(await RawClient(stream).hello(), source.node, copy)
        await made.follow_feeds()
        await until(lambda: "two processes follow this node as" in caplog.text)
        await until(lambda: "two processes follow this node as" in replica.member.progress)
