"""One node whose process is killed and started again and again, under writers and readers.

Each process has a `Life`: a clean stop, or a SIGKILL at any moment, at a call of its disk, in its recovery or in a
clean stop. Each start is compared with the end before it: whether a new branch begins, and whether the node says why.
"""

from __future__ import annotations

import dataclasses
import enum
import signal
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import trio

import tailrace
from tailrace_server.config import Config
from tailrace_server.node.start import recover
from tailrace_server.runtime.host import Host

from .copies import read_copy
from .founders import Founder
from .group import Group
from .history import History
from .node import NodeFailed
from .program import Orders
from .readers import Consumer, FollowedIndex, Looker
from .run import FEED, Run, Scenario
from .violation import Violation
from .writers import PipelinedWriter, Restless, Values, Writer

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable
    from contextlib import AsyncExitStack

    from tailrace import Version

T = TypeVar("T")

PARTITIONS = 5
KEYS = [f"key {number}".encode() for number in range(200)]
# Longer than any outage here: a client that waits this long gets an answer, or the run has failed.
PATIENT_S = 120.0
# Shorter than most outages: a write that meets one is given up, and its outcome is unknown.
IMPATIENT_S = 0.15
# The time without an fsync during which the node goes on with everything that needs none.
HANGING_S = 1.0
# Calls that change the disk: the fewest in a start over a directory with a feed, and those in a clean stop.
CALLS_IN_A_START = 20
CALLS_IN_A_STOP = 7
# Sizes so small that write queues are flushed, their segments merged, and journal files finished all the time.
STORAGE = {
    "segment_bytes": 16 * 1024,
    "flush_age_s": 1.0,
    "journal_file_bytes_max": 256 * 1024,
    "reserve_bytes": 256 * 1024,
}


class End(enum.Enum):
    """How a process ends."""

    KILL = "SIGKILL from outside, after some answers"
    KILL_SETTLED = "SIGKILL from outside, when every write has been answered, and the last one at level disk"
    KILL_HANGING = "SIGKILL from outside, when no fsync has come back for a while"
    STOP = "SIGTERM, after some answers"
    DIE = "SIGKILL at a call of the disk"
    DIE_STOPPING = "SIGTERM, and SIGKILL at a call of the disk after it"


KILLS = (End.KILL, End.KILL_SETTLED, End.KILL_HANGING)


class Life(NamedTuple):
    """The life of a process. ``answers``: the signal is sent after this number of answers."""

    end: End
    answers: int = 0
    orders: Orders = Orders()


class Mark(enum.Enum):
    """The last stop, as the data directory tells it."""

    CLEAN = "clean"
    UNCLEAN = "unclean"
    EITHER = "either: the last process may or may not have come to that"


# Before there is a feed, and while it is made.
FIRST_LIVES = (
    Life(End.DIE, orders=Orders(dies_at=7, how="torn")),
    Life(End.DIE, orders=Orders(dies_at=CALLS_IN_A_START + 2)),
)


@dataclass
class LivesScenario(Scenario):
    """``kills``: how many. ``forgets``: the node loses unsynced data. ``first_lives``: lives before those by chance."""

    kills: int = 5
    forgets: bool = False
    first_lives: tuple[Life, ...] = FIRST_LIVES


def random_life(rnd: random.Random) -> Life:
    """Returns how a process lives and ends."""
    how = rnd.choice(["before", "torn", "after"])
    answers = rnd.randrange(1, 800)
    number = rnd.random()
    if number < 0.50:
        return Life(End.KILL, answers)
    if number < 0.75:
        return Life(End.DIE, orders=Orders(dies_at=rnd.randrange(CALLS_IN_A_START, 1_500), how=how))
    if number < 0.90:
        return Life(End.STOP, answers)
    return Life(End.DIE_STOPPING, answers, Orders(dies_at_stop=rnd.randrange(1, CALLS_IN_A_STOP + 1), how=how))


