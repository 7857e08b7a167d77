"""Faults of nodes: each function makes one, and mends it."""

from __future__ import annotations

import trio

from ..machine import End


async def kill(faults):
    await _end(faults, faults.machine(), End.KILL)


async def power(faults):
    await _end(faults, faults.machine(), End.POWER)


async def power_of_all(faults):
    async with trio.open_nursery() as nursery:
        for machine in faults.world.machines:
            nursery.start_soon(_end, faults, machine, End.POWER)


async def _end(faults, machine, end):
    faults.world.report.fault(end.value, machine.name)
    machine.kill(end)
    await trio.sleep(faults.random.choice((0, 0.5, faults.pace.down_s)) * faults.random.random())
    machine.start()


async def crash_at_call(faults):
    machine, end = faults.machine(), faults.random.choice((End.KILL, End.POWER))
    faults.world.report.fault(f"{end.value} at a call of the disk", machine.name)
    machine.crash_at_call(faults.random.randrange(faults.random.choice((3, 20, 60))), end)


async def power_at_sync(faults):
    machine = faults.machine()
    faults.world.report.fault("power cut at an fsync", machine.name)
    machine.crash_at_sync(faults.random.randrange(faults.pace.syncs))


async def stop(faults):
    machine = faults.machine()
    faults.world.report.fault("clean stop", machine.name)
    await machine.stop()
    machine.start()


async def set_clock(faults):
    machine = faults.machine()
    faults.world.report.fault("wall clock set", machine.name)
    machine.node_clock.jump(faults.random.choice((-3_600, -5, 5, 60)))


FAULTS = (kill, power, power_of_all, crash_at_call, power_at_sync, stop, set_clock)
