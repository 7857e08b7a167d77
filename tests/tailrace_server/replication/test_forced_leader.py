"""What becomes of the rows of a leader that was forced without a majority, when the lost members come back."""

import dataclasses

import pytest
import trio
from tests.tailrace_server.replication.made_set import REPLICATION, make_set, numbered, put, until

from tailrace.errors import Forbidden, NotLeader
from tailrace.wire.opcodes import Opcode
from tailrace_server.config import Failover
from tailrace_server.replication import promotion
from tailrace_server.replication.promotion import FORCED_TERMS

# A leader notices soon that its majority is gone. A change that is not stored fails as soon as in production.
SHORT = dataclasses.replace(
    REPLICATION, step_timeout_s=5.0, heartbeat_s=0.05, leader_timeout_s=0.6, majority_timeout_s=0.6
)


async def lead_without(nodes, *lost):
    """Kills the nodes, and their disks are lost; returns once the leader knows that."""
    for node in lost:
        await node.kill()
        node.replace_disk()
    replicas = nodes.leader.node.leaderships.system.replicas.voters
    gone = {str(node.address) for node in lost}
    await until(lambda: not any(peer.streams for peer in replicas() if peer.address in gone))


@pytest.mark.slow
@pytest.mark.parametrize("failover", Failover)
async def test_a_leader_that_has_lost_its_majority_for_good_is_forced_and_fills_the_others(tmp_path, nursery, failover):
    nodes = make_set(tmp_path, nursery, replication=dataclasses.replace(SHORT, failover=failover))
    await nodes.start()
    await nodes.settled()
    async with nodes.client() as client:
        feed = await nodes.filled(client, numbered(0, 5))
        leader = nodes.leader
        term = leader.member.local.file.now.leader_term
        lost = [node for node in nodes if node is not leader]
        for force in (False, True):
            answer = await leader.promote(force=force)
            assert (answer["term"], answer["steps"]) == (term, ["this node leads already"])
        await lead_without(nodes, *lost)
        if failover is Failover.AUTO:
            await until(lambda: leader.node.leaderships.system.withheld)
        with pytest.raises(NotLeader, match=r"1 of the 2 voters .* --force leads all the same"):
            await leader.promote()
        assert leader.leads
        assert leader.member.local.file.now.leader_term == term
        answer = await leader.promote(force=True)
        assert answer["term"] == term + FORCED_TERMS
        assert all(str(node.address) in answer["may_be_lost"] for node in lost)
        assert leader.member.local.file.now.forced
        if failover is Failover.AUTO:
            await until(lambda: leader.node.leaderships.system.withheld)
        for node in lost:
            await node.start()
            await until(lambda node=node: node.is_up and node.member.local.votes)
        await put(feed, numbered(5, 5))
        assert await nodes.level("orders") is leader
        assert all(node.rows("orders") == numbered(0, 10) for node in nodes)


@pytest.mark.slow
async def test_of_four_members_two_are_lost_and_one_with_an_empty_directory_suffices_to_remove_the_other(
    tmp_path, nursery
):
    nodes = make_set(tmp_path, nursery, count=4, replication=SHORT)
    await nodes.start()
    await nodes.settled()
    async with nodes.client() as client:
        feed = await nodes.filled(client, numbered(0, 5))
        leader = nodes.leader
        back, gone = [node for node in nodes if node is not leader][:2]
        await lead_without(nodes, back, gone)
        for force in (False, True):
            with pytest.raises(Forbidden, match=rf"2 voters answer, and 3 .*--force --node {leader.address}`"):
                await leader.ask(Opcode.MEMBER_CHANGE, action="remove", name=str(gone.address), force=force)
        await leader.promote(force=True)
        await back.start()
        await until(lambda: back.is_up and back.member.local.votes)
        await leader.ask(Opcode.MEMBER_CHANGE, action="remove", name=str(gone.address))
        await until(lambda: len(leader.member.local.file.now.voters.seats) == 3)
        nodes.nodes.remove(gone)
        await put(feed, numbered(5, 5))
        await nodes.level("orders")
        assert all(node.rows("orders") == numbered(0, 10) for node in nodes)


async def test_rows_of_a_forced_leader_stay_when_a_member_of_later_terms_comes_back(members):
    """The first was away while the others led. It is forced, and the second gets a new disk, which votes then."""
    async with members.client() as client:
        feed = await members.filled(client, numbered(0, 5))
        first, second, third = members
        await first.stop()
        for node in (second, third, second):
            await node.promote()
            await members.settled()
        await put(feed, numbered(10, 5))
        await second.kill()
        await third.kill()
        await first.start()
        await first.promote(force=True)
        second.replace_disk()
        await second.start()
        await until(lambda: second.is_up and second.member.local.votes)
        rows = numbered(0, 5) | numbered(20, 5)
        await put(feed, numbered(20, 5), "quorum")
        await third.start()
        await members.level("orders")
        for node in members:
            assert node.rows("orders") == rows
        await put(feed, numbered(30, 5), "quorum")
        assert first.leads
        await until(lambda: third.member.local.votes)


async def test_a_forced_leader_takes_no_term_that_another_candidate_has_promised_itself(tmp_path, nursery, monkeypatch):
    """Both have found a majority, and then each promises itself the next term: another one may lead in it, too."""
    nodes = make_set(tmp_path, nursery, replication=dataclasses.replace(SHORT, failover=Failover.MANUAL))
    await nodes.start()
    await nodes.settled()
    leader = nodes.leader
    term = leader.member.local.file.now.leader_term
    await leader.kill()
    one, other = [node for node in nodes if node is not leader]
    keep_promise, looked, all_looked, ended = promotion.keep_promise, set(), trio.Event(), []

    async def keep_together(member, term):
        looked.add(member)
        if len(looked) == 2:
            all_looked.set()
        await all_looked.wait()
        await keep_promise(member, term)

    async def promote():
        try:
            ended.append(await other.promote())
        except NotLeader as error:
            ended.append(error)

    monkeypatch.setattr(promotion, "keep_promise", keep_together)
    async with trio.open_nursery() as promotions:
        promotions.start_soon(promote)
        answer = await one.promote(force=True)
    assert answer["term"] == term + 1 + FORCED_TERMS
    assert isinstance(ended[0], NotLeader)
    assert one.leads
