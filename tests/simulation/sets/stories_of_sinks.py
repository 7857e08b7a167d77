"""Stories of a sink: who leads changes between a publish and the next one of the same batch, or within one."""

from __future__ import annotations

import trio

from .stage import Stage


async def restless_leaders(world):
    """One node after the other leads, as soon as a batch is there; the driver often asks for it again."""
    [sink] = world.sinks
    sink.again_chance = 0.7
    stage = Stage(world)
    for number in range(6):
        answers = sink.answers
        await stage.until(lambda answers=answers: sink.answers > answers)
        await stage.promote(stage.three[(number + 1) % 3])


async def interrupted_publishes(world):
    """The leader dies between the partitions of a publish, and the same batch comes to it again, or to another one."""
    [sink] = world.sinks
    stage = Stage(world)
    for number in range(8):
        await stage.until(lambda: sink.is_publishing)
        leader = next((name for name in stage.three if world.leads(stage.machine(name))), stage.leader)
        await stage.until(lambda leader=leader: _is_half_published(stage, leader, sink))
        await stage.restart(leader)
        await stage.promote(stage.three[number % 3])


STORIES = [restless_leaders, interrupted_publishes]
for story in STORIES:
    story.is_of_a_sink = True
