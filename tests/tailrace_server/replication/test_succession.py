"""Failover without an operator, in this process."""

import dataclasses
import os

import pytest
import trio
from tests.conftest import RawClient
from tests.tailrace_server.raw_requests import KEY, block_of, write
from tests.tailrace_server.replication.made_set import REPLICATION, make_set, until

import tailrace
from tailrace.errors import Retryable, Unreachable
from tailrace.model import Level
from tailrace.wire.frames import encode_frame
from tailrace.wire.opcodes import Opcode
from tailrace_server.config import Failover
from tailrace_server.replication import giving_way, pre_votes, succession

# Failover takes a fraction of a second; questions still have their long time-outs, so that a busy machine breaks none.
AUTO = dataclasses.replace(
    REPLICATION, failover=Failover.AUTO, heartbeat_s=0.05, leader_timeout_s=0.6, majority_timeout_s=0.6
)
ROWS = {b"a": b"1", b"b": b"2"}


@pytest.fixture
async def nodes(tmp_path, nursery):
    """A set of three that fails over by itself."""
    nodes = make_set(tmp_path, nursery, replication=AUTO)
    await nodes.start()
    await nodes.settled()
    return nodes


def failover(node):
    return node.node.status()["replication"]["failover"]


async def test_another_member_leads_after_the_leader_was_killed(nodes):
    async with nodes.client() as client:
        feed = await nodes.filled(client, ROWS)
        first = nodes.leader
        await first.kill()
        await feed.put(b"c", b"3", level="quorum")
        second = await nodes.settled()
        assert second is not first
        assert second.rows("orders") == {**ROWS, b"c": b"3"}
        await first.start()
        assert await nodes.level("orders") is second


@pytest.mark.slow
async def test_every_leader_in_turn_may_be_killed(nodes):
    async with nodes.client() as client:
        feed = await nodes.filled(client, ROWS)
        for number in range(4):
            leader = await nodes.settled()
            await leader.kill()
            await feed.put(b"%d" % number, b"v", level="quorum")
            await leader.start()
            await nodes.level("orders")
        assert [len(node.rows("orders")) for node in nodes] == [6] * 3


async def until_looked(node, count, monkeypatch):
    """Returns when the node has asked the others ``count`` times more for their states."""
    peers, looks = node.member.peers, []
    look = peers.look

    async def counted(*arguments):
        await look(*arguments)
        looks.append(arguments)

    monkeypatch.setattr(peers, "look", counted)
    await until(lambda: len(looks) >= count)


@pytest.mark.slow
async def test_one_of_three_does_not_lead_and_says_why(nodes, monkeypatch):
    first = nodes.leader
    second, third = [node for node in nodes if node is not first]
    await first.kill()
    await second.kill()
    await until(lambda: failover(third)["state"] == "waits" and str(second.address) in failover(third)["why"])
    term = third.member.local.file.now.term
    await until_looked(third, 10, monkeypatch)
    assert not third.leads
    assert third.member.local.file.now.term == term
    await second.start()
    await until(lambda: second.leads or third.leads)


@pytest.mark.slow
async def test_a_slow_leader_is_not_left_and_followed_again_in_turns(nodes, monkeypatch):
    """To follow anew costs both work for each partition, which makes a slow leader slower."""
    follower = next(node for node in nodes if not node.leads)
    watch, given = follower.member.leadership.watch, []
    begin = watch.begin

    def note(now, grace_s, **how):
        given.append(grace_s)
        begin(now, grace_s, **how)

    monkeypatch.setattr(watch, "begin", note)
    monkeypatch.setattr(watch, "heard", lambda now: None)  # its questions come too late
    await until(lambda: len(given) == 2)
    assert given[1] == 2 * given[0] > AUTO.leader_timeout_s
    assert [node.leads for node in nodes].count(True) == 1


