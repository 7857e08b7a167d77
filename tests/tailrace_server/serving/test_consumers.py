"""Names and groups at the node: bounds on what a peer can make it keep, and leases after the node was stopped."""

import pytest
from tests.tailrace.trio.test_groups import Member
from tests.tailrace_server.replication.made_set import until

from tailrace.errors import NotOwner, Overloaded, TailraceError
from tailrace.wire.consumer_messages import ConsumerId, Join, Reset
from tailrace.wire.messages import decode_error
from tailrace.wire.opcodes import Opcode
from tailrace_server.serving import consumer_groups, consumers

MEMBER = bytes(range(16))


async def answer_to(connection, join, id):
    """The answer to a JOIN; an error as such."""
    await connection.send(join.encode(id))
    while (frame := await connection.receive()).id != id or frame.opcode is Opcode.CONSUMER_CHANGE:
        pass
    return decode_error(frame.body) if frame.opcode is Opcode.ERROR else frame


async def test_a_connection_joins_a_few_names_only(greeted, feed_id, monkeypatch):
    monkeypatch.setattr(consumers, "JOINED_MAX", 2)
    for number, is_taken in enumerate((True, True, False)):
        join = Join(ConsumerId(feed_id, "name", f"n{number}"), MEMBER)
        assert isinstance(await answer_to(greeted, join, number + 5), Overloaded) is not is_taken


async def test_groups_with_members_are_bounded(greeted, feed_id, monkeypatch):
    monkeypatch.setattr(consumer_groups, "GROUPS_MAX", 1)
    for number, is_taken in enumerate((True, False)):
        join = Join(ConsumerId(feed_id, "group", f"g{number}"), MEMBER)
        assert isinstance(await answer_to(greeted, join, number + 5), Overloaded) is not is_taken


async def test_members_of_all_groups_are_bounded_and_small(running, greeted, feed_id, monkeypatch):
    """One connection could join with any number of ids, and each member was kept with all that its JOIN had."""
    monkeypatch.setattr(consumer_groups, "ALL_MEMBERS_MAX", 2)
    held = dict.fromkeys(range(1_000), 1)
    for number, is_taken in enumerate((True, True, False)):
        join = Join(ConsumerId(feed_id, "group", f"g{number}"), bytes([number]) * 16, held=held)
        assert isinstance(await answer_to(greeted, join, number + 5), Overloaded) is not is_taken
    groups = running.node.services.consumers.groups._groups.values()
    assert len(groups) == 2
    assert [dict(member.join.held) for group in groups for member in group.members.values()] == [{}, {}]


async def test_positions_are_bounded(running, greeted, feed_id):
    running.node.config.limits.consumer_partitions_max = 4
    assert not isinstance(await answer_to(greeted, Join(ConsumerId(feed_id, "name", "one"), MEMBER), 5), Exception)
    assert isinstance(await answer_to(greeted, Join(ConsumerId(feed_id, "name", "two"), MEMBER), 6), Overloaded)


async def test_a_group_without_room_for_positions_is_logged_once(running, feed, nursery, caplog):
    """It is planned anew twenty times in each lease, which must not fill the log."""
    running.node.config.limits.consumer_partitions_max = 3
    await nursery.start(Member(feed).run)
    [group] = running.node.services.consumers.groups._groups.values()
    for _ in range(5):
        running.node.services.consumers.groups.plan_again(group.consumer)
    assert caplog.text.count("partitions cannot be given to members yet") == 1
    running.node.config.limits.consumer_partitions_max = 4
    running.node.services.consumers.groups.plan_again(group.consumer)
    assert group.failure == ""


async def test_stale_generations_are_refused_by_name(greeted, feed_id):
    consumer = ConsumerId(feed_id, "name", "one")
    await answer_to(greeted, Join(consumer, MEMBER), 5)
    assert not isinstance(await answer_to(greeted, Join(consumer, MEMBER, held={0: 1, 1: 1}), 6), Exception)
    refused = await answer_to(greeted, Join(consumer, MEMBER, held={0: 1, 1: 7}), 7)
    assert isinstance(refused, NotOwner)
    assert refused.partitions == (1,)


@pytest.mark.parametrize("is_late", [True, False])
async def test_a_node_that_was_stopped_looks_for_renewals_before_it_ends_leases(running, feed, nursery, is_late):
    member = await nursery.start(Member(feed).run)
    await until(lambda: len(member.owned) == 4)
    groups = running.node.services.consumers.groups
    [group] = groups._groups.values()
    later = running.node.services.clock.monotonic() + 100
    groups._look(group, later, is_late=is_late)
    assert bool(group.members) is is_late


async def test_a_group_whose_feed_was_dropped_ends_without_harm(running, client, feed, feed_id, greeted):
    await answer_to(greeted, Join(ConsumerId(feed_id, "group", "workers"), MEMBER), 4)
    assert (await greeted.receive()).opcode is Opcode.CONSUMER_CHANGE  # it owns the partitions
    await client.drop_feed(feed.name)
    other = await client.create_feed("other", partitions=1)
    join = Join(ConsumerId((await other.resolve()).feed_id, "name", "n"), MEMBER)
    assert not isinstance(await answer_to(greeted, join, 5), Exception)  # rows of dropped feeds are removed with it
    running.node.services.consumers.groups.plan_again(ConsumerId(feed_id, "group", "workers"))


async def test_a_group_is_not_reset_while_leases_run_that_an_earlier_leader_gave(
    running, feed, feed_id, greeted, nursery
):
    member = await nursery.start(Member(feed).run)
    await until(lambda: len(member.owned) == 4)
    groups = running.node.services.consumers.groups
    groups._led = None  # as a node that begins to lead, which has heard of no member
    reset = Reset(ConsumerId(feed_id, "group", "workers"), "beginning", (0, 1, 2, 3))
    refused = await answer_to(greeted, reset, 5)
    assert isinstance(refused, TailraceError)
    assert "lease" in str(refused)
