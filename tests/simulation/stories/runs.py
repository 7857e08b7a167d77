"""Stories of compacted runs: inside a run there is no state, so that no member stops, counts or leads there."""

from __future__ import annotations

import trio

from ..machine import End
from .stage import Stage
from .story import Story


async def half_a_run(world):
    """A follower that was away gets a compacted run slowly, while a program reads from it."""
    await trio.sleep(0.1)
    stage = Stage(world)
    old, _, third = stage.three
    world.read_from = third
    stage.cut((old, third))
    await trio.sleep(5.0)
    stage.network.seconds_max = 0.02
    stage.heal((old, third))
    await trio.sleep(1.0)


async def leader_of_half_a_run(world):
    """A follower is cut off while it gets a compacted run, and is forced to lead with the rows that it has."""
    await trio.sleep(0.3)
    stage = Stage(world)
    old, _, third = stage.three
    stage.cut((old, third))
    await trio.sleep(4.0)
    held = stage.high_seqs(third)
    stage.heal((old, third))
    await stage.until(lambda: stage.is_beyond(third, held))
    stage.cut_off(third)
    await stage.restart(third)
    await stage.force(third)


async def fork_in_a_run(world):
    """A follower that was left behind is forced to lead: the others roll back to a seq inside a compacted run."""
    await trio.sleep(0.5)
    stage = Stage(world)
    third = stage.second
    stage.cut_off(third)
    await trio.sleep(2.5)
    await stage.force(third)


async def run_without_an_end(world):
    """Rows that only the leader had reach a follower, but not its disk, and then neither of the two leads."""
    await trio.sleep(0.3)
    stage = Stage(world)
    old, new, third = stage.three
    stage.cut_off(old)
    stage.write_patiently(old)
    await trio.sleep(3.0)
    await stage.restart(third)
    stage.machine(third).stall_s = 0.3
    held = stage.quorum_seqs(old)
    stage.heal((old, third))
    await stage.until(lambda: stage.quorum_seqs(old) != held)
    await trio.sleep(0.3)
    await stage.end(old)
    await stage.end(third, End.POWER)
    await stage.begin(third)
    await stage.promote(new)


async def folded_tail(world):
    """A leader that was cut off rolls back to the rows of a majority; then that majority loses a member."""
    await trio.sleep(0.1)
    stage = Stage(world)
    old, new, third = stage.three
    stage.cut((old, new))
    await stage.written(10)
    stage.cut_off(old)
    stage.send_clients(old)
    held = stage.high_seqs(third)
    await trio.sleep(2.5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.promote, third)
        await stage.leads(third)
        stage.cut((new, third))
    stage.network.seconds_max = 0.02
    stage.heal((old, third))
    await stage.until(lambda: stage.lacks(old, held))
    await stage.end(third)
    stage.network.seconds_max = 0.002
    stage.heal((old, new))
    await stage.promote(new)


STORIES = [
    Story(half_a_run),
    Story(leader_of_half_a_run),
    Story(fork_in_a_run),
    Story(run_without_an_end),
    Story(folded_tail),
]
