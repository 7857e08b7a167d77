"""The simulated world: one node or a set of nodes, with all programs that use them, on one network and one clock."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from pathlib import Path

import trio
from tests.memory_disk import MemoryDisk
from tests.processes.violation import Violation, most_telling

import tailrace
from tailrace.errors import TailraceError
from tailrace.link.address import Address
from tailrace.model.hashing import key_hash, partition_of_hash
from tailrace_server.config import Replication
from tailrace_server.replication.role import Role

from .checks.equal_segments import equal_segments, why_other_segments
from .checks.one_node import OneNodeChecks
from .checks.several_nodes import SetChecks
from .faults import shapes
from .faults.schedule import Faults
from .faults.transfers import Transfers
from .machine import DATA, PORT, End, Machine, bugs_end_the_run, leaves
from .network import Network
from .plan import HEALING_SECONDS_MAX, plan_run
from .program_disk import ProgramSystem
from .programs.casts import new_cast, new_keys
from .programs.fetchers import FetchingProcess
from .programs.operator import Operator
from .programs.process import FEED, host_of
from .programs.writers import Haste
from .report import Report
from .scheduling import seeded
from .sizes import small_bounds
from .virtual_time import virtual_time

# So short that deletions are purged while a follower is away.
TOMBSTONE_AGE_SECONDS = 0.3
REPLICATION = Replication(poll_s=0.1, ask_timeout_s=0.3, step_timeout_s=1.5)
# The bytes from which a follower copies segments, as the seed chooses; stories tell of streams.
CATCH_UP_BYTES = (0, 4_096, None)


class World:
    """One run: its machines, its programs, its faults, and the checks that its number of nodes allows.

    Attributes:
        is_over: Set when the faults are over: programs write and ask no more.
        may_end: Set when everything was checked: followers end.
        checks: Those of one node, which come with each answer, or those of a set, most of which come in the end.
        versions: The versions that writers know of each key.
        read_again: Set, and replaced, each time that a program has read keys again after a rollback.
        is_patient: A story wants writers to wait for each answer as long as it takes.
        disks: Those of programs that fetch copies.
        transfers: The frames of segments and of stages between nodes; None: the run is not about them.
        read_from, read_level: The node and the level whose state a story wants to be read all the time.
    """

    def __init__(self, plan, clock, report, nursery, directory, disks):
        """``directory``: where followers keep the files of their indexes, and where copies are read."""
        self.plan = plan
        self.clock = clock
        self.report = report
        self.disks = disks
        self.nursery = nursery
        self.directory = directory
        self.names = plan.names
        self.feed_name = "shared" if plan.is_set else FEED
        self.feed_id = None
        self.url = "tailrace://" + ",".join(f"{name}:{PORT}" for name in self.names)
        self.network = Network(self.random_of("network"), nursery, report.arrived)
        self.transfers = Transfers(self) if plan.way or plan.seals_at_quorum else None
        self.network.harm = self.transfers
        self.is_over = trio.Event()
        self.may_end = trio.Event()
        self.haste = Haste()
        self.versions = {}
        self.read_again = trio.Event()
        self.is_patient = False
        self.read_from = self.read_level = None
        self.keys = new_keys(plan, self.partition_of)
        self.checks = (SetChecks if plan.is_set else OneNodeChecks)(self)
        self.machines = [self._new_machine(name) for name in self.names]
        self._alone = 0  # nodes that were run by themselves
        self.followers, self.writers, self.others, self.sinks, self.programs = new_cast(self)
        self.program_names = [program.name for program in (*self.programs, *self.sinks)]
        self.fetchers = [program for program in self.others if isinstance(program, FetchingProcess)]
        self.operator = Operator(self)

    def _new_machine(self, name):
        of_set = {}
        if self.plan.is_set:
            members = self.list_of(name, self.plan.founders)
            catch_up = None if self.plan.story else CATCH_UP_BYTES[self.plan.seed % len(CATCH_UP_BYTES)]
            if self.plan.way == "pull":
                catch_up = 0
            replication = dataclasses.replace(REPLICATION, catch_up_bytes_min=catch_up, failover=self.plan.failover)
            of_set = {"members": members, "replication": replication}
        machine = Machine(
            name,
            self.random_of(name if self.plan.is_set else "node"),
            self.network,
            self.clock,
            self.report,
            lambda node: self.checks.node_started(machine, node),
            **of_set,
        )
        machine.block_bytes = self.plan.block_bytes
        return machine

    def random_of(self, name):
        """Returns the generator of one part of the run."""
        return self.plan.random_of(name)

    def partition_of(self, key):
        """Returns the partition of a key of the feed."""
        return partition_of_hash(key_hash(key), self.plan.partitions)

    def machine(self, name):
        """Returns a node's machine."""
        return self.machines[self.names.index(name)]

    def url_of(self, name):
        """Returns the URL of one node."""
        return f"tailrace://{name}:{PORT}"

    def list_of(self, name, members):
        """Returns the list of members that an operator starts a node with: these, and the node itself."""
        return tuple(Address(each, PORT) for each in (members if name in members else [*members, name]))

    def leads(self, machine):
        """Returns whether a machine's node is up and leads."""
        return machine.is_up and machine.life.node.leaderships.system.role is Role.LEADER

    @contextlib.contextmanager
    def damage(self):
        """Survives the answer of a node that cannot read a segment, alone or as each error of a group."""
        try:
            yield
        except (TailraceError, ExceptionGroup) as error:
            if not all("is damaged at offset" in str(each) for each in leaves(error)):
                raise
            self.report.operation("answer that a segment is damaged")

    def has_read_again(self):
        """Notes that a program has read keys again after a rollback, and not yet the rows after them."""
        read_again, self.read_again = self.read_again, trio.Event()
        read_again.set()

    # Nodes that run by themselves

    async def disk_of_another_cluster(self):
        """Returns the disk of a node that led by itself and crashed: its terms are higher than those of a young set."""
        disk = MemoryDisk()
        disk.make_directory(DATA)
        await self._run_alone(disk, crashes=3, feed="theirs")
        return disk

    async def disk_of_backup(self, disk):
        """Starts a copy of a member's disk by itself, as a restored one, and returns it."""
        await self._run_alone(disk, crashes=1, restored=True)
        return disk

    async def _run_alone(self, disk, *, crashes, restored=False, feed=None):
        """Runs a node of no set on ``disk`` until it has crashed ``crashes`` times; each time it makes ``feed``."""
        self._alone += 1
        name = f"alone-{self._alone}"
        rnd = self.random_of(name)
        machine = Machine(name, rnd, self.network, self.clock, self.report, lambda node: None, restored=restored)
        machine.put_disk(disk)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(machine.run)
                for _ in range(crashes):
                    machine.start()
                    await machine.up()
                    if feed is not None:
                        async with self.connect_operator(name, self.url_of(name)) as client:
                            await (await client.create_feed(feed, partitions=1)).put(b"key", b"value")
                    machine.kill(End.KILL)
                    await machine.life_over()
                scope.cancel()

    def connect_operator(self, name, url=None):
        """Returns a patient client on the operator's machine; ``name`` is that of its generator."""
        host = host_of(self, "operator", self.random_of(name))
        return tailrace.connect(url or self.url, host=host, connect_timeout=60.0, retry_for=60.0)

    # The run

    async def run(self):
        """Runs the programs among faults, mends everything and checks the result.

        Raises:
            Violation: A promise is broken. Whatever else goes wrong is raised, too.
        """
        for machine in self.machines:
            self.nursery.start_soon(machine.run)
        await self._make_feed()
        for program in (*self.programs, *self.sinks):
            self.nursery.start_soon(program.run)
        faults = Faults(self)
        if self.plan.story is None:
            await faults.run(self.plan.faulty_seconds)
        else:
            await self.plan.story.tell(self)
            faults.mend()
        await self._heal()
        for machine in self.machines:
            machine.check_undamaged()
        self.checks.compare()
        self.may_end.set()
        await self.checks.restart()

    async def _make_feed(self):
        if not self.plan.is_set:
            await self.machines[0].up()
        async with self.connect_operator("maker" if self.plan.is_set else "operator") as client:
            if self.plan.story is not None and self.plan.story.has_elder_feed:
                await self._make_elder_feed(client)
            await client.create_feed(
                self.feed_name,
                partitions=self.plan.partitions,
                retention=self.plan.retention,
                tombstone_age_s=TOMBSTONE_AGE_SECONDS,
                replication="segment" if self.plan.way == "push" else "stream",
            )
            if self.plan.is_set:
                [self.feed_id] = [info.feed_id for info in await client.feeds() if info.name == self.feed_name]
        if not self.plan.is_set:
            self.feed_id = self.machines[0].life.node.feeds.named(self.feed_name).info.feed_id
        self.report.feed_id = self.feed_id
        self.checks.feed_made()

    async def _make_elder_feed(self, client):
        """Makes a feed without rows, and waits until the leader has it in a segment. No program makes another one."""
        self.network.cut_ways(shapes.between(["founder"], self.names))
        await client.create_feed("elder", partitions=1)
        [leader] = [machine.life.node for machine in self.machines if self.leads(machine)]
        while not leader.feeds.system.partitions[0].flushed_seq:  # noqa: ASYNC110 - there is no event
            await trio.sleep(0.1)

    async def _heal(self):
        """Waits until the nodes lead and follow, all programs have ended, and all copies and indexes have caught up."""
        step = ""
        with trio.move_on_after(HEALING_SECONDS_MAX) as healing:
            self.is_over.set()
            step = "a leader that all follow"
            await self.checks.leader_found()
            step = "all programs"
            for program in (*self.writers, *self.others, *self.sinks):
                await program.ended.wait()
            step = "equal copies"
            await self.checks.copies_level()
            if self.plan.way:
                step = "equal segments"
                await equal_segments(self)
            step = "the followers"
            async with trio.open_nursery() as nursery:
                for follower in self.followers:
                    nursery.start_soon(follower.catch_up)
        if healing.cancelled_caught:
            why = self.checks.why_not_level() or (why_other_segments(self) if step == "equal segments" else "")
            raise Violation(f"{step} is waited for {HEALING_SECONDS_MAX:g} s after everything was healed: {why}")

    async def restart_all(self):
        """Stops all nodes cleanly, and starts them again."""
        async with trio.open_nursery() as nursery:
            for machine in self.machines:
                nursery.start_soon(machine.stop)
        for machine in self.machines:
            machine.start()
        for machine in self.machines:
            await machine.up()


