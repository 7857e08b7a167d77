"""Changes of the leader of a set, at bad moments."""

from __future__ import annotations

import trio

from ..machine import End
from . import shapes


async def promote(faults):
    """Promotes a node, while any node may lead."""
    faults.world.report.fault("promotion out of the blue")
    await faults.world.operator.promote(faults.machine().name)


async def force(faults):
    """Promotes a node by force, but none on a disk that it does not keep.

    A backup that led by itself has terms far above those of its set. Clients that have seen such a leader of their
    cluster follow no other one, so an operator who forces it has to keep it.
    """
    machine = faults.machine()
    if machine in faults.taken_out:
        return
    faults.world.report.fault("forced promotion")
    await faults.world.operator.promote(machine.name, force=True)


async def hand_over(faults):
    operator = faults.world.operator
    leader = await operator.leader()
    others = [name for name in faults.world.names if name != leader]
    if leader is not None:
        faults.world.report.fault("handover")
        await operator.hand_over(leader, faults.random.choice(others))


async def usurp(faults):
    """Cuts off the leader and promotes another node, while some programs still reach only the old leader."""
    leaders = [machine.name for machine in faults.world.machines if faults.world.leads(machine)]
    if not leaders:
        return
    faults.world.report.fault("leader cut off, and another one promoted")
    leader = leaders[0]
    others = [name for name in faults.world.names if name != leader]
    count = len(faults.world.program_names)
    staying = faults.random.sample(
        faults.world.program_names, faults.random.choice((0, count, faults.random.randint(0, count)))
    )
    moving = [name for name in faults.world.program_names if name not in staying]
    cut = faults.random.choice((shapes.isolated, shapes.isolated, shapes.mute, shapes.deaf))
    ways = cut(leader, faults.world.names) + shapes.between(others, staying) + shapes.between([leader], moving)
    faults.network.cut_ways(ways)
    faults.network.drop_all(moving)
    await trio.sleep(faults.random.choice((0, 0.3, 1.0)) * faults.random.random())
    usurper = faults.random.choice(others)
    await faults.world.operator.promote(usurper)
    await trio.sleep(faults.random.choice((0.1, 0.5, 1.5)) * faults.random.random())
    faults.network.heal_ways(ways)
    if faults.random.random() < 0.5:  # a third leadership, before the first leader has heard of the second
        machine = faults.world.machine(usurper)
        if faults.random.random() < 0.5:
            machine.kill(faults.random.choice((End.KILL, End.POWER)))
        await faults.world.operator.promote(faults.random.choice([leader, *others]))
        machine.start()


FAULTS = (promote, force, hand_over, usurp)