async def test_a_leader_in_whose_place_this_member_led_is_waited_for_no_longer_than_others(nodes):
    """It was gone. Silence after silence, two nodes that lead in turns would wait eight times as long."""
    first = nodes.leader
    second = next(node for node in nodes if not node.leads)
    patience = second.member.successor._patience
    patience.gave_up(first.member.local.name)
    await second.promote()
    assert await nodes.settled() is second
    await first.promote()
    assert await nodes.settled() is first
    assert patience.factor(second.node.storage.host.clock.monotonic()) == 1


async def test_the_parts_are_told_by_status(nodes):
    for node in nodes:
        state = "leads" if node.leads else "follows"
        await until(lambda node=node, state=state: failover(node) == {"mode": "auto", "state": state, "why": ""})


@pytest.mark.slow
async def test_a_leader_without_a_majority_takes_no_writes_at_any_level_until_one_is_back(nodes):
    leader = nodes.leader
    async with nodes.client() as client:
        await nodes.filled(client, ROWS)
    async with tailrace.connect(leader.url, retry_for=2) as client:
        feed = client.feed("orders")
        others = [node for node in nodes if node is not leader]
        for node in others:
            await node.stop()
        await until(lambda: failover(leader)["state"] == "withholds")
        for level in ("memory", "disk", "quorum"):
            with pytest.raises(
                Retryable, match=r"no majority of the set has confirmed for 0\.6 s that this node leads"
            ):
                await feed.put(b"c", b"3", level=level)
        assert "it takes no writes" in leader.node.health()["failure"]
        await others[0].start()
        await until(lambda: failover(leader)["state"] == "leads")
    async with nodes.client() as client:
        await client.feed("orders").put(b"c", b"3", level="quorum")
    assert leader.node.leaderships.system.term == 1


@pytest.mark.slow
async def test_a_leader_whose_watch_has_not_had_its_turn_takes_no_writes_either(nodes, monkeypatch):
    """A process that was stopped for long may read a write first when it goes on."""
    async with nodes.client() as client:
        await nodes.filled(client, ROWS)
    leader = await nodes.settled()  # on a busy machine it may be another one than at first
    leadership, clock = leader.node.leaderships.system, leader.node.services.clock
    monkeypatch.setattr(succession.Succession, "_tick", lambda self, now: None)
    for node in nodes:
        if node is not leader:
            await node.stop()
    await until(lambda: clock.monotonic() >= leadership.sure_until)
    assert leadership.withheld == ""
    [feed_id] = [one.info.feed_id for one in leader.node.feeds]
    # A client would ask again, and may be given up while the last answer is on its way.
    async with await trio.open_tcp_stream(leader.address.host, leader.address.port) as stream:
        client = await RawClient(stream).hello()
        for level in Level:
            await client.send(encode_frame(Opcode.WRITE, write(feed_id, block_of(KEY, partition=0), level), 7))
            error = await client.error(7)
            assert isinstance(error, Retryable)
            assert "no majority of the set has confirmed for 0.6 s" in str(error)
    assert leader.rows("orders") == ROWS


async def test_a_leader_that_has_just_won_knows_when_its_majority_was_last_sure(nodes, monkeypatch):
    """Its process may be stopped before the first look of its watch."""
    first = nodes.leader
    second = next(node for node in nodes if not node.leads)
    monkeypatch.setattr(succession.Succession, "_tick", lambda self, now: None)
    limits = []

    async def note():
        while not second.leads:
            await trio.lowlevel.checkpoint()
        limits.append(second.node.leaderships.system.sure_until)

    async with trio.open_nursery() as watching:
        watching.start_soon(note)
        await second.promote()
    now = second.node.services.clock.monotonic()
    assert limits == [second.node.leaderships.system.sure_until]
    assert limits[0] <= now + AUTO.majority_timeout_s
    assert not first.leads


async def test_a_member_that_hears_the_leader_refuses_pre_votes_and_promises(nodes):
    leader = nodes.leader
    follower = next(node for node in nodes if node is not leader)
    answer = await follower.ask(Opcode.MEMBER, candidate={"held_term": 9, "held": 9})
    assert answer["pre_vote"] == f"it hears the leader at {leader.address}"
    assert (await leader.ask(Opcode.MEMBER, candidate={"held_term": 9, "held": 9}))["pre_vote"] == "it leads"


