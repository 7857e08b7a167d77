"""Who uses a set: writers of each level, who also look up what they write, and readers. All that they are told is kept.

Keys of level quorum are written and read at that level only, in short operations by several clients at once: their
histories are those that linearisability.py is asked about. Values are unique, so each tells who wrote it.
"""

from __future__ import annotations

import collections
import contextlib

import trio
from tests.fake_host import InlineWorker
from tests.processes.violation import Violation

import tailrace
from tailrace import (
    BadPosition,
    OutcomeUnknown,
    Put,
    Retryable,
    Rollback,
    StreamEnded,
    Unreachable,
    VersionConflict,
    VersionLost,
    WritesLost,
)
from tailrace.indexes import MemoryIndex
from tailrace.trio.host import Host

from ..checks.linearisability import Condition, Kind, Operation, Outcome
from .process import PATIENT_S, Process

FEED = "shared"


class SetProcess(Process):
    """A program whose client knows all nodes of the set."""

    def connect(self, url=None, **options):
        host = Host(
            connect=self.world.network.of(self.name).connect,
            worker=InlineWorker,
            random=self.random,
            new_session=self._new_session,
        )
        return tailrace.connect(url or self.world.url, name=self.name, host=host, **options)

    def _value(self):
        self.made = getattr(self, "made", 0) + 1
        size = self.random.choice((0, 0, 10, 60, 300, 1_500))
        return f"{self.name}.{self.made} ".encode() + bytes(size)


class WritingProcess(SetProcess):
    """Writes at one level, and now and then with a condition."""

    def __init__(self, world, name, level, pause_s=0.3, keys=""):
        super().__init__(world, name)
        self.level = level
        self._keys = keys or level
        self._pause_s = pause_s
        self._known = {}  # versions, by key

    async def session(self):
        retry_for = PATIENT_S if self.world.is_patient else self.random.choice((0.5, 2.0, PATIENT_S))
        with contextlib.suppress(Retryable), self.world.damage():
            async with self.connect(retry_for=retry_for, connect_timeout=5.0) as client:
                feed = client.feed(FEED)
                while not self.world.is_over.is_set():
                    await self._step(feed)
                    await self.pause(self.random.random() * self._pause_s)
            return
        await trio.sleep(0.1)

    async def _step(self, feed):
        key = self.random.choice(self.world.keys[self._keys])
        action = self.random.choices([self._put, self._conditional, self._delete, self._batch], [5, 3, 2, 2])[0]
        await action(feed, key)

    async def _put(self, feed, key):
        value = self._value()
        await self._write(key, value, lambda: feed.put(key, value, level=self.level))

    async def _conditional(self, feed, key):
        value, version = self._value(), self._known.get(key)
        if version is None:
            await self._write(key, value, lambda: feed.put(key, value, level=self.level, if_absent=True))
        else:
            await self._write(key, value, lambda: feed.put(key, value, level=self.level, if_version=version))

    async def _delete(self, feed, key):
        await self._write(key, None, lambda: feed.delete(key, level=self.level))

    async def _batch(self, feed, key):
        """Several rows in one block: the keys are of one partition."""
        of = self.world.partition_of
        keys = [other for other in self.world.keys[self._keys] if of(other) == of(key)][:3]
        changes = [(key, self._value()) for key in keys]
        write = self.world.promises.asked(self.world.place(of(key)), self.level, changes)
        with contextlib.suppress(OutcomeUnknown, WritesLost, Retryable):
            versions = await feed.write([Put(*change) for change in changes], level=self.level)
            self.world.promises.written(write, versions[of(key)])
            self.world.report.operation(f"batch at {self.level}")

    async def _write(self, key, value, send):
        write = self.world.promises.asked(self.world.place(self.world.partition_of(key)), self.level, [(key, value)])
        try:
            version = await send()
        except VersionConflict as conflict:
            self.world.promises.refused(write)
            self._known[key] = conflict.current
        except VersionLost:
            self.world.promises.refused(write)
            self._known.pop(key, None)
        except (OutcomeUnknown, WritesLost, Retryable) as error:
            self._known.pop(key, None)
            if isinstance(error, Unreachable) and error.outcome == "not sent":
                self.world.promises.refused(write)
            self.world.report.operation(f"write at {self.level} without an answer")
        else:
            self.world.promises.written(write, range_of(version))
            self._known[key] = None if value is None else version
            self.world.report.operation(f"write at {self.level}")


def range_of(version):
    """Of one row."""
    return tailrace.VersionRange(version.partition, version.branch, version.seq, version.seq)


