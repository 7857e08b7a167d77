"""A set of three nodes that are killed, paused, cut off, promoted and handed over, under writers and readers."""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter as Tally
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

import tailrace
from tailrace.errors import OutcomeUnknown, Retryable, UnknownFeed, Unreachable

from .copies import Copy, compare, read_copy
from .group import Group, run_command
from .history import History
from .program import Orders
from .readers import Consumer, FollowedIndex, Looker
from .run import FEED, Run, Scenario
from .verdict import Verdict
from .violation import Violation
from .writers import Counter, Values, Writer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AsyncExitStack

    from tailrace import Version

    from .node import NodeProcess

    Act = Callable[[], Awaitable[str | None]]

PARTITIONS = 3
KEYS = [b"key %d" % number for number in range(60)]
COUNTED = [b"counted %d" % number for number in range(4)]
# A second feed with few writes: no row without a majority delays a client that looks at its keys.
BESIDE = "beside"
QUIET = [b"quiet %d" % number for number in range(10)]
SIZES = (1, 30, 300)
STORAGE = {
    "segment_bytes": 64 * 1024,
    "flush_age_s": 2.0,
    "journal_file_bytes_max": 512 * 1024,
    "reserve_bytes": 256 * 1024,
}
# Longer than the set is ever without a leader in a run: a client that waits this long gets an answer, or the run fails.
PATIENT_S = 240.0
# Shorter than a change of leader takes an operator: then the outcome of a write is unknown.
IMPATIENT_S = 0.5
# A set may be without a leader this long, with all nodes there and connected, before the run promotes one.
LEADERLESS_S = 20.0
EQUAL_S = 120.0
NEWCOMER_S = 2.0
CERTAIN_S = 60.0  # if the act has to come off
POLL_S = 0.1


@dataclass
class ActsScenario(Scenario):
    """``acts``: how many, by chance. ``first``: names of acts before them, each repeated until it has come off.

    ``failover``: the option of the nodes, "auto" or "manual".
    """

    acts: int = 24
    first: tuple[str, ...] = ()
    failover: str = "auto"


