"""The list of members of a running node: members come and go, one after the other, while writes at quorum go on."""

import contextlib
import dataclasses

import pytest
import trio
from tests.tailrace_server.replication.conftest import Held
from tests.tailrace_server.replication.made_set import MadeNode, free_addresses, make_config, make_set, numbered, until

from tailrace.errors import NotLeader, TailraceError
from tailrace.link.address import Address
from tailrace_server.replication import peer_states
from tailrace_server.replication.member_list import ListChange, MemberList
from tailrace_server.replication.voters import VACANT

A, B, C, D = (Address("a", number) for number in range(4))


def test_a_list_tells_its_listeners_who_has_left_and_come():
    members, told = MemberList([A, B, C], B), []
    members.on_change(told.append)
    members.become([A, B, C])
    assert told == []
    members.become([B, D])
    assert told == [ListChange((A, C), (D,))]
    assert (members.now, members.others, members.number) == ((B, D), (D,), 0)
    members.become([D, A])
    assert (members.number, members.other_names, members.names) == (-1, {str(A), str(D)}, (str(D), str(A)))


def test_another_order_is_a_change_without_a_member_that_has_left():
    members, told = MemberList([A, B], A), []
    members.on_change(told.append)
    members.become([B, A])
    assert told == [ListChange((), ())]
    assert members.number == 1


def list_of(node):
    return node.member.leadership.members


def record(node):
    return node.member.local.file.now.voters


def seats_become(leader, seats):
    """Stores the record with these seats at the leader, as a change of the list does before all else."""
    local, voters = leader.member.local, record(leader)
    local.file.store(local.file.now.knowing(voters._replace(epoch=voters.epoch + 1, seats=tuple(seats))))
    local.count()


def become(nodes, addresses):
    for node in nodes:
        list_of(node).become(addresses)


@contextlib.asynccontextmanager
async def written_meanwhile(nodes, client):
    """Writes rows at quorum, one after the other, during the body. Yields the rows that were acknowledged."""
    feed, rows = client.feed("orders"), {}

    async def write():
        for number in range(100, 1 << 20):
            key = b"%d" % number
            await feed.put(key, b"w", level="quorum")
            rows[key] = b"w"

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await until(lambda: rows)
        yield rows
        after = len(rows)
        await until(lambda: len(rows) > after + 5)
        nursery.cancel_scope.cancel()


async def grown_by_one(nodes, tmp_path, nursery):
    """Adds a new node to the list of each of these nodes in turn. Returns it."""
    leader = await nodes.settled()
    addresses = (*list_of(leader).now, *free_addresses(1))
    new = MadeNode(make_config(tmp_path / "new", addresses[-1], members=addresses), nursery)
    seats_become(leader, (*record(leader).seats, VACANT))
    for node in [leader, *(node for node in nodes if node is not leader)]:
        become([node], addresses)
        await trio.lowlevel.checkpoint()
    nodes.nodes.append(new)
    return new


async def test_a_set_grows_while_writes_go_on(members, tmp_path, nursery):
    async with members.client() as client:
        rows = numbered(0, 5)
        await members.filled(client, rows)
        async with written_meanwhile(members, client) as written:
            new = await grown_by_one(members, tmp_path, nursery)
            await new.start()
            await until(lambda: new.member.local.votes)
            await until(lambda: all(record(node) == record(new) for node in members))
        await members.level("orders")
        assert VACANT not in record(new).seats
        assert len(record(new).seats) == 4
        assert all(node.rows("orders").items() >= (rows | written).items() for node in members)


async def test_a_member_that_came_later_counts_like_the_others(members, tmp_path, nursery):
    """Of four members two are gone, the leader too: the rest is no majority; with the new one it is."""
    async with members.client() as client:
        await members.filled(client, numbered(0, 5))
        new = await grown_by_one(members, tmp_path, nursery)
        await new.start()
        await until(lambda: new.member.local.votes and all(record(node) == record(new) for node in members))
        leader = members.leader
        await leader.kill()
        left = [node for node in members if node is not leader]
        await left[0].stop()
        with pytest.raises(NotLeader, match="2 of the 3 voters"):
            await new.promote()
        left[0].config = dataclasses.replace(left[0].config, members=list_of(new).now)
        await left[0].start()
        await new.promote()
        assert new.rows("orders") == numbered(0, 5)
        await client.feed("orders").put(b"more", b"v", level="quorum")


