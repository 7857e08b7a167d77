"""Two groups of partitions in each process of a set, each with members, promises, a term and a leader of its own."""

from __future__ import annotations

import contextlib

import pytest
import trio
from tests.conftest import RawClient
from tests.tailrace_server.raw_requests import block_of, expect_end, write
from tests.tailrace_server.replication.made_groups import EVEN, ODD, PARTITIONS, keys_of, make_groups, partition_of
from tests.tailrace_server.replication.made_set import until
from tests.tailrace_server.replication.replicas import replica_request

from tailrace.consuming.events import Mutations
from tailrace.errors import NoSpace, NotLeader, ProtocolError, TailraceError
from tailrace.model import Level
from tailrace.wire.messages import decode_error
from tailrace.wire.opcodes import Opcode
from tailrace.wire.replica_messages import Replica
from tailrace_server.replication import feed_changes
from tailrace_server.replication.membership import MembershipFile
from tailrace_server.replication.promotion import promote

pytestmark = pytest.mark.slow

KEYS = {group: keys_of(group, 40) for group in (EVEN, ODD)}


@pytest.fixture
async def nodes(tmp_path, nursery):
    """Three nodes: the first leads the even group, the second the odd one."""
    made = make_groups(tmp_path, nursery)
    await made.start()
    for group in (EVEN, ODD):
        await made.settled(group)
    return made


@pytest.fixture
async def clients(nodes):
    """Each group's handle of the feed "orders", which has partitions of both."""
    async with nodes.client(EVEN) as even, nodes.client(ODD) as odd:
        await even.create_feed("orders", partitions=PARTITIONS)
        yield even.feed("orders"), odd.feed("orders")


async def put(feed, keys, value=b"v", level="quorum"):
    for key in keys:
        await feed.put(key, value, level=level)


async def read(stream, count):
    """The keys of the next ``count`` mutations."""
    keys = []
    while len(keys) < count:
        event = await anext(stream)
        keys += event.keys() if isinstance(event, Mutations) else []
    return keys


async def barrier(stream):
    """All that the leader has accepted by now was delivered."""

    async def drain():
        async for _ in stream:
            pass

    async with trio.open_nursery() as tasks:
        tasks.start_soon(drain)
        await stream.barrier()
        tasks.cancel_scope.cancel()


def unchanged(node, group):
    """What a change of leader in ``group`` would change on ``node``."""
    leadership, member = node.leadership(group), node.node.members[group]
    return (
        leadership.role,
        leadership.term,
        leadership.leader,
        leadership.changes,
        member.following,
        member.local.file.now,
    )


async def test_each_group_is_founded_with_a_leader_of_its_own(nodes):
    a, b, _ = nodes
    assert (await nodes.settled(EVEN), await nodes.settled(ODD)) == (a, b)
    assert len({node.node.identity.cluster_id for node in nodes}) == 1
    for node in nodes:
        for name, leader in (("MEMBERSHIP", a), ("ODD", b)):
            found = MembershipFile(
                node.node.host.disk, node.config.data, node.node.identity.placement_id, name=name
            ).now
            assert (found.votes, found.led, found.size) == (True, node is leader, 3)


async def test_rows_of_both_groups_arrive_everywhere(nodes, clients):
    for group, feed in enumerate(clients):
        await put(feed, KEYS[group])
    for group in (EVEN, ODD):
        await nodes.level("orders", group)
    assert [set(node.rows("orders")) for node in nodes] == [{*KEYS[EVEN], *KEYS[ODD]}] * 3
    found = [partition for node in nodes for partition in node.node.feeds.named("orders").partitions]
    assert len(found) == 12
    await until(lambda: all(partition.quorum_seq == partition.high_seq > 0 for partition in found))


async def test_a_node_refuses_writes_of_the_group_that_it_does_not_lead(nodes, clients):
    a, b, _ = nodes
    await nodes.level("orders", ODD)
    feed_id = a.node.feeds.named("orders").info.feed_id
    for node, leads, other in ((a, EVEN, b), (b, ODD, a)):
        refused = 1 - leads
        async with await trio.open_tcp_stream(*node.addresses[leads]) as stream:
            connection = await RawClient(stream).hello()
            for key in KEYS[leads][:3]:
                block = block_of(key, partition=partition_of(key))
                assert (
                    await connection.ask(Opcode.WRITE, write(feed_id, block, Level.QUORUM))
                ).opcode is Opcode.WRITTEN
            for key in KEYS[refused][:3]:
                block = block_of(key, partition=partition_of(key))
                error = decode_error((await connection.ask(Opcode.WRITE, write(feed_id, block, Level.QUORUM))).body)
                assert (type(error), error.leader) == (NotLeader, str(other.addresses[refused]))


