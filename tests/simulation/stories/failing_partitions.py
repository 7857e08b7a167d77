"""Stories of a partition that its leader cannot stream on: it may hold up nothing else, and be counted for nothing."""

from __future__ import annotations

import trio
from tests.fake_host import InlineWorker
from tests.processes.violation import Violation

import tailrace
from tailrace.trio.host import Host
from tailrace_server.config import Failover

from ..faults import shapes
from ..machine import End
from .stage import Stage
from .story import Story

LOG = "log"


async def trimmed_log(world):
    """A history is trimmed above the seq of a follower that was away. The follower is back, and another one leads.

    In the end all copies of all feeds have to be equal.
    """
    await trio.sleep(0.3)
    stage = Stage(world)
    old, new, away = stage.three
    host = Host(
        connect=world.network.of("operator").connect,
        worker=InlineWorker,
        random=world.random_of("log"),
        new_session=str,
    )
    async with tailrace.connect(world.url, host=host, connect_timeout=60.0, retry_for=60.0) as client:
        feed = await client.create_feed(LOG, partitions=1, retention="history", history_bytes=1)
        await feed.put(b"k", b"v", level="quorum")
        await stage.until(lambda: LOG in stage.feeds(away) and stage.feeds(away)[LOG][0].high_seq == 1)
        await stage.end(away)
        for number in range(5):
            await feed.put(b"k", b"%d" % number, level="quorum")
    [partition] = stage.feeds(old)[LOG]
    await stage.until(lambda: partition.trim_seq > 1)
    await stage.begin(away)
    await stage.until(lambda: stage.feeds(away)[LOG][0].high_seq >= 6)
    if stage.feeds(away)[LOG][0].high_seq < 6:
        raise Violation("a member that was away while a history was trimmed never catches up")
    await stage.promote(new)


async def damaged_leader(world):
    """The leader cannot read a segment, and a replaced disk gets its vote; then the leader is gone.

    The third member was away while the rows of that segment were written, so that no member that is up has them.
    """
    await trio.sleep(0.2)
    stage = Stage(world)
    old, new, third = stage.three
    await stage.until(lambda: all(stage.high_seqs(new)))
    stage.cut_off(third)
    await stage.written(10)
    for partition in stage.partitions(old):
        await stage.node(old).storage.flusher.flush_all(partition)
    places = stage.damage_segments(old)
    await stage.end(new, End.POWER)
    stage.machine(new).replace_disk()
    stage.bring_back(third)  # without the third member no majority confirms the leader
    await stage.begin(new)
    await stage.until(lambda: stage.node(new).members[0].local.votes)
    if not stage.node(new).members[0].local.votes:
        raise Violation("a replaced disk gets no vote, since the leader cannot read a segment")
    await stage.end(old)
    await stage.promote(third)
    await trio.sleep(0.5)
    stage.mend_segments(old, places)


async def damaged_candidate(world):
    """A member that has started with a damaged segment is promoted, while the others have good copies.

    No program writes meanwhile: otherwise the candidate had to fetch rows, and could not.
    """
    await trio.sleep(0.2)
    stage = Stage(world)
    _, new, _ = stage.three
    await stage.until(lambda: all(partition.chain.segments for partition in stage.partitions(new)))
    await stage.node(new).storage.flusher.write_feeds()
    unheard = shapes.between(world.names, world.program_names)
    world.network.cut_ways(unheard)
    await trio.sleep(0.5)
    places = stage.damage_segments(new, -1)
    await stage.restart(new)
    if await stage.promote(new):
        raise Violation("a node that cannot read a partition was promoted, and not by force")
    world.network.heal_ways(unheard)
    await trio.sleep(0.5)
    stage.mend_segments(new, places)


async def damage_on_the_leader(world):
    """The leader cannot read a segment, and finds that by a read. The set fails over by itself."""
    await trio.sleep(0.3)
    stage = Stage(world)
    old, new, third = stage.three
    stage.keep_away(world.program_names)
    for partition in stage.partitions(old):
        await stage.node(old).storage.flusher.flush_all(partition)
    await stage.until(lambda: stage.high_seqs(new) == stage.high_seqs(third) == stage.high_seqs(old))
    places = stage.damage_segments(old)
    await _read_all(world)
    assert stage.node(old).storage.damages, "no read has found the damage"
    await stage.has_stepped_down(old)
    await trio.sleep(1.0)
    if world.leads(stage.machine(old)):
        raise Violation(f"{old} leads on, though it cannot read a partition, and others can")
    await _repair(stage, old, places)


async def damage_in_front_of_a_lost_leader(world):
    """A member cannot read a segment, and finds that by a read; then the leader is lost, and both others stand."""
    await trio.sleep(0.3)
    stage = Stage(world)
    old, new, third = stage.three
    stage.keep_away([name for name in world.program_names if name != "reader"])
    await stage.until(lambda: stage.high_seqs(new) == stage.high_seqs(third) == stage.high_seqs(old))
    for partition in stage.partitions(new):
        await stage.node(new).storage.flusher.flush_all(partition)
    stage.cut_off(new)
    places = stage.damage_segments(new)
    world.read_from = new
    stage.network.drop_all(["reader"])
    await stage.until(lambda: stage.node(new).storage.damages)
    assert stage.node(new).storage.damages, "no read has found the damage"
    stage.keep_away(["reader"])
    await stage.end(old)
    stage.bring_back(new)
    stage.cut_off(old)
    await stage.until(lambda: any(world.leads(stage.machine(name)) for name in (new, third)))
    if not world.leads(stage.machine(third)):
        raise Violation(f"{third} does not come to lead, though {new} cannot read a partition")
    await _repair(stage, new, places)


async def _read_all(world):
    """Reads the feed from the leader, from its first row on."""
    async with world.connect_operator("reading") as client:
        with world.damage(), trio.move_on_after(2.0):
            async for _ in client.feed(world.feed_name).items():
                pass


async def _repair(stage, name, places):
    """Mends the disk of a node, and starts it again."""
    await stage.end(name)
    stage.mend_segments(name, places)
    await stage.begin(name)


STORIES = [
    Story(damage_on_the_leader, failover=Failover.AUTO),
    Story(damage_in_front_of_a_lost_leader, failover=Failover.AUTO),
    Story(trimmed_log),
    Story(damaged_leader),
    Story(damaged_candidate),
]
