"""What goes wrong, and when."""

from __future__ import annotations

import contextlib
import errno

import trio

from .machine import FAILING, End

# How often each kind comes, against the others.
KINDS = {
    "kill": 3,
    "power": 3,
    "crash_at_call": 6,
    "power_at_sync": 4,
    "stop": 1,
    "cut": 3,
    "drop": 4,
    "slow_disk": 2,
    "failing_disk": 2,
    "full_disk": 1,
    "slow_network": 1,
    "fragments": 1,
    "losses": 4,
    "kill_follower": 3,
    "kill_in_index": 3,
    "kill_another": 2,
    "set_clock": 1,
    "other_keys": 4,
}
# While one of these goes on no other begins.
ALONE = ("losses",)


class Faults:
    """One after the other, with pauses, and some of them at once."""

    def __init__(self, world):
        self.world = world
        self.random = world.random_of("faults")
        self.machine = world.machine
        self.network = world.network
        # In a calm run nodes live long enough to fold and purge a lot; in a stormy one nothing ever comes to its end.
        self._pause = self.random.choice((0.5, 1.0, 1.0, 3.0))

    async def run(self, seconds):
        """Lets things go wrong for so long, and mends everything then."""
        async with trio.open_nursery() as nursery:
            with trio.move_on_after(seconds):
                nursery.start_soon(self._operate)
                while True:
                    await trio.sleep(self._pause * self.random.choice((0.05, 0.5, 2.0)) * self.random.random())
                    (kind,) = self.random.choices(list(KINDS), KINDS.values())
                    if kind in ALONE:
                        await getattr(self, "_" + kind)()
                    else:
                        nursery.start_soon(getattr(self, "_" + kind))
            nursery.cancel_scope.cancel()
        self._mend()

    def _mend(self):
        self.world.haste.end()
        for follower in self.world.followers:
            follower.index.steps.left = None
        self.machine.expect_nothing()
        self.network.heal_all()
        self.network.seconds_max = 0.002
        self.machine.mend()
        if self.machine.has_given_up:
            self.machine.kill(End.KILL)
        self.machine.start()
        self.world.report.note("mended")

    async def _operate(self):
        """Somebody restarts a node that takes nothing more."""
        while True:
            await trio.sleep(0.5 + self.random.random())
            if self.machine.has_given_up:
                self.machine.kill(End.KILL)
                self.world.report.fault("restart of a node that has given up")
                self.machine.start()

    # The node

    async def _kill(self):
        self.world.report.fault("process killed")
        await self._end_node(End.KILL)

    async def _power(self):
        self.world.report.fault("power cut")
        await self._end_node(End.POWER)

    async def _end_node(self, end):
        self.machine.kill(end)
        await trio.sleep(self.random.choice((0, 0.5, 4.0)) * self.random.random())
        self.machine.start()

    async def _crash_at_call(self):
        end = self.random.choice((End.KILL, End.POWER))
        self.world.report.fault(f"{end.value} at a call of the disk")
        self.machine.crash_at_call(self.random.randrange(self.random.choice((3, 20, 60))), end)

    async def _power_at_sync(self):
        self.world.report.fault("power cut at an fsync")
        self.machine.crash_at_sync(self.random.randrange(10))

    async def _losses(self):
        """Power cuts in a row, each as somebody has been told of the one before: what he reads again is lost too.

        A few keys are written all the time, at level memory, so that he reads what is not durable yet; whoever would
        have it made durable is cut off, and he himself until there is something to read.
        """
        world, network, machine = self.world, self.network, self.machine
        world.report.fault("power cuts in a row")
        reader = self.random.choice([world.followers[2], world.followers[2], world.others[0]])
        keys = self._keys_of(self.random.randrange(len(world.truth.partitions)))
        network.seconds_max = 0.0003  # all that takes less time than until something is durable
        with self._cut_off("writer-1", "writer-3", "looker", *(sink.name for sink in world.sinks)):
            for _ in range(self.random.choice((2, 3, 4))):
                await machine.up()
                world.keys_in_use = self.random.sample(keys, 3)
                world.haste.begin()
                with trio.move_on_after(1.0):
                    await world.haste.enough.wait()
                has_lost = world.truth.has_lost(reader.positions)
                read_again = world.read_again
                network.heal(reader.name, machine.name)
                with trio.move_on_after(0.2 if has_lost else 0.02):
                    await read_again.wait()
                    await trio.sleep(self.random.choice((0, 0, 0.005)) * self.random.random())
                    network.cut(reader.name, machine.name)
                await self._lose_power_at_sync()
                network.cut(reader.name, machine.name)
                machine.start()
            network.heal(reader.name, machine.name)
        network.seconds_max = 0.002
        world.keys_in_use = world.keys

    def _keys_of(self, partition):
        return [key for key in self.world.keys if self.world.truth.history.partition_of(key) == partition]

    @contextlib.contextmanager
    def _cut_off(self, *names):
        for name in names:
            self.network.cut(name, self.machine.name)
        try:
            yield
        finally:
            for name in names:
                self.network.heal(name, self.machine.name)

    async def _lose_power_at_sync(self):
        """Before something is durable that is shown at level memory, if there is anything."""
        self.machine.crash_at_sync(0)
        self.machine.loses_all = self.random.random() < 0.8
        with trio.move_on_after(0.05):
            await self.machine.life_over()
        self.world.haste.end()
        self.machine.expect_nothing()
        self.machine.kill(End.POWER)

    async def _stop(self):
        self.world.report.fault("clean stop")
        await self.machine.stop()
        self.machine.start()

    async def _slow_disk(self):
        self.world.report.fault("slow disk")
        self.machine.slowness_s = self.random.choice((0.002, 0.02, 0.2))
        await trio.sleep(2.0 * self.random.random())
        self.machine.slowness_s = 0.0

    async def _failing_disk(self):
        self.world.report.fault("disk errors")
        names = self.random.sample(FAILING, self.random.randint(1, 3))
        self.machine.fail_calls(names, self.random.choice((0.05, 0.3, 1.0)), errno.EIO)
        await trio.sleep(2.0 * self.random.random())
        self.machine.mend()

    async def _full_disk(self):
        self.world.report.fault("full disk")
        self.machine.fill(self.random.randint(0, 6_000))
        await trio.sleep(3.0 * self.random.random())
        self.machine.mend()

    async def _set_clock(self):
        self.world.report.fault("wall clock set")
        self.machine.node_clock.jump(self.random.choice((-3_600, -5, 5, 60)))

    # The network

    async def _cut(self):
        one = self.random.choice(self.world.processes).name
        self.world.report.fault("cut", one)
        self.network.cut(one, self.machine.name)
        await trio.sleep(self.random.choice((0.2, 2.0, 8.0)) * self.random.random())
        self.network.heal(one, self.machine.name)

    async def _drop(self):
        transports = list(self.network.transports)
        if transports:
            self.world.report.fault("connection dropped")
            self.network.drop(self.random.choice(transports))

    async def _slow_network(self):
        self.world.report.fault("slow network")
        self.network.seconds_max = self.random.choice((0.02, 0.2))
        await trio.sleep(2.0 * self.random.random())
        self.network.seconds_max = 0.002

    async def _fragments(self):
        self.network.fragments = not self.network.fragments

    # Those who use it

    async def _kill_follower(self):
        self.world.report.fault("follower killed")
        self.random.choice(self.world.followers[1:]).kill(self.random.choice((0.1, 3.0, 8.0)) * self.random.random())

    async def _kill_in_index(self):
        """One dies before one of the next durable steps of its index; which fault it is, is told as it happens."""
        self.random.choice(self.world.followers[1:]).index.steps.left = self.random.randrange(20)

    async def _kill_another(self):
        self.world.report.fault("writer, consumer or looker killed")
        self.random.choice([*self.world.writers, *self.world.others]).kill(
            self.random.choice((0.1, 3.0)) * self.random.random()
        )

    async def _other_keys(self):
        """Other partitions are written to, and the rest is quiet."""
        count = self.random.choice((1, 1, 2, len(self.world.truth.partitions)))
        chosen = self.random.sample(sorted(self.world.truth.partitions), count)
        of = self.world.truth.history.partition_of
        self.world.keys_in_use = [key for key in self.world.keys if of(key) in chosen]
