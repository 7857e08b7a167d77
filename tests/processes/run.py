"""A run: nodes whose processes are broken by a schedule, writers and readers that go on, and a verdict in the end.

    Lives (lives.py)  one node, killed and started again and again, at calls of its disk and in its recovery
    Acts (acts.py)    a set of three, killed, paused, cut off, promoted and handed over

The seed decides what happens and what clients ask for. The machine decides when it happens in between.
"""

from __future__ import annotations

import os
import random
from abc import ABC, abstractmethod
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import trio

import tailrace

from .copies import Copy, compare_rows
from .history import Answer, History
from .readers import Consumer, FollowedIndex, Looker, Throwaway
from .verdict import Verdict
from .violation import Violation, most_telling

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from .group import Group

SEED = "TAILRACE_PROCESSES_SEED"
SEEDS = range(100)
FEED = "rows"


@dataclass
class Scenario:
    """``bug``: one of ``bugs.BUGS``. ``directory``: for the data directories, logs and indexes."""

    seed: int
    directory: Path
    bug: str = ""

    def random(self, name: str) -> random.Random:
        """Returns the randomness of one part of the run."""
        return random.Random(f"{self.seed} {name}")


class Run(ABC):
    """What runs with one node and with a set have in common. A subclass sets the fields and breaks the nodes."""

    scenario: Scenario
    group: Group
    history: History
    keys: list[bytes]
    consumers: list[Consumer]
    indexes: list[FollowedIndex]
    looker: Looker
    # Far more seconds than a run takes: it is stuck.
    stuck_s: float

    def __init__(self) -> None:
        self.copy = Copy({}, {}, {})
        self.verdict: Verdict | None = None
        self.told: list[str] = []  # what happened to the nodes, in order
        self.over = trio.Event()  # nothing more happens to the nodes: writers finish their last write
        self.quiet = trio.Event()  # no more writes: readers catch up

    async def __call__(self) -> None:
        """Raises Violation or NodeFailed, alone or in a group."""
        try:
            with trio.fail_after(self.stuck_s):
                async with trio.open_nursery() as nursery:
                    await self.start_nodes(nursery)
                    async with AsyncExitStack() as stack:
                        await self.use_nodes(stack)
                    await self.stop_nodes()
                    nursery.cancel_scope.cancel()
                await self.check_directories()
                await self.group.verify()
        finally:
            self.end_at_once()

    @abstractmethod
    async def start_nodes(self, nursery: trio.Nursery) -> None:
        """Starts the nodes, and the tasks that last as long as they."""

    @abstractmethod
    async def use_nodes(self, stack: AsyncExitStack) -> None:
        """Connects clients, lets them go on while the nodes are broken, and judges."""

    @abstractmethod
    async def stop_nodes(self) -> None:
        """Stops the nodes cleanly."""

    def end_at_once(self) -> None:
        """Ends every process, for instance after a run that has failed."""
        self.group.end_at_once()

    async def check_directories(self) -> None:  # noqa: B027 (most runs have nothing to add)
        """Checks the directories after a clean stop, besides ``tailrace verify`` and the logs."""

    # Clients

    def random(self, name: str) -> random.Random:
        """Returns the randomness of one part of the run."""
        return self.scenario.random(name)

    async def connect(self, stack: AsyncExitStack, name: str, patience_s: float, retry_for_s: float) -> tailrace.Client:
        """Opens a client of the nodes. Its name says which nodes it asks: those of "aside" are followers."""
        state = "follower" if name == "aside" else "leader"
        client = tailrace.connect(
            self.group.url, name=name, connect_timeout=patience_s, retry_for=retry_for_s, state=state
        )
        return await stack.enter_async_context(client)

    def start_readers(self, nursery: trio.Nursery, feed: tailrace.Feed) -> None:
        """Starts all consumers and indexes. They stop when the run is quiet."""
        for consumer in self.consumers:
            nursery.start_soon(self.until, self.quiet, self._consume, consumer, feed)
        for index in self.indexes:
            nursery.start_soon(self.until, self.quiet, self.follow, index, feed)

    async def _consume(self, consumer: Consumer, feed: tailrace.Feed) -> None:
        rnd = self.random(consumer.name)
        ends = Throwaway(self.history, self.group.killed, rnd)
        while True:
            await consumer.session(feed, rnd.choice([None, rnd.randrange(1, 400)]), ends.next())

    async def follow(self, index: FollowedIndex, feed: tailrace.Feed) -> None:
        """Follows the feed into an index, in one session after the other."""
        ends = Throwaway(self.history, self.group.killed, self.random(index.name))
        while True:
            await index.session(feed, ends.next())

    async def until(self, end: trio.Event, function: Callable[..., Awaitable[None]], *arguments: object) -> None:
        """Runs ``function`` to its end, or until ``end``, which may come in the middle of it."""
        async with trio.open_nursery() as nursery:

            async def cancel() -> None:
                await end.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(cancel)
            await function(*arguments)
            nursery.cancel_scope.cancel()

    # The end

    async def judge(self, feed: tailrace.Feed) -> None:
        """Compares ``copy`` with the readers, and with everything that clients were told."""
        history = self.history
        for partition, rows in self.copy.rows.items():
            for seq, (row, branch) in enumerate(zip(rows, self.copy.branches[partition], strict=True), 1):
                history.observe(partition, seq, row, branch)
        for consumer in self.consumers:
            await consumer.catch_up(feed)
            rows_of = {partition: [row for row, _ in rows] for partition, rows in consumer.rows.items()}
            compare_rows(consumer.name, rows_of, "the feed", self.copy.rows)
            for partition, rows in consumer.rows.items():
                history.names |= {(partition, seq, branch) for seq, (_, branch) in enumerate(rows, 1)}
        self.verdict = Verdict(history, self.copy.rows)
        state = {key: value for key, (_, _, value) in self.verdict.final_state().items()}
        for index in self.indexes:
            self.require_state(index.name, await index.catch_up(feed), state)
        self.require_state("items()", await self.looker.look_at_items(feed), state)
        await self.looker.look_at(feed, self.keys)
        self.verdict.check()

    def require_state(self, name: str, found: dict[bytes, bytes], state: dict[bytes, bytes]) -> None:
        """Raises Violation if a reader has another state than the feed."""
        if found != state:
            raise Violation(f"{name} is not equal to the feed")

    def tell(self, what: str) -> None:
        """Notes an event of the nodes."""
        self.told.append(f"{trio.current_time():.1f} {what}; {self.history.answers} answers")

    def figures(self) -> str:
        """Returns figures of the run for people."""
        answers = Counter(write.answer for write in self.history.writes)
        readers = (*self.consumers, *self.indexes)
        lost = 0 if self.verdict is None else self.verdict.lost
        return (
            f"{self.copy.count} rows; writes: {answers[Answer.WRITTEN] + answers[Answer.WRITTEN_WITHIN] + lost} "
            f"acknowledged, {lost} of them lost with their level, {answers[Answer.NOT_WRITTEN] - lost} refused, "
            f"{answers[Answer.NONE]} in doubt; {sum(reader.sessions for reader in readers)} sessions of readers, "
            f"{sum(reader.barriers for reader in readers)} barriers, {self.looker.looks} looks, {self.looker.lists} "
            f"lists, {sum(consumer.rollbacks for consumer in self.consumers)} rollbacks"
        )


R = TypeVar("R", bound=Run)


def run(make: Callable[[], R]) -> R:
    """Makes a run inside of trio, runs it, and prints its figures. Raises the violation, if there is one."""
    made: list[R] = []

    async def main() -> None:
        made.append(make())
        print(f"seed {made[0].scenario.seed}")
        await made[0]()

    try:
        trio.run(main)
    except BaseExceptionGroup as group:
        raise most_telling(group) from group
    finally:
        for one in made:
            print("\n".join([one.figures(), *one.told, one.group.log_tail()]))
    return made[0]


def seed_of(default: int) -> int:
    """Returns the seed that ``TAILRACE_PROCESSES_SEED`` names, any for "any", and else ``default``."""
    said = os.environ.get(SEED, "")
    return random.choice(SEEDS) if said == "any" else int(said or default)
