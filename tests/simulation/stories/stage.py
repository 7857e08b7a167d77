"""What a story is told with: who is who in a set of three or five, and what is done to them."""

from __future__ import annotations

import trio

from tailrace.wire.frames import FRAME_HEADER_BYTES
from tailrace.wire.opcodes import Opcode
from tailrace_server.feeds.feed import SYSTEM_FEED_ID

from ..faults import shapes
from ..machine import End

# In the header of a segment's first block: without that nothing behind it is read.
SEGMENT_BYTE = 80


class Stage:
    """Who is who, and what is done to them."""

    def __init__(self, world):
        self._world = world
        self.network = world.network
        self.leader = next(machine.name for machine in world.machines if world.leads(machine))
        self.first, self.second, *self.more = [name for name in world.names if name != self.leader]

    @property
    def three(self):
        return self.leader, self.first, self.second

    @property
    def five(self):
        return self.leader, self.first, self.second, *self.more

    def machine(self, name):
        return self._world.machine(name)

    def cut(self, *pairs):
        for one, other in pairs:
            self.network.cut(one, other)

    def part(self, some, others):
        """Nobody of the one side hears anybody of the other, until ``rejoin``."""
        self.network.cut_ways(shapes.between(some, others))

    def rejoin(self, some, others):
        """Ends ``part``."""
        self.network.heal_ways(shapes.between(some, others))

    def heal(self, *pairs):
        for one, other in pairs:
            self.network.heal(one, other)

    def send_clients(self, node, names=None):
        """These clients reach that node only, and come to it at once."""
        names = self._world.program_names if names is None else names
        others = [name for name in self._world.names if name != node]
        self.network.heal_ways(shapes.between([node], names))
        self.network.cut_ways(shapes.between(others, names))
        self.network.drop_all(names)

    def write_patiently(self, node):
        """All clients come to that node, and whoever writes waits for the answer as long as it takes."""
        self._world.is_patient = True
        for writer in self._world.writers:
            writer.kill(0.01)
        self.send_clients(node)

    def cut_off(self, name):
        """Nobody of the set hears it, and it hears nobody."""
        self.network.cut_ways(shapes.isolated(name, self._world.names))

    def delay_rows(self, sender, receiver):
        """Of the feed that everybody writes to no row arrives any more, nor what is behind it, until all heals."""
        self._delay(sender, receiver, self._world.feed_id, lambda opcode, body: opcode == Opcode.BLOCK)

    def delay_end_of_feeds(self, sender, receiver, seq):
        """What says that all feeds up to a seq above ``seq`` were told comes late, and what is behind it."""

        def is_late(opcode, body):
            return opcode == Opcode.SNAPSHOT_END and int.from_bytes(body[8:16], "little") > seq

        self._delay(sender, receiver, SYSTEM_FEED_ID, is_late)

    def _delay(self, sender, receiver, feed_id, is_late):
        """Frames of the connections that copy a feed are late from the first one on that ``is_late(opcode, body)``."""
        asked = feed_id.hex().encode()

        def passing(pipe, data):
            place = 0
            while asked in pipe.back.begun and place + FRAME_HEADER_BYTES <= len(data):
                end = place + FRAME_HEADER_BYTES + int.from_bytes(data[place : place + 4], "little")
                if is_late(data[place + 4], data[place + FRAME_HEADER_BYTES : end]):
                    return place
                place = end
            return len(data)

        self.network.hold_up((sender, receiver), passing)

    def bring_back(self, name):
        """Ends ``cut_off``."""
        self.network.heal_ways(shapes.isolated(name, self._world.names))

    def node(self, name):
        return self.machine(name).life.node

    def partitions(self, name):
        """Those of the feed that everybody writes to; none where it has not heard of that yet."""
        feeds = self.node(name).feeds
        return feeds.of_id(self._world.feed_id).partitions if self._world.feed_id in feeds else ()

    def high_seqs(self, name):
        """How far it has each of them."""
        return [partition.high_seq for partition in self.partitions(name)]

    def is_beyond(self, name, high_seqs):
        """It has more than that of one of them."""
        return any(seq > had for seq, had in zip(self.high_seqs(name), high_seqs, strict=True))

    def lacks(self, name, high_seqs):
        """It has less than that of one of them."""
        return any(seq < had for seq, had in zip(self.high_seqs(name), high_seqs, strict=True))

    def quorum_seqs(self, name):
        """How far it believes that a majority has each of them."""
        return [partition.quorum_seq for partition in self.partitions(name)]

    def is_ahead_of_itself(self, name):
        """A node's log names a branch that begins above all that it holds."""
        return any(p.log and p.log[0].base > p.high_seq for p in self.partitions(name))

    async def until(self, condition):
        """Looks every millisecond whether it holds, for a while: where it never does the story is another one."""
        with trio.move_on_after(20.0):
            while not condition():  # noqa: ASYNC110 - it tells nobody
                await trio.sleep(0.001)

    async def leads(self, name):
        """Until it leads."""
        await self.until(lambda: self._world.leads(self.machine(name)))

    async def follows(self, name, leader):
        """Until it has begun to follow that one."""
        await self.until(lambda: self.node(name).leaderships.system.leader.startswith(f"{leader}:"))

    def hang(self, name):
        """Nothing that the disk is waited for comes to an end there; ``wait_for_disk`` comes long before."""
        self.machine(name).stall_s = 60.0

    def wait_for_disk(self, name):
        """From now on fsyncs take so long there that they are made in a thread."""
        self.machine(name).slowness_s = 0.02

    def feeds(self, name):
        """The partitions of all feeds there, by name."""
        return {feed.info.name: feed.partitions for feed in self.node(name).feeds}

    def damage_segments(self, name, byte=SEGMENT_BYTE):
        """Damages a byte of each segment of the feed that everybody writes to; what `mend_segments` is given."""
        disk = self.machine(name).disk
        paths = [segment.path for partition in self.partitions(name) for segment in partition.chain.segments]
        places = [(path, 8 * (byte % len(disk.content(path)))) for path in paths]
        for place in places:
            disk.flip(*place)
        return places

    def mend_segments(self, name, places):
        """Good copies are put in the place of damaged segments."""
        for path, bit in places:
            if self.machine(name).disk.exists(path):
                self.machine(name).disk.flip(path, bit)

    def hold_publishes(self, name, number):
        """Publishes stand still there before they read what partition ``number`` is to get, until an event is set."""
        publisher, goes_on = self.node(name).publisher, trio.Event()
        read = publisher._blocks

        async def read_later(asked_for, share):
            if asked_for == number:
                await goes_on.wait()
            return await read(asked_for, share)

        publisher._blocks = read_later
        return goes_on

    async def promote(self, name):
        """Until it leads, or does not want to."""
        return await self._world.operator.promote(name)

    async def hand_over(self, name, to):
        """Until the other one leads, or it is said that it does not, or for a while."""
        return await self._world.operator.hand_over(name, to)

    async def force(self, name):
        """It leads, whoever else does."""
        return await self._world.operator.promote(name, force=True)

    async def written(self, count):
        """Until a majority has so many more writes: clients may take a while to come to another leader."""
        acknowledged = self._world.checks.promises.count("quorum") + count
        with trio.move_on_after(10.0):
            while self._world.checks.promises.count("quorum") < acknowledged:  # noqa: ASYNC110 - it tells nobody
                await trio.sleep(0.01)

    async def looked(self, count):
        """Until so many more looks at level quorum had an answer."""
        operations = self._world.report.operations
        wanted = operations["get at quorum"] + count
        await self.until(lambda: operations["get at quorum"] >= wanted)

    async def restart(self, name, end=End.KILL):
        await self.end(name, end)
        await self.begin(name)

    async def lose(self, name):
        """Its power fails, and all is lost that was not synced."""
        self.machine(name).loses_all = True
        await self.end(name, End.POWER)

    async def end(self, name, end=End.KILL):
        self.machine(name).kill(end)
        await self.machine(name).life_over()

    async def change_disk(self, name, disk):
        """A machine is started with another disk; gives the one that it had."""
        await self.end(name)
        before = self.machine(name).put_disk(disk)
        await self.begin(name)
        return before

    async def begin(self, name):
        """Starts it, with a disk that is well."""
        machine = self.machine(name)
        machine.stall_s = machine.slowness_s = 0.0
        machine.start()
        await machine.up()