def short_life(rnd: random.Random) -> Life:
    """Returns how a process ends before it is ready."""
    how = rnd.choice(["before", "torn", "after"])
    return Life(End.DIE, orders=Orders(dies_at=rnd.randrange(1, CALLS_IN_A_START), how=how))


class Supervisor:
    """Starts one process of a node after the other, and compares what each says of the last stop with that stop."""

    def __init__(self, group: Group, history: History, orders: Orders) -> None:
        self.kills_in_recovery = self.stops = self.starts = 0
        self.has_feed = False
        self._group = group
        self._node = group.nodes[0]
        self._history = history
        self._orders = orders
        self._mark = Mark.CLEAN  # of an empty directory
        self._risen_min = self._risen_max = 0  # terms: by processes that ended before they were looked at
        self._looked_at = self._asked_to_stop = False

    def ends(self) -> int:
        """Returns how many processes have ended."""
        return self._group.kills + self.stops

    async def live(self, life: Life, until: Callable[[], Awaitable[None]] | None = None) -> None:
        """Runs a process from its start to its end. ``until``: the signal is sent when it returns."""
        node = self._node
        node.orders = self._orders_of(life)
        self._looked_at = self._asked_to_stop = False
        code = 0
        try:
            await trio.to_thread.run_sync(node.launch)
            is_ready = await trio.to_thread.run_sync(node.becomes_ready, abandon_on_cancel=True)
            async with trio.open_nursery() as nursery:

                async def watch() -> None:
                    nonlocal code
                    code = await trio.to_thread.run_sync(node.wait, None, abandon_on_cancel=True)
                    nursery.cancel_scope.cancel()

                nursery.start_soon(watch)
                if is_ready:
                    self.starts += 1
                    await self._use(life, until)
        finally:
            node.end_at_once()
        self._ended(life, code, is_ready=is_ready)

    def hang(self) -> None:
        """Lets no fsync of the process return from now on. Its orders have to permit it."""
        self._node.signal(signal.SIGUSR1)

    def _orders_of(self, life: Life) -> Orders:
        orders = dataclasses.replace(life.orders, bug=self._orders.bug, forgets=self._orders.forgets)
        return orders if orders == Orders() else dataclasses.replace(orders, storage=STORAGE)

    async def _use(self, life: Life, until: Callable[[], Awaitable[None]] | None) -> None:
        """Looks at the node, and sends it the signal when its time has come."""
        await self._look_at_logs()
        if until is not None:
            await until()
        elif life.end is End.DIE:
            await trio.sleep_forever()
        else:
            await self._history.more_answers(life.answers)
        self._asked_to_stop = life.end not in KILLS
        self._node.signal(signal.SIGTERM if self._asked_to_stop else signal.SIGKILL)

    async def _look_at_logs(self) -> None:
        """Checks that the failover logs of this start follow from the last end."""
        async with tailrace.connect(self._node.url, name="supervisor", retry_for=60) as client:
            unclean = (await client.status()).details["unclean_start"]
            if self._mark is not Mark.EITHER and (unclean is None) != (self._mark is Mark.CLEAN):
                raise Violation(f"the last stop was {self._mark.value}, and the node says: {unclean}")
            if not self.has_feed:
                return
            async with client.feed(FEED).consume("now") as stream:
                positions = stream.positions
        risen = int(unclean is not None)
        for partition, branches in self._history.branches.items():
            made = not branches.log  # since the last look, with term 1
            least = 1 if made else self._risen_min + risen
            what = f"partition {partition}, start {self.starts}"
            branches.started(positions[partition].log, least, made + self._risen_max + risen, what)
        self._risen_min = self._risen_max = 0
        self._looked_at = True

    def _ended(self, life: Life, code: int, *, is_ready: bool) -> None:
        died = code == -signal.SIGKILL
        if not (died or (code == 0 and self._asked_to_stop)):
            raise NodeFailed(f"a node ended with {code} ({life}); the end of its log:\n{self._node.log_tail()}")
        if not self._looked_at and self._mark is not Mark.CLEAN:
            self._risen_max += 1
            self._risen_min += is_ready and self._mark is Mark.UNCLEAN
        if not died:
            self.stops += 1
            self._mark = Mark.CLEAN
            return
        self.kills_in_recovery += not is_ready
        if self._asked_to_stop or (not is_ready and self._mark is not Mark.UNCLEAN):
            self._mark = Mark.EITHER
        else:
            self._mark = Mark.UNCLEAN
        self._group.was_killed()