async def test_an_operator_may_promote_while_all_is_well(nodes):
    first = nodes.leader
    second = next(node for node in nodes if node is not first)
    await second.promote()
    assert await nodes.settled() is second
    await second.hand_over(first)
    assert await nodes.settled() is first


@pytest.mark.slow
async def test_a_leader_with_a_failed_disk_steps_down(nodes, monkeypatch):
    async with nodes.client() as client:
        feed = await nodes.filled(client, ROWS)
        first = nodes.leader
        monkeypatch.setattr(first.member.successor, "why_unfit", lambda: "the disk fails: error 5")
        await feed.put(b"c", b"3", level="quorum")
        await until(lambda: sum(node.leads for node in nodes) == 1 and not first.leads)
        assert failover(first) == {"mode": "auto", "state": "unfit", "why": "the disk fails: error 5"}
        monkeypatch.undo()
        await nodes.level("orders")


async def test_a_leader_that_stops_hands_over_first(nodes):
    async with nodes.client() as client:
        feed = await nodes.filled(client, ROWS)
        first = nodes.leader
        versions = [await feed.put(b"c", b"3", level="disk")]
        begun_at = trio.current_time()
        await first.stop()
        assert any(node.leads for node in nodes)
        versions.append(await feed.put(b"c", b"4", level="quorum"))
        assert trio.current_time() - begun_at < 20  # no time-out of the set has passed: those are longer
        assert versions[0].branch == versions[1].branch  # nothing was lost, at any level


async def test_members_that_stop_together_stop(nodes):
    async with trio.open_nursery() as stopping:
        for node in nodes:
            stopping.start_soon(node.stop)
    assert not any(node.is_up for node in nodes)


@pytest.mark.slow
async def test_a_member_whose_disk_hangs_does_not_hold_up_a_failover(nodes, monkeypatch):
    first = nodes.leader
    second, third = [node for node in nodes if node is not first]
    monkeypatch.setattr(first.member.successor, "why_unfit", lambda: "an fsync has taken 5 s so far")
    await until(lambda: second.leads or third.leads)
    assert not first.leads
    told = "this member neither leads nor votes, since an fsync has taken 5 s so far"
    await until(lambda: told in (first.node.status()["failure"] or ""))  # and not that there is no leader
    answer = await first.ask(Opcode.PROMISE, term=99, address=str(second.address), by_itself=True)
    assert (answer["promised"], answer["refused"]) == (False, "an fsync has taken 5 s so far")


@pytest.mark.slow
async def test_a_disk_that_hangs_during_the_pause_before_a_candidacy_ends_only_that(nodes, monkeypatch):
    first = nodes.leader
    others = [node for node in nodes if node is not first]
    monkeypatch.setattr(succession, "pause_seconds", lambda *_: 0.5)
    await first.kill()
    for node in others:
        await until(lambda node=node: node.member.progress.startswith("waits: there is no leader"))
        monkeypatch.setattr(node.member.successor, "why_unfit", lambda: "an fsync has taken 5 s so far")
    for node in others:
        await until(lambda node=node: failover(node)["state"] == "unfit" and node.member.progress.startswith("stands"))
    monkeypatch.undo()
    await until(lambda: any(node.leads for node in others))


async def test_a_candidate_whose_disk_hangs_is_not_waited_for(nodes, monkeypatch):
    """It has had the leader's promise, and its own promotion cannot go on."""
    first = nodes.leader
    second, third = [node for node in nodes if node is not first]
    monkeypatch.setattr(second.member.successor, "why_unfit", lambda: "an fsync has taken 5 s so far")
    second.member.local.begin_promotion()
    answer = await first.ask(Opcode.PROMISE, term=7, address=str(second.address))
    assert answer["promised"]
    await until(lambda: first.leads or third.leads)
    assert not second.leads


async def test_a_member_that_is_always_held_up_stops_following_a_silent_leader(nodes, monkeypatch):
    follower = next(node for node in nodes if not node.leads)
    await until(lambda: follower.member.following is not None)
    following, now = follower.member.following, follower.node.services.clock.monotonic()
    monkeypatch.setattr(follower.member.leadership.watch, "heard", lambda _: None)
    for number in range(8):
        follower.member.successor._tick(now + 10.0 * (number + 1))
    await following.ended.wait()


