"""Faults of disks: a disk is slow, refuses calls, is full, or is replaced by another one."""

from __future__ import annotations

import errno

import trio

from ..machine import FAILING, End


async def slow_disk(faults):
    machine = faults.machine()
    faults.world.report.fault("slow disk", machine.name)
    machine.slowness_s = faults.random.choice((0.002, 0.02, 0.2))
    await trio.sleep(2.0 * faults.random.random())
    machine.slowness_s = 0.0


async def failing_disk(faults):
    machine = faults.machine()
    faults.world.report.fault("disk errors", machine.name)
    names = faults.random.sample(FAILING, faults.random.randint(1, 3))
    machine.fail_calls(names, faults.random.choice((0.05, 0.3, 1.0)), errno.EIO)
    await trio.sleep(faults.pace.errors_s * faults.random.random())
    machine.mend()


async def full_disk(faults):
    machine = faults.machine()
    faults.world.report.fault("full disk", machine.name)
    machine.fill(faults.random.randint(0, 6_000))
    await trio.sleep(3.0 * faults.random.random())
    machine.mend()


async def lose_disk(faults):
    """Replaces a disk by an empty one; in one run only those of a minority."""
    if not faults.may_lose_disk:
        return
    machine = faults.machine()
    if machine in faults.taken_out:
        return
    faults.disks_lost += 1
    faults.world.report.fault("disk lost", machine.name)
    machine.kill(End.POWER)
    await machine.life_over()
    faults.replaced[machine] = machine.disk
    faults.empty_disk(machine)
    await trio.sleep(faults.random.choice((0, 0.5)) * faults.random.random())
    machine.start()


async def old_disk(faults):
    """Puts a disk back that was replaced. The one that had replaced it is away then, and may come back, too."""
    machines = [machine for machine in faults.replaced if machine not in faults.taken_out]
    if not machines:
        return
    machine = faults.random.choice(machines)
    faults.world.report.fault("replaced disk is back", machine.name)
    machine.kill(End.POWER)
    await machine.life_over()
    faults.replaced[machine] = machine.put_disk(faults.replaced[machine])
    machine.start()


async def strange_disk(faults):
    """Starts a member on the directory of another cluster's node, for a while.

    No operator forces a node on it to lead (`leaders.force`): clients would follow that one, which lacks their feed.
    """
    disk = await faults.world.disk_of_another_cluster()
    machine = faults.random.choice(faults.world.machines)
    if machine in faults.taken_out or machine.name in faults.world.operator.forcing:
        return
    faults.world.report.fault("disk of another cluster", machine.name)
    machine.kill(End.POWER)
    await machine.life_over()
    faults.taken_out[machine] = machine.put_disk(disk)
    machine.start()
    await trio.sleep(2.0 * faults.random.random())
    if faults.random.random() < 0.5:
        machine.kill(End.KILL)
        await machine.life_over()
        machine.put_disk(faults.taken_out.pop(machine))
        machine.start()


async def old_backup(faults):
    """Starts a member on a backup of its directory that ran by itself; in one run only a minority."""
    machine = faults.random.choice(faults.world.machines)
    if machine in faults.taken_out or not faults.may_lose_disk:
        return
    if not machine.is_up:  # there may be nothing on its disk yet
        return
    faults.disks_lost += 1
    machine.kill(End.KILL)
    await machine.life_over()
    backup = machine.disk.fork()
    machine.start()
    await trio.sleep(2.0 * faults.random.random())
    backup = await faults.world.disk_of_backup(backup)
    if machine in faults.taken_out or machine.name in faults.world.operator.forcing:
        return
    faults.world.report.fault("old backup of a member", machine.name)
    machine.kill(End.POWER)
    await machine.life_over()
    machine.put_disk(backup)
    faults.taken_out[machine] = None
    machine.start()


FAULTS = (slow_disk, failing_disk, full_disk, lose_disk, strange_disk, old_backup, old_disk)
