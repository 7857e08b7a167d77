"""Who votes in a set of real nodes: seats are given one at a time, and directories without one count for nothing."""

import json
import os
import shutil
from pathlib import Path

import pytest
import xxhash
from tests.tailrace_server.replication.made_set import numbered, put, until

from tailrace.errors import NotLeader
from tailrace.wire.opcodes import Opcode
from tailrace_server.replication import membership
from tailrace_server.replication.voters import TERMS_AHEAD_MAX, VACANT, Voters, voters_to_json


def record(node):
    return node.member.local.file.now.voters


def disk(node):
    return node.node.identity.placement_id


async def replaced(node):
    """Gives a node that is down an empty disk. Returns the place of its old one."""
    away = node.config.data + " of before"
    os.rename(node.config.data, away)
    await node.start()
    await until(lambda: node.member.local.votes)
    return away


async def put_back(node, away):
    await node.kill()
    shutil.rmtree(node.config.data)
    os.rename(away, node.config.data)
    await node.start()


def tell(node, voters):
    """Tells a node a record, as another member of its set would."""
    now, local = node.node.identity.cluster_id.hex(), node.member.local
    return node.ask(Opcode.MEMBER, voters=voters_to_json(voters), cluster_id=now, members=list(local.members))


def write_version_1(node):
    """Writes the MEMBERSHIP of a node that is down as version 1 does, which has no record."""
    path = Path(node.config.data) / membership.FILE_NAME
    value = json.loads(path.read_text()) | {"version": 1}
    del value["voters"], value["checksum"]
    checksum = f"{xxhash.xxh3_64_intdigest(json.dumps(value).encode()):016x}"
    path.write_text(json.dumps(value | {"checksum": checksum}))


async def test_a_set_is_founded_with_a_seat_for_each_member_in_the_order_of_the_list(members):
    assert [record(node) for node in members] == [Voters(1, 1, tuple(disk(node) for node in members))] * 3


async def test_the_leader_of_a_later_term_writes_it_into_the_record(members):
    seats = record(members[0]).seats
    await members[0].kill()
    await members[1].promote()
    await until(lambda: record(members[2]) == record(members[1]) == Voters(2, 1, seats))


async def test_a_disk_that_was_replaced_gets_its_seat_after_the_old_one_has_left(members):
    async with members.client() as client:
        await members.filled(client, numbered(0, 5))
        first, old = record(members[0]), disk(members[2])
        await members[2].stop()
        await replaced(members[2])
        assert disk(members[2]) != old
        await until(lambda: all(record(node).epoch == first.epoch + 2 for node in members))
        assert record(members[1]) == first.with_seat(2, VACANT).with_seat(2, disk(members[2]))


async def test_a_disk_that_was_replaced_and_comes_back_counts_for_nothing_and_gets_its_seat_anew(members):
    """What the leader and the new disk had is on the leader alone, which is gone."""
    async with members.client() as client:
        feed = await members.filled(client, numbered(0, 5))
        await members[2].stop()
        old = await replaced(members[2])
        await members[1].stop()
        await put(feed, numbered(10, 5))
        await members[0].kill()
        await put_back(members[2], old)
        await members[1].start()
        for node in (members[1], members[2]):
            with pytest.raises(NotLeader, match=r"of the 2 voters that it takes"):
                await node.promote()
        await until(lambda: "is no voter by epoch" in members[2].member.progress)
        assert not members[2].member.local.votes
        await members[0].start()
        await members.level("orders")
        assert members[0].rows("orders") == members[2].rows("orders") == numbered(0, 5) | numbered(10, 5)
        await until(lambda: members[2].member.local.votes)
        assert VACANT not in record(members[0]).seats


async def test_a_promise_of_a_disk_without_a_seat_is_not_made_and_moves_no_leader(members):
    async with members.client() as client:
        feed = await members.filled(client, numbered(0, 5))
        lost = record(members[0]).with_seat(2, VACANT)
        members[0].member.local.file.store(members[0].member.local.file.now.knowing(lost))
        members[0].member.local.count()
        await until(lambda: record(members[2]) == lost)
        answer = await members[2].ask(Opcode.PROMISE, term=50, address="x:1", placement_id="00" * 16)
        assert not answer["promised"]
        assert "is no voter by" in answer["refused"]
        await feed.put(b"more", b"v", level="quorum")
        await until(lambda: members[2].member.local.votes)
        assert members[0].node.leaderships.system.term == 1


async def test_a_candidate_with_an_earlier_record_is_refused_and_told_the_later_one(members):
    earlier, later = record(members[0]), record(members[0]).with_seat(2, VACANT)
    members[1].member.local.file.store(members[1].member.local.file.now.knowing(later))
    promise = {"address": str(members[2].address), "placement_id": disk(members[2]).hex()}
    answer = await members[1].ask(Opcode.PROMISE, term=50, voters=voters_to_json(earlier), **promise)
    assert not answer["promised"]
    assert answer["voters"] == voters_to_json(later)
    assert "stands by epoch 1" in answer["refused"]


async def test_a_leader_that_hears_of_a_record_of_a_later_term_steps_down(members):
    await tell(members[0], record(members[0]).led_in(5))
    assert members[0].member.local.file.now.term >= 5
    await until(lambda: members[0].leads and members[0].node.leaderships.system.term > 5)


async def test_a_record_far_above_all_terms_or_of_others_is_not_believed(members):
    known = record(members[1])
    await tell(members[1], known.led_in(TERMS_AHEAD_MAX + 2))
    await tell(members[1], known._replace(epoch=9, seats=known.seats[:2]))
    question = {"voters": voters_to_json(known.led_in(9)), "members": list(members[1].member.local.members)}
    await members[1].ask(Opcode.MEMBER, cluster_id="00" * 16, **question)
    await members[1].ask(Opcode.MEMBER, cluster_id=members[1].node.identity.cluster_id.hex(), voters=question["voters"])
    assert record(members[1]) == known


async def test_who_leads_by_force_gives_seats_without_a_majority(members):
    async with members.client() as client:
        await members.filled(client, numbered(0, 5))
        for node in members:
            await node.stop()
        for node in (members[1], members[2]):
            node.replace_disk()
        await members[0].start()
        await members[0].promote(force=True)
        for node in (members[1], members[2]):
            await node.start()
        await until(lambda: all(node.is_up and node.member.local.votes for node in members))
        assert record(members[0]).seats == tuple(disk(node) for node in members)
        await client.feed("orders").put(b"more", b"v", level="quorum")


async def test_a_disk_without_a_seat_that_is_promoted_gives_itself_one(members):
    """The new disk is promoted by the others before it has caught up."""
    async with members.client() as client:
        await members.filled(client, numbered(0, 5))
        await members[2].stop()
        members[2].replace_disk()
        await members[2].start()
        await members[2].promote()
        await until(lambda: members[2].leads and members[2].member.local.votes)
        await until(lambda: record(members[1]) == record(members[2]))
        assert record(members[2]).seats == tuple(disk(node) for node in members)
        await client.feed("orders").put(b"more", b"v", level="quorum")


async def test_a_set_of_an_earlier_version_is_recorded_by_its_leader(members):
    async with members.client() as client:
        await members.filled(client, numbered(0, 5))
        for node in members:
            await node.stop()
        for node in members:
            write_version_1(node)
        await members.start()
        await until(lambda: all(record(node).epoch == 1 for node in members))
        assert record(members[0]).seats == tuple(disk(node) for node in members)
        await client.feed("orders").put(b"more", b"v", level="quorum")
