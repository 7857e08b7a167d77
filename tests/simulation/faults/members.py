"""Members of a set that come and go. Each function asks for one change until it is done, as an operator would."""

from __future__ import annotations

import trio

from tailrace_server.replication.member_changes import MEMBERS_MIN

from ..machine import End

# The operator gives a change up after this time. The leader goes on with it, and after its loss the next one.
SECONDS_MAX = 3.0


async def add_member(faults):
    """Adds a node that is no member: a new one, or one that was removed, on its own disk or on an empty one."""
    _, names = await faults.world.operator.leader_and_members()
    outside = [machine for machine in faults.world.machines if machine.name not in names]
    machine = _one_of(faults, outside) if names else None
    if machine is None:
        return
    faults.world.report.fault("member added", machine.name)
    if machine in faults.removed and faults.random.random() < 0.5:
        machine.kill(End.KILL)
        await machine.life_over()
        if machine in faults.taken_out:
            return
        faults.empty_disk(machine)
    faults.removed.discard(machine)
    machine.start()
    await _change(faults, "add", machine)


async def remove_member(faults):
    """Removes a member, the leader more often than others. Its node is stopped then, or goes on."""
    leader, names = await faults.world.operator.leader_and_members()
    if len(names) <= MEMBERS_MIN:
        return
    machine = _one_of(faults, [faults.world.machine(name) for name in [*names, leader]])
    if machine is None:
        return
    faults.world.report.fault("member removed", machine.name)
    if await _change(faults, "remove", machine):
        faults.removed.add(machine)
        if faults.random.random() < 0.3:
            machine.kill(End.KILL)


def _one_of(faults, machines):
    """Returns one of the machines on their own disk that no other change is about; None: there is none."""
    found = [machine for machine in machines if machine not in faults.taken_out and machine not in faults.changing]
    return faults.random.choice(found) if found else None


async def _change(faults, action, machine):
    """Asks whoever leads for a change, until it is done. Returns whether it was done in time."""
    operator = faults.world.operator
    faults.changing.add(machine)
    try:
        with trio.move_on_after(SECONDS_MAX):
            while True:
                leader = await operator.leader()
                answer = None if leader is None else await operator.change_members(leader, action, machine.name)
                if answer is not None and answer["done"]:
                    faults.world.report.operation(f"member: {action} done", machine.name)
                    return True
                await trio.sleep(0.3 * faults.random.random())
    finally:
        faults.changing.discard(machine)
    return False


FAULTS = (add_member, remove_member)
