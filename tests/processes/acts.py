"""A set of three nodes that is broken in every way, under writers and readers. The actors (actor.py) break it."""

from __future__ import annotations

import contextlib
from collections import Counter as Tally
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio
from tests.tailrace_server.coordination.made_etcd import Etcd

import tailrace
from tailrace.errors import OutcomeUnknown, Retryable, UnknownFeed

from .actor import Act, Actor, Report
from .client_acts import BESIDE, NEWCOMER_S, QUIET, SIZES, ClientActs
from .copies import Copy, compare, read_copy
from .disk_acts import DiskActs
from .group import Group
from .history import History
from .leader_acts import LeaderActs
from .member_acts import MemberActs
from .network_acts import NetworkActs
from .node_acts import NodeActs
from .program import Orders
from .readers import Consumer, FollowedIndex, Looker
from .run import FEED, Run, Scenario
from .store_acts import StoreActs
from .verdict import Verdict
from .violation import Violation
from .writers import Counter, Values, Writer

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from tailrace import Version

    from .node import NodeProcess

PARTITIONS = 3
KEYS = [b"key %d" % number for number in range(60)]
COUNTED = [b"counted %d" % number for number in range(4)]
STORAGE = {
    "segment_bytes": 64 * 1024,
    "flush_age_s": 2.0,
    "journal_file_bytes_max": 512 * 1024,
    "reserve_bytes": 256 * 1024,
}
# Acts that help a set that is dead.
HELP = ("mend", "start_all", "promote")
# Longer than the set is ever without a leader in a run: a client that waits this long gets an answer, or the run fails.
PATIENT_S = 240.0
# Shorter than a change of leader takes an operator: then the outcome of a write is unknown.
IMPATIENT_S = 0.5
# A set may be without a leader this long, with all nodes there and connected, before the run promotes one.
LEADERLESS_S = 20.0
EQUAL_S = 120.0
CERTAIN_S = 60.0  # if the act has to come off
STUCK_S = 600.0
POLL_S = 0.1


@dataclass
class ActsScenario(Scenario):
    """``acts``: how many, by chance; or those of ``seconds``, if that is set.

    Attributes:
        first: Names of acts before them, each repeated until it has come off.
        failover: The option of the nodes, "auto" or "manual".
        store: Where the members are: "static", in the lists of the nodes, or "etcd".
    """

    acts: int = 24
    seconds: float = 0.0
    first: tuple[str, ...] = ()
    failover: str = "auto"
    store: str = "static"


