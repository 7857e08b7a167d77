"""Stories of runs: what was folded has no state in between, so nobody stands, counts or leads there."""

from __future__ import annotations

import trio

from .stage import Stage


async def half_a_run(world):
    """A follower that was away gets what was folded meanwhile, slowly, while somebody reads from it."""
    await trio.sleep(0.1)
    stage = Stage(world)
    old, _, third = stage.three
    stage.cut((old, third))
    await trio.sleep(8.0)
    stage.network.seconds_max = 0.02
    stage.network.fragments = True
    world.read_from = third
    stage.heal((old, third))
    await trio.sleep(2.0)


STORIES = [half_a_run]
