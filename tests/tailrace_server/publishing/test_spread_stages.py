"""Stages at level quorum: any next leader can publish them, and nothing of them stays on a member."""

from __future__ import annotations

from functools import partial

import pytest
import trio
from tests.tailrace_server.publishing.test_sets import numbered
from tests.tailrace_server.replication.made_set import until

import tailrace
from tailrace.errors import Forbidden, NotDurable, Unreachable
from tailrace.model import Put
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stage_copy_messages import CopyAction
from tailrace_server.publishing import publisher, stage_source, stage_spreader
from tailrace_server.replication.following import Following
from tailrace_server.serving import stage_copy_requests

ROWS = numbered(0, 200, b"v" * 200)


async def sealed(feed, rows=ROWS, level="quorum"):
    async with feed.stage(batch_rows=20) as stage:
        await stage.write([Put(key, value) for key, value in rows.items()])
        return await stage.seal(level)


async def _never(following):
    await trio.sleep_forever()


def holders(members, stage):
    return [node for node in members if node.is_up and stage.stage_id in node.node.stages._sealed]


@pytest.mark.parametrize("is_holder", [True, False])
async def test_any_next_leader_publishes_what_was_staged_at_quorum(members, is_holder):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=3)
        await members.level("orders")
        stage = await sealed(feed)
        leader, *others = members
        having = holders(members, stage)
        assert len(having) == 2, "a majority, and no more"
        assert leader in having
        await leader.kill()
        await next(node for node in others if (node in having) == is_holder).promote()
        assert sorted((await feed.publish("job", 0, [stage])).written) == [0, 1, 2]
        assert (await feed.publish("job", 0, [stage])).skipped == (0, 1, 2)
        await leader.start()
        await members.level("orders")
        assert [node.rows("orders") for node in members] == [ROWS] * 3
        await until(lambda: not any(holders(others, each) for each in [stage]))


async def test_a_stage_at_level_disk_is_on_its_leader_alone(members):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=3)
        stage = await sealed(feed, level="disk")
        assert holders(members, stage) == [members[0]]


async def test_stages_at_both_levels_end_a_publish_before_anything_is_copied(members):
    """The one that is lost has to be staged again anyway; then the other one is copied."""
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=3)
        await members.level("orders")
        large, small = await sealed(feed), await sealed(feed, numbered(500, 10), level="disk")
        leader, *others = members
        lacking = next(node for node in others if node not in holders(members, large))
        await leader.kill()
        await lacking.promote()
        with pytest.raises(tailrace.UnknownStage, match="on no other member"):
            await feed.publish("job", 0, [large, small])
        assert lacking not in holders(members, large)
        again = await sealed(feed, numbered(500, 10), level="disk")
        assert sorted((await feed.publish("job", 0, [large, again])).written) == [0, 1, 2]
        await leader.start()
        await members.level("orders")
        assert leader.rows("orders") == ROWS | numbered(500, 10)


async def test_a_publish_in_steps_copies_a_stage_in_each_step(members, monkeypatch):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=3)
        await members.level("orders")
        leader, *others = members
        stages = [await sealed(feed, numbered(100 * number, 100)) for number in range(4)]
        lacked_by = {node: [stage for stage in stages if node not in holders(members, stage)] for node in others}
        other, lacked = max(lacked_by.items(), key=lambda each: len(each[1]))
        assert len(lacked) > 1
        await leader.kill()
        await other.promote()
        monkeypatch.setattr(publisher, "STEP_S", 0.0)
        steps = []
        publish = publisher.Publisher.publish

        async def noted(*arguments):
            steps.append(await publish(*arguments))
            return steps[-1]

        monkeypatch.setattr(publisher.Publisher, "publish", noted)
        assert sorted((await feed.publish("job", 0, stages)).written) == [0, 1, 2]
        assert len(steps) >= len(lacked)
        assert other.rows("orders") == numbered(0, 400)


