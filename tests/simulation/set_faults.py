"""What goes wrong with a set, and when."""

from __future__ import annotations

import errno

import trio

from . import shapes
from .machine import FAILING, End

# How often each kind comes, against the others.
KINDS = {
    "kill": 4,
    "power": 3,
    "power_of_all": 1,
    "crash_at_call": 5,
    "power_at_sync": 4,
    "stop": 1,
    "cut": 8,
    "bridge": 2,
    "drop": 3,
    "slow_disk": 2,
    "failing_disk": 1,
    "slow_network": 1,
    "fragments": 1,
    "kill_client": 2,
    "set_clock": 1,
    "lose_disk": 1,
    "strange_disk": 1,
    "old_backup": 1,
    "late_packet": 3,
    "promote": 3,
    "force": 2,
    "hand_over": 4,
    "usurp": 4,
    "other_keys": 2,
}


# What a run is about; of everything, or of some kinds, which then come often enough to meet.
PROFILES = {
    "all": KINDS,
    "disks": {
        "lose_disk": 3,
        "old_backup": 3,
        "strange_disk": 3,
        "late_packet": 8,
        "kill": 2,
        "promote": 4,
        "usurp": 2,
        "hand_over": 2,
        "cut": 2,
    },
    "leaders": {
        "usurp": 6,
        "hand_over": 4,
        "promote": 3,
        "kill": 3,
        "power": 3,
        "cut": 4,
        "bridge": 3,
        "kill_client": 1,
        "force": 1,
    },
    "usurpers": {"usurp": 5, "promote": 1, "kill": 1, "power_at_sync": 1},
    "crashes": {
        "power_at_sync": 6,
        "power": 4,
        "power_of_all": 2,
        "kill": 2,
        "crash_at_call": 4,
        "promote": 4,
        "usurp": 3,
        "cut": 3,
        "slow_disk": 3,
        "lose_disk": 1,
        "late_packet": 3,
    },
}


