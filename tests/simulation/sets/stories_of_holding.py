"""Stories of what a majority holds: what is counted for it, and what is shown and believed of it."""

from __future__ import annotations

import trio

from .stage import Stage


async def returned_tail(world):
    """What only a leader that was cut off had is what the next but one goes on with; then all who have it fail.

    Between them another one has led, without it. So who has it stands above that one from the moment on at which the
    third leader's entry is on its disk, and not before: until then what it has is of an older branch.
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
    # Nobody writes there: it would hold up who looks, and what follows an entry in a journal takes that to the disk.
    stage.send_clients(third, ["looker", "follower-quorum"])
    await stage.looked(3)
    await stage.lose(old)
    await stage.end(third)
    await stage.begin(old)
    await stage.begin(new)
    stage.bring_back(old)
    await stage.promote(new)
    await trio.sleep(0.5)


STORIES = [returned_tail]
