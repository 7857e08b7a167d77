"""Stories of segments that a follower copies from its leader, because it is far behind."""

from __future__ import annotations

import trio

from tailrace.wire.opcodes import Opcode

from .story import Story
from .transfer_stage import TransferStage, cut_in_half, flipped, has_rows


async def replaced_while_pulled(world):
    """A follower copies a segment in many parts, and meanwhile a compaction on the leader replaces the segment."""
    stage = TransferStage(world)
    await stage.begin_quietly()
    leader, _, away = stage.three
    await stage.behind(away)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.begin, away)
        pipe = await stage.held(Opcode.SEGMENT_FETCH, away, leader, stage.is_second_fetch)
    await stage.compact(leader)
    await stage.trim(leader)
    stage.release(pipe)
    await stage.level(leader, away)


async def flipped_pull(world):
    """A bit of a copied segment flips on its way, and a program reads from the follower."""
    stage = TransferStage(world)
    await stage.begin_quietly(but=["reader"])
    leader, _, away = stage.three
    await stage.behind(away)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.begin, away)
        await stage.frame(Opcode.SEGMENT_DATA, leader, away, flipped, has_rows)
    await stage.level(leader, away)
    await stage.read(away)


async def truncated_pull(world):
    """A part of a copied segment is cut on its way, and a program reads from the follower."""
    stage = TransferStage(world)
    await stage.begin_quietly(but=["reader"])
    leader, _, away = stage.three
    await stage.behind(away)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.begin, away)
        await stage.frame(Opcode.SEGMENT_DATA, leader, away, cut_in_half, has_rows)
    await stage.level(leader, away)
    await stage.read(away)


async def power_cut_after_a_pull(world):
    """A follower loses power after it has copied segments, and with it all that was not synced."""
    stage = TransferStage(world)
    await stage.begin_quietly()
    leader, _, away = stage.three
    await stage.behind(away)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.begin, away)
        await stage.frame(Opcode.SEGMENT_RELEASE, away, leader)
    await stage.level(leader, away)
    await stage.lose(away)
    await stage.begin(away)
    await stage.level(leader, away)


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


STORIES = [
    Story(pulled_fork, way="pull", nodes=5),
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