@contextlib.contextmanager
def _own_directory():
    """Makes a directory for the files of indexes and for copies, and removes it with them."""
    directory = Path(tempfile.mkdtemp(prefix="tailrace-simulation-"))
    try:
        yield directory
    finally:
        for path in sorted(directory.rglob("*"), reverse=True):
            if path.is_dir():
                path.rmdir()
            else:
                path.unlink()
        directory.rmdir()


def simulate(seed, *, nodes=1, story=None, profile="", copies=False, way="", groups=False, trace=None, kind=World):
    """Runs one world from its start to its end.

    Args:
        seed: Decides everything that is left to chance: a seed, with the other arguments, is one run.
        nodes: How many nodes there are; `ANY_SET`: the seed chooses among two, three and five.
        story: The story that takes the place of faults by chance. It says itself how many nodes it needs.
        profile: The kinds of faults that come to a set, a key of `PROFILES`; "": the seed chooses.
        copies: Programs fetch copies, in place of most others.
        way: How segments pass between the nodes, with faults of their own: one of `WAYS`, or `ANY_WAY`.
        groups: The members of a group share the feed, in place of most other programs.
        trace: Called with a line for each event.
        kind: The class of the world.

    Returns:
        The `Report`.

    Raises:
        Violation: A promise is broken. Whatever goes wrong has a note with the command that repeats the run.
    """
    plan = plan_run(seed, nodes, story, profile, copies, way, groups)
    report = Report(trace, crosses=not plan.is_set)
    disks = ProgramSystem()

    async def main():
        report.now = trio.current_time
        async with trio.open_nursery() as nursery:
            await kind(plan, trio.lowlevel.current_clock(), report, nursery, directory, disks).run()
            nursery.cancel_scope.cancel()

    try:
        with (
            _own_directory() as directory,
            seeded(seed),
            virtual_time() as clock,
            bugs_end_the_run(),
            small_bounds(plan),
            disks.in_place(),
        ):
            trio.run(main, clock=clock)
        if report.violation is not None:
            raise report.violation
    except BaseException as error:
        # A violation that a program raises may be lost if something else fails because of it.
        found = report.violation or most_telling(error)
        if plan.is_set and isinstance(found, tailrace.UnknownFeed):
            found = Violation(f"the feed that all programs use is gone: {found}")
        found.add_note(plan.command)
        if found is error:
            raise
        raise found from None
    return report
