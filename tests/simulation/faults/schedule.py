"""The schedule of faults: which come, when, and how all is mended in the end."""

from __future__ import annotations

import trio

from ..machine import End
from . import copies, disks, leaders, losses, members, network, nodes, programs, segments
from .kinds import ALONE, PACE_OF_A_SET, PACE_OF_ONE_NODE, kinds_of, pauses_of

FAULTS = {
    fault.__name__: fault
    for module in (nodes, disks, network, leaders, members, programs, losses, copies, segments)
    for fault in module.FAULTS
}


class Faults:
    """Faults by chance, one after the other with pauses, and many of them at once.

    Attributes:
        pace: How hard faults are.
        disks_lost: How many members have lost their disk until now.
        taken_out: The machines that run on another disk, each with its own disk; None: it gets an empty one.
        replaced: The machines whose disk was replaced, each with the disk that is away.
        changing: The machines that an operator is adding or removing.
        removed: The machines of former members that a majority is known to have removed.
    """

    def __init__(self, world):
        self.world = world
        self.random = world.random_of("faults")
        self.network = world.network
        self.pace = PACE_OF_A_SET if world.plan.is_set else PACE_OF_ONE_NODE
        self.disks_lost = 0
        self.taken_out = {}
        self.replaced = {}
        self.changing = set()
        self.removed = set()
        self._pause_s = self.random.choice(pauses_of(world.plan, self.pace))
        self._kinds = kinds_of(world.plan, self.random)

    async def run(self, seconds):
        """Lets things go wrong for ``seconds``, and mends everything then."""
        async with trio.open_nursery() as nursery:
            with trio.move_on_after(seconds):
                if self.world.plan.is_set:
                    nursery.start_soon(self.world.operator.run)
                nursery.start_soon(self._restart)
                while True:
                    await trio.sleep(self._pause_s * self.random.choice((0.05, 0.5, 2.0)) * self.random.random())
                    (kind,) = self.random.choices(list(self._kinds), self._kinds.values())
                    if kind in ALONE:
                        await FAULTS[kind](self)
                    else:
                        nursery.start_soon(FAULTS[kind], self)
            nursery.cancel_scope.cancel()
        await self._put_back()
        self.mend()

    def machine(self):
        """Returns any machine, the leader's more often than others."""
        machines = self.world.machines
        if len(machines) == 1:
            return machines[0]
        leaders = [machine for machine in machines if self.world.leads(machine)]
        return self.random.choice([*machines, *leaders, *leaders])

    @property
    def may_lose_disk(self):
        """Whether another disk may be lost: in one run only those of a minority."""
        return self.disks_lost < self.world.plan.lost_disks_max

    def empty_disk(self, machine):
        """Replaces a machine's disk by an empty one, and the node's list by the present one, while no node runs."""
        machine.replace_disk(self.world.list_of(machine.name, self.world.checks.members()))

    async def _restart(self):
        """Restarts nodes that take nothing more, as an operator would."""
        while True:
            await trio.sleep(0.5 + self.random.random())
            for machine in self.world.machines:
                if machine.has_given_up:
                    self.world.report.fault("restart of a node that has given up", machine.name)
                    machine.kill(End.KILL)
                    machine.start()

    async def _put_back(self):
        """Gives each machine its own disk again, or an empty one."""
        for machine, disk in self.taken_out.items():
            machine.expect_nothing()
            machine.kill(End.POWER)
            await machine.life_over()
            if disk is None:
                self.empty_disk(machine)
            else:
                machine.put_disk(disk)
        self.taken_out = {}

    def mend(self):
        """Ends all faults, and starts the nodes that are down."""
        self.world.haste.end()
        for follower in self.world.followers:
            follower.be_spared()
        for fetcher in self.world.fetchers:
            fetcher.disk.mend()
        if self.world.transfers is not None:
            self.world.transfers.end()
        else:
            self.network.harm = None
        self.network.heal_all()
        self.network.seconds_max = 0.002
        for machine in self.world.machines:
            machine.expect_nothing()
            machine.mend()
            if machine.has_given_up:
                machine.kill(End.KILL)
            machine.start()
        self.world.report.note("mended")
