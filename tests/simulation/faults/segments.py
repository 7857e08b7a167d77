"""Faults at each step of a transfer of segments between nodes: each function waits for a step, and mends its fault."""

from __future__ import annotations

import errno

import trio

from tailrace.wire.frames import FRAME_HEADER_BYTES

from ..machine import FAILING, End
from . import shapes
from .transfers import ANSWERS, PART_HEAD_BYTES, PULLING, PUSHING

# A fault waits this long for its step at most.
WAITING_SECONDS = 2.0


def _steps(faults):
    """Returns the opcodes of the frames that may pass in this run, those of parts twice."""
    of_way = {"pull": PULLING, "push": PUSHING, "switch": PUSHING + PULLING}[faults.world.plan.way]
    return [*of_way, *(opcode for opcode in of_way if opcode in PART_HEAD_BYTES)]


async def _at_frame(faults, name, opcode, act):
    """Calls ``act(frame)`` once, with one of the next frames of ``opcode``. Returns the frame; None: none came.

    ``act`` returns the bytes to send instead, and whether the connection ends with them.
    """
    transfers, left, found = faults.world.transfers, faults.random.choice((0, 0, 1, 3)), trio.Event()
    seen = []

    def action(frame):
        nonlocal left
        left -= 1
        if left >= 0:
            return frame.data, False
        transfers.disarm(opcode, action)
        seen.append(frame)
        faults.world.report.fault(name, opcode.name)
        found.set()
        return act(frame)

    transfers.arm(opcode, action)
    try:
        with trio.move_on_after(WAITING_SECONDS):
            await found.wait()
    finally:
        transfers.disarm(opcode, action)
    return seen[0] if seen else None


def _one_of(faults, frame):
    """Returns the machine of the sender or of the receiver."""
    return faults.world.machine(faults.random.choice((frame.sender, frame.receiver)))


async def stay_away(faults):
    """Keeps a follower down, or cut off from the nodes, while the others write and flush."""
    world = faults.world
    followers = [machine for machine in world.machines if machine.is_up and not world.leads(machine)]
    if not followers:
        return
    machine, is_down = faults.random.choice(followers), faults.random.random() < 0.5
    world.report.fault("follower away", machine.name)
    seconds = faults.random.choice((0.5, 1.0, 2.0))
    if is_down:
        machine.kill(End.KILL)
        await trio.sleep(seconds)
        machine.start()
    else:
        ways = shapes.isolated(machine.name, world.names)
        faults.network.cut_ways(ways)
        faults.network.drop_all([machine.name])
        await trio.sleep(seconds)
        faults.network.heal_ways(ways)


async def die_at_step(faults):
    """Kills a node, or cuts its power: before a frame leaves, after it, or at one of the next calls of its disk."""
    end, when = faults.random.choice((End.KILL, End.POWER)), faults.random.choice(("before", "after", "call", "sync"))
    calls = faults.random.randrange(faults.random.choice((2, 6, 15)))

    def act(frame):
        machine = _one_of(faults, frame)
        if when == "before":
            machine.kill(end)
            return (b"" if machine.name == frame.sender else frame.data), False
        if when == "call":
            machine.crash_at_call(calls, end)
        elif when == "sync":
            machine.crash_at_sync(calls % 3)
        else:
            faults.world.nursery.start_soon(_kill, machine, end)
        return frame.data, False

    frame = await _at_frame(
        faults, f"{end.value} {when} a step of a transfer", faults.random.choice(_steps(faults)), act
    )
    if frame is not None and when in ("before", "after"):
        await trio.sleep(faults.random.choice((0, 0.3, 1.5)) * faults.random.random())
        faults.world.machine(frame.sender).start()
        faults.world.machine(frame.receiver).start()


async def _kill(machine, end):
    machine.kill(end)


async def disk_at_step(faults):
    """Fills the disk of a node, or lets calls of it fail, from a step on."""
    kind, free_bytes = faults.random.choice(("full", "full", "error", "once")), faults.random.randint(0, 1_500)
    names = faults.random.sample(FAILING, faults.random.randint(1, 3))
    machines = []

    def act(frame):
        machine = _one_of(faults, frame)
        machines.append(machine)
        if kind == "full":
            machine.fill(free_bytes)
        elif kind == "error":
            machine.fail_calls(names, 0.5, errno.EIO)
        else:
            machine.fail_once(faults.random.randrange(8), faults.random.choice((errno.EIO, errno.ENOSPC)))
        return frame.data, False

    frame = await _at_frame(faults, f"disk: {kind} at a step of a transfer", faults.random.choice(_steps(faults)), act)
    if frame is not None:
        await trio.sleep(faults.random.choice((0.1, 1.0)) * faults.random.random())
        machines[0].mend()


