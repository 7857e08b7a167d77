"""Stories of lasting cuts: some members reach each other, and others only a third member."""

from __future__ import annotations

import itertools

import trio
from tests.processes.violation import Violation

from ..faults import shapes
from .stage import Stage
from .story import Story

# In simulated time. Within SETTLING_SECONDS after a promotion all its effects have come; then the set stays as it is.
SETTLING_SECONDS = 4.0
CALM_SECONDS = 4.0


async def lasting_bridge(world):
    """The leader and the candidate do not hear each other for long, and the third member hears both."""
    await trio.sleep(0.3)
    stage = Stage(world)
    old, new, _ = stage.three
    stage.cut((old, new))
    await stage.promote(new)
    await _settled(world)


async def lasting_cuts(world):
    """Many pairs of five members do not hear each other for long, and one member is promoted meanwhile."""
    await trio.sleep(0.3)
    chance = world.random_of("cuts")
    pairs = list(itertools.combinations(world.names, 2))
    ways = [way for pair in pairs if chance.random() < 0.4 for way in shapes.both(*pair)]
    world.network.cut_ways(ways)
    await Stage(world).promote(chance.choice(world.names))
    await _settled(world)
    world.network.heal_ways(ways)


async def _settled(world):
    """Waits until the set has settled, and checks that no node comes to lead after that.

    Programs reach no node meanwhile, since their writes would cost most of the time of the run.

    Raises:
        Violation: A node came to lead.
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
