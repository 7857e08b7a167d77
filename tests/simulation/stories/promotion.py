"""Stories of promotions and handovers: candidates, voters, and earlier leaders."""

from __future__ import annotations

import trio

from .stage import Stage
from .story import Story


async def lone_candidate(world):
    """A member that is cut off from all others is promoted, while the others go on."""
    await trio.sleep(0.3)
    stage = Stage(world)
    new = stage.first
    stage.cut_off(new)
    await stage.promote(new)
    await stage.written(5)


async def two_candidates(world):
    """Two members that do not hear each other are promoted at the same time."""
    await trio.sleep(0.3)
    stage = Stage(world)
    _, new, third = stage.three
    stage.cut((new, third))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.promote, new)
        nursery.start_soon(stage.promote, third)


async def laggard(world):
    """A member that was away while others wrote is promoted, and the leader is gone."""
    await trio.sleep(0.3)
    stage = Stage(world)
    old, _, third = stage.three
    await stage.until(lambda: len(stage.node(old).feeds) == 1)
    stage.cut((old, third))
    await stage.written(10)
    await stage.until(lambda: len(stage.node(old).feeds) == 2)  # there is one that it has not heard of
    await trio.sleep(0.1)
    await stage.end(old)
    await stage.promote(third)
    await trio.sleep(2.0)


async def promised_leader(world):
    """A leader promises a higher term, and its other follower does not hear the candidate."""
    await trio.sleep(0.3)
    stage = Stage(world)
    old, new, third = stage.three
    stage.cut((new, third))
    await stage.promote(new)
    stage.send_clients(old, ["looker", "register-1", "writer-quorum"])
    await trio.sleep(1.5)


async def lone_founder(world):
    """A program makes feeds at a leader that is cut off, and goes on at the next leader."""
    await trio.sleep(0.3)
    stage = Stage(world)
    old, new, _ = stage.three
    await stage.until(lambda: len(stage.node(old).feeds) == 1)
    stage.cut_off(old)
    stage.send_clients(old)
    await trio.sleep(2.0)
    await stage.promote(new)
    stage.send_clients(new)
    await trio.sleep(2.0)


async def feed_made_twice(world):
    """Two leaders make the feed of one request, and a majority gets a row of it from the second one.

    The first one has led again before, with the feed, of which no other member has heard. The second one is lost then.
    """
    await trio.sleep(0.2)
    stage = Stage(world)
    old, new, third = stage.three
    stage.keep_away([name for name in world.program_names if name != "founder"])
    await stage.until(lambda: all(len(stage.node(name).feeds) == 1 for name in stage.three))
    stage.cut_off(old)
    stage.send_clients(old, ["founder"])
    await stage.until(lambda: len(stage.node(old).feeds) == 2)
    stage.keep_away(["founder"])
    stage.delay_feeds(old, third)
    stage.heal((old, third))
    await stage.restart(old)
    await stage.leads(old)
    stage.cut_off(old)
    await stage.promote(new)
    stage.send_clients(new, ["founder"])
    await stage.until(lambda: any(partition.quorum_seq for partition in stage.feeds(new).get("passing", ())))
    await trio.sleep(0.02)
    await stage.end(new)
    stage.bring_back(old)
    await stage.promote(third)
    stage.send_clients(third, ["founder"])
    await trio.sleep(3.0)


async def lost_handover(world):
    """A leader hands over, and is then cut off from its successor."""
    await trio.sleep(0.3)
    stage = Stage(world)
    old, new, _ = stage.three
    term = stage.node(old).leaderships.system.term
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.hand_over, old, new)
        await stage.until(lambda: stage.node(new).members[0].local.file.now.term > term)
        stage.cut((old, new))
        stage.send_clients(old)
    stage.send_clients(new, ["register-1", "writer-disk"])
    await trio.sleep(4.0)


async def busy_handover(world):
    """A leader hands over while all programs write, on a slow network."""
    await trio.sleep(0.3)
    stage = Stage(world)
    old, new, _ = stage.three
    stage.send_clients(old)
    await trio.sleep(0.5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.hand_over, old, new)
        await stage.until(lambda: stage.node(new).members[0].local.promoting)
        stage.network.seconds_max = 0.1
    stage.network.seconds_max = 0.002
    stage.send_clients(new)
    await trio.sleep(1.0)


async def dead_branch(world):
    """A leader dies with an entry that no other member has; the leader before it, which missed the entry, hands over.

    A majority has the rows that are written then. The next candidate also asks the member that has the entry.
    """
    await trio.sleep(0.3)
    stage = Stage(world)
    old, heir, usurper, *others = stage.five
    stage.part([old, heir], [usurper, *others])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.promote, usurper)
        await stage.leads(usurper)
        await stage.end(usurper)
    stage.rejoin([old, heir], [usurper, *others])
    await stage.hand_over(old, heir)
    stage.send_clients(heir)
    await stage.written(10)
    await stage.end(old)
    await stage.end(heir)
    await stage.begin(usurper)
    await stage.promote(others[0])
    await trio.sleep(1.0)


async def strangers(world):
    """A member starts on the directory of another cluster's node, whose terms are higher."""
    await trio.sleep(0.3)
    stage = Stage(world)
    _, new, third = stage.three
    await stage.written(5)
    theirs = await world.disk_of_another_cluster()
    own = await stage.change_disk(third, theirs)
    await trio.sleep(1.5)
    await stage.promote(new)
    stage.send_clients(new)
    await stage.written(5)
    await stage.change_disk(third, own)


async def old_backup(world):
    """A member starts on its old backup. The backup ran by itself, so that its branches have a much higher term."""
    await trio.sleep(0.3)
    stage = Stage(world)
    _, new, third = stage.three
    await stage.end(third)
    backup = stage.machine(third).disk.fork()
    await stage.begin(third)
    await stage.written(10)
    await stage.change_disk(third, await world.disk_of_backup(backup))
    await trio.sleep(1.5)
    await stage.promote(new)
    await stage.written(5)
    await stage.end(third)
    stage.machine(third).replace_disk()
    await stage.begin(third)


async def older_copy(world):
    """A member gets an older copy of its own disk back. Its leader tells it so, and dies before it sends rows.

    The third member was away, and lacks all rows that the leader and that disk had acknowledged.
    """
    await trio.sleep(0.3)
    stage = Stage(world)
    old, copied, third = stage.three
    await stage.written(5)
    await stage.end(copied)
    copy = stage.machine(copied).disk.fork()
    await stage.begin(copied)
    await trio.sleep(1.0)
    stage.cut_off(third)
    stage.send_clients(old)
    await stage.written(10)
    await trio.sleep(1.0)
    stage.delay_rows(old, copied)
    await stage.change_disk(copied, copy)
    await trio.sleep(1.5)
    await stage.end(old)
    stage.bring_back(third)
    await stage.promote(third)
    stage.send_clients(third)
    await trio.sleep(1.0)
    await stage.begin(old)
    stage.send_clients(old)
    await stage.written(5)


STORIES = [
    Story(lone_candidate),
    Story(two_candidates),
    Story(laggard),
    Story(promised_leader),
    Story(lone_founder),
    Story(feed_made_twice),
    Story(lost_handover),
    Story(busy_handover),
    Story(dead_branch, nodes=5),
    Story(strangers),
    Story(old_backup),
    Story(older_copy),
]