async def test_a_leader_that_is_given_up_is_told_once_however_long_the_following_takes_to_end(
    nodes, monkeypatch, caplog
):
    """With thousands of feeds on a busy machine that is seconds, and a look comes every 0.3 s."""
    follower = next(node for node in nodes if not node.leads)
    monkeypatch.setattr(follower.member.leadership.watch, "heard", lambda _: None)
    await until(lambda: (following := follower.member.following) is not None and not following.is_stopped)
    following, now = follower.member.following, follower.node.services.clock.monotonic()
    caplog.clear()
    for number in range(8):
        follower.member.successor._tick(now + 10.0 * (number + 1))
    assert caplog.text.count("no sign of life of the leader") == 1
    await following.ended.wait()


async def damage(node):
    """Cuts the first segment of the feed, and has the node find that."""
    partition = (await node.flush())[0]
    os.truncate(partition.chain.segments[0].path, 100)
    await node.node.storage.checks.looked(60)
    assert node.node.status()["replication"]["unreadable"]


async def test_a_leader_that_cannot_read_its_copy_hands_over_to_a_member_that_can(nodes):
    async with nodes.client() as client:
        feed = await nodes.filled(client, ROWS)
        first = nodes.leader
        [second, third] = [node for node in nodes if node is not first]
        await damage(second)
        await until(lambda: first.member.peers.states[str(second.address)].unreadable == 1)
        await damage(first)
        await until(lambda: third.leads)
        await nodes.settled()
        assert (await feed.get(b"a", level="quorum")).value == b"1"
        assert "cannot read 1 partition" in third.node.status()["replication"]["promotion"]


async def test_a_leader_goes_on_without_a_partition_if_no_other_copy_is_better(nodes):
    async with nodes.client() as client:
        await nodes.filled(client, ROWS)
        first = nodes.leader
        others = [node for node in nodes if node is not first]
        for node in others:
            await damage(node)
        await until(lambda: all(first.member.peers.states[str(node.address)].unreadable for node in others))
        await damage(first)
        advice = "this leader cannot read 1 partition, and no other voter that can read its own copy is connected"
        await until(lambda: advice in first.node.health()["failure"])
        assert first.leads
        other = await client.create_feed("other", partitions=1)
        await other.put(b"a", b"1", level="quorum")


async def test_a_leader_that_stops_hands_over_to_a_member_that_can_read_its_copy(nodes):
    async with nodes.client() as client:
        await nodes.filled(client, ROWS)
        first = nodes.leader
        second, third = sorted((node for node in nodes if node is not first), key=lambda node: str(node.address))
        await damage(second)
        await until(lambda: first.member.peers.states[str(second.address)].unreadable == 1)
        await first.stop()
        assert third.leads


@pytest.mark.slow
async def test_a_member_whose_file_is_gone_does_not_stand_though_no_reader_has_met_that(nodes):
    async with nodes.client() as client:
        feed = await nodes.filled(client, ROWS)
        first = nodes.leader
        second, third = sorted((node for node in nodes if node is not first), key=lambda node: str(node.address))
        os.remove((await second.flush())[0].chain.segments[0].path)
        await first.kill()
        await feed.put(b"c", b"3", level="quorum")
        assert await nodes.settled() is third
        assert third.rows("orders") == {**ROWS, b"c": b"3"}


async def test_no_member_stands_if_none_can_read_its_copy_and_each_says_what_to_do(nodes):
    async with nodes.client() as client:
        await nodes.filled(client, ROWS)
        first = nodes.leader
        others = [node for node in nodes if node is not first]
        for node in others:
            await damage(node)
        await first.kill()
        for node in others:
            await until(lambda node=node: "no voter that answers can read" in (node.node.health()["failure"] or ""))
            assert f"Start {first.address} again" in node.node.health()["failure"]
            assert "tailrace promote --force --node" in node.node.health()["failure"]
            await until(lambda node=node: "does not stand" in failover(node)["why"])
        assert not any(node.leads for node in others)
        await first.start()
        assert await nodes.settled() is first