class Lives(Run):
    """A run with one node. ``supervisor`` tells afterwards what became of its processes."""

    scenario: LivesScenario
    keys = KEYS
    stuck_s = 1_200.0

    def __init__(self, scenario: LivesScenario) -> None:
        super().__init__()
        self.scenario = scenario
        self.history = History(PARTITIONS)
        self.group = Group(scenario.directory, 1)
        self.supervisor = Supervisor(self.group, self.history, Orders(bug=scenario.bug, forgets=scenario.forgets))
        memory, forgets = "memory", scenario.forgets
        atomic = {"atomic": True, "level": memory, "lasting": False, "may_roll_back": forgets}
        self.consumers = [
            Consumer("atomic", self.history, self.random("1"), **atomic),
            Consumer("not atomic", self.history, self.random("2"), atomic=False),
        ]
        self.indexes = [
            FollowedIndex("a MemoryIndex", self.history, self.random("3")),
            FollowedIndex("an SQLiteIndex", self.history, self.random("4"), scenario.directory / "index.sqlite"),
        ]
        self.looker = Looker(self.history, self.random("5"), KEYS, ["disk"] if forgets else ["disk", memory])
        self.founder = Founder(self.random("6"), self.supervisor.ends)
        self._versions: dict[bytes, Version] = {}
        self._last = self._writer("last")
        self._done, self._stopped = trio.Event(), trio.Event()
        self._let_write = trio.Event()
        self._let_write.set()
        self._writing = 0
        self._none_writes = trio.Event()

    # The node

    async def start_nodes(self, nursery: trio.Nursery) -> None:
        nursery.start_soon(self._keep_node)

    async def stop_nodes(self) -> None:
        self._done.set()
        await self._stopped.wait()

    async def _keep_node(self) -> None:
        rnd = self.random("nodes")
        lives = list(self.scenario.first_lives)
        while self.group.kills < self.scenario.kills:
            if not lives:
                lives = [random_life(rnd), short_life(rnd), random_life(rnd), random_life(rnd)]
            life = lives.pop(0)
            untils = {End.KILL_SETTLED: partial(self._settle, life), End.KILL_HANGING: partial(self._hang, life)}
            await self.supervisor.live(life, untils.get(life.end))
            self._let_write.set()
        self.over.set()
        await self.supervisor.live(Life(End.STOP), until=self._done.wait)
        self._stopped.set()

    async def _settle(self, life: Life) -> None:
        """Waits until no write is under way and the last one was acknowledged: a row that is missing then was lost."""
        await self.history.more_answers(life.answers)
        self._let_write = trio.Event()
        while self._writing:
            self._none_writes = trio.Event()
            await self._none_writes.wait()
        async with tailrace.connect(self.group.url, name="last") as client:
            await self._last.put(client.feed(FEED))

    async def _hang(self, life: Life) -> None:
        """Lets no fsync return. A node that tells clients of data before its fsync does so now."""
        await self.history.more_answers(life.answers)
        await self.consumers[1].next_event()
        self.supervisor.hang()
        await trio.sleep(HANGING_S)

    # Clients

    async def use_nodes(self, stack: AsyncExitStack) -> None:
        patient, patient_too, impatient, reader = [
            await self.connect(stack, name, PATIENT_S, retry_for_s)
            for name, retry_for_s in (
                ("patient", PATIENT_S),
                ("patient too", PATIENT_S),
                ("impatient", IMPATIENT_S),
                ("reader", PATIENT_S),
            )
        ]
        # A history keeps every row, whatever is flushed and merged, so that each of them can be compared.
        feed = await patient.create_feed(FEED, partitions=PARTITIONS, retention="history")
        self.supervisor.has_feed = True
        async with trio.open_nursery() as readers:
            self.start_readers(readers, reader.feed(FEED))
            readers.start_soon(self.until, self.quiet, self._look, reader.feed(FEED))
            async with trio.open_nursery() as writers:
                self._start_writers(writers, feed, patient_too.feed(FEED), impatient.feed(FEED))
                writers.start_soon(self._found, patient_too)
            self.quiet.set()
        await self.founder.check(patient_too, {FEED})
        self.copy = await read_copy("the feed", reader.feed(FEED), PARTITIONS)
        await self.judge(reader.feed(FEED))

    def _start_writers(
        self, nursery: trio.Nursery, patient: tailrace.Feed, patient_too: tailrace.Feed, impatient: tailrace.Feed
    ) -> None:
        """Starts eight of them; two share a client, and so the numbers of their blocks."""
        lasting = not self.scenario.forgets
        writers = [
            (self._writer("w0"), patient),
            (self._writer("w1"), patient),
            (self._writer("w2", level="memory", lasting=lasting), patient_too),
            (self._writer("w3"), impatient),
            (self._writer("w4"), impatient),
            (PipelinedWriter(self.history, self._values("w5")), patient_too),
            (PipelinedWriter(self.history, self._values("w6")), impatient),
        ]
        for writer, feed in writers:
            nursery.start_soon(self._write, writer, feed)
        restless = Restless(self._writer("w7"), self.group.url, FEED, self._step)
        nursery.start_soon(self.until, self.over, self._repeat, restless.session)

    def _values(self, name: str) -> Values:
        return Values(self.random(name), name, KEYS)

    def _writer(self, name: str, *, level: str = "disk", lasting: bool = True) -> Writer:
        versions = self._versions if lasting else {}
        return Writer(self.history, self._values(name), versions, level=level, lasting=lasting)

    async def _write(self, writer: Writer | PipelinedWriter, feed: tailrace.Feed) -> None:
        while not self.over.is_set():
            if not await self._step(writer, feed):
                # The node is away: one write in doubt is enough, until another writer gets an answer.
                await self.until(self.over, self.history.more_answers, 1)

    async def _step(self, writer: Writer | PipelinedWriter, feed: tailrace.Feed) -> bool:
        return await self._let(writer.step, feed)

    async def _let(self, write: Callable[..., Awaitable[T]], *arguments: object) -> T:
        """Calls ``write(*arguments)``, when writers may write. Other feeds are in the same journal."""
        await self._let_write.wait()
        self._writing += 1
        try:
            return await write(*arguments)
        finally:
            self._writing -= 1
            if not self._writing:
                self._none_writes.set()

    async def _found(self, client: tailrace.Client) -> None:
        rnd = self.random("found")
        while not self.over.is_set():
            await self._let(self.founder.step, client)  # to its end, or its outcome would be unknown
            await self.until(self.over, self.history.more_answers, rnd.randrange(1, 100))

    async def _look(self, feed: tailrace.Feed) -> None:
        while True:
            await self.looker.step(feed)

    async def _repeat(self, session: Callable[[], Awaitable[None]]) -> None:
        while True:
            await session()

    # The end

    async def check_directories(self) -> None:
        """Opens the directory after a clean stop: no branch begins, every invariant holds, and every row is there."""
        node = recover(Config(str(self.group.nodes[0].data)), Host())
        try:
            node.check()
            if node.services.unclean_start is not None:
                raise Violation(f"the last stop was clean, and the node says: {node.services.unclean_start}")
            for partition in node.feeds.named(FEED).partitions:
                if partition.high_seq != len(self.copy.rows[partition.id]):
                    raise Violation(f"partition {partition.id} has {partition.high_seq} rows after a clean stop")
        finally:
            node.stop()

    def figures(self) -> str:
        supervisor = self.supervisor
        return (
            f"{self.group.kills} kills, {supervisor.kills_in_recovery} of them in recovery; {supervisor.stops} clean "
            f"stops; {self.founder.made} other feeds; {super().figures()}"
        )
