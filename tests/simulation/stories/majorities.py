"""Stories of majorities: which copies count, and which rows are acknowledged and shown because of them."""

from __future__ import annotations

import trio
from tests.processes.violation import Violation

from ..machine import End
from .stage import Stage
from .story import Story


async def returned_tail(world):
    """The third leader goes on with a tail that only the first leader had; then all members with that tail fail.

    The second leader has led without the tail. A member with the tail stands above the second leader only once the
    third leader's entry is on its disk: until then its tail is of an older branch.
    """
    await trio.sleep(0.3)
    stage = Stage(world)
    old, new, third = stage.three
    stage.wait_for_disk(old)
    stage.cut_off(old)
    await trio.sleep(0.7)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.promote, new)
        await stage.leads(new)
        await stage.end(new)
    stage.send_clients(old)
    stage.heal((old, third))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.promote, third)
        await stage.follows(old, third)
        stage.hang(old)
    # No program writes there: look-ups would wait for it, and a record after an entry takes the entry to the disk.
    stage.send_clients(third, ["looker", "follower-quorum"])
    await stage.looked(3)
    await stage.lose(old)
    await stage.end(third)
    await stage.begin(old)
    await stage.begin(new)
    stage.bring_back(old)
    await stage.promote(new)
    await trio.sleep(0.5)


async def slow_follower(world):
    """Rows of the leader and a follower are lost with both: the follower, whose disk was slow, loses power."""
    await trio.sleep(0.3)
    stage = Stage(world)
    old, new, third = stage.three
    stage.cut((old, new))
    stage.wait_for_disk(third)
    await trio.sleep(1.5)
    stage.hang(third)
    await trio.sleep(0.5)
    await stage.end(old)
    await stage.lose(third)
    await stage.begin(third)
    await stage.promote(third)


async def eager_follower(world):
    """The leader, whose disk was slow, loses rows that a follower has on its disk, and leads again without them."""
    await trio.sleep(0.3)
    stage = Stage(world)
    old, new, third = stage.three
    world.read_from, world.read_level = third, "disk"
    stage.cut((old, new))
    stage.wait_for_disk(old)
    await trio.sleep(1.5)
    stage.hang(old)
    await trio.sleep(3.0)
    stage.cut((old, third))
    await stage.lose(old)
    await stage.begin(old)
    stage.heal((old, new))
    await stage.leads(old)


async def replaced_disk(world):
    """Two members have all rows: one of them gets an empty disk, and the other one is away."""
    await trio.sleep(0.3)
    stage = Stage(world)
    old, new, third = stage.three
    stage.cut_off(third)
    await stage.written(10)
    await stage.end(old)
    await stage.end(new, End.POWER)
    stage.machine(new).replace_disk()
    await stage.begin(new)
    stage.bring_back(third)
    await stage.promote(third)


async def returned_disk(world):
    """A disk was replaced, and has its seat; the old one is put back, and the leader is lost, which alone has rows."""
    await trio.sleep(0.3)
    stage = Stage(world)
    old, new, third = stage.three
    await stage.written(10)
    await stage.end(new, End.POWER)
    former = stage.machine(new).disk
    stage.machine(new).replace_disk()
    await stage.begin(new)
    await stage.seated(new)
    stage.cut_off(third)
    await stage.written(10)
    await stage.end(old)
    await stage.end(new, End.POWER)
    stage.machine(new).put_disk(former)
    await stage.begin(new)
    stage.bring_back(third)
    await stage.promote(new)
    await stage.promote(third)
    await trio.sleep(1.0)


async def _lost_before_a_new_disk_has_all(world, hold):
    """A disk is replaced, and ``hold`` holds up what the leader sends it; then the leader is lost."""
    await trio.sleep(0.2)
    stage = Stage(world)
    old, new, third = stage.three
    stage.delay_rows(old, third)
    await stage.written(10)
    await stage.end(new, End.POWER)
    stage.machine(new).replace_disk()
    hold(stage, old, new)
    await stage.begin(new)
    with trio.move_on_after(2.0):
        await stage.seated(new)
    await stage.end(old)
    await stage.promote(new)
    await trio.sleep(0.5)


async def early_seat(world):
    """A disk is replaced, and the new one has no rows yet; then the leader is lost, which alone has some rows.

    The third member got no rows for a while, but heard of each record of the voters.
    """
    await _lost_before_a_new_disk_has_all(world, lambda stage, old, new: stage.delay_rows(old, new))