@pytest.fixture
async def four(tmp_path, nursery):
    nodes = make_set(tmp_path, nursery, 4)
    await nodes.start()
    await nodes.settled()
    return nodes


def drop_last(nodes):
    """Stores the record without the last member at the leader. Returns the addresses that are left."""
    seats_become(nodes.leader, record(nodes.leader).seats[:-1])
    return list_of(nodes.leader).now[:-1]


async def test_a_set_shrinks_while_writes_go_on(four):
    async with four.client() as client:
        await four.filled(client, numbered(0, 5))
        gone = four[3]
        async with written_meanwhile(four, client) as written:
            addresses = drop_last(four)
            replica = gone.node.identity.placement_id
            for node in four:
                become([node], addresses)
                await until(lambda: replica not in four.leader.node.leaderships.system.replicas.peers)
            await until(lambda: gone.member.following is None and "is no member of its set" in gone.member.progress)
        four.nodes.remove(gone)
        await four.level("orders")
        assert all(node.rows("orders").items() >= written.items() for node in four)
        await gone.stop()


async def test_a_node_that_has_left_does_not_lead_by_force_either(four):
    gone = four[3]
    become(four, drop_last(four))
    with pytest.raises(NotLeader, match="is no member of its set"):
        await gone.promote(force=True)
    forecast = gone.node.status()["replication"]
    assert (forecast["promotion_case"], forecast["promotion_succeeds"]) == ("refused", False)
    assert "is no member of its set" in forecast["promotion"]
    for node in four.nodes[:3]:
        await node.stop()
    await until(lambda: "is no member" in gone.member.progress)
    assert not gone.leads


async def test_no_leadership_is_given_to_a_node_that_has_left(four):
    become(four, drop_last(four))
    with pytest.raises(TailraceError, match="is no other member of this set"):
        await four.leader.hand_over(four[3])


async def test_a_leader_that_has_left_leads_no_more_and_is_not_followed(members):
    leader = await members.settled()
    others = [node for node in members if node is not leader]
    addresses = [node.address for node in others]
    become(members, addresses)
    assert not leader.leads
    assert all(node.member._under_way._pulled._stopped for node in others)
    assert list_of(others[0]).number == 0


async def test_a_look_under_way_forgets_who_has_left_and_has_not_asked_who_came(members, monkeypatch):
    held, look_at, [new] = Held(), peer_states.look_at, free_addresses(1)
    node = members[0]

    async def held_look(asker, *arguments):
        if asker is node.node.services:
            await held.wait()
        return await look_at(asker, *arguments)

    peers = node.member.peers
    async with trio.open_nursery() as nursery:
        monkeypatch.setattr(peer_states, "look_at", held_look)
        nursery.start_soon(peers.look)
        await held.reached.wait()
        become(members, [members[0].address, members[1].address, new])
        assert peers.states.keys() == {str(members[1].address), str(new)}
        held.release()
    assert peers.states.keys() == {str(members[1].address), str(new)}
    assert peers.states[str(members[1].address)] is not None
    assert peers.states[str(new)] is None


async def test_the_disk_of_a_member_that_has_left_may_come_back_at_another_address(members):
    [new] = free_addresses(1)
    node, gone = members[0], members[2]
    peers, disk = node.member.peers, gone.node.identity.placement_id
    await until(lambda: str(gone.address) in peers._disks)
    assert peers.why_copy(str(new), disk)
    become([node], [members[0].address, members[1].address, new])
    assert not peers.why_copy(str(new), disk)


async def test_the_size_of_another_list_is_stored_with_the_next_promise(members):
    local = members[1].member.local
    assert (local.file.now.size, local.file.now.number) == (3, 1)
    become([members[1]], [members[1].address, members[0].address])
    local.file.store(local.file.now.promised(local.file.now.term + 1))
    assert (local.file.now.size, local.file.now.number) == (2, 0)
