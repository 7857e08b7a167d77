"""What stories of pulls and stories of pushes have in common: a follower was away, and gets a segment."""

from __future__ import annotations

import trio

from .transfer_stage import TransferStage, has_rows


async def begin_behind(world, but=()):
    """Returns the stage, the leader, and a follower that is down and lacks a segment; only programs ``but`` go on."""
    stage = TransferStage(world)
    await stage.begin_quietly(but)
    leader, _, away = stage.three
    await stage.behind(away)
    return stage, leader, away


async def change_part(world, opcode, change):
    """A part of a segment, a frame of ``opcode``, is changed on its way. A program reads from the follower."""
    stage, leader, away = await begin_behind(world, ["reader"])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.begin, away)
        await stage.frame(opcode, leader, away, change, has_rows)
    await stage.level(leader, away)
    await stage.read(away)


async def lose_power_after(world):
    """The follower loses power after it has got the segment, and with it all that was not synced."""
    stage, leader, away = await begin_behind(world)
    await stage.begin(away)
    await stage.level(leader, away)
    await stage.lose(away)
    await stage.begin(away)
    await stage.level(leader, away)


async def replace_meanwhile(stage, leader, away, opcode, when=None):
    """A compaction on the leader replaces the segment, after the first frame of ``opcode`` from the follower."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.begin, away)
        pipe = await stage.held(opcode, away, leader, when)
    await stage.compact(leader)
    await stage.trim(leader)
    stage.release(pipe)
    await stage.level(leader, away)
