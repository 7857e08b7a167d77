"""Power cuts in a row: the rows that a program reads again, after a rollback, are lost too."""

from __future__ import annotations

import contextlib

import trio

from ..machine import End
from ..programs.keys import ANY


async def losses(faults):
    """Cuts the power several times, each time when a reader has heard of the cut before and reads again.

    A few keys are written all the time at level memory, so that the reader reads rows that are not durable yet. Writers
    at other levels are cut off, since they would make the rows durable. The reader is cut off until there are rows.
    """
    world, network, machine = faults.world, faults.network, faults.machine()
    world.report.fault("power cuts in a row")
    reader = faults.random.choice([world.followers[2], world.followers[2], world.others[0]])
    keys = _keys_of(world, faults.random.randrange(world.plan.partitions))
    network.seconds_max = 0.0003  # all of this has to take less time than an fsync
    with _cut_off(faults, "writer-1", "writer-3", "looker", *(sink.name for sink in world.sinks)):
        for _ in range(faults.random.choice((2, 3, 4))):
            await machine.up()
            world.keys.in_use[ANY] = faults.random.sample(keys, 3)
            world.haste.begin()
            with trio.move_on_after(1.0):
                await world.haste.enough.wait()
            has_lost = world.checks.truth.has_lost(reader.positions)
            read_again = world.read_again
            network.heal(reader.name, machine.name)
            with trio.move_on_after(0.2 if has_lost else 0.02):
                await read_again.wait()
                await trio.sleep(faults.random.choice((0, 0, 0.005)) * faults.random.random())
                network.cut(reader.name, machine.name)
            await _lose_power_at_sync(faults)
            network.cut(reader.name, machine.name)
            machine.start()
        network.heal(reader.name, machine.name)
    network.seconds_max = 0.002
    world.keys.use_all()


def _keys_of(world, partition):
    return [key for key in world.keys.all[ANY] if world.partition_of(key) == partition]


@contextlib.contextmanager
def _cut_off(faults, *names):
    for name in names:
        faults.network.cut(name, faults.machine().name)
    try:
        yield
    finally:
        for name in names:
            faults.network.heal(name, faults.machine().name)


async def _lose_power_at_sync(faults):
    """Cuts the power at the next fsync, so that rows are lost that were shown at level memory."""
    machine = faults.machine()
    machine.crash_at_sync(0)
    machine.loses_all = faults.random.random() < 0.8
    with trio.move_on_after(0.05):
        await machine.life_over()
    faults.world.haste.end()
    machine.expect_nothing()
    machine.kill(End.POWER)


FAULTS = (losses,)