@pytest.mark.parametrize("group", [EVEN, ODD])
async def test_a_handover_of_one_group_leaves_the_other_alone(nodes, clients, group):
    a, b, c = nodes
    other = 1 - group
    old = (a, b)[group]
    feeds = dict(enumerate(clients))
    for number, feed in feeds.items():
        await put(feed, KEYS[number][:10])
    await nodes.level("orders", other)
    before = [unchanged(node, other) for node in nodes]
    async with feeds[other].consume(partitions=[other, other + 2]) as stream:
        assert sorted(await read(stream, 10)) == sorted(KEYS[other][:10])
        connection = stream._transport
        async with trio.open_nursery() as tasks:
            tasks.start_soon(put, feeds[other], KEYS[other][10:30])
            await old.hand_over_in(group, c)
        assert sorted(await read(stream, 20)) == sorted(KEYS[other][10:30])
        await barrier(stream)
        assert stream._transport is connection
    assert await nodes.settled(group) is c
    assert [unchanged(node, other) for node in nodes] == before
    await put(feeds[group], KEYS[group][10:])
    await nodes.level("orders", group)
    assert all(set(KEYS[group]) <= set(node.rows("orders")) for node in nodes)


async def test_a_lost_leader_is_replaced_while_the_other_group_goes_on(nodes, clients):
    a, b, c = nodes
    even, odd = clients
    await put(even, KEYS[EVEN][:10])
    await put(odd, KEYS[ODD][:10])
    await nodes.level("orders", ODD)
    before = unchanged(a, EVEN), unchanged(c, EVEN)
    async with even.consume(partitions=[0, 2]) as stream:
        await read(stream, 10)
        connection = stream._transport
        await b.kill()
        await until(lambda: not c.leadership(ODD).leader)
        await put(even, KEYS[EVEN][10:20])
        assert sorted(await read(stream, 10)) == sorted(KEYS[EVEN][10:20])
        await barrier(stream)
        await c.ask_of(ODD, Opcode.PROMOTE)
        await put(odd, KEYS[ODD][10:20])
        assert stream._transport is connection
    assert (unchanged(a, EVEN), unchanged(c, EVEN)) == before
    await b.start()
    assert await nodes.settled(ODD) is c
    for group in (EVEN, ODD):
        await nodes.level("orders", group)
    assert [set(node.rows("orders")) for node in nodes] == [{*KEYS[EVEN][:20], *KEYS[ODD][:20]}] * 3


async def test_one_node_leads_both_groups_and_gives_one_away(nodes, clients):
    a, b, _ = nodes
    even, odd = clients
    await b.hand_over_in(ODD, a)
    assert await nodes.settled(ODD) is await nodes.settled(EVEN) is a
    await put(odd, KEYS[ODD][:5])
    await put(even, KEYS[EVEN][:5])
    assert (await even.get(KEYS[ODD][0], level="quorum")).value == b"v"
    await a.hand_over_in(EVEN, b)
    assert (await nodes.settled(EVEN), await nodes.settled(ODD)) == (b, a)
    await put(odd, KEYS[ODD][5:])
    await put(even, KEYS[EVEN][5:])


async def test_barriers_of_a_follower_ask_the_leader_of_their_group_only(nodes, clients):
    a, b, c = nodes
    await put(clients[ODD], KEYS[ODD][:5])
    await nodes.level("orders", ODD)
    await a.kill()
    async with nodes.client(ODD, state="follower") as client:
        await until(lambda: not c.leadership(EVEN).leader)
        async with client.feed("orders").consume(partitions=[1, 3]) as stream:
            await read(stream, 5)
            await barrier(stream)
    assert b.leads_group(ODD)


async def test_members_of_the_odd_group_hear_of_feeds_by_the_even_one(nodes, clients):
    a, _, c = nodes
    _, odd = clients
    await put(odd, KEYS[ODD][:5])
    async with nodes.client(EVEN) as client, nodes.client(ODD) as of_odd:
        later = await client.create_feed("later", partitions=PARTITIONS)
        single = await client.create_feed("single", partitions=1)
        await put(of_odd.feed("later"), KEYS[ODD][:5])
        await nodes.level("later", ODD)
        pulled = {node: node.node.members[ODD].following._pullers for node in (a, c)}
        later_id, single_id = (await later.partition_map()).feed_id, (await single.partition_map()).feed_id
        assert all(later_id in pullers and single_id not in pullers for pullers in pulled.values())
        await client.drop_feed("later")
        await until(lambda: all(later_id not in pullers for pullers in pulled.values()))
    assert all(node.node.members[ODD].following is not None for node in (a, c))
    await put(odd, KEYS[ODD][5:])


async def test_a_feed_that_the_leader_has_not_heard_of_yet_is_asked_for_again(nodes, clients, monkeypatch, caplog):
    a, b, _ = nodes
    caplog.set_level("INFO")
    monkeypatch.setattr(b.node.feed_changes, "reconcile", lambda **options: ([], []))
    async with nodes.client(EVEN) as client, nodes.client(ODD) as of_odd:
        await client.create_feed("later", partitions=PARTITIONS)
        await until(lambda: caplog.text.count("feed later is not followed") > 3)
        following = a.node.members[ODD].following
        monkeypatch.undo()
        b.node.feed_changes.reconcile()
        await put(of_odd.feed("later"), KEYS[ODD][:5])
        await nodes.level("later", ODD)
        assert a.node.members[ODD].following is following