class RegisterProcess(SetProcess):
    """Reads and writes keys at level quorum, each operation recorded with when it was asked for and answered."""

    def __init__(self, world, name, *, only=""):
        """``only``: "looks", or "refusals": writes under conditions that never hold; such a one does not wait long."""
        super().__init__(world, name)
        self._known = {}
        self._only = {"looks": self._get, "refusals": self._put_in_vain}.get(only)

    async def session(self):
        retry_for = PATIENT_S if self.world.is_patient else self.random.choice((0.5, 2.0, PATIENT_S))
        if self._only:
            retry_for = 0.3
        with contextlib.suppress(Retryable), self.world.damage():
            async with self.connect(retry_for=retry_for, connect_timeout=5.0) as client:
                feed = client.feed(FEED)
                while not self.world.is_over.is_set():
                    key = self.random.choice(self.world.keys["quorum"])
                    action = self.random.choices(
                        [self._get, self._put, self._put_if, self._delete, self._delete_if_present], [6, 3, 5, 1, 1]
                    )[0]
                    await (self._only or action)(feed, key)
                    await self.pause(self.random.random() * 0.2)
            return
        await trio.sleep(0.1)

    async def _get(self, feed, key):
        asked = self.world.histories.moment()
        try:
            item = await feed.get(key, level="quorum")
        except (Retryable, OutcomeUnknown):
            return
        value, version = (None, None) if item is None else (item.value, item.version)
        self._record(key, Operation(Kind.GET, asked, self._now(), Outcome.DONE, value, version, who=self.name))
        self._known[key] = version
        self.world.report.operation("get at quorum")

    async def _put(self, feed, key):
        value = self._value()
        await self._write(key, value, Condition.NONE, None, lambda: feed.put(key, value, level="quorum"))

    async def _put_if(self, feed, key):
        value, version = self._value(), self._known.get(key)
        if version is None:
            await self._write(
                key, value, Condition.IF_ABSENT, None, lambda: feed.put(key, value, level="quorum", if_absent=True)
            )
        else:
            await self._write(
                key,
                value,
                Condition.IF_VERSION,
                version,
                lambda: feed.put(key, value, level="quorum", if_version=version),
            )

    async def _put_in_vain(self, feed, key):
        """Where the key has the version that another one has."""
        of = self.world.partition_of
        others = [it for it in self._known if it != key and of(it) == of(key) and self._known[it] is not None]
        if not others or self.random.random() < 0.2:
            await self._get(feed, key)
            return
        value, version = self._value(), self._known[self.random.choice(others)]
        kept = dict(self._known)
        await self._write(
            key,
            value,
            Condition.IF_VERSION,
            version,
            lambda: feed.put(key, value, level="quorum", if_version=version),
        )
        self._known = kept

    async def _delete(self, feed, key):
        await self._write(key, None, Condition.NONE, None, lambda: feed.delete(key, level="quorum"))

    async def _delete_if_present(self, feed, key):
        await self._write(key, None, Condition.IF_PRESENT, None, lambda: feed.delete_if_present(key, level="quorum"))

    async def _write(self, key, value, condition, expected, send):
        world = self.world
        kind = Kind.DELETE if value is None else Kind.PUT
        operation = Operation(kind, self._now(), value=value, condition=condition, expected=expected, who=self.name)
        write = world.promises.asked(world.place(world.partition_of(key)), "quorum", [(key, value)])
        place = self._record(key, operation)
        try:
            version = await send()
        except VersionConflict as conflict:
            world.promises.refused(write)
            answer = operation._replace(answered=self._now(), outcome=Outcome.REFUSED, version=conflict.current)
            self._known[key] = conflict.current
        except VersionLost:  # says nothing of the key, but that nothing was written
            world.promises.refused(write)
            self._known.pop(key, None)
            world.operations[key][place] = None
            return
        except (OutcomeUnknown, WritesLost, Retryable):
            self._known.pop(key, None)
            world.report.operation("write at quorum without an answer")
            return
        else:
            if version is None:
                world.promises.refused(write)
                answer = operation._replace(answered=self._now(), outcome=Outcome.REFUSED)
            else:
                world.promises.written(write, range_of(version))
                answer = operation._replace(answered=self._now(), outcome=Outcome.DONE, version=version)
            self._known[key] = None if value is None else version
        world.operations[key][place] = answer
        world.report.operation(f"{condition.value}: {answer.outcome.value}")

    def _now(self):
        return self.world.histories.moment()

    def _record(self, key, operation):
        """Where it is recorded; its answer comes in its place."""
        self.world.operations[key].append(operation)
        return len(self.world.operations[key]) - 1


class CheckedIndex(MemoryIndex):
    """In memory; holds all that it is given against what was ever written, and the promise of its level."""

    def __init__(self, world, name, level):
        super().__init__()
        self._world = world
        self._name = name
        self._level = level
        self.positions = {}

    def apply(self, mutations, checkpoint):
        for partition, key, value, seq, _ in mutations:
            if value is not None:
                self._world.check_was_written(self._name, partition, key, value)
            del seq
        super().apply(mutations, checkpoint)
        self.positions = dict(checkpoint.positions)
        self._world.report.operation("apply", f"{self._name} {len(mutations)}")

    def rollback(self, partition, seq):
        self._world.rolled_back(self._name, partition, f"to {seq}", self._level)
        return super().rollback(partition, seq)