async def fill_disk(node, monkeypatch):
    """Leaves the node less room than writes need."""
    space = node.node.storage.space
    monkeypatch.setattr(space, "_free_bytes_min", 1 << 62)
    await space.look()


@pytest.mark.slow
async def test_a_member_without_room_for_writes_stands_after_one_with_room(nodes, monkeypatch):
    monkeypatch.setattr(pre_votes, "_RANK_SECONDS", 1.5)  # so that a busy machine does not turn the order round
    async with nodes.client() as client:
        feed = await nodes.filled(client, ROWS)
        first = nodes.leader
        full, roomy = sorted((node for node in nodes if node is not first), key=lambda node: str(node.address))
        await fill_disk(full, monkeypatch)
        await first.kill()
        await feed.put(b"c", b"3", level="quorum")
        assert await nodes.settled() is roomy


async def test_a_leader_that_stops_hands_over_to_a_member_with_room(nodes, monkeypatch):
    async with nodes.client() as client:
        await nodes.filled(client, ROWS)
        first = nodes.leader
        full, roomy = sorted((node for node in nodes if node is not first), key=lambda node: str(node.address))
        await fill_disk(full, monkeypatch)
        await until(lambda: not first.member.peers.states[str(full.address)].has_room)
        await first.stop()
        assert roomy.leads


@pytest.mark.slow
async def test_a_member_without_room_leads_if_no_other_one_can(nodes, monkeypatch):
    async with nodes.client() as client:
        feed = await nodes.filled(client, ROWS)
        first = nodes.leader
        others = [node for node in nodes if node is not first]
        for node in others:
            await fill_disk(node, monkeypatch)
        await first.kill()
        assert await nodes.settled() in others
        assert (await feed.get(b"a", level="quorum")).value == b"1"


async def test_a_member_without_room_lets_one_that_has_less_lead(nodes, monkeypatch):
    async with nodes.client() as client:
        await nodes.filled(client, ROWS)
        node = next(node for node in nodes if not node.leads)
        less, successor = pre_votes.Completeness(0, 0), node.member.successor
        monkeypatch.setattr(successor, "why_sticky", lambda: "")
        assert successor.why_refused(less) == ""  # it follows a leader, and stands back
        monkeypatch.setattr(node.member, "following", None)
        assert "it has more" in successor.why_refused(less)
        await fill_disk(node, monkeypatch)
        assert successor.why_refused(less) == ""


@pytest.fixture
def full_at_once(monkeypatch):
    monkeypatch.setattr(giving_way, "REFUSING_SECONDS", 0.0)


async def test_a_leader_whose_disk_gets_full_hands_over_to_a_member_with_room(nodes, monkeypatch, full_at_once):
    async with nodes.client() as client:
        feed = await nodes.filled(client, ROWS)
        first = nodes.leader
        full, roomy = sorted((node for node in nodes if node is not first), key=lambda node: str(node.address))
        await fill_disk(full, monkeypatch)
        await until(lambda: not first.member.peers.states[str(full.address)].has_room)
        await fill_disk(first, monkeypatch)
        await feed.put(b"c", b"3", level="quorum")
        assert await nodes.settled() is roomy
        assert not first.node.status()["healthy"]


async def test_a_leader_with_a_full_disk_leads_on_if_no_other_one_has_room(nodes, monkeypatch, full_at_once):
    """And none comes to and fro: each of them counts as full."""
    async with nodes.client() as client:
        feed = await nodes.filled(client, ROWS)
        first = nodes.leader
        others = [node for node in nodes if node is not first]
        for node in others:
            await fill_disk(node, monkeypatch)
        await until(lambda: not any(seen.has_room for seen in first.member.peers.states.values()))
        await fill_disk(first, monkeypatch)
        way, now = first.member.successor._giving_way, first.node.storage.host.clock.monotonic()
        way.consider(now)
        way.consider(now + 100)
        assert not way._handover.is_busy
        assert first.leads
        assert "no voter with room on its disk is connected" in first.node.status()["failure"]
        assert (await feed.get(b"a", level="quorum")).value == b"1"