async def test_a_publish_waits_for_the_member_that_has_a_stage(members, monkeypatch):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=3)
        await members.level("orders")
        leader, *others = members
        stage = await sealed(feed)
        holder = next(node for node in others if node in holders(members, stage))
        lacking = next(node for node in others if node is not holder)
        await leader.kill()
        await lacking.promote()
        await holder.kill()
        results, refused = [], []
        fetch = stage_spreader.StageSpreader.fetch

        async def noted(*arguments):
            try:
                return await fetch(*arguments)
            except NotDurable as error:
                refused.append(str(error))
                raise

        async def publish():
            results.append(await feed.publish("job", 0, [stage]))

        monkeypatch.setattr(stage_spreader.StageSpreader, "fetch", noted)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            await until(lambda: len(refused) > 1)
            await holder.start()
        assert "0 other members with a vote say which stages they have, and 1 have to" in refused[0]
        assert sorted(results[0].written) == [0, 1, 2]


async def test_a_member_on_a_new_disk_does_not_say_that_a_stage_is_lost(members, monkeypatch):
    """It has no vote, so the stage may be on a voter that is away."""
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=3)
        await members.level("orders")
        leader, *others = members
        stage = await sealed(feed)
        holder = next(node for node in others if node in holders(members, stage))
        lacking = next(node for node in others if node is not holder)
        await leader.kill()
        await lacking.promote()
        await holder.kill()
        leader.replace_disk()
        await leader.start()
        refused, results = [], []
        fetch = stage_spreader.StageSpreader.fetch

        async def noted(*arguments):
            try:
                return await fetch(*arguments)
            except tailrace.TailraceError as error:
                refused.append(error)
                raise

        async def publish():
            results.append(await feed.publish("job", 0, [stage]))

        monkeypatch.setattr(stage_spreader.StageSpreader, "fetch", noted)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(publish)
            await until(lambda: refused)
            await holder.start()
        assert {type(error) for error in refused} == {NotDurable}
        assert sorted(results[0].written) == [0, 1, 2]


async def test_a_copy_on_a_disk_without_a_vote_counts_for_no_majority(members, monkeypatch):
    """Such a disk may be replaced again without a word to the voters."""
    monkeypatch.setattr(Following, "_gain_vote", _never)
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=3)
        await members.level("orders")
        leader, voter, other = members
        await other.kill()
        other.replace_disk()
        await other.start()
        await until(lambda: other.follows(leader))
        stages = [await sealed(feed, numbered(100 * number, 10)) for number in range(8)]
        assert all(voter in holders(members, stage) for stage in stages)


async def test_a_seal_at_quorum_waits_for_a_majority(members, monkeypatch):
    leader, *others = members
    spread, refused = stage_spreader.StageSpreader.spread, trio.Event()

    async def noted(*arguments):
        try:
            await spread(*arguments)
        except NotDurable:
            refused.set()
            raise

    monkeypatch.setattr(stage_spreader.StageSpreader, "spread", noted)
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=3)
        await members.level("orders")
        for node in others:
            await node.kill()
        async with feed.stage() as stage:
            await stage.put(b"k", b"v")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stage.seal, "quorum")
                await refused.wait()
                nursery.cancel_scope.cancel()
            await others[1].start()
            await until(lambda: others[1].follows(leader))
            found = await stage.seal("quorum")
            assert set(holders(members, found)) == {leader, others[1]}
            with pytest.raises(ValueError, match="sealed at level 'quorum'"):
                await stage.seal()


async def test_a_member_that_hangs_does_not_hold_up_a_seal(members, monkeypatch):
    """The one after it is asked, too."""
    monkeypatch.setattr(stage_spreader, "SLOW_S", 0.05)
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=3)
        await members.level("orders")
        take, hung = stage_spreader.StageSpreader.take, []

        async def hang(spreader, *arguments):
            if not hung:
                hung.append(spreader)
            if spreader in hung:
                await trio.sleep_forever()
            await take(spreader, *arguments)

        monkeypatch.setattr(stage_spreader.StageSpreader, "take", hang)
        found = holders(members, await sealed(feed))
        assert len(found) == 2
        assert all(node.node.publisher.spreader not in hung for node in found)


