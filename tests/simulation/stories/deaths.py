"""Stories of nodes that die, or whose disk fails, in each step of a transfer of segments.

Each story is about one step and one of the two nodes. All faults come to that step, in turn: each time the follower was
away, and lacks a segment. After each of them it has to catch up, and after a power cut it still has all rows.
"""

from __future__ import annotations

import contextlib
import errno
import functools

import trio
from tests.memory_disk import Crashed

from tailrace.wire.opcodes import Opcode

from ..machine import End
from . import steps
from .story import Story
from .transfer_stage import TransferStage

# How long a story waits for a step, and how long a disk is full, in simulated time.
STEP_SECONDS = 20.0
FULL_SECONDS = 0.5
# How long segments are held up while rows come ahead: less than a checkpoint is kept.
HELD_SECONDS = 0.1


def _die(machine):
    machine.kill(End.KILL)


def _lose_power(machine):
    machine.kill(End.POWER)


def _lose_all(machine):
    machine.loses_all = True
    machine.kill(End.POWER)


def _fill(machine):
    machine.fill(0)


def _fail_call(machine):
    machine.fail_once(0, errno.EIO)


FAULTS = (_die, _lose_power, _lose_all, _fill, _fail_call)


def _story(way, step, at_leader):
    async def tell(world):
        stage = TransferStage(world)
        await stage.begin_quietly()
        for fault in FAULTS:
            await _meet(world, stage, step, fault, at_leader=at_leader)

    tell.__name__ = f"{step.name}_a_{way}_ends_at_the_{'leader' if at_leader else 'follower'}"
    return Story(tell, way=way)


async def _meet(world, stage, step, fault, *, at_leader):
    """Lets the fault come to the step, mends it, and waits until both nodes have the same rows.

    Raises:
        AssertionError: The step was not met, so the story is another one.
    """
    leader, _, away = stage.three
    machine = stage.machine(leader if at_leader else away)
    if world.plan.way == "pull":
        await _flush_a_row(stage, leader, away)
    await stage.behind(away)
    act = functools.partial(fault, machine)
    async with trio.open_nursery() as nursery:
        with steps.Watch(world, step, leader, away, act) as watch:
            nursery.start_soon(_transfer, stage, step)
            with trio.move_on_after(STEP_SECONDS):
                await watch.met.wait()
            assert watch.met.is_set(), f"{step.name} was not met"
            world.report.fault(f"{fault.__name__[1:]} {step.name}", machine.name)
            await trio.sleep(FULL_SECONDS)
            nursery.cancel_scope.cancel()
    for name in (leader, away):
        await _recover(stage, name)
    await stage.leads(leader)
    await stage.level(leader, away)
    await stage.lose(away)
    await stage.begin(away)
    stage.require_whole(away)
    await stage.level(leader, away)


async def _flush_a_row(stage, leader, away):
    """Gives the follower a segment of its own, which one of the leader replaces later."""
    async with stage.writing() as write:
        await write(1, 10)
    await stage.level(leader, away)
    await stage.flush(away)


async def _transfer(stage, step):
    """Starts the follower. If the step is about new rows, the leader gets some while the segments are held up."""
    leader, _, away = stage.three
    if step.is_trimmed:
        await stage.begin(away)
        with contextlib.suppress(Crashed, OSError):
            while True:
                await stage.trim(away)
                await trio.sleep(HELD_SECONDS)
        return
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.begin, away)
        if not step.has_new_rows:
            return
        pipe = await stage.held(Opcode.SEGMENT_FETCH, away, leader)
        async with stage.writing() as write:
            await write(1, 10)
            await trio.sleep(HELD_SECONDS)
            stage.release(pipe)
            while True:
                await write(1, 10)
                await trio.sleep(HELD_SECONDS)


async def _recover(stage, name):
    """Mends a disk, and starts a node that is down or has given up."""
    machine = stage.machine(name)
    machine.mend()
    if machine.has_given_up:
        await stage.end(name)
    await stage.begin(name)


STORIES = [
    _story(way, step, at_leader)
    for way, steps_of_way in (("pull", steps.OF_A_PULL), ("push", steps.OF_A_PUSH))
    for step in steps_of_way
    for at_leader in (False, True)
]