async def test_a_disk_that_is_full_for_a_moment_moves_no_leader(nodes, monkeypatch):
    async with nodes.client() as client:
        await nodes.filled(client, ROWS)
        first, begun = nodes.leader, []
        monkeypatch.setattr(first.member, "start", begun.append)
        way, space = giving_way.GivingWay(first.member), first.node.storage.space
        for at, low in [
            (100.0, "full"),
            (100.0 + giving_way.REFUSING_SECONDS / 2, "full"),
            (200.0, ""),
            (300.0, "full"),
        ]:
            monkeypatch.setattr(space, "low", low)
            way.consider(at)
        assert not begun
        way.consider(300.0 + giving_way.REFUSING_SECONDS)
        assert begun


async def test_no_handover_to_a_member_without_room_unless_forced(nodes, monkeypatch):
    async with nodes.client() as client:
        await nodes.filled(client, ROWS)
        first = nodes.leader
        full = next(node for node in nodes if node is not first)
        await fill_disk(full, monkeypatch)
        with pytest.raises(tailrace.TailraceError, match=r"nearly full.*--force"):
            await first.hand_over(full)
        assert first.leads
        await until(lambda: "is nearly full" in first.node.status()["replication"]["promotion"])
        assert "would soon refuse writes" in full.node.status()["replication"]["promotion"]
        await first.ask(Opcode.HANDOVER, to=str(full.address), force=True)
        assert full.leads


async def test_a_promotion_of_a_member_without_room_warns(nodes, monkeypatch):
    async with nodes.client() as client:
        await nodes.filled(client, ROWS)
        full = next(node for node in nodes if not node.leads)
        await fill_disk(full, monkeypatch)
        answer = await full.promote()
        assert any("would refuse writes, because its disk is nearly full or fails" in step for step in answer["steps"])


@pytest.mark.slow
async def test_a_member_that_has_promised_more_is_led_again_by_a_leader_that_cannot_ask_it(nodes, monkeypatch):
    """A cut goes one way: the leader cannot connect to it. It tells its promise with its own questions."""
    async with nodes.client() as client:
        feed = await nodes.filled(client, ROWS)
        first = nodes.leader
        second = next(node for node in nodes if node is not first)
        network = first.node.host.network
        connect = network.connect

        async def cut(address):
            if address == second.address:
                raise Unreachable("a test has cut this way")
            return await connect(address)

        monkeypatch.setattr(network, "connect", cut)
        await until(lambda: first.member.peers.states[str(second.address)] is None)
        now = second.member.local.file.now
        second.member.local.file.store(now.promised(now.term + 5))
        second.member.step_down()
        await until(lambda: second.follows(first))
        assert first.node.leaderships.system.term > now.term + 5
        await feed.put(b"c", b"3", level="quorum")
        assert await nodes.level("orders") is first


async def test_the_last_leader_that_cannot_read_its_copy_hands_over_when_it_is_back(nodes):
    """All were stopped, and it leads again at first: the other partitions do not wait for a promotion."""
    async with nodes.client() as client:
        feed = await nodes.filled(client, ROWS)
        last = nodes.leader
        for node in nodes:
            await node.flush()
            await node.node.storage.flusher.write_feeds()  # else the start takes the rows from the journal
        [partition] = last.node.feeds.named("orders").partitions
        folder = os.path.dirname(partition.chain.segments[0].path)
        for node in nodes:
            await node.kill()
        for name in os.listdir(folder):
            if name.endswith(".seg"):
                os.truncate(os.path.join(folder, name), 100)
        await last.start()
        assert last.node.status()["replication"]["unreadable"]
        others = [node for node in nodes if node is not last]
        for node in others:
            await node.start()
        await until(lambda: any(node.leads for node in others))
        assert (await feed.get(b"a", level="quorum")).value == b"1"
        await until(lambda: not last.node.status()["replication"]["unreadable"])