async def break_at_step(faults):
    """Ends a connection before, within or after a frame: what it answers is lost, or what was answered."""

    def act(frame):
        return frame.data[: faults.random.choice((0, faults.random.randrange(len(frame.data)), len(frame.data)))], True

    await _at_frame(faults, "connection ends at a step of a transfer", faults.random.choice(_steps(faults)), act)


async def repeat_answer(faults):
    """Sends an answer of a follower twice."""

    def act(frame):
        return 2 * frame.data, False

    await _at_frame(faults, "answer repeated", faults.random.choice(ANSWERS), act)


async def hold_step(faults):
    """Holds up a connection from a frame on, while the leader goes on, flushes and compacts."""
    pipes = []

    def act(frame):
        pipes.append(frame.pipe)
        faults.network.hold_up(frame.pipe, lambda pipe, data: 0)
        return frame.data, False

    frame = await _at_frame(faults, "transfer held up", faults.random.choice(_steps(faults)), act)
    if frame is not None:
        await trio.sleep(faults.random.choice((0.3, 1.0, 2.5)) * faults.random.random())
        faults.network.deliver(pipes[0])


async def fork_at_step(faults):
    """Cuts off the sender or the receiver within a transfer, and promotes another node: two leaders for a while."""

    def act(frame):
        return frame.data, False

    frame = await _at_frame(faults, "another leader within a transfer", faults.random.choice(_steps(faults)), act)
    if frame is None:
        return
    world, name = faults.world, faults.random.choice((frame.sender, frame.receiver))
    others = [other for other in world.names if other != name]
    ways = shapes.isolated(name, world.names)
    faults.network.cut_ways(ways)
    await world.operator.promote(faults.random.choice(others))
    await trio.sleep(faults.random.choice((0.1, 0.5, 1.5)) * faults.random.random())
    faults.network.heal_ways(ways)


async def expire_at_step(faults):
    """Lets checkpoints and half received files end within a transfer, as if it stood still for long."""
    end_checkpoints = faults.random.random() < 0.7

    def act(frame):
        machine = _one_of(faults, frame)
        if machine.is_up:
            faults.world.nursery.start_soon(_expire, machine, end_checkpoints)
        return frame.data, False

    await _at_frame(faults, "expiry within a transfer", faults.random.choice(_steps(faults)), act)


async def _expire(machine, end_checkpoints):
    """Ends all checkpoints of a node, or lets time pass for its received files."""
    if not machine.is_up:
        return
    if end_checkpoints:
        checkpoints = machine.life.node.storage.checkpoints
        checkpoints._release_all(checkpoints._kept.values())
    else:
        machine.node_clock.advance(10.0)


async def damage_parts(faults):
    """Damages parts on their way for a while: a bit flips, a part is cut, or the connection ends within one."""
    chance, kinds = faults.random.choice((0.03, 0.1, 0.5)), {"flip": _flip, "cut": _cut, "end": _end}

    def act(frame):
        if faults.random.random() >= chance:
            return frame.data, False
        kind = faults.random.choice(("flip", "flip", "cut", "end"))
        faults.network.harmed += 1
        faults.world.report.fault(f"transfer: {kind}", frame.opcode.name)
        return kinds[kind](faults.random, frame)

    for opcode in PART_HEAD_BYTES:
        faults.world.transfers.arm(opcode, act)
    try:
        await trio.sleep(faults.random.choice((0.3, 2.0)) * faults.random.random())
    finally:
        for opcode in PART_HEAD_BYTES:
            faults.world.transfers.disarm(opcode, act)


def _flip(rnd, frame):
    data = bytearray(frame.data)
    data[rnd.randrange(frame.head_bytes, len(data))] ^= 1 << rnd.randrange(8)
    return bytes(data), False


def _cut(rnd, frame):
    """Makes a part that has fewer bytes than were asked for, as a node with a bug would."""
    return frame.with_body(
        frame.data[FRAME_HEADER_BYTES : rnd.randrange(frame.head_bytes + 1, len(frame.data) + 1)]
    ), False


def _end(rnd, frame):
    return frame.data[: rnd.randrange(len(frame.data))], True


async def foreign_files(faults):
    """Lets nodes send files of other segments for a while, mostly of other partitions."""
    faults.world.transfers.begin_foreign_files(faults.random, faults.random.choice((0.1, 0.5)))
    await trio.sleep(faults.random.choice((0.5, 2.0)) * faults.random.random())
    faults.world.transfers.end_foreign_files()


FAULTS = (
    stay_away,
    die_at_step,
    disk_at_step,
    break_at_step,
    repeat_answer,
    hold_step,
    fork_at_step,
    expire_at_step,
    damage_parts,
    foreign_files,
)
