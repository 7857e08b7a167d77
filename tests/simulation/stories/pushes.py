"""Stories of segments that a leader pushes to its followers."""

from __future__ import annotations

import trio

from tailrace.wire.opcodes import Opcode

from .story import Story
from .transfer_stage import TransferStage, cut_in_half, flipped
from .transfers import begin_behind, change_part, lose_power_after, replace_meanwhile


async def replaced_while_pushed(world):
    """A follower gets a segment in many parts, and meanwhile a compaction on the leader replaces the segment."""
    stage, leader, away = await begin_behind(world)
    async with stage.writing() as write:
        await write(2)
    await stage.flush(leader)
    await replace_meanwhile(stage, leader, away, Opcode.SEGMENT_ACK)


async def flipped_push(world):
    """A bit of a pushed segment flips on its way, and a program reads from the follower."""
    await change_part(world, Opcode.SEGMENT_TRANSIT, flipped)


async def truncated_push(world):
    """A part of a pushed segment is cut on its way, and a program reads from the follower."""
    await change_part(world, Opcode.SEGMENT_TRANSIT, cut_in_half)


async def full_disk_in_a_push(world):
    """The disk of a follower is full while it gets a segment, and has room soon after."""
    stage, leader, away = await begin_behind(world)

    def fill(frame):
        stage.machine(away).fill(10)
        return frame.data, False

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.begin, away)
        await stage.frame(Opcode.SEGMENT_TRANSIT, leader, away, fill, stage.is_last_part)
    await trio.sleep(1.0)
    stage.machine(away).mend()
    await stage.level(leader, away)


async def power_cut_after_a_push(world):
    """A follower loses power after it has acknowledged a segment, and with it all that was not synced."""
    await lose_power_after(world)


async def merged_push(world):
    """A follower that has streamed a part of a segment's rows gets the segment, and merges the rest of its rows.

    A program reads from the follower then.

        leader      (0, 27]  (27, 28]  (28, 30]
        follower    (0, 27]  28 and 29 in memory, so that its next segment ends inside the leader's last one
    """
    stage = TransferStage(world)
    await stage.begin_quietly(but=["reader"])
    leader, first, away = stage.three
    await stage.large_base()
    await stage.set_mode("stream")
    await stage.until(lambda: not any(stage.by_segments(name) for name in stage.three))
    async with stage.writing() as write:
        await write(1, 10)
        await stage.level(leader, away)
        await stage.flush(leader)
        await write(1, 10)
        await stage.level(leader, away)
        await stage.end(away)
        await write(1, 10)
        await stage.level(leader, first)
    await stage.set_mode("segment")
    await stage.until(lambda: not stage.partitions(leader)[0].tree.block_count)
    await stage.begin(away)
    await stage.level(leader, away)
    await stage.read(away)


async def pushed_fork(world):
    """A follower that was away gets a segment with rows of two leaders, while one of them has others at these seqs."""
    stage = TransferStage(world)
    await stage.begin_quietly()
    old, new, away, *_ = stage.five
    await stage.behind(away, rows=2)
    await stage.fork(old, new)
    await stage.begin(away)
    await stage.level(new, away)


async def deposed_pusher(world):
    """The last part of a segment comes to a follower right after it has promised another member the next term."""
    stage = TransferStage(world)
    await stage.begin_quietly()
    old, new, third = stage.three
    stage.cut((old, new))
    pipe = None
    async with trio.open_nursery() as nursery:

        async def write_there():
            async with stage.writing(old) as write:
                await write(2)
            await stage.flush(old)

        nursery.start_soon(write_there)
        pipe = await stage.held(Opcode.SEGMENT_TRANSIT, old, third)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.promote, new)
        await stage.promised(third)
        stage.release(pipe)
    await trio.sleep(1.0)
    stage.heal((old, new))


async def older_copy_in_a_push(world):
    """A follower gets an older copy of its own disk back, without the last segments that it had acknowledged."""
    stage = TransferStage(world)
    await stage.begin_quietly()
    leader, _, copied = stage.three
    await stage.large_base()
    await stage.end(copied)
    copy = stage.machine(copied).disk.fork()
    await stage.begin(copied)
    async with stage.writing() as write:
        for _ in range(2):  # too few and too small for a compaction
            await write(1, 10)
            await stage.flush(leader)
            await stage.level(leader, copied)
            await stage.acknowledged(copied)
            if copy is not None:
                await stage.change_disk(copied, copy)
                copy = None
                await trio.sleep(1.0)
    await stage.level(leader, copied)


STORIES = [
    Story(pushed_fork, way="push", nodes=5),
    *(
        Story(tell, way="push")
        for tell in (
            replaced_while_pushed,
            flipped_push,
            truncated_push,
            full_disk_in_a_push,
            power_cut_after_a_push,
            merged_push,
            deposed_pusher,
            older_copy_in_a_push,
        )
    ),
]