class Acts(Run):
    """A run with a set of three. ``done`` counts the acts."""

    scenario: ActsScenario
    keys = KEYS + COUNTED
    stuck_s = 600.0

    def __init__(self, scenario: ActsScenario) -> None:
        super().__init__()
        self.scenario = scenario
        self.history, self.beside = History(PARTITIONS), History(1)
        orders = Orders(storage=STORAGE, bug=scenario.bug)
        self.group = Group(scenario.directory, 3, orders, failover=scenario.failover)
        self.done: Tally[str] = Tally()
        self._former: NodeProcess | None = None  # the leader that was cut off last
        self._newcomer_s = NEWCOMER_S
        self._came_off = True  # the last act had its effect
        self._random = self.random("acts")
        self.consumers = [
            Consumer("a consumer at quorum", self.history, self.random("c1"), atomic=False, level="quorum"),
            Consumer(
                "a consumer at disk",
                self.history,
                self.random("c2"),
                atomic=True,
                level="disk",
                lasting=False,
                may_roll_back=True,
            ),
        ]
        path = scenario.directory / "index.sqlite"
        self.indexes = [
            FollowedIndex("an SQLiteIndex", self.history, self.random("i1"), path, lasting=False),
            FollowedIndex("a MemoryIndex at quorum", self.history, self.random("i2"), visibility="quorum"),
        ]
        self.aside = FollowedIndex("a MemoryIndex of a follower", self.history, self.random("i3"), lasting=False)
        self.looker = Looker(self.history, self.random("l0"), self.keys, ["quorum"])
        self.loyal_looker = Looker(self.beside, self.random("l1"), QUIET, ["quorum"])
        self._versions: dict[bytes, Version] = {}

    # The nodes

    async def start_nodes(self, nursery: trio.Nursery) -> None:
        await self.group.connect(nursery)
        await self.group.start(self.group.nodes)

    async def stop_nodes(self) -> None:
        await self.group.stop()

    async def _all_vote(self) -> None:
        """Returns when all nodes vote: until then the set has no disk to spare."""
        for node in self.group.nodes:
            while True:
                if await self._votes(node):
                    break
                await trio.sleep(POLL_S)

    async def _votes(self, node: NodeProcess) -> bool:
        return node in self.group.answering() and bool(((await node.ask()) or {}).get("votes"))

    # Acts. Each returns a report, or None if there was nothing to do.

    async def _act(self) -> None:
        acts: list[tuple[int, Act]] = [
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
        # If nothing goes on, acts that help are more likely: a set that is dead for long shows little.
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
            self.tell(told)
            before = self.history.answers
            with trio.move_on_after(self._random.choice([0.3, 1.0, 3.0])):
                await self.history.more_answers(self._random.choice([1, 30, 300, 1_000]))
            goes_on = self.history.answers > before

    async def _certainly(self, act: Act) -> None:
        """Repeats an act until it has come off. On a busy machine a promotion is refused, or no leader answers."""
        self._newcomer_s = CERTAIN_S
        while True:
            self._came_off = True
            told = await act()
            if told is not None:
                self.tell(told)
                if self._came_off:
                    self._newcomer_s = NEWCOMER_S
                    return
            await trio.sleep(POLL_S)

    def _any(self, nodes: list[NodeProcess]) -> NodeProcess | None:
        return self._random.choice(nodes) if nodes else None

    async def _kill_leader(self) -> str | None:
        return await self._kill(await self.group.leader(), "the leader ")

    async def _kill_any(self) -> str | None:
        return await self._kill(self._any(self.group.running()), "")

    async def _kill(self, node: NodeProcess | None, what: str) -> str | None:
        if node is None:
            return None
        await self.group.kill(node)
        return f"SIGKILL for {what}{node.name}"

    async def _start_all(self) -> str | None:
        away = [node for node in self.group.nodes if not node.is_running]
        await self.group.start(away)
        return f"started {[node.name for node in away]}" if away else None

    async def _restart(self) -> str | None:
        node = self._any(self.group.running())
        if node is None:
            return None
        await trio.to_thread.run_sync(node.stop)
        await self.group.start([node])
        return f"stopped {node.name} and started it again"

    async def _replace_disk(self) -> str | None:
        """Starts a member with an empty disk. If that is one member at a time, nothing at quorum is lost."""
        if self.group.is_torn or not all([await self._votes(node) for node in self.group.nodes]):
            return None
        node = self._random.choice(self.group.nodes)
        await self.group.kill(node)
        shutil.rmtree(node.data)
        await self.group.start([node])
        return f"{node.name} has lost its disk, and starts with an empty one"

    async def _pause(self) -> str | None:
        node = self._any(self.group.answering())
        if node is None:
            return None
        node.pause()
        return f"SIGSTOP for {node.name}"

    async def _cut(self) -> str | None:
        node = self._random.choice(self.group.nodes)
        self.group.cut_off(node)
        return f"cut {node.name} off"

    async def _freeze(self) -> str | None:
        node = self._random.choice(self.group.nodes)
        self.group.freeze(node)
        return f"froze the network of {node.name}"

    async def _mend(self) -> str | None:
        paused = [node for node in self.group.nodes if node.is_paused]
        if not self.group.is_torn and not paused:
            return None
        self.group.heal()
        for node in paused:
            node.proceed()
        return "all connected and none paused"

    async def _cut_leader(self) -> str | None:
        leader = await self.group.leader()
        if leader is None:
            return None
        self._former = leader
        self.group.cut_off(leader)
        return f"cut the leader {leader.name} off"

    async def _usurp(self) -> str | None:
        """Lets the leader go on alone for a while, and promotes another node: rows of the old leader alone are lost."""
        cut = await self._cut_leader()
        if cut is None:
            return None
        with trio.move_on_after(1.0):
            await self.history.more_answers(100)
        return f"{cut}; {await self._promote_other()}"

    async def _write_anew(self) -> str | None:
        """Lets a client without an earlier connection write, by the leader of the highest term."""
        leader = await self.group.leader()
        if leader is None:
            return None
        name = f"newcomer {len(self.told)}"
        values = Values(self.random(name), name, QUIET, SIZES)
        writer = Writer(self.beside, values, {}, level="quorum", lasting=True, of_set=True)
        answers, self._came_off = self.beside.answers, False
        with trio.move_on_after(self._newcomer_s), contextlib.suppress(Unreachable, OutcomeUnknown):
            async with tailrace.connect(leader.url, name="newcomer") as client:
                for key in QUIET:
                    await writer.put_on(client.feed(BESIDE), key, None)
                self._came_off = self.beside.answers == answers + len(QUIET)
        return f"a newcomer has written to {leader.name}"

    async def _ask_former(self) -> str | None:
        """Asks the former leader, which was cut off, by a client that knows no other node."""
        assert self._former is not None
        looker, self._came_off = Looker(self.beside, self.random("l2"), QUIET, ["quorum"]), False
        with trio.move_on_after(self._newcomer_s), contextlib.suppress(Unreachable):
            async with tailrace.connect(self._former.url, name="loyal") as client:
                while not looker.looks:
                    with contextlib.suppress(Retryable):
                        await looker.look_at_some(client.feed(BESIDE))
                self._came_off = True
        return f"{self._former.name} was asked for {looker.looks} keys"

    async def _promote(self) -> str | None:
        return await self._promote_one_of(self.group.answering())

    async def _promote_other(self) -> str | None:
        leader = await self.group.leader()
        return await self._promote_one_of([node for node in self.group.answering() if node is not leader])

    async def _promote_one_of(self, nodes: list[NodeProcess]) -> str | None:
        node = self._any(nodes)
        if node is None:
            return None
        code, said = await run_command("promote", "--node", node.address)
        _require_words(said)
        self._came_off = code == 0
        return f"promote {node.name}: {code}, {said.strip()}"

    async def _handover(self) -> str | None:
        leader = await self.group.leader()
        other = self._any([node for node in self.group.running() if node is not leader])
        if leader is None or other is None:
            return None
        code, said = await run_command("handover", "--to", other.address, "--node", leader.address)
        _require_words(said)
        return f"handover {leader.name} to {other.name}: {code}, {said.strip()}"

    async def _heal(self) -> None:
        """Connects and starts everything, and waits for a leader: by itself, or by an operator."""
        await self._mend()
        await self._start_all()
        self.tell("healed")
        with trio.move_on_after(LEADERLESS_S) as waited:
            await self._led()
        while waited.cancelled_caught and await self.group.leader() is None:
            self.tell(f"in the end: {await self._promote()}")
        before = self.history.answers
        await self.history.more_answers(100)
        self.tell(f"writers went on from {before} answers")

    async def _led(self) -> NodeProcess:
        """Returns the leader, when there is one."""
        while True:
            leader = await self.group.leader()
            if leader is not None:
                return leader
            await trio.sleep(POLL_S)

    # Clients

    async def use_nodes(self, stack: AsyncExitStack) -> None:
        patient = await self.connect(stack, "patient", PATIENT_S, PATIENT_S)
        impatient = await self.connect(stack, "impatient", PATIENT_S, IMPATIENT_S)
        reader = await self.connect(stack, "reader", PATIENT_S, PATIENT_S)
        aside = await self.connect(stack, "aside", PATIENT_S, PATIENT_S)
        await self._all_vote()
        # A history keeps every row, whatever is flushed and merged, so that each of them can be compared.
        feed = await patient.create_feed(FEED, partitions=PARTITIONS, retention="history")
        beside = await reader.create_feed(BESIDE, partitions=1, retention="history")
        async with trio.open_nursery() as readers:
            self.start_readers(readers, reader.feed(FEED))
            readers.start_soon(self.until, self.quiet, self.follow, self.aside, aside.feed(FEED))
            readers.start_soon(self.until, self.quiet, self._look, self.looker, impatient.feed(FEED))
            readers.start_soon(self.until, self.quiet, self._look, self.loyal_looker, beside)
            async with trio.open_nursery() as writers:
                self._start_writers(writers, feed, impatient.feed(FEED))
                await self.history.more_answers(20)
                await self._act()
                await self._heal()
                self.over.set()
            self.quiet.set()
        await self._judge(reader.feed(FEED), aside.feed(FEED))

    def _start_writers(self, nursery: trio.Nursery, patient: tailrace.Feed, impatient: tailrace.Feed) -> None:
        for name, level, feed in (
            ("w0", "disk", patient),
            ("w1", "quorum", patient),
            ("w2", "quorum", impatient),
            ("w3", "disk", impatient),
        ):
            nursery.start_soon(self._write, self._writer(name, level), feed)
        for name in ("n0", "n1"):
            nursery.start_soon(self._write, Counter(self._writer(name, "quorum"), COUNTED), impatient)

    def _writer(self, name: str, level: str) -> Writer:
        lasting = level == "quorum"
        values = Values(self.random(name), name, KEYS, SIZES)
        versions = self._versions if lasting else {}
        return Writer(self.history, values, versions, level=level, lasting=lasting, of_set=True)

    async def _write(self, writer: Writer | Counter, feed: tailrace.Feed) -> None:
        while not self.over.is_set():
            await writer.step(feed)
            await trio.sleep(0.002)  # other tasks need the machine, too

    async def _look(self, looker: Looker, feed: tailrace.Feed) -> None:
        while True:
            with contextlib.suppress(Retryable, OutcomeUnknown):
                await looker.look_at_some(feed)
            await trio.sleep(0.01)

    # The end

    async def _judge(self, feed: tailrace.Feed, aside: tailrace.Feed) -> None:
        with trio.move_on_after(EQUAL_S) as waited:
            leader = await self._led()
        if waited.cancelled_caught:
            raise Violation("all is healed and quiet, and no node leads")
        self.copy = await self._copy_of(leader, "leader")
        for node in self.group.nodes:
            if node is not leader:
                await self._require_equal(node, leader.name)
        _note_branches(self.history, self.copy)
        await self.judge(feed)
        assert self.verdict is not None
        state = {key: value for key, (_, _, value) in self.verdict.final_state().items()}
        self.require_state(self.aside.name, await self.aside.catch_up(aside), state)
        beside = await self._copy_of(leader, "leader", BESIDE, 1)
        _note_branches(self.beside, beside)
        Verdict(self.beside, beside.rows).check()

    async def _copy_of(self, node: NodeProcess, state: str, feed: str = FEED, partitions: int = PARTITIONS) -> Copy:
        async with tailrace.connect(node.url, name="judge", state=state) as client:
            return await read_copy(node.name, client.feed(feed), partitions)

    async def _require_equal(self, node: NodeProcess, name: str) -> None:
        """Requires that a node has the same rows as the leader. It may take a while to catch up."""
        last: Exception = Violation(f"{node.name} shows nothing")
        with trio.move_on_after(EQUAL_S):
            while True:
                try:
                    compare(node.name, await self._copy_of(node, "follower"), name, self.copy)
                    return
                except (Violation, UnknownFeed) as error:
                    last = error
                await trio.sleep(5 * POLL_S)
        raise last

    def figures(self) -> str:
        acts = f"failover {self.group.failover}; {dict(self.done)}"
        return f"{acts}; {super().figures()}; {self.loyal_looker.looks} looks beside"


def _note_branches(history: History, copy: Copy) -> None:
    """Tells a history the branches of its partitions. Terms rise as often as nodes come to lead."""
    for partition, log in copy.logs.items():
        history.branches[partition].started(log, 0, log.term, f"partition {partition} in the end")


def _require_words(said: str) -> None:
    """Raises Violation if a command has failed in a way that no operator expects."""
    if "Traceback" in said or "No such command" in said:
        raise Violation(f"a command of the operator has failed: {said}")