async def test_a_node_that_stops_ends_the_copies_of_its_stages(members, monkeypatch):
    monkeypatch.setattr(stage_source, "STALLED_S", 0.05)
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=3)
        await members.level("orders")
        stage = await sealed(feed, level="disk")
        _never_answer([stage], monkeypatch)
        with pytest.raises(Unreachable, match=r"has sent no part of a stage for 0\.05 s"):
            await _take(members[1], members[0], feed, stage)
        assert members[1].node.stages.statistics().bytes == 0


async def test_a_new_leader_waits_for_no_copies_of_one_that_has_stopped(members, monkeypatch):
    monkeypatch.setattr(stage_source, "STALLED_S", 3_600.0)
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=3)
        await members.level("orders")
        leader, *others = members
        stage = await sealed(feed)
        holder = next(node for node in others if node in holders(members, stage))
        lacking = next(node for node in others if node is not holder)
        other_stages = [
            await sealed(feed, numbered(0, 10), level="disk") for _ in range(stage_spreader.TAKEN_AT_ONCE_MAX)
        ]
        asked = _never_answer(other_stages, monkeypatch)
        async with trio.open_nursery() as nursery:
            for each in other_stages:
                nursery.start_soon(_take, lacking, leader, feed, each)
            await until(lambda: len(asked) == len(other_stages))
            await lacking.promote()
            with trio.fail_after(60):
                assert sorted((await feed.publish("job", 0, [stage])).written) == [0, 1, 2]
            nursery.cancel_scope.cancel()


def _never_answer(stages, monkeypatch):
    """Lets no node send a part of these stages any more. Returns the list of those that are asked for."""
    ids, asked, send = {stage.stage_id for stage in stages}, [], stage_copy_requests._send_part

    async def kept(connection, id, fetch):
        if fetch.stage_id not in ids:
            await send(connection, id, fetch)
            return
        asked.append(fetch)
        await trio.sleep_forever()

    monkeypatch.setattr(stage_copy_requests, "_send_part", kept)
    return asked


async def _take(node, of, feed, stage):
    await node.ask(
        Opcode.STAGE_COPIES,
        action=CopyAction.TAKE,
        cluster_id=node.node.identity.cluster_id.hex(),
        feed_id=(await feed.resolve()).feed_id.hex(),
        stages=[stage.stage_id.hex()],
        address=str(of.address),
    )


async def test_a_copy_takes_room_and_a_member_without_room_takes_none(members):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=3)
        await members.level("orders")
        for node in (members[1], members[2]):
            node.node.stages._bytes_max = 100
        stage = await sealed(feed, level="disk")
        leader, feed_id = members[0].node, (await feed.resolve()).feed_id
        with pytest.raises(NotDurable, match=r"is on 0 other members.*stages take 0 bytes on this node"):
            await leader.publisher.spreader.spread(leader.leaderships, feed_id, stage.stage_id)


async def test_who_is_no_member_gives_and_gets_no_copies(members):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=3)
        stage = await sealed(feed, level="disk")
        request = {
            "action": CopyAction.TAKE,
            "cluster_id": members[1].node.identity.cluster_id.hex(),
            "feed_id": (await feed.resolve()).feed_id.hex(),
            "stages": [stage.stage_id.hex()],
            "address": "127.0.0.1:1",
        }
        ask = partial(members[1].ask, Opcode.STAGE_COPIES)
        with pytest.raises(Forbidden, match="no member of this set"):
            await ask(**request)
        with pytest.raises(Forbidden, match="is of cluster"):
            await ask(**request | {"cluster_id": "00" * 16})
        assert members[1].node.stages.statistics().bytes == 0
