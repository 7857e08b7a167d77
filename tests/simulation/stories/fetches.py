"""Stories of programs that fetch copies while the leader changes."""

from __future__ import annotations

import trio

from .stage import Stage
from .story import Story

# How often the leader steps down in the middle of a fetch.
CHANGES = 4


async def step_down_in_a_fetch(world):
    """A leader promises a term while a fetch waits for its flush, and is cut off. Rows at quorum are not flushed yet.

    The old leader hears of no other one. So it does not know which of its rows are stable, and flushes none of them.
    """
    await trio.sleep(0.3)
    writers = [writer.name for writer in world.writers]
    Stage(world).keep_away(["fetcher-of-followers"])  # it may ask the leader, too, for what is at level disk
    for _ in range(CHANGES):
        stage = Stage(world)
        old, new, _ = stage.three
        await stage.until(lambda old=old, stage=stage: stage.holds_back(old) and not stage.waits_to_flush(old))
        stage.keep_away(writers)  # else the queue is full soon, and flushed
        await stage.until(lambda old=old, stage=stage: stage.waits_to_flush(old))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.promote, new)
            await stage.has_stepped_down(old)
            stage.cut_off(old)  # before the new leader tells it what is stable
            await stage.fetched(1)
        await stage.leads(new)
        stage.bring_back(old)
        stage.let_in(writers)
        await stage.follows(old, new)
        await trio.sleep(0.5)


STORIES = [
    Story(step_down_in_a_fetch, has_copies=True),
]
