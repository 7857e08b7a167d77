"""Stories of two nodes that lead, or believe so, one after the other or at the same time."""

from __future__ import annotations

import trio

from ..machine import End
from .stage import Stage
from .story import Story


async def dead_tail(world):
    """A leader that is cut off writes many rows by itself; the next leader writes a few, and dies."""
    await trio.sleep(0.3)
    stage = Stage(world)
    old, new, third = stage.three
    stage.cut((old, new), (old, third))
    await trio.sleep(1.5)
    await stage.promote(new)
    stage.send_clients(new)
    await stage.written(6)
    stage.machine(new).kill(End.KILL)
    stage.heal((old, third))
    await stage.promote(old)
    stage.send_clients(old)
    await trio.sleep(0.5)


async def stale_leader(world):
    """Programs ask a leader that is cut off for keys that others write at the next leader."""
    await trio.sleep(0.5)
    stage = Stage(world)
    old, new, third = stage.three
    # Look-ups there would wait for writes that have no answer yet.
    staying = ["looker", "refused"]
    stage.send_clients(new, [name for name in world.program_names if name not in staying])
    await trio.sleep(0.1)
    stage.cut((old, new), (old, third))
    stage.send_clients(old, staying)
    await stage.promote(new)
    await stage.written(20)


async def early_entry(world):
    """A follower that lags behind hears of a branch, and dies before it has the rows up to the branch's base."""
    await trio.sleep(0.2)
    stage = Stage(world)
    old, new, third = stage.three
    stage.cut((old, third))
    await trio.sleep(1.0)
    stage.cut((old, new))
    await stage.promote(new)
    stage.network.seconds_max = 0.04
    with trio.move_on_after(1.0):
        while not stage.is_ahead_of_itself(third):  # noqa: ASYNC110 - it has no event
            await trio.sleep(0.001)
    await trio.sleep(0.02)
    stage.machine(new).kill(End.POWER)
    stage.network.seconds_max = 0.002
    stage.cut((new, third))
    await stage.restart(third)
    stage.heal((old, third))
    await stage.promote(third)
    await trio.sleep(0.5)


async def forgotten_promise(world):
    """A member that has promised a term starts again, and reaches the leader of the term before."""
    await trio.sleep(0.3)
    stage = Stage(world)
    old, new, third = stage.three
    stage.cut((old, new), (old, third))
    await stage.promote(new)
    stage.cut((new, third))
    stage.machine(third).kill(End.POWER)
    await stage.machine(third).life_over()
    stage.heal((old, third))
    stage.machine(third).start()
    stage.send_clients(old, ["looker", "register-1", "writer-quorum"])
    await trio.sleep(2.0)
    stage.heal((new, third))
    stage.cut((old, third))
    await trio.sleep(1.0)


async def slow_leader(world):
    """The leader, whose disk is slow, loses power, and with it rows that both followers have."""
    await trio.sleep(0.3)
    stage = Stage(world)
    old, new, third = stage.three
    stage.machine(old).slowness_s = 0.02  # so that its fsyncs are made in a thread
    await trio.sleep(1.5)
    stage.machine(old).stall_s = 5.0
    await trio.sleep(0.5)
    stage.cut((old, new), (old, third))
    stage.machine(old).loses_all = True
    stage.machine(old).kill(End.POWER)
    await stage.machine(old).life_over()
    stage.machine(old).stall_s = stage.machine(old).slowness_s = 0.0
    stage.machine(old).start()
    await stage.machine(old).up()
    await trio.sleep(0.5)
    stage.heal((old, new), (old, third))
    await trio.sleep(1.0)


async def two_masters(world):
    """A member that has promised a term still hears the leader of the term before."""
    await trio.sleep(0.3)
    stage = Stage(world)
    old, new, _ = stage.three
    stage.cut((old, new))
    await stage.promote(new)
    stage.send_clients(old, ["looker", "register-1", "writer-quorum"])
    await trio.sleep(1.5)


async def lone_restart(world):
    """A leader starts again while another one leads."""
    await trio.sleep(0.3)
    stage = Stage(world)
    old, new, third = stage.three
    stage.cut((old, new), (old, third))
    await stage.promote(new)
    await stage.restart(old)
    stage.send_clients(new, ["register-1", "register-2", "writer-quorum"])
    stage.send_clients(old, ["looker", "register-3", "writer-disk"])
    await trio.sleep(1.0)


STORIES = [
    Story(dead_tail),
    Story(stale_leader),
    Story(early_entry),
    Story(forgotten_promise),
    Story(slow_leader),
    Story(two_masters),
    Story(lone_restart),
]