async def two_records(world):
    """A disk is replaced, and the third member is cut off as soon as the leader changes the record of the voters.

    Rows are written. Then the leader is lost, and the member gets its earlier disk back.
    """
    await trio.sleep(0.3)
    stage = Stage(world)
    old, new, third = stage.three
    await stage.written(10)
    epoch = stage.voters(old).epoch
    await stage.end(new, End.POWER)
    former = stage.machine(new).disk
    stage.machine(new).replace_disk()
    await stage.begin(new)
    await stage.until(lambda: stage.voters(old).epoch > epoch)
    stage.cut_off(third)
    assert stage.voters(third).epoch == epoch, "the third member knows the next record"
    await stage.written(10)
    await stage.end(old)
    await stage.end(new, End.POWER)
    stage.machine(new).put_disk(former)
    await stage.begin(new)
    stage.bring_back(third)
    await stage.promote(third)
    await trio.sleep(1.0)


async def mere_promise(world):
    """A member promises itself a term, and comes to lead in none."""
    await trio.sleep(0.3)
    stage = Stage(world)
    *_, third = stage.three
    await stage.promise_in_vain(third)
    await trio.sleep(2.0)


async def leader_without_a_seat(world):
    """A new disk is made to lead before it has a seat, and writes rows that no other node has.

    Then a member promises a term, and comes to lead in none.
    """
    await trio.sleep(0.3)
    stage = Stage(world)
    old, new, third = stage.three
    await stage.end(new, End.POWER)
    stage.machine(new).replace_disk()
    await stage.begin(new)
    for name in (old, third):
        stage.delay_rows(new, name)
    await stage.promote(new)
    assert not stage.node(new).members[0].local.votes, "it has a seat"
    await stage.until(lambda: stage.is_beyond(new, stage.high_seqs(third)))
    await stage.promise_in_vain(third)
    await trio.sleep(2.0)  # until the leader has heard of the promise, and has asked for a later term
    with trio.move_on_after(5.0):
        await stage.leads(new)
        return
    raise Violation(f"no node leads: {stage.node(new).members[0].progress}")


async def two_leave(world):
    """Two members are removed, while two others get no rows for a while; then the leader is lost.

    With the leader, only the two that leave have some rows. In the end they are members again.
    """
    await trio.sleep(0.3)
    stage = Stage(world)
    old, first, second, *behind = stage.five
    for name in behind:
        stage.delay_rows(old, name)
    await stage.written(10)
    for name in (first, second):
        await stage.remove_member(old, name)
    await stage.until(lambda: all(stage.voters(name) == stage.voters(old) for name in behind))
    await stage.end(old)
    await stage.promote(behind[0])
    await trio.sleep(1.0)
    for name in behind:
        stage.network.deliver((old, name))
    await stage.begin(old)
    leader = await world.operator.leader()
    await stage.until(lambda: not any(stage.is_member(leader, name) for name in (first, second)))
    for name in (first, second):
        await stage.add_member(leader, name)


async def late_list(world):
    """A replaced disk has heard of one feed, and not yet of the end of the list; then the leader is lost.

    The third member got no rows of the second feed for a while.
    """
    await _lost_before_a_new_disk_has_all(world, lambda stage, old, new: stage.delay_end_of_feeds(old, new, 1))


async def forgotten_branches(world):
    """A leader is restarted so often that it shares no branch with a follower that was away; then it is lost.

    The follower has begun anew and has no rows yet. The third member got no rows for a while.
    """
    await trio.sleep(0.2)
    stage = Stage(world)
    old, away, third = stage.three
    stage.delay_rows(old, third)
    await stage.written(10)
    await stage.end(away)
    for _ in range(world.plan.entries_max + 1):
        await stage.end(old)
        await stage.begin(old)
        await stage.leads(old)
        had = stage.high_seqs(old)
        await stage.until(lambda had=had: all(seq > one for seq, one in zip(stage.high_seqs(old), had, strict=True)))
    stage.delay_rows(old, away)
    await stage.begin(away)
    await stage.until(lambda: stage.high_seqs(away) == [0] * len(stage.partitions(away)))
    await stage.end(old)
    await stage.promote(away)
    await trio.sleep(0.5)


STORIES = [
    Story(returned_tail),
    Story(slow_follower),
    Story(eager_follower),
    Story(replaced_disk),
    Story(returned_disk),
    Story(early_seat),
    Story(two_records),
    Story(mere_promise),
    Story(leader_without_a_seat),
    Story(two_leave, nodes=5),
    Story(late_list, has_elder_feed=True),
    Story(forgotten_branches, entries_max=3),
]
