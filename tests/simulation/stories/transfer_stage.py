"""The steps of stories about segments between nodes: they fill chains, and hold up, change or end transfers."""

from __future__ import annotations

import contextlib
import itertools
from unittest import mock

import trio
from tests.processes.violation import Violation

from tailrace import Put
from tailrace.wire.frames import FRAME_HEADER_BYTES
from tailrace.wire.segment_messages import SegmentFetch
from tailrace_server.segment import SegmentDamaged
from tailrace_server.upkeep import compactor

from ..checks.equal_segments import choose_all
from .stage import Stage

# A row that takes about a part of a pushed segment.
LARGE_BYTES = 1_400
# The keys of a story's rows.
KEYS = 24


class TransferStage(Stage):
    """The nodes of a set, as `Stage` has them, whose segments pass from one to another."""

    def __init__(self, world):
        super().__init__(world)
        self._rows = 0
        self._random = world.random_of("story")

    async def begin_quietly(self, but=()):
        """Waits until all nodes have the same rows of partition 0, and keeps programs from all nodes from now on.

        Those of ``but`` go on. So only the story writes.
        """
        await self.ready()
        self._silence(but)
        for name in (self.first, self.second):
            await self.level(self.leader, name)

    def _silence(self, but):
        self.keep_away([name for name in self._world.program_names if name not in but])

    async def read(self, name):
        """Lets a program read the feed from one node, twice, from its first row on."""
        self._world.read_from = name
        self.network.drop_all(["reader"])
        done = self._reads() + 2
        await self.until(lambda: self._reads() >= done)

    def _reads(self):
        operations = self._world.report.operations
        return operations["state of a follower"] + operations["answer that a segment is damaged"]

    async def ready(self):
        """Waits until all nodes have rows of each partition."""
        await self.until(lambda: all(self.high_seqs(name) and all(self.high_seqs(name)) for name in self._world.names))

    @contextlib.asynccontextmanager
    async def writing(self, name=None):
        """A client of the story, of one node or of all. Yields a function that writes a block of partition 0."""
        url = None if name is None else self._world.url_of(name)
        async with self._world.connect_operator(f"story {self._rows}", url) as client:
            feed = client.feed(self._world.feed_name)

            async def write(rows, nbytes=LARGE_BYTES):
                puts = []
                for _ in range(rows):
                    self._rows += 1
                    puts.append(Put(self._key(self._rows), self._value(nbytes)))
                await feed.write(puts, level="disk")

            yield write

    def _value(self, nbytes):
        """Returns a value that no program has written, and that cannot be compressed."""
        return b"story.%d " % self._rows + self._random.randbytes(nbytes)

    def _key(self, number):
        """Returns a key of partition 0; the same ones come again and again."""
        keys = (b"story %d" % n for n in itertools.count())
        mine = (key for key in keys if self._world.partition_of(key) == 0)
        return next(itertools.islice(mine, number % KEYS, None))

    async def set_mode(self, mode):
        """Sets the replication mode of the feed."""
        async with self._world.connect_operator(f"mode {mode}") as client:
            await client.set_feed(self._world.feed_name, replication=mode)

    def chain(self, name):
        """Returns the segments of a node's partition 0."""
        return self.partitions(name)[0].chain.segments

    def is_ahead(self, name, seq):
        """Returns whether a node has rows of partition 0 ahead of its segments, up to ``seq``."""
        ahead = self.node(name).storage.ahead.find(self.partitions(name)[0])
        return ahead is not None and ahead.last_seq == seq

    def require_whole(self, name):
        """Reads all segments of a node's partition 0.

        Raises:
            Violation: One is damaged.
        """
        if (damage := self.partitions(name)[0].damage) is not None:
            raise Violation(f"{name} has a damaged partition: {damage}")
        for segment in self.chain(name):
            try:
                segment.read_blocks(0, segment.nbytes)
            except SegmentDamaged as error:
                raise Violation(f"{name} has a damaged segment: {error}") from None

    async def flush(self, name):
        """Moves all rows of a node's partition 0 to segments."""
        await self.node(name).storage.flusher.flush_all(self.partitions(name)[0])

    async def level(self, name, other):
        """Waits until partition 0 of two nodes has the same seq and log.

        Raises:
            Violation: It has not within 20 seconds, and nothing keeps the two from each other.
        """
        await self.until(lambda: self._end(name) == self._end(other))
        if self._end(name) != self._end(other):
            raise Violation(f"{other} does not catch up with {name}: {self._end(other)}, not {self._end(name)}")

    def _end(self, name):
        partition = self.partitions(name)[0]
        return partition.durable_seq, partition.high_seq, partition.log

    def by_segments(self, name):
        """Returns whether a node knows the feed in mode ``segment``."""
        return self.partitions(name)[0].pushes.by_segments

    async def acknowledged(self, name):
        """Waits until the leader knows that a follower has its newest segment."""
        placement_id = self.node(name).identity.placement_id
        pushes, newest = self.partitions(self.leader)[0].pushes, self.chain(self.leader)[-1].identity.segment_id
        await self.until(lambda: placement_id in pushes.placements.get(newest, ()))

    async def promised(self, name):
        """Waits until a node has promised a higher term than that of the leader that it knows."""
        now = self.node(name).members[0].local.file
        await self.until(lambda: now.now.term > now.now.leader_term)

    async def compact(self, name):
        """Compacts partition 0 of a node to one segment. The other rows have to be stable."""
        with mock.patch.object(compactor, "choose", choose_all):
            await self.until(lambda: self._is_compacted(name))

    async def trim(self, name):
        """Removes the files of a node that nothing needs."""
        await self.node(name).storage.flusher.trim()

    def _is_compacted(self, name):
        self.node(name).storage.compactor.consider(self.partitions(name)[0])
        return len(self.chain(name)) == 1

    async def large_base(self):
        """Writes a row of each key, in a segment so large that no compaction takes the next few small ones with it."""
        async with self.writing() as write:
            for _ in range(3):
                await write(KEYS // 3)
        await self.flush(self.leader)
        for name in (self.first, self.second):
            await self.level(self.leader, name)
        await self.compact(self.leader)
        for name in (self.first, self.second):
            await self.until(lambda name=name: len(self.chain(name)) == 1)

    async def fork(self, old, new):
        """Lets ``old`` write rows that no other node gets, and another leader other rows, in a segment with older ones.

        ``new`` leads from then on, and ``old`` is cut off.
        """
        self.cut_off(old)
        async with self.writing(old) as write:
            await write(3)
        await self.promote(new)
        async with self.writing(new) as write:
            await write(3)
        await self.flush(new)
        await self.until(lambda: self.partitions(new)[0].stable_seq == self.high_seqs(new)[0])
        await self.compact(new)

    async def behind(self, name, rows=12):
        """Writes rows, in one segment of the leader, while a node is down; the other follower gets all of them."""
        await self.end(name)
        async with self.writing() as write:
            await write(rows)
        await self.flush(self.leader)
        for other in self.five:
            if other != name:
                await self.level(self.leader, other)

    # Frames

    async def frame(self, opcode, sender, receiver, act=None, when=None):
        """Waits for a frame from one node to another, the first one for which ``when(frame)`` holds. Returns it.

        ``act(frame)`` returns the bytes to send instead, and whether the connection ends with them.
        """
        found, seen = trio.Event(), []

        def action(frame):
            if (frame.sender, frame.receiver) != (sender, receiver) or not (when is None or when(frame)):
                return frame.data, False
            self._world.transfers.disarm(opcode, action)
            seen.append(frame)
            found.set()
            return (frame.data, False) if act is None else act(frame)

        self._world.transfers.arm(opcode, action)
        with trio.move_on_after(20.0):
            await found.wait()
        self._world.transfers.disarm(opcode, action)
        return seen[0] if seen else None

    def is_last_part(self, frame):
        """Returns whether the part of a pushed file is the last one of the leader's newest segment."""
        offset = int.from_bytes(frame.body[8:16], "little")
        return offset + len(frame.data) - frame.head_bytes == self.chain(self.leader)[-1].nbytes

    @staticmethod
    def is_second_fetch(frame):
        """Returns whether a request for a part of a file is for a later part than the first one."""
        return SegmentFetch.decode(frame.body).offset > 0

    async def held(self, opcode, sender, receiver, when=None):
        """Holds up a connection from such a frame on. Returns the way of its bytes, for `release`."""

        def act(frame):
            self.network.hold_up(frame.pipe, lambda pipe, data: 0)
            return frame.data, False

        frame = await self.frame(opcode, sender, receiver, act, when)
        return None if frame is None else frame.pipe

    def release(self, pipe):
        """Ends `held`."""
        if pipe is not None:
            self.network.deliver(pipe)


def has_rows(frame):
    """Returns whether the second half of the part of a file that a frame has is of rows, which are not compressed."""
    half = frame.data[(frame.head_bytes + len(frame.data)) // 2 :]
    return len(half) > 100 and half.count(0) < len(half) // 50


def flipped(frame):
    """Flips a bit in the second half of the part of a file that a frame has."""
    data = bytearray(frame.data)
    data[-10] ^= 16
    return bytes(data), False


def cut_in_half(frame):
    """Drops the second half of the part of a file that a frame has."""
    return frame.with_body(frame.data[FRAME_HEADER_BYTES : (frame.head_bytes + len(frame.data)) // 2]), False