class Acts(Run):
    """A run with a set of three nodes, or later up to five. ``done`` counts the acts."""

    scenario: ActsScenario
    keys = KEYS + COUNTED

    def __init__(self, scenario: ActsScenario) -> None:
        super().__init__()
        self.scenario = scenario
        self.stuck_s = STUCK_S + scenario.seconds
        self.history, self.beside = History(PARTITIONS), History(1)
        orders = Orders(storage=STORAGE, bug=scenario.bug)
        self._etcd = Etcd(scenario.directory / "etcd") if scenario.store == "etcd" else None
        store = f"etcd://{self._etcd.endpoint}" if self._etcd else ""
        self.group = Group(scenario.directory, 3, orders, failover=scenario.failover, store=store, can_trouble=True)
        self.members: MemberActs
        self._clients: ClientActs
        self._actors: list[Actor] = []
        self.done: Tally[str] = Tally()
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
        if self._etcd is not None:
            await trio.to_thread.run_sync(self._start_store)
        await self.group.connect(nursery)
        self._hire(nursery)
        await self.group.start(self.group.nodes)

    def _start_store(self) -> None:
        assert self._etcd is not None
        self._etcd.start().wait()

    async def stop_nodes(self) -> None:
        await self.group.stop()

    def end_at_once(self) -> None:
        super().end_at_once()
        if self._etcd is not None:
            self._etcd.stop()

    async def _all_vote(self) -> None:
        """Returns when all nodes vote: until then the set has no disk to spare."""
        while not await self._actors[0].all_vote():  # noqa: ASYNC110 - other processes
            await trio.sleep(POLL_S)

    # Acts

    def _hire(self, nursery: trio.Nursery) -> None:
        """Makes the actors."""
        group, history, rnd = self.group, self.history, self._random
        network = NetworkActs(group, history, rnd)
        self.members = MemberActs(group, history, self.random("members"), nursery, self.tell)
        self._clients = ClientActs(group, self.beside, rnd, network)
        self._actors = [
            NodeActs(group, history, rnd),
            network,
            LeaderActs(group, history, rnd),
            DiskActs(group, history, rnd),
            self.members,
            self._clients,
        ]
        if self._etcd is not None:
            self._actors.append(StoreActs(group, history, rnd, self._etcd))

    def _named(self, name: str) -> Act:
        """Returns an act by its name, of the run or of an actor."""
        return next(getattr(owner, name) for owner in (self, *self._actors) if hasattr(owner, name))

    async def _act(self) -> None:
        acts = [(3, self.mend), (2, self.usurp), *(act for actor in self._actors for act in actor.table)]
        # If nothing goes on, acts that help are more likely: a set that is dead for long shows little.
        help_out = [act for act in acts if act[1].__name__ in HELP]
        goes_on = True
        for name in self.scenario.first:
            await self._certainly(self._named(name))
        began = trio.current_time()
        while self._has_time(began):
            possible = acts if goes_on or self._random.random() < 0.4 else help_out
            (act,) = self._random.choices([act for _, act in possible], [weight for weight, _ in possible])
            report = await act()
            if report is None:
                await trio.lowlevel.checkpoint()
                continue
            self.done[act.__name__] += 1
            self.tell(report.text)
            before = self.history.answers
            with trio.move_on_after(self._random.choice([0.3, 1.0, 3.0])):
                await self.history.more_answers(self._random.choice([1, 30, 300, 1_000]))
            goes_on = self.history.answers > before

    def _has_time(self, began: float) -> bool:
        if self.scenario.seconds:
            return trio.current_time() < began + self.scenario.seconds
        return sum(self.done.values()) < self.scenario.acts

    async def _certainly(self, act: Act) -> None:
        """Repeats an act until it has come off. On a busy machine a promotion is refused, or no leader answers."""
        self._clients.patience_s = CERTAIN_S
        while True:
            report = await act()
            if report is not None:
                self.done[act.__name__] += 1
                self.tell(report.text)
                if report.came_off:
                    self._clients.patience_s = NEWCOMER_S
                    return
            await trio.sleep(POLL_S)

    async def mend(self) -> Report | None:
        """Ends all troubles, except of nodes that do not run."""
        told = [done for actor in self._actors for done in await actor.mend()]
        return Report(", ".join(told)) if told else None

    async def usurp(self) -> Report | None:
        """Lets the leader go on alone for a while, and promotes another node: rows of the old leader alone are lost."""
        cut = await self._named("cut_leader")()
        if cut is None:
            return None
        with trio.move_on_after(1.0):
            await self.history.more_answers(100)
        promoted = await self._named("promote_other")()
        return Report(f"{cut.text}; {promoted and promoted.text}")

    async def _heal(self) -> None:
        """Connects and starts everything, and waits for a leader: by itself, or by an operator."""
        await self.mend()
        await self._named("start_all")()
        self.members.is_over = True
        self.tell("healed")
        with trio.move_on_after(LEADERLESS_S) as waited:
            await self._led()
        while waited.cancelled_caught and await self.group.leader() is None:
            self.tell(f"in the end: {await self._named('promote')()}")
        await self.members.settled()
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
        acts = f"failover {self.group.failover}; {self.scenario.store}; {dict(self.done.most_common())}"
        return f"{acts}; {super().figures()}; {self.loyal_looker.looks} looks beside"


def _note_branches(history: History, copy: Copy) -> None:
    """Tells a history the branches of its partitions. Terms rise as often as nodes come to lead."""
    for partition, log in copy.logs.items():
        history.branches[partition].started(log, 0, log.term, f"partition {partition} in the end")


def _require_words(said: str) -> None:
    """Raises Violation if a command has failed in a way that no operator expects."""
    if "Traceback" in said or "No such command" in said:
        raise Violation(f"a command of the operator has failed: {said}")