class Faults:
    """One after the other, with pauses, and many of them at once."""

    def __init__(self, world):
        self.world = world
        self.random = world.random_of("faults")
        self.network = world.network
        self._pause = self.random.choice((0.3, 0.5, 1.0, 2.0))
        profile = self.random.choice(("all", "all", "all", "leaders", "usurpers", "crashes", "disks"))
        kinds = PROFILES[world.profile or profile]
        # Some runs have no fault of a kind at all, so that the others go further.
        left_out = set(self.random.sample(sorted(KINDS), self.random.choice((0, 3, 6))))
        if not world.may_force:
            left_out.add("force")
        self._kinds = {kind: weight for kind, weight in kinds.items() if kind not in left_out}
        self._disks_lost = 0
        self._taken_out = {}  # machine -> the disk that it gets back, while it has another one; None: an empty one

    async def run(self, seconds):
        """Lets things go wrong for so long, and mends everything then."""
        async with trio.open_nursery() as nursery:
            with trio.move_on_after(seconds):
                nursery.start_soon(self.world.operator.run)
                nursery.start_soon(self._restart)
                while True:
                    await trio.sleep(self._pause * self.random.choice((0.05, 0.5, 2.0)) * self.random.random())
                    (kind,) = self.random.choices(list(self._kinds), self._kinds.values())
                    nursery.start_soon(getattr(self, "_" + kind))
            nursery.cancel_scope.cancel()
        await self._put_back()
        self.mend()

    def mend(self):
        """Everything is well from now on."""
        self.network.heal_all()
        self.network.seconds_max = 0.002
        for machine in self.world.machines:
            machine.expect_nothing()
            machine.mend()
            if machine.has_given_up:
                machine.kill(End.KILL)
            machine.start()
        self.world.report.note("mended")

    async def _put_back(self):
        """Each machine gets its own disk again; one that runs on a backup of its member gets an empty one."""
        for machine, disk in self._taken_out.items():
            machine.expect_nothing()
            machine.kill(End.POWER)
            await machine.life_over()
            if disk is None:
                machine.replace_disk()
            else:
                machine.put_disk(disk)
        self._taken_out = {}

    async def _restart(self):
        """Somebody restarts nodes that take nothing more."""
        while True:
            await trio.sleep(0.5 + self.random.random())
            for machine in self.world.machines:
                if machine.has_given_up:
                    self.world.report.fault("restart of a node that has given up", machine.name)
                    machine.kill(End.KILL)
                    machine.start()

    def _machine(self):
        """Any; the leader more often than others."""
        machines = self.world.machines
        leaders = [machine for machine in machines if self.world.leads(machine)]
        return self.random.choice([*machines, *leaders, *leaders])

    # Nodes

    async def _kill(self):
        await self._end(self._machine(), End.KILL)

    async def _power(self):
        await self._end(self._machine(), End.POWER)

    async def _power_of_all(self):
        async with trio.open_nursery() as nursery:
            for machine in self.world.machines:
                nursery.start_soon(self._end, machine, End.POWER)

    async def _end(self, machine, end):
        self.world.report.fault(end.value, machine.name)
        machine.kill(end)
        await trio.sleep(self.random.choice((0, 0.5, 3.0)) * self.random.random())
        machine.start()

    async def _crash_at_call(self):
        machine, end = self._machine(), self.random.choice((End.KILL, End.POWER))
        self.world.report.fault(f"{end.value} at a call of the disk", machine.name)
        machine.crash_at_call(self.random.randrange(self.random.choice((3, 20, 60))), end)

    async def _power_at_sync(self):
        machine = self._machine()
        self.world.report.fault("power cut at an fsync", machine.name)
        machine.crash_at_sync(self.random.randrange(6))

    async def _stop(self):
        machine = self._machine()
        self.world.report.fault("clean stop", machine.name)
        await machine.stop()
        machine.start()

    async def _lose_disk(self):
        """A disk is replaced by an empty one; never in a run those of a majority."""
        if self._disks_lost + 1 > (len(self.world.machines) - 1) // 2:
            return
        machine = self._machine()
        if machine in self._taken_out:
            return
        self._disks_lost += 1
        self.world.report.fault("disk lost", machine.name)
        machine.kill(End.POWER)
        await machine.life_over()
        machine.replace_disk()
        await trio.sleep(self.random.choice((0, 0.5)) * self.random.random())
        machine.start()

    async def _strange_disk(self):
        """A member is started on the directory of another cluster's node, for a while."""
        disk = await self.world.disk_of_another_cluster()
        machine = self.random.choice(self.world.machines)
        if machine in self._taken_out:
            return
        self.world.report.fault("disk of another cluster", machine.name)
        machine.kill(End.POWER)
        await machine.life_over()
        self._taken_out[machine] = machine.put_disk(disk)
        machine.start()
        await trio.sleep(2.0 * self.random.random())
        if self.random.random() < 0.5:
            machine.kill(End.KILL)
            await machine.life_over()
            machine.put_disk(self._taken_out.pop(machine))
            machine.start()

    async def _old_backup(self):
        """A member is started on a backup of its directory, which was started by itself; never in a run a majority."""
        machine = self.random.choice(self.world.machines)
        if machine in self._taken_out or self._disks_lost + 1 > (len(self.world.machines) - 1) // 2:
            return
        if not machine.is_up:  # there may be nothing on its disk yet
            return
        self._disks_lost += 1
        machine.kill(End.KILL)
        await machine.life_over()
        backup = machine.disk.fork()
        machine.start()
        await trio.sleep(2.0 * self.random.random())
        backup = await self.world.disk_of_backup(backup)
        if machine in self._taken_out:
            return
        self.world.report.fault("old backup of a member", machine.name)
        machine.kill(End.POWER)
        await machine.life_over()
        machine.put_disk(backup)
        self._taken_out[machine] = None
        machine.start()

    async def _slow_disk(self):
        machine = self._machine()
        self.world.report.fault("slow disk", machine.name)
        machine.slowness_s = self.random.choice((0.002, 0.02, 0.2))
        await trio.sleep(2.0 * self.random.random())
        machine.slowness_s = 0.0

    async def _failing_disk(self):
        machine = self._machine()
        self.world.report.fault("disk errors", machine.name)
        names = self.random.sample(FAILING, self.random.randint(1, 3))
        machine.fail_calls(names, self.random.choice((0.05, 0.3, 1.0)), errno.EIO)
        await trio.sleep(1.0 * self.random.random())
        machine.mend()

    async def _set_clock(self):
        machine = self._machine()
        self.world.report.fault("wall clock set", machine.name)
        machine.node_clock.jump(self.random.choice((-3_600, -5, 5, 60)))

    # The network

    async def _cut(self):
        name, ways = shapes.chosen(self.random, self.world.names, self.world.client_names)
        self.world.report.fault(f"cut: {name}")
        self.network.cut_ways(ways)
        await trio.sleep(self.random.choice((0.2, 1.0, 3.0)) * self.random.random())
        self.network.heal_ways(ways)

    async def _bridge(self):
        """The leader does not hear others any more, but for one that all hear; and one of them is promoted, or two."""
        leader = await self.world.operator.leader()
        if leader is None or len(self.world.names) < 3:
            return
        self.world.report.fault("cut: a bridge that lasts")
        others = [name for name in self.world.names if name != leader]
        ways = shapes.bridge(self.random.choice(others), self.world.names)
        self.network.cut_ways(ways)
        for _ in range(self.random.choice((1, 1, 2))):
            await self.world.operator.promote(self.random.choice(others))
            await trio.sleep(2.0 * self.random.random())
        self.network.heal_ways(ways)

    async def _drop(self):
        transports = list(self.network.transports)
        if transports:
            self.world.report.fault("connection dropped")
            self.network.drop(self.random.choice(transports))

    async def _late_packet(self):
        """From some byte on, what one node sends another on one connection comes late."""
        names = self.world.names
        ways = [t.outgoing for t in self.network.transports if set(t.outgoing.link) <= set(names)]
        if not ways:
            return
        self.world.report.fault("late packet")
        pipe, left = self.random.choice(ways), self.random.randrange(self.random.choice((1, 200, 2_000)))

        def passing(pipe, data):
            nonlocal left
            count = min(left, len(data))
            left -= count
            return count

        self.network.hold_up(pipe, passing)
        await trio.sleep(self.random.choice((0.2, 1.0, 3.0)) * self.random.random())
        self.network.deliver(pipe)

    async def _slow_network(self):
        self.world.report.fault("slow network")
        self.network.seconds_max = self.random.choice((0.02, 0.1))
        await trio.sleep(1.0 * self.random.random())
        self.network.seconds_max = 0.002

    async def _fragments(self):
        self.network.fragments = not self.network.fragments

    # Who leads

    async def _promote(self):
        """Whoever leads at the time."""
        self.world.report.fault("promotion out of the blue")
        await self.world.operator.promote(self._machine().name)

    async def _force(self):
        self.world.report.fault("forced promotion")
        await self.world.operator.promote(self._machine().name, force=True)

    async def _hand_over(self):
        operator = self.world.operator
        leader = await operator.leader()
        others = [name for name in self.world.names if name != leader]
        if leader is not None:
            self.world.report.fault("handover")
            await operator.hand_over(leader, self.random.choice(others))

    async def _usurp(self):
        """Another one comes to lead while the leader hears nobody of it, and some clients still hear the leader."""
        leaders = [machine.name for machine in self.world.machines if self.world.leads(machine)]
        if not leaders:
            return
        self.world.report.fault("leader cut off, and another one promoted")
        leader = leaders[0]
        others = [name for name in self.world.names if name != leader]
        count = len(self.world.client_names)
        staying = self.random.sample(
            self.world.client_names, self.random.choice((0, count, self.random.randint(0, count)))
        )
        moving = [name for name in self.world.client_names if name not in staying]
        cut = self.random.choice((shapes.isolated, shapes.isolated, shapes.mute, shapes.deaf))
        ways = cut(leader, self.world.names) + shapes.between(others, staying) + shapes.between([leader], moving)
        self.network.cut_ways(ways)
        self.network.drop_all(moving)
        await trio.sleep(self.random.choice((0, 0.3, 1.0)) * self.random.random())
        usurper = self.random.choice(others)
        await self.world.operator.promote(usurper)
        await trio.sleep(self.random.choice((0.1, 0.5, 1.5)) * self.random.random())
        self.network.heal_ways(ways)
        if self.random.random() < 0.5:  # a third leadership, before the first leader has heard of the second
            machine = self.world.machine(usurper)
            if self.random.random() < 0.5:
                machine.kill(self.random.choice((End.KILL, End.POWER)))
            await self.world.operator.promote(self.random.choice([leader, *others]))
            machine.start()

    # Those who use it

    async def _kill_client(self):
        self.world.report.fault("client killed")
        self.random.choice(self.world.clients).kill(self.random.choice((0.1, 2.0)) * self.random.random())

    async def _other_keys(self):
        self.world.report.fault("fewer keys")
        self.world.use_fewer_keys(self.random)