async def test_a_leader_that_cannot_begin_a_branch_resigns(nodes, clients, monkeypatch):
    """Its disk is full as it hears of a feed. It must not write to the first branch."""
    _, b, c = nodes
    await b.hand_over_in(ODD, c)
    await nodes.settled(ODD)
    term, begun = c.leadership(ODD).term, []

    def begin_nothing(partition, *arguments, **options):
        begun.append(partition)
        raise NoSpace("the disk is full")

    with monkeypatch.context() as full:
        full.setattr(feed_changes, "begin_branch", begin_nothing)
        async with nodes.client(EVEN) as client:
            await client.create_feed("later", partitions=PARTITIONS)
        await until(lambda: begun and c.leadership(ODD).term > term and c.leads_group(ODD))
    await nodes.level("later", ODD)
    assert [p.log.term for p in c.partitions("later", ODD)] == [c.leadership(ODD).term] * 2


async def test_a_connection_serves_a_replica_in_one_group(nodes, clients):
    """LEADER_CHECK and its answer name no group."""
    a, *_ = nodes
    await nodes.level("orders", ODD)
    feed_id = a.node.feeds.named("orders").info.feed_id
    async with await trio.open_tcp_stream(*a.addresses[EVEN]) as stream:
        connection = await RawClient(stream).hello()
        replica = Replica(b"r" * 16, a.leadership(EVEN).term, "", False, a.node.identity.cluster_id)
        await connection.send(replica_request(feed_id, replica, 0).encode(1))
        assert (await connection.receive()).opcode is Opcode.STREAM_OK
        await connection.send(replica_request(feed_id, replica, 1, state="follower").encode(2))
        await expect_end(connection, ProtocolError, "another group")


async def test_a_replaced_disk_gains_its_vote_in_both_groups(nodes, clients):
    a, b, c = nodes
    for group, feed in enumerate(clients):
        await put(feed, KEYS[group][:20])
    await c.stop()
    c.replace_disk()
    await c.start()
    await until(lambda: all(c.node.members[group].local.votes for group in (EVEN, ODD)))
    for group in (EVEN, ODD):
        await nodes.level("orders", group)
    assert set(c.rows("orders")) == {*KEYS[EVEN][:20], *KEYS[ODD][:20]}
    await a.stop()  # the vote counts: without it there is no majority
    await put(clients[ODD], KEYS[ODD][20:])
    assert c.node.identity.cluster_id == b.node.identity.cluster_id


async def test_nothing_is_lost_with_a_feed_that_the_next_leader_has_not_heard_of(nodes, clients, monkeypatch):
    """The rows are at quorum on the two other nodes. A leader without the feed would begin it anew, and empty."""
    *_, c = nodes
    monkeypatch.setattr(c.node.feed_changes, "reconcile", lambda **options: ([], []))
    async with nodes.client(EVEN) as client, nodes.client(ODD) as of_odd:
        await client.create_feed("new", partitions=PARTITIONS)
        await put(of_odd.feed("new"), KEYS[ODD][:5])
        assert "new" not in [feed.info.name for feed in c.node.feeds]
        with pytest.raises(TailraceError, match="has not heard of"):
            await promote(c.node.members[ODD], force=False)
        monkeypatch.undo()
        c.node.feed_changes.reconcile()
        with contextlib.suppress(TailraceError):
            await promote(c.node.members[ODD], force=False)
        await until(lambda: any(node.leads_group(ODD) for node in nodes))
        await put(of_odd.feed("new"), KEYS[ODD][5:10])
        await nodes.level("new", ODD)
        assert [set(node.rows("new")) for node in nodes] == [set(KEYS[ODD][:10])] * 3


async def test_a_leader_begins_a_branch_in_each_partition_that_it_hears_of(nodes, clients):
    """An earlier leader may have written to the first branch, which all nodes know."""
    _, b, c = nodes
    await b.hand_over_in(ODD, c)
    await nodes.settled(ODD)
    async with nodes.client(EVEN) as client:
        await client.create_feed("later", partitions=PARTITIONS)
        await nodes.level("later", ODD)
    later = c.node.feeds.named("later")
    assert [partition.log.term == c.leadership(ODD).term for partition in later.partitions] == [False, True] * 2
    assert [partition.log.branch == later.first_branch for partition in later.partitions] == [True, False] * 2


async def test_all_nodes_come_back_with_both_groups(nodes, clients):
    for group, feed in enumerate(clients):
        await put(feed, KEYS[group][:10])
    for node in nodes:
        await node.kill()
    for node in nodes:
        await node.start()
    a, b, _ = nodes
    assert (await nodes.settled(EVEN), await nodes.settled(ODD)) == (a, b)
    for group, feed in enumerate(clients):
        await put(feed, KEYS[group][10:])
        await nodes.level("orders", group)
    assert [set(node.rows("orders")) for node in nodes] == [{*KEYS[EVEN], *KEYS[ODD]}] * 3
