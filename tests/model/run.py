"""A run of the model: nodes that come and go, writers and readers that go on, and a verdict in the end."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import trio
from tests.processes.founders import Founder
from tests.processes.history import Answer, History, Row
from tests.processes.readers import Consumer, FollowedIndex, Looker, Throwaway
from tests.processes.run import run_to_the_end
from tests.processes.verdict import Verdict
from tests.processes.violation import Violation
from tests.processes.writers import PipelinedWriter, Restless, Values, Writer

import tailrace
from tailrace import Mutations
from tailrace_server.config import Config
from tailrace_server.node.start import recover
from tailrace_server.runtime.host import Host

from .node_process import Orders
from .nodes import CALLS_IN_A_START, FEED, End, Life, Nodes, random_life, short_life

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

T = TypeVar("T")

PARTITIONS = 5
KEYS = [f"key {number}".encode() for number in range(200)]
# Longer than any outage here: whoever waits that long gets an answer, or the run has failed.
PATIENT_S = 120.0
# Shorter than most outages: a write that meets one is given up, and nobody knows whether it was written.
IMPATIENT_S = 0.15
# So long goes on what needs no fsync, where none comes back.
HANGING_S = 1.0
# Far beyond what a run takes: it is stuck. (A guard, no expectation.)
STUCK_S = 1_200.0


@dataclass
class Scenario:
    """``forgets``: the nodes lose what they have not synced. ``bug``: one of ``node_process.BUGS``."""

    seed: int
    kills: int
    directory: Path
    forgets: bool = False
    bug: str = ""
    first_lives: tuple[Life, ...] = field(
        default=(
            # Before there is a feed, and while it is made.
            Life(End.DIE, orders=Orders(dies_at=7, how="torn")),
            Life(End.DIE, orders=Orders(dies_at=CALLS_IN_A_START + 2)),
        )
    )


class Run:
    """See the module. ``history`` and ``nodes`` tell afterwards what there was."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.history = History(PARTITIONS)
        self.nodes = Nodes(scenario.directory, self.history, bug=scenario.bug, forgets=scenario.forgets)
        self.rows: dict[int, list[Row]] = {}
        self._over = trio.Event()  # no more kills: writers finish what they are doing
        self._quiet = trio.Event()  # no more writes: readers catch up
        self._done = trio.Event()
        self._let_write = trio.Event()
        self._let_write.set()
        self._writing = 0
        self._nobody_writes = trio.Event()
        memory, forgets = "memory", scenario.forgets
        self.consumers = [
            Consumer("atomic", self.history, self._random("1"), atomic=True, level=memory, may_roll_back=forgets),
            Consumer("not atomic", self.history, self._random("2"), atomic=False),
        ]
        self.indexes = [
            FollowedIndex("a MemoryIndex", self.history, self._random("3")),
            FollowedIndex("an SQLiteIndex", self.history, self._random("4"), scenario.directory / "index.sqlite"),
        ]
        self.looker = Looker(self.history, self._random("5"), KEYS, ["disk"] if forgets else ["disk", memory])
        self.founder = Founder(self.nodes, self._random("6"))
        self._versions: dict[bytes, tailrace.Version] = {}
        self._last = self._writer("last")

    def _random(self, name: str) -> random.Random:
        return random.Random(f"{self.scenario.seed} {name}")

    async def __call__(self) -> None:
        """Raises Violation, alone or in a group."""
        with trio.fail_after(STUCK_S):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._keep_nodes)
                await self._use_them()
                self._done.set()
        self._look_at_directory()
        self.nodes.check_log()

    # Nodes

    async def _keep_nodes(self) -> None:
        rnd = self._random("nodes")
        lives = list(self.scenario.first_lives)
        while self.nodes.kills < self.scenario.kills:
            if not lives:
                lives = [random_life(rnd), short_life(rnd), random_life(rnd), random_life(rnd)]
            life = lives.pop(0)
            untils = {End.KILL_SETTLED: partial(self._settle, life), End.KILL_HANGING: partial(self._hang, life)}
            await self.nodes.live(life, untils.get(life.end))
            self._let_write.set()
        self._over.set()
        await self.nodes.live(Life(End.STOP), until=self._done.wait)

    async def _settle(self, life: Life) -> None:
        """No write is under way, and the last one was acknowledged: whatever is missing now has been lost."""
        await self.history.more_answers(life.answers)
        self._let_write = trio.Event()
        while self._writing:
            self._nobody_writes = trio.Event()
            await self._nobody_writes.wait()
        async with tailrace.connect(self.nodes.url, name="last") as client:
            await self._last.put(client.feed(FEED))

    async def _hang(self, life: Life) -> None:
        """What must not be told before an fsync has come back is told now, or never; to a reader, too."""
        await self.history.more_answers(life.answers)
        await self.consumers[1].next_event()
        self.nodes.hang()
        await trio.sleep(HANGING_S)

    def _look_at_directory(self) -> None:
        """After a clean stop: a node that opens the directory begins no branch, and every invariant holds."""
        node = recover(Config(str(self.nodes.data)), Host())
        try:
            node.check()
            if node.services.unclean_start is not None:
                raise Violation(f"the last stop was clean, and the node says: {node.services.unclean_start}")
            for partition in node.feeds.named(FEED).partitions:
                if partition.high_seq != len(self.rows[partition.id]):
                    raise Violation(f"partition {partition.id} has {partition.high_seq} rows after a clean stop")
        finally:
            node.stop()

    # Clients

    async def _use_them(self) -> None:
        async with AsyncExitStack() as stack:
            patient, patient_too, impatient, reader = [
                await stack.enter_async_context(
                    tailrace.connect(self.nodes.url, name=name, connect_timeout=PATIENT_S, retry_for=retry_for)
                )
                for name, retry_for in (
                    ("patient", PATIENT_S),
                    ("patient too", PATIENT_S),
                    ("impatient", IMPATIENT_S),
                    ("reader", PATIENT_S),
                )
            ]
            # Of a history every row stays, whatever is flushed and folded, so each of them can be compared.
            feed = await patient.create_feed(FEED, partitions=PARTITIONS, retention="history")
            self.nodes.has_feed = True
            async with trio.open_nursery() as readers:
                self._start_readers(readers, reader.feed(FEED))
                async with trio.open_nursery() as writers:
                    self._start_writers(writers, feed, patient_too.feed(FEED), impatient.feed(FEED))
                    writers.start_soon(self._found, patient_too)
                self._quiet.set()
            await self.founder.check(patient_too)
            await self._judge(reader.feed(FEED))

    def _start_writers(
        self, nursery: trio.Nursery, patient: tailrace.Feed, patient_too: tailrace.Feed, impatient: tailrace.Feed
    ) -> None:
        """Eight of them; two share a client, and so the numbers of their blocks."""
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
        restless = Restless(self._writer("w7"), self.nodes.url, self._step)
        nursery.start_soon(self._until, self._over, self._repeat_session, restless.session)

    def _values(self, name: str) -> Values:
        return Values(self._random(name), name, KEYS)

    def _writer(self, name: str, *, level: str = "disk", lasting: bool = True) -> Writer:
        versions = self._versions if lasting else {}
        return Writer(self.history, self._values(name), versions, level=level, lasting=lasting)

    def _start_readers(self, nursery: trio.Nursery, feed: tailrace.Feed) -> None:
        for consumer in self.consumers:
            nursery.start_soon(self._until, self._quiet, self._consume, consumer, feed)
        for index in self.indexes:
            nursery.start_soon(self._until, self._quiet, self._follow, index, feed)
        nursery.start_soon(self._until, self._quiet, self._look, feed)

    async def _consume(self, consumer: Consumer, feed: tailrace.Feed) -> None:
        rnd = self._random(consumer.name)
        ends = Throwaway(self.history, self.nodes, rnd)
        while True:
            await consumer.session(feed, rnd.choice([None, rnd.randrange(1, 400)]), ends.next())

    async def _follow(self, index: FollowedIndex, feed: tailrace.Feed) -> None:
        ends = Throwaway(self.history, self.nodes, self._random(index.name))
        while True:
            await index.session(feed, ends.next())

    async def _write(self, writer: Writer | PipelinedWriter, feed: tailrace.Feed) -> None:
        while not self._over.is_set():
            if not await self._step(writer, feed):
                # There is no node: one write in doubt is enough, until somebody gets an answer again.
                await self._until(self._over, self.history.more_answers, 1)

    async def _step(self, writer: Writer | PipelinedWriter, feed: tailrace.Feed) -> bool:
        return await self._let(writer.step, feed)

    async def _let(self, write: Callable[..., Awaitable[T]], *args: object) -> T:
        """``write(*args)``, when nobody has to hold still: other feeds are in the same journal."""
        await self._let_write.wait()
        self._writing += 1
        try:
            return await write(*args)
        finally:
            self._writing -= 1
            if not self._writing:
                self._nobody_writes.set()

    async def _found(self, client: tailrace.Client) -> None:
        rnd = self._random("found")
        while not self._over.is_set():
            await self._let(self.founder.step, client)  # to its end, or its outcome would be unknown
            await self._until(self._over, self.history.more_answers, rnd.randrange(1, 100))

    async def _look(self, feed: tailrace.Feed) -> None:
        while True:
            await self.looker.step(feed)

    async def _repeat_session(self, session: Callable[[], Awaitable[None]]) -> None:
        while True:
            await session()

    async def _until(self, end: trio.Event, function: Callable[..., Awaitable[None]], *args: object) -> None:
        """Runs ``function`` to its end, or until ``end``, which may come in the middle of it."""
        async with trio.open_nursery() as nursery:

            async def cancel() -> None:
                await end.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(cancel)
            await function(*args)
            nursery.cancel_scope.cancel()

    # The end

    async def _judge(self, feed: tailrace.Feed) -> None:
        self.rows = await self._read_all(feed)
        for partition, rows in self.rows.items():
            self.history.reached(partition, len(rows))
        for consumer in self.consumers:
            await consumer.catch_up(feed)
            for partition, rows in consumer.rows.items():
                if [row for row, _ in rows] != self.rows[partition]:
                    raise Violation(f"consumer {consumer.name!r} has not got what partition {partition} has")
                self.history.names |= {(partition, seq, branch) for seq, (_, branch) in enumerate(rows, 1)}
        verdict = Verdict(self.history, self.rows)
        state = {key: value for key, (_, _, value) in verdict.final_state().items()}
        for index in self.indexes:
            if await index.catch_up(feed) != state:
                raise Violation(f"{index.name} is not equal to the feed")
        if await self.looker.look_at_items(feed) != state:
            raise Violation("items() are not what the feed has")
        await self.looker.look_at(feed, KEYS)
        verdict.check()

    async def _read_all(self, feed: tailrace.Feed) -> dict[int, list[Row]]:
        found: dict[int, list[Row]] = {partition: [] for partition in range(PARTITIONS)}
        async with feed.consume(until="now") as stream:
            async for event in stream:
                if isinstance(event, Mutations):
                    rows = found[event.partition]
                    for mutation in event:
                        if mutation.seq != len(rows) + 1:
                            raise Violation(f"partition {event.partition}: {mutation.seq} after {len(rows)}")
                        rows.append(Row(mutation.key, mutation.value, mutation.timestamp))
                        self.history.observe(event.partition, mutation.seq, rows[-1], event.branch)
        return found

    def figures(self) -> str:
        """What there was, for people."""
        nodes, answers = self.nodes, Counter(write.answer for write in self.history.writes)
        sessions = sum(reader.sessions for reader in (*self.consumers, *self.indexes))
        barriers = sum(reader.barriers for reader in (*self.consumers, *self.indexes))
        return (
            f"seed {self.scenario.seed}: {nodes.kills} kills, {nodes.kills_in_recovery} of them in recovery; "
            f"{nodes.stops} clean stops; {sum(map(len, self.rows.values()))} rows; writes: "
            f"{answers[Answer.WRITTEN] + answers[Answer.WRITTEN_WITHIN]} acknowledged, {answers[Answer.NOT_WRITTEN]} "
            f"refused, {answers[Answer.NONE]} in doubt; {sessions} sessions of readers, {barriers} barriers, "
            f"{self.founder.made} other feeds, {self.looker.looks} looks, {self.looker.lists} lists, "
            f"{sum(consumer.rollbacks for consumer in self.consumers)} rollbacks"
        )


def run(scenario: Scenario) -> Run:
    """Runs a scenario. Raises Violation where the feed does not keep its promises."""
    return run_to_the_end(lambda: Run(scenario), scenario.seed)
