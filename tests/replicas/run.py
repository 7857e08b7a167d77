"""A run: a set of three that is killed, stopped, cut, promoted and handed over, clients that go on, and a verdict."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections import Counter as Tally
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio
from tests.processes.history import Row
from tests.processes.run import run_to_the_end
from tests.processes.violation import Violation

import tailrace
from tailrace import Mutations
from tailrace.errors import UnknownFeed, Unreachable

from .clients import (
    IMPATIENT_S,
    KEYS,
    PARTITIONS,
    PATIENT_S,
    QUIET,
    Consumer,
    Counter,
    Follower,
    Looker,
    Writer,
)
from .history import Copy, History, compare, final_state
from .nodes import Node, Nodes, run_command

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

FEED, BESIDE = "set", "beside"
# A guard, and no expectation: a run that is stuck fails in the end, and says where.
STUCK_S = 600.0
# So long a set may be without a leader, with all nodes there and connected, before somebody promotes one.
LEADERLESS_S = 20.0
EQUAL_S = 120.0
NEWCOMER_S = 2.0
CERTAIN_S = 60.0  # where it has to come off
POLL_S = 0.1


@dataclass
class Scenario:
    """``acts``: how many things happen to the set. ``seed``: which, and what clients ask for.

    ``first``: names of acts that come before them, each again and again until it has come off. ``bug``: one of
    ``node_process.BUGS``.
    """

    seed: int
    acts: int
    directory: Path
    first: tuple[str, ...] = ()
    bug: str = ""


class Run:
    """See the module. ``done`` counts what has happened."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.history, self.beside = History(), History()
        self.nodes = Nodes(scenario.directory, bug=scenario.bug)
        self.done: Tally[str] = Tally()
        self.told: list[str] = []  # what has happened, in order
        self._former: Node | None = None  # who led when it was cut off
        self._newcomer_s = NEWCOMER_S
        self._came_off = True  # what happened last did what it was to do
        self._random = self._randomness("acts")
        self._quiet = trio.Event()
        index = scenario.directory / "index.sqlite"
        self.consumers = [
            Consumer("a consumer at quorum", self.history, self._randomness("c1"), "quorum"),
            Consumer("a consumer at disk", self.history, self._randomness("c2"), "disk"),
        ]
        self.followers = [
            Follower("an SQLiteIndex", self.history, path=index),
            Follower("a MemoryIndex at quorum", self.history, visibility="quorum"),
        ]
        self.aside = Follower("a MemoryIndex of a follower", self.history)
        self.counters = [Counter(f"counter {n}", self.history, self._randomness(f"n{n}")) for n in range(2)]
        self.looker = Looker(self.history, self._randomness("l0"), KEYS)
        self.loyal_looker = Looker(self.beside, self._randomness("l1"), QUIET)

    def _randomness(self, name: str) -> random.Random:
        return random.Random(f"{self.scenario.seed} {name}")

    async def __call__(self) -> None:
        """Raises Violation or NodeFailed, alone or in a group."""
        try:
            with trio.fail_after(STUCK_S):
                async with trio.open_nursery() as links:
                    await self.nodes.start(links)
                    await self._use()
                    links.cancel_scope.cancel()
        finally:
            await self.nodes.end_at_once()

    async def _use(self) -> None:
        async with AsyncExitStack() as stack:
            clients = {
                name: await stack.enter_async_context(
                    tailrace.connect(
                        self.nodes.url, name=name, connect_timeout=PATIENT_S, retry_for=retry_for, state=state
                    )
                )
                for name, retry_for, state in (
                    ("patient", PATIENT_S, "leader"),
                    ("impatient", IMPATIENT_S, "leader"),
                    ("reader", PATIENT_S, "leader"),
                    ("aside", PATIENT_S, "follower"),
                )
            }
            await self._all_vote()
            # Of a history every row stays, whatever is flushed and folded, so each of them can be compared.
            patient = await clients["patient"].create_feed(FEED, partitions=PARTITIONS, retention="history")
            beside = await clients["reader"].create_feed(BESIDE, partitions=1, retention="history")
            impatient, reader = clients["impatient"].feed(FEED), clients["reader"].feed(FEED)
            async with trio.open_nursery() as nursery:
                self._start_clients(nursery, patient, impatient, reader)
                nursery.start_soon(self._until_quiet, self._look, self.loyal_looker, beside)
                nursery.start_soon(self._until_quiet, self._follow, self.aside, clients["aside"].feed(FEED))
                await self.history.more_answers(20)
                await self._act()
                await self._heal()
                self._quiet.set()
            await self._judge(reader, clients["aside"].feed(FEED))
        for node in self.nodes.all:
            await node.stop()
        for node in self.nodes.all:
            code, said = await run_command("verify", str(node.data))
            if code:
                raise Violation(f"the directory of {node.name} is not in order: {said}")
            node.check_log()

    async def _all_vote(self) -> None:
        """Returns once all do: until then a set has no disk to spare."""
        for node in self.nodes.all:
            while True:
                if await self._votes(node):
                    break
                await trio.sleep(POLL_S)

    async def _votes(self, node: Node) -> bool:
        return bool(node.is_running and not node.is_paused and ((await node.ask()) or {}).get("votes"))

    async def _replace_disk(self) -> str | None:
        """A member loses its disk, and starts with an empty one; of one at a time nothing at quorum is lost."""
        if self.nodes.is_torn or not all([await self._votes(node) for node in self.nodes.all]):
            return None
        node = self._any(self.nodes.all)
        assert node is not None
        await node.kill()
        shutil.rmtree(node.data)
        await node.start()
        return f"{node.name} has lost its disk, and starts with an empty one"

    # What happens to the set

    async def _act(self) -> None:
        acts: list[tuple[int, Callable[[], Awaitable[str | None]]]] = [
            (3, self._kill_leader),
            (2, self._kill_any),
            (3, self._start_all),
            (2, self._pause),
            (1, self._restart),
            (2, self._cut),
            (1, self._freeze),
            (3, self._usurp),
            (3, self._mend),
            (3, self._promote),
            (4, self._handover),
            (2, self._write_anew),
            (1, self._replace_disk),
        ]
        # Where nothing goes on, what helps is more likely: a set that is dead for long shows little.
        help_out = [act for act in acts if act[1] in (self._start_all, self._mend, self._promote)]
        goes_on = True
        for name in self.scenario.first:
            await self._certainly(getattr(self, f"_{name}"))
        while sum(self.done.values()) < self.scenario.acts:
            possible = acts if goes_on or self._random.random() < 0.4 else help_out
            (act,) = self._random.choices([act for _, act in possible], [weight for weight, _ in possible])
            told = await act()
            if told is None:
                continue
            self.done[act.__name__.strip("_")] += 1
            self._tell(told)
            before = self.history.answers
            with trio.move_on_after(self._random.choice([0.3, 1.0, 3.0])):
                await self.history.more_answers(self._random.choice([1, 30, 300, 1_000]))
            goes_on = self.history.answers > before

    async def _certainly(self, act: Callable[[], Awaitable[str | None]]) -> None:
        """Until it has come off: on a busy machine a promotion is refused, or nobody says in time that he leads."""
        self._newcomer_s = CERTAIN_S
        while True:
            self._came_off = True
            told = await act()
            if told is not None:
                self._tell(told)
                if self._came_off:
                    self._newcomer_s = NEWCOMER_S
                    return
            await trio.sleep(POLL_S)

    def _tell(self, told: str) -> None:
        self.told.append(f"{trio.current_time():.1f} {told}; {self.history.answers} answers")

    def _any(self, nodes: list[Node]) -> Node | None:
        return self._random.choice(nodes) if nodes else None

    async def _kill_leader(self) -> str | None:
        node = await self.nodes.leader()
        if node is None:
            return None
        await node.kill()
        return f"SIGKILL for the leader {node.name}"

    async def _kill_any(self) -> str | None:
        node = self._any([node for node in self.nodes.all if node.is_running])
        if node is None:
            return None
        await node.kill()
        return f"SIGKILL for {node.name}"

    async def _start_all(self) -> str | None:
        away = [node for node in self.nodes.all if not node.is_running]
        async with trio.open_nursery() as nursery:
            for node in away:
                nursery.start_soon(node.start)
        return f"started {[node.name for node in away]}" if away else None

    async def _restart(self) -> str | None:
        node = self._any([node for node in self.nodes.all if node.is_running])
        if node is None:
            return None
        await node.stop()
        await node.start()
        return f"stopped {node.name} and started it again"

    async def _pause(self) -> str | None:
        node = self._any([node for node in self.nodes.all if node.is_running and not node.is_paused])
        if node is None:
            return None
        node.pause()
        return f"SIGSTOP for {node.name}"

    async def _cut(self) -> str | None:
        node = self._any(self.nodes.all)
        assert node is not None
        self.nodes.cut_off(node)
        return f"cut {node.name} off"

    async def _cut_leader(self) -> str | None:
        leader = await self.nodes.leader()
        if leader is None:
            return None
        self._former = leader
        self.nodes.cut_off(leader)
        return f"cut the leader {leader.name} off"

    async def _usurp(self) -> str | None:
        """The leader goes on alone for a while, and then another one is made to lead: what it alone has is lost."""
        cut = await self._cut_leader()
        if cut is None:
            return None
        with trio.move_on_after(1.0):
            await self.history.more_answers(100)
        return f"{cut}; {await self._promote_other()}"

    async def _write_anew(self) -> str | None:
        """Somebody who was not connected before writes, by the one that leads in the highest term."""
        leader = await self.nodes.leader()
        if leader is None:
            return None
        name = f"newcomer {len(self.told)}"
        writer = Writer(name, self.beside, self._randomness(name), "quorum")
        answers, self._came_off = self.beside.answers, False
        with trio.move_on_after(self._newcomer_s), contextlib.suppress(Unreachable):
            async with tailrace.connect(leader.url, name="newcomer") as client:
                for key in QUIET:
                    await writer.put(client.feed(BESIDE), key)
                self._came_off = self.beside.answers == answers + len(QUIET)
        return f"a newcomer has written to {leader.name}"

    async def _ask_former(self) -> str | None:
        """Who led, and was cut off, is asked by somebody who knows of nobody else."""
        assert self._former is not None
        looker, self._came_off = Looker(self.beside, self._randomness("l2"), QUIET), False
        with trio.move_on_after(self._newcomer_s), contextlib.suppress(Unreachable):
            async with tailrace.connect(self._former.url, name="loyal") as client:
                while not looker.looks:
                    await looker.step(client.feed(BESIDE))
                self._came_off = True
        return f"{self._former.name} was asked for {looker.looks} keys"

    async def _freeze(self) -> str | None:
        node = self._any(self.nodes.all)
        assert node is not None
        self.nodes.freeze(node)
        return f"froze the network of {node.name}"

    async def _mend(self) -> str | None:
        if not self.nodes.is_torn and not any(node.is_paused for node in self.nodes.all):
            return None
        self.nodes.heal()
        for node in self.nodes.all:
            if node.is_paused:
                node.proceed()
        return "all connected and none paused"

    async def _promote(self) -> str | None:
        return await self._promote_one_of(self.nodes.all)

    async def _promote_other(self) -> str | None:
        leader = await self.nodes.leader()
        return await self._promote_one_of([node for node in self.nodes.all if node is not leader])

    async def _promote_one_of(self, nodes: list[Node]) -> str | None:
        node = self._any([node for node in nodes if node.is_running and not node.is_paused])
        if node is None:
            return None
        code, said = await run_command("promote", "--node", node.address)
        self._require_words(said)
        self._came_off = code == 0
        return f"promote {node.name}: {code}, {said.strip()}"

    async def _handover(self) -> str | None:
        leader = await self.nodes.leader()
        other = self._any([node for node in self.nodes.all if node.is_running and node is not leader])
        if leader is None or other is None:
            return None
        code, said = await run_command("handover", "--to", other.address, "--node", leader.address)
        self._require_words(said)
        return f"handover {leader.name} to {other.name}: {code}, {said.strip()}"

    def _require_words(self, said: str) -> None:
        if "Traceback" in said or "No such command" in said:
            raise Violation(f"a command of the operator has failed: {said}")

    async def _heal(self) -> None:
        """Everything runs and is connected, and there is a leader: by itself, or by an operator."""
        await self._mend()
        await self._start_all()
        self._tell("healed")
        with trio.move_on_after(LEADERLESS_S) as waited:
            await self._led()
        while waited.cancelled_caught and await self.nodes.leader() is None:
            told = await self._promote()
            self._tell(f"in the end: {told}")
        before = self.history.answers
        await self.history.more_answers(100)
        self._tell(f"writers went on from {before} answers")

    async def _led(self) -> Node:
        """Who leads, once somebody does."""
        while True:
            leader = await self.nodes.leader()
            if leader is not None:
                return leader
            await trio.sleep(POLL_S)

    # Clients

    def _start_clients(
        self, nursery: trio.Nursery, patient: tailrace.Feed, impatient: tailrace.Feed, reader: tailrace.Feed
    ) -> None:
        for name, level, feed in (
            ("w0", "disk", patient),
            ("w1", "quorum", patient),
            ("w2", "quorum", impatient),
            ("w3", "disk", impatient),
        ):
            nursery.start_soon(self._write, Writer(name, self.history, self._randomness(name), level).step, feed)
        for counter in self.counters:
            nursery.start_soon(self._write, counter.step, impatient)
        nursery.start_soon(self._until_quiet, self._look, self.looker, impatient)
        for consumer in self.consumers:
            nursery.start_soon(self._until_quiet, self._consume, consumer, reader)
        for follower in self.followers:
            nursery.start_soon(self._until_quiet, self._follow, follower, reader)

    async def _write(self, step: Callable[[tailrace.Feed], Awaitable[None]], feed: tailrace.Feed) -> None:
        """Steps, each to its end, until all is quiet."""
        while not self._quiet.is_set():
            await step(feed)
            await trio.sleep(0.002)  # nobody is to take the machine for himself

    async def _look(self, looker: Looker, feed: tailrace.Feed) -> None:
        while True:
            await looker.step(feed)
            await trio.sleep(0.01)

    async def _consume(self, consumer: Consumer, feed: tailrace.Feed) -> None:
        rnd = self._randomness(consumer.name)
        while True:
            await consumer.session(feed, rnd.choice([None, 5, 100, 2_000]))

    async def _follow(self, follower: Follower, feed: tailrace.Feed) -> None:
        rnd = self._randomness(follower.name)
        while True:
            await follower.session(feed, rnd.choice([10, 100, 1_000]))

    async def _until_quiet(self, function: Callable[..., Awaitable[None]], *arguments: object) -> None:
        async with trio.open_nursery() as nursery:

            async def cancel() -> None:
                await self._quiet.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(cancel)
            await function(*arguments)

    # The end

    async def _judge(self, feed: tailrace.Feed, aside: tailrace.Feed) -> None:
        with trio.move_on_after(EQUAL_S) as waited:
            leader = await self._led()
        if waited.cancelled_caught:
            raise Violation("all is healed and quiet, and nobody leads")
        expected = await read_copy(leader, "leader")
        for node in self.nodes.all:
            if node is not leader:
                await self._require_equal(node, leader.name, expected)
        self.history.check(expected)
        self.beside.check(await read_copy(leader, "leader", BESIDE, 1))
        for consumer in self.consumers:
            await consumer.session(feed)
            compare(consumer.name, Copy(consumer.rows, expected.logs), leader.name, expected)
        state = final_state(expected)
        for follower in self.followers:
            if await follower.catch_up(feed) != state:
                raise Violation(f"{follower.name} is not equal to the feed")
        if await self.aside.catch_up(aside) != state:
            raise Violation(f"{self.aside.name} is not equal to the feed")
        self._tell(f"{sum(map(len, expected.rows.values()))} rows; {self.history.lost(expected)} lost at disk")

    async def _require_equal(self, node: Node, name: str, expected: Copy) -> None:
        """The node has the same, within a minute: it may still be catching up."""
        last: Exception = Violation(f"{node.name} shows nothing")
        with trio.move_on_after(EQUAL_S):
            while True:
                try:
                    compare(node.name, await read_copy(node, "follower"), name, expected)
                    return
                except (Violation, UnknownFeed) as error:
                    last = error
                await trio.sleep(5 * POLL_S)
        raise last

    def figures(self) -> str:
        """What there was, for people."""
        readers = (*self.consumers, *self.followers, self.aside)
        return (
            f"seed {self.scenario.seed}: {dict(self.done)}; {self.history.figures()}; "
            f"{sum(reader.barriers for reader in readers)} barriers, "
            f"{sum(consumer.rollbacks for consumer in self.consumers)} rollbacks, "
            f"{self.looker.looks} and {self.loyal_looker.looks} looks, "
            f"{sum(counter.made for counter in self.counters)} counted\n" + "\n".join(self.told)
        )


async def read_copy(node: Node, state: str, feed: str = FEED, partitions: int = PARTITIONS) -> Copy:
    """All that a node shows of a feed, durable."""
    found = Copy({partition: [] for partition in range(partitions)}, {})
    async with (
        tailrace.connect(node.url, name="judge", state=state) as client,
        client.feed(feed).consume(until="now") as stream,
    ):
        async for event in stream:
            if isinstance(event, Mutations):
                rows = found.rows[event.partition]
                for mutation in event:
                    if mutation.seq != len(rows) + 1:
                        raise Violation(f"{node.name}: {mutation.seq} of {event.partition} after {len(rows)}")
                    rows.append(Row(mutation.key, mutation.value, mutation.timestamp))
        for partition, position in stream.latest_positions.items():
            found.logs[partition] = position.log
    return found


def run(scenario: Scenario) -> Run:
    """Runs a scenario, and says what there was. Raises Violation, and NodeFailed."""
    return run_to_the_end(lambda: Run(scenario), scenario.seed)