class FollowingProcess(SetProcess):
    """Follows the feed into an index that outlives it, and asks for barriers."""

    def __init__(self, world, name, level):
        super().__init__(world, name)
        self.level = level
        self.index = CheckedIndex(world, name, level)
        self.follower = None
        self.started = trio.Event()
        self.until = world.may_end

    async def session(self):
        try:
            async with contextlib.AsyncExitStack() as stack:
                client = await stack.enter_async_context(self.connect(retry_for=PATIENT_S, connect_timeout=5.0))
                following = client.feed(FEED).follow(self.index, visibility=self.level)
                self.follower = await stack.enter_async_context(following)
                self.started.set()
                while not self.world.is_over.is_set():
                    await self.pause(self.random.random() * 2.0)
                    await self.barrier()
                await self.world.may_end.wait()
        except Retryable:
            if self.follower is not None:
                raise
            await trio.sleep(0.1)  # nobody was there at the start
        finally:
            self.follower = None
            self.started = trio.Event()

    async def barrier(self):
        """A barrier: the index has all that was acknowledged before it was asked for, as far as that still stands."""
        floors = self.world.promises.floors()
        begun = self.world.histories.moment()
        await self.follower.barrier()
        self.world.barriers.append((self.name, begun, floors, dict(self.index.positions)))
        self.world.report.operation("barrier", self.name)


class FollowerReader(SetProcess):
    """Reads from one node of the set that follows: a look-up, or some of its stream."""

    async def session(self):
        url = self.world.url_of(self.world.read_from or self.random.choice(self.world.names))
        # One whose disk is new is of a cluster of its own until it follows.
        with contextlib.suppress(Retryable, StreamEnded, BadPosition), self.world.damage():
            with trio.move_on_after(3.0):
                await self._read(url)
        await self.pause(0.2)

    async def _read(self, url):
        async with self.connect(url, state="follower", retry_for=1.0, connect_timeout=2.0) as client:
            feed = client.feed(FEED)
            while not self.world.is_over.is_set():
                if self.world.read_from is not None:
                    await self._consume(feed)
                    await self.pause(0.05 * self.random.random())
                    continue
                await self.random.choice((self._get, self._consume))(feed)
                await self.pause(self.random.random() * 0.5)

    async def _get(self, feed):
        key = self.random.choice(self.world.keys["disk"])
        item = await feed.get(key, level="disk")
        if item is not None:
            self.world.check_was_written(self.name, self.world.partition_of(key), key, item.value)
        self.world.report.operation("get from a follower")

    async def _consume(self, feed):
        """Its state at each moment that its stream names: one that there was."""
        level = self.world.read_level or self.random.choice(("memory", "disk", "quorum"))
        states = collections.defaultdict(dict)
        async with feed.consume(until="now", visibility=level) as stream:
            async for event in stream:
                if isinstance(event, Rollback):
                    if event.seq:  # else a deletion that it has not seen was purged
                        self.world.rolled_back(self.name, event.partition, f"to {event.seq}", level)
                    return
                if isinstance(event, tailrace.Mutations):
                    for key, value in zip(event.keys(), event.values(), strict=True):
                        states[event.partition][key] = value
                        if value is not None:
                            self.world.check_was_written(self.name, event.partition, key, value)
                if isinstance(event, tailrace.SnapshotEnd):
                    self.world.check_state(self.name, event.partition, states[event.partition], event.position)
                    self.world.promises.shown(self.world.place(event.partition), level, event.position)
        self.world.report.operation("state of a follower")


class FoundingProcess(SetProcess):
    """Makes a feed, writes a row, and drops it, again and again under one name."""

    def __init__(self, world, name):
        super().__init__(world, name)
        self.dropped = []  # ids of feeds whose drop was answered

    async def session(self):
        with (
            contextlib.suppress(Retryable, OutcomeUnknown, tailrace.UnknownFeed, tailrace.FeedExists),
            self.world.damage(),
        ):
            async with self.connect(retry_for=PATIENT_S, connect_timeout=5.0) as client:
                while not self.world.is_over.is_set():
                    feed = await client.create_feed("passing", partitions=self.random.choice((1, 2)))
                    try:
                        feed_id = await self._use(client, feed)
                    except tailrace.UnknownFeed:
                        self._is_missing("the feed that it has made")
                        continue
                    await client.drop_feed("passing")
                    self.dropped.append(feed_id)
                    self.world.report.operation("feed made and dropped")
                    await self.pause(self.random.random() * 2.0)
            return
        await trio.sleep(0.1)

    async def _use(self, client, feed):
        """The feed's id. What it was told of is there, a while later too."""
        infos = [info for info in await client.feeds() if info.name == "passing"]
        if not infos:
            raise tailrace.UnknownFeed("it is not listed")
        value, level = self._value(), self.random.choice(("disk", "quorum"))
        await feed.put(b"key", value, level=level)
        await self.pause(self.random.random() * 2.0)
        item = await feed.get(b"key", level="quorum")
        if level == "quorum" and (item is None or item.value != value):
            self._is_missing("what it has written at quorum")
        return infos[0].feed_id

    def _is_missing(self, what):
        if self.world.promises.forced_at is None:
            raise Violation(f"{self.name} does not find {what}, and nobody has forced a promotion")
