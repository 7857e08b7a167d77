"""The steps of stories: they cut, kill and promote the nodes of a set, and wait for states of it."""

from __future__ import annotations

import trio

from tailrace.wire.opcodes import Opcode
from tailrace_server.feeds.feed import SYSTEM_FEED_ID

from ..faults import shapes
from ..machine import End

# In the header of a segment's first block: without that nothing behind it is read.
SEGMENT_BYTE = 80


class Stage:
    """The nodes of a set by their parts in a story: the leader, and the others in the order of their names."""

    def __init__(self, world):
        self._world = world
        self.network = world.network
        self.leader = next(machine.name for machine in world.machines if world.leads(machine))
        self.first, self.second, *self.more = [name for name in world.names if name != self.leader]

    @property
    def three(self):
        return self.leader, self.first, self.second

    @property
    def all(self):
        return [self.leader, self.first, self.second, *self.more]

    @property
    def five(self):
        return self.leader, self.first, self.second, *self.more

    def machine(self, name):
        return self._world.machine(name)

    def cut(self, *pairs):
        for one, other in pairs:
            self.network.cut(one, other)

    def part(self, some, others):
        """Cuts each node of the one side from each of the other, until ``rejoin``."""
        self.network.cut_ways(shapes.between(some, others))

    def rejoin(self, some, others):
        """Ends ``part``."""
        self.network.heal_ways(shapes.between(some, others))

    def heal(self, *pairs):
        for one, other in pairs:
            self.network.heal(one, other)

    def send_clients(self, node, names=None):
        """Lets these programs, or all, reach one node only, and breaks their connections."""
        names = self._world.program_names if names is None else names
        others = [name for name in self._world.names if name != node]
        self.network.heal_ways(shapes.between([node], names))
        self.network.cut_ways(shapes.between(others, names))
        self.network.drop_all(names)

    def write_patiently(self, node):
        """Sends all programs to one node. From now on writers wait for each answer as long as it takes."""
        self._world.is_patient = True
        for writer in self._world.writers:
            writer.kill(0.01)
        self.send_clients(node)

    def cut_off(self, name):
        """Cuts a node from all others."""
        self.network.cut_ways(shapes.isolated(name, self._world.names))

    def delay_rows(self, sender, receiver):
        """Holds up the rows of the feed that all programs use, and the frames of their streams behind them.

        Until all is healed.
        """
        self._delay(sender, receiver, self._world.feed_id, lambda opcode, body: opcode == Opcode.BLOCK)

    def delay_end_of_feeds(self, sender, receiver, seq):
        """Holds up the end of a snapshot of the list of feeds above ``seq``, and the frames of its stream behind it."""

        def is_late(opcode, body):
            return opcode == Opcode.SNAPSHOT_END and int.from_bytes(body[8:16], "little") > seq

        self._delay(sender, receiver, SYSTEM_FEED_ID, is_late)

    def delay_feeds(self, sender, receiver):
        """Holds up the rows of the list of feeds, and the frames of its stream behind them. Until all is healed."""
        self._delay(sender, receiver, SYSTEM_FEED_ID, lambda opcode, body: opcode == Opcode.BLOCK)

    def _delay(self, sender, receiver, feed_id, is_late):
        """Holds up a feed's streams, each from its first frame on for which ``is_late(opcode, body)`` is true."""
        asked, late = feed_id.hex().encode(), set()

        def is_held(pipe, opcode, id, body):
            stream = (pipe, id)
            if stream not in late and asked in pipe.back.requests.get(id, b"") and is_late(opcode, body):
                late.add(stream)
            return stream in late

        self.network.hold_up_frames((sender, receiver), is_held)

    def bring_back(self, name):
        """Ends ``cut_off``."""
        self.network.heal_ways(shapes.isolated(name, self._world.names))

    @property
    def feed_id(self):
        """The id of the feed that all programs use."""
        return self._world.feed_id

    def node(self, name):
        return self.machine(name).life.node

    def partitions(self, name):
        """Returns a node's partitions of the feed that all programs use; none if it has not heard of the feed yet."""
        feeds = self.node(name).feeds
        return feeds.of_id(self._world.feed_id).partitions if self._world.feed_id in feeds else ()

    def high_seqs(self, name):
        """Returns the high seq of each of these partitions."""
        return [partition.high_seq for partition in self.partitions(name)]

    def is_beyond(self, name, high_seqs):
        """Returns whether a partition has a higher seq than in ``high_seqs``."""
        return any(seq > had for seq, had in zip(self.high_seqs(name), high_seqs, strict=True))

    def lacks(self, name, high_seqs):
        """Returns whether a partition has a lower seq than in ``high_seqs``."""
        return any(seq < had for seq, had in zip(self.high_seqs(name), high_seqs, strict=True))

    def quorum_seqs(self, name):
        """Returns up to which seq the node believes that a majority has each partition."""
        return [partition.quorum_seq for partition in self.partitions(name)]

    def is_ahead_of_itself(self, name):
        """Returns whether a log names a branch whose base is above all rows of the node."""
        return any(p.log and p.log[0].base > p.high_seq for p in self.partitions(name))

    async def until(self, condition):
        """Waits until the condition holds, at most 20 seconds. If it never holds, the story is another one."""
        with trio.move_on_after(20.0):
            while not condition():  # noqa: ASYNC110 - it has no event
                await trio.sleep(0.001)

    def keep_away(self, names):
        """Keeps these programs from all nodes, until `let_in`."""
        self.network.cut_ways(shapes.between(self._world.names, names))
        self.network.drop_all(names)

    def let_in(self, names):
        """Ends `keep_away`."""
        self.network.heal_ways(shapes.between(self._world.names, names))

    def waits_to_flush(self, name):
        """Returns whether a request for a checkpoint waits at a node for its flush."""
        return any(lock.locked() for lock in self.node(name).storage.checkpoints._flushing.values())

    def holds_back(self, name):
        """Returns whether writes were acknowledged at quorum whose rows are in no segment of a node yet."""
        floors, partitions = self._world.checks.lasting_floors(), self.partitions(name)
        return any(seq > partitions[number].flushed_seq for number, told in floors.items() for _, seq in told)

    def voters(self, name):
        """Returns the record of the voters that a node has stored."""
        return self.node(name).members[0].local.file.now.voters

    async def seated(self, name):
        """Waits until a node knows that its disk has a vote."""
        await self.until(lambda: self.node(name).members[0].local.votes)

    async def has_stepped_down(self, name):
        """Waits until the node does not lead."""
        await self.until(lambda: not self._world.leads(self.machine(name)))

    async def fetched(self, count):
        """Waits until ``count`` more fetches have come to their end, whatever became of them."""
        wanted = self._fetches() + count
        await self.until(lambda: self._fetches() >= wanted)

    def _fetches(self):
        operations = self._world.report.operations
        return sum(number for name, number in operations.items() if name.startswith("fetch: "))

    async def leads(self, name):
        """Waits until the node leads."""
        await self.until(lambda: self._world.leads(self.machine(name)))

    async def follows(self, name, leader):
        """Waits until the node follows ``leader``."""
        await self.until(lambda: self.node(name).leaderships.system.leader.startswith(f"{leader}:"))

    def hang(self, name):
        """Lets no fsync of the node end. ``wait_for_disk`` has to come long before."""
        self.machine(name).stall_s = 60.0

    def wait_for_disk(self, name):
        """Makes the node's disk slow, so that it calls fsync in a thread."""
        self.machine(name).slowness_s = 0.02

    def feeds(self, name):
        """Returns the partitions of all feeds of a node, by the feed's name."""
        return {feed.info.name: feed.partitions for feed in self.node(name).feeds}

    def damage_segments(self, name, byte=SEGMENT_BYTE):
        """Damages a byte of each segment of the feed that all programs use. Returns the places for `mend_segments`."""
        disk = self.machine(name).disk
        paths = [segment.path for partition in self.partitions(name) for segment in partition.chain.segments]
        places = [(path, 8 * (byte % len(disk.content(path)))) for path in paths]
        for place in places:
            disk.flip(*place)
        return places

    def mend_segments(self, name, places):
        """Mends the bytes that `damage_segments` has damaged."""
        for path, bit in places:
            if self.machine(name).disk.exists(path):
                self.machine(name).disk.flip(path, bit)

    def hold_publishes(self, name, number):
        """Stops publishes before they read the rows for partition ``number``. Returns an event that lets them go on."""
        publisher, goes_on = self.node(name).publisher, trio.Event()
        read = publisher._blocks

        async def read_later(asked_for, share):
            if asked_for == number:
                await goes_on.wait()
            return await read(asked_for, share)

        publisher._blocks = read_later
        return goes_on

    async def promote(self, name):
        """Promotes a node, and returns whether it leads."""
        return await self._world.operator.promote(name)

    def promised(self, name):
        """Returns the term that a node has promised."""
        return self.node(name).members[0].local.file.now.term

    async def promise_in_vain(self, name):
        """Lets a node promise itself a term, and reach no other one from then on, until that try to lead has ended."""
        before = self.promised(name)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.promote, name)
            await self.until(lambda: self.promised(name) > before)
            self.cut_off(name)
            await self.until(lambda: not self.node(name).members[0].local.promoting)
            nursery.cancel_scope.cancel()
        self.bring_back(name)

    async def hand_over(self, name, to):
        """Hands the leadership over to another node, and returns whether that node leads."""
        return await self._world.operator.hand_over(name, to)

    async def remove_member(self, leader, name):
        """Lets the leader remove a member, and waits until its seat is gone, or 2 seconds."""
        assert await self._world.operator.change_members(leader, "remove", name), f"{leader} does not remove {name}"
        with trio.move_on_after(2.0):
            await self.until(lambda: not self.is_member(leader, name))

    async def add_member(self, leader, name):
        """Gives a removed member an empty disk, lets the leader add it, and waits until it has a seat."""
        await self.end(name, End.POWER)
        self.machine(name).replace_disk()
        await self.begin(name)
        assert await self._world.operator.change_members(leader, "add", name), f"{leader} does not add {name}"
        await self.until(lambda: self.is_member(leader, name))

    def is_member(self, leader, name):
        """Returns whether a member has a seat by the record of the leader, or is to lose it."""
        return any(each.startswith(f"{name}:") for each in self.voters(leader).names)

    async def force(self, name):
        """Promotes a node by force."""
        return await self._world.operator.promote(name, force=True)

    async def written(self, count):
        """Waits until a majority has ``count`` more writes, at most 10 seconds. Programs find the leader first."""
        acknowledged = self._world.checks.promises.count("quorum") + count
        with trio.move_on_after(10.0):
            while self._world.checks.promises.count("quorum") < acknowledged:  # noqa: ASYNC110 - it has no event
                await trio.sleep(0.01)

    async def looked(self, count):
        """Waits until ``count`` more look-ups at level quorum were answered."""
        operations = self._world.report.operations
        wanted = operations["get at quorum"] + count
        await self.until(lambda: operations["get at quorum"] >= wanted)

    async def restart(self, name, end=End.KILL):
        await self.end(name, end)
        await self.begin(name)

    async def lose(self, name):
        """Cuts the power of a node, which loses all bytes that were not synced."""
        self.machine(name).loses_all = True
        await self.end(name, End.POWER)

    async def end(self, name, end=End.KILL):
        self.machine(name).kill(end)
        await self.machine(name).life_over()

    async def change_disk(self, name, disk):
        """Starts a machine with another disk. Returns the disk that it had."""
        await self.end(name)
        before = self.machine(name).put_disk(disk)
        await self.begin(name)
        return before

    async def begin(self, name):
        """Starts a node, with a fast disk."""
        machine = self.machine(name)
        machine.stall_s = machine.slowness_s = 0.0
        machine.start()
        await machine.up()
