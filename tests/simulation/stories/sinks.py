"""Stories of a sink: the leader changes between two publishes of one batch, or within a publish."""

from __future__ import annotations

import trio

from ..faults import shapes
from .stage import Stage
from .story import Story


async def restless_leaders(world):
    """Another node leads as soon as a batch is published; the driver often publishes the batch again."""
    [sink] = world.sinks
    sink.crash_chance = 0.0
    sink.again_chance = 0.7
    stage = Stage(world)
    for number in range(3):
        answers = sink.answers
        await stage.until(lambda answers=answers: sink.answers > answers)
        await stage.promote(stage.three[(number + 1) % 3])


async def interrupted_publishes(world):
    """The leader dies between two partitions of a publish; it or another node publishes the batch again."""
    await _restart_leaders(world, _is_half_published, successors=[0, 1, 2])


def _is_half_published(stage, leader, sink):
    """Returns whether one partition has the batch that is being published, and another one lacks it."""
    if not stage.machine(leader).is_up:
        return False
    lasts = _last_batches(stage, leader, sink)
    has = {lasts[number] is not None and lasts[number].batch == sink.number for number in sink.asking_for}
    return has == {True, False}


async def interrupted_parts(world):
    """The leader dies between two parts of a partition's share, and another leader gets the batch in other stages."""
    await _restart_leaders(world, _has_some_parts, successors=[1, 2, 0, 1])


async def _restart_leaders(world, is_in_the_middle, successors):
    """Restarts the leader once it is in the middle of a publish, and promotes the next successor, again and again."""
    [sink] = world.sinks
    sink.crash_chance = 0.0
    stage = Stage(world)
    for successor in successors:
        leader = next((name for name in stage.three if world.leads(stage.machine(name))), stage.leader)
        await stage.until(lambda leader=leader: is_in_the_middle(stage, leader, sink))
        await stage.restart(leader)
        await stage.promote(stage.three[successor])


def _has_some_parts(stage, leader, sink):
    """Returns whether a partition has a part of the sink's batch, and not all of it."""
    if not stage.machine(leader).is_up:
        return False
    return any(last is not None and not last.is_complete for last in _last_batches(stage, leader, sink))


async def lost_publish(world):
    """A leader that is cut off publishes a batch, rolls it back under the next leader, and leads again.

    It is the sink's first batch: if it were another one, the next leader would tell the batch before it.
    """
    [sink] = world.sinks
    sink.crash_chance = 0.0
    stage = Stage(world)
    old, new, _ = stage.three
    stage.network.cut_ways(shapes.isolated(sink.name, [sink.name, *stage.three]))
    await trio.sleep(0.3)
    stage.cut_off(old)
    stage.send_clients(old, [sink.name])
    await stage.until(lambda: any(_last_batches(stage, old, sink)))
    await stage.promote(new)
    await stage.written(3)
    stage.bring_back(old)
    await stage.follows(old, new)
    await stage.written(3)
    await stage.promote(old)
    await trio.sleep(1.0)


async def deposed_publisher(world):
    """A leader is cut off and deposed between two partitions of a publish; it leads again, and the publish goes on.

    The rows of the first partition were rolled back meanwhile.
    """
    [sink] = world.sinks
    sink.be_undisturbed()
    await trio.sleep(0.3)
    stage = Stage(world)
    old, new, _ = stage.three
    goes_on = stage.hold_publishes(old, 1)
    stage.cut_off(old)
    stage.send_clients(new, [name for name in world.program_names if name != sink.name])
    stage.send_clients(old, [sink.name])
    await stage.until(lambda: _is_half_published(stage, old, sink))
    await stage.promote(new)
    await stage.written(3)
    stage.bring_back(old)
    await stage.follows(old, new)
    await stage.written(3)
    await stage.promote(old)
    goes_on.set()
    await trio.sleep(1.0)


def _last_batches(stage, name, sink):
    return [partition.sinks.find(sink.name) for partition in stage.partitions(name)]


STORIES = [
    Story(restless_leaders, has_sink=True),
    Story(interrupted_publishes, has_sink=True),
    Story(interrupted_parts, has_sink=True, in_parts=True),
    Story(lost_publish, has_sink=True),
    Story(deposed_publisher, has_sink=True),
]
