"""Stories of segments that a follower copies from its leader, because it is far behind."""

from __future__ import annotations

import trio

from tailrace.wire.opcodes import Opcode

from .story import Story
from .transfer_stage import TransferStage, cut_in_half, flipped
from .transfers import begin_behind, change_part, lose_power_after, replace_meanwhile


async def replaced_while_pulled(world):
    """A follower copies a segment in many parts, and meanwhile a compaction on the leader replaces the segment."""
    stage, leader, away = await begin_behind(world)
    await replace_meanwhile(stage, leader, away, Opcode.SEGMENT_FETCH, stage.is_second_fetch)


async def flipped_pull(world):
    """A bit of a copied segment flips on its way, and a program reads from the follower."""
    await change_part(world, Opcode.SEGMENT_DATA, flipped)


async def truncated_pull(world):
    """A part of a copied segment is cut on its way, and a program reads from the follower."""
    await change_part(world, Opcode.SEGMENT_DATA, cut_in_half)


async def power_cut_after_a_pull(world):
    """A follower loses power after it has copied segments, and with it all that was not synced."""
    await lose_power_after(world)


async def pulled_fork(world):
    """A follower that was away copies segments with rows of two leaders, while one of them has others at these seqs.

    Then it reaches no other node, and a program reads from it.
    """
    stage = TransferStage(world)
    await stage.begin_quietly(but=["reader"])
    old, new, away, *_ = stage.five
    world.read_level = "memory"  # of level disk a follower shows nothing that it has not heard from its leader
    await stage.behind(away, rows=2)
    await stage.fork(old, new)

    def cut_off(frame):
        stage.cut_off(away)
        return frame.data, False

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.begin, away)
        await stage.frame(Opcode.SEGMENT_RELEASE, away, new, cut_off)
    await stage.read(away)
    stage.bring_back(away)
    await stage.level(new, away)


async def rows_ahead_of_a_deposed_leader(world):
    """A follower has rows ahead of its segments, of a leader that is deposed. The next one has others at these seqs.

    old     (0, n] in segments   n + 1 to n + 3, which the follower has ahead
    new     (0, n] in segments   n + 1 to n + 4, which it streams
    """
    stage = TransferStage(world)
    await stage.begin_quietly()
    old, new, away, *others = stage.five
    await stage.behind(away)
    stage.part([old, away], [new, *others])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.begin, away)
        pipe = await stage.held(Opcode.SEGMENT_FETCH, away, old)
    async with stage.writing(old) as write:
        await write(3, 10)
    await stage.until(lambda: stage.is_ahead(away, stage.high_seqs(old)[0]))
    assert stage.is_ahead(away, stage.high_seqs(old)[0]), "no rows came ahead"
    stage.cut_off(old)
    stage.release(pipe)
    await stage.promote(new)
    async with stage.writing(new) as write:
        await write(4, 10)
    stage.rejoin([away], [new, *others])
    await stage.level(new, away)


STORIES = [
    Story(pulled_fork, way="pull", nodes=5),
    Story(rows_ahead_of_a_deposed_leader, way="pull", nodes=5),
    *(
        Story(tell, way="pull")
        for tell in (
            replaced_while_pulled,
            flipped_pull,
            truncated_pull,
            power_cut_after_a_pull,
        )
    ),
]
