"""Stories of a network that stays cut in part: some members reach each other, others only by a third one."""

from __future__ import annotations

import itertools

import trio
from tests.processes.violation import Violation

from ..faults import shapes
from .stage import Stage
from .story import Story

# In the simulated time. After one promotion all that follows from it has happened within so long; then nothing changes
# any more, as long as nobody does anything.
SETTLING_SECONDS = 4.0
CALM_SECONDS = 4.0


async def lasting_bridge(world):
    """The leader and the one who is promoted do not hear each other, for long; the third one hears both."""
    await trio.sleep(0.3)
    stage = Stage(world)
    old, new, _ = stage.three
    stage.cut((old, new))
    await stage.promote(new)
    await _settled(world)


async def lasting_cuts(world):
    """Of five members any two may not hear each other, for long; whoever is promoted meanwhile."""
    await trio.sleep(0.3)
    chance = world.random_of("cuts")
    pairs = list(itertools.combinations(world.names, 2))
    ways = [way for pair in pairs if chance.random() < 0.4 for way in shapes.both(*pair)]
    world.network.cut_ways(ways)
    await Stage(world).promote(chance.choice(world.names))
    await _settled(world)
    world.network.heal_ways(ways)


async def _settled(world):
    """Nobody comes to lead, once what was done has had its effect. Raises Violation.

    Clients reach no node meanwhile: what they would write costs most of the time of a run.
    """
    unheard = shapes.between(world.names, world.program_names)
    world.network.cut_ways(unheard)
    await trio.sleep(SETTLING_SECONDS)
    operations = world.report.operations
    before = operations["a node leads"]
    await trio.sleep(CALM_SECONDS)
    world.network.heal_ways(unheard)
    if operations["a node leads"] > before:
        raise Violation(
            f"{operations['a node leads'] - before} times a node came to lead within {CALM_SECONDS:g} s in which "
            "nothing happened"
        )


STORIES = [
    Story(lasting_bridge),
    Story(lasting_cuts, nodes=5),
]
