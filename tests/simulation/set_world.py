"""A set of nodes with all that use it, what goes wrong with it, and the look at everything after it has healed."""

from __future__ import annotations

import contextlib
import random
from unittest import mock

import trio
import trio.testing
from tests.fake_host import InlineWorker
from tests.memory_disk import MemoryDisk
from tests.processes.violation import Violation, most_telling

import tailrace
from tailrace.errors import TailraceError
from tailrace.link.address import Address
from tailrace.model import failover
from tailrace.model.hashing import key_hash, partition_of_hash
from tailrace.trio.host import Host
from tailrace_server.config import Replication
from tailrace_server.replication.role import Role

from . import shapes
from .checks import copies
from .checks.histories import Histories, place_of, short_place
from .checks.linearisability import Outcome, Undecided, explain, is_linearisable
from .checks.promises import Promises
from .machine import DATA, PORT, End, Machine, bugs_end_the_run, replays_by_columns
from .network import Network
from .programs.operator import Operator
from .programs.set_clients import (
    FEED,
    FollowerReader,
    FollowingProcess,
    FoundingProcess,
    RegisterProcess,
    WritingProcess,
)
from .programs.set_sinks import Published, SetSink, wants_parts, wants_sink
from .programs.sinks import small_sizes
from .scheduling import seeded
from .set_faults import Faults
from .set_report import SetReport

PARTITIONS = 2
KEYS = {"quorum": 6, "safe": 4, "disk": 8, "memory": 4}
# In the simulated time: how long things go wrong, and how long everything may then take to be well again.
FAULTY_SECONDS = 5.0
HEALING_SECONDS_MAX = 120.0
# So long nobody may lead, everything being well, before somebody is asked to.
LEADERLESS_SECONDS_MAX = 3.0
TOMBSTONE_AGE_SECONDS = 0.3
ENTRIES_MAX = failover.ENTRIES_MAX
REPLICATION = Replication(poll_s=0.1, ask_timeout_s=0.3, step_timeout_s=1.5)


class World:
    """See the module."""

    def __init__(self, seed, clock, report, nursery, profile="", story=None):
        """``profile``: one of those of faults.py, "": the seed chooses.

        ``story``: one of stories.py, which is told to a set of three, or of five, in place of faults by chance.
        """
        self.seed = seed
        self.profile = profile
        self._story = story
        self.clock = clock
        self.report = report
        self.nursery = nursery
        self.network = Network(self.random_of("network"), nursery, report.arrived)
        self.histories = Histories(report)
        self.promises = Promises(self.histories)
        self.is_over = trio.Event()  # nobody writes or asks any more
        self.may_end = trio.Event()  # and all has been looked at
        rnd = self.random_of("set")
        self.may_force = rnd.random() < 0.25 and story is None
        self.has_short_logs = failover.ENTRIES_MAX < ENTRIES_MAX
        self.retention = rnd.choice(("compact", "compact", "history")) if story is None else "compact"
        count = rnd.choice((3, 3, 3, 5, 5, 2)) if story is None else getattr(story, "nodes", 3)
        self.names = [f"node-{number}" for number in range(1, 1 + count)]
        self.url = "tailrace://" + ",".join(f"{name}:{PORT}" for name in self.names)
        members = tuple(Address(name, PORT) for name in self.names)
        self.machines = [
            Machine(
                name,
                self.random_of(name),
                self.network,
                clock,
                report,
                lambda node, name=name: self.histories.attach(name, node),
                members=members,
                replication=REPLICATION,
            )
            for name in self.names
        ]
        # One block of a folded segment would take all that there is here: a run would have no inside.
        folded_block_bytes = 250 if story is not None else rnd.choice((None, 250, 1_000))
        for machine in self.machines:
            machine.folded_block_bytes = folded_block_bytes
        self._alone = 0  # nodes that were run by themselves
        self.feed_id = None
        self.is_patient = False  # whoever begins to write from now on waits as long as it takes
        # The node whose state is read all the time, and at which level, where a story wants that.
        self.read_from = self.read_level = None
        self.barriers = []  # (who, when it was asked for, floors, positions)
        self._make_keys()
        self.operations = {key: [] for key in self.all_keys["quorum"]}
        self.followers = [
            FollowingProcess(self, "follower-quorum", "quorum"),
            FollowingProcess(self, "follower-disk", "disk"),
        ]
        self.writers = [
            RegisterProcess(self, "register-1"),
            RegisterProcess(self, "register-2"),
            RegisterProcess(self, "register-3"),
            RegisterProcess(self, "looker", only="looks"),
            RegisterProcess(self, "refused", only="refusals"),
            WritingProcess(self, "writer-disk", "disk"),
            WritingProcess(self, "writer-memory", "memory", 0.1),
            WritingProcess(self, "writer-quorum", "quorum", keys="safe"),
        ]
        self.others = [FollowerReader(self, "reader"), FoundingProcess(self, "founder")]
        self.clients = [*self.followers, *self.writers, *self.others]
        self.in_parts = wants_parts(seed, story)
        self.published = Published(self)
        # What befalls them they decide themselves.
        self.sinks = [SetSink(self, "sink")] if wants_sink(seed, story) else []
        self.client_names = [client.name for client in (*self.clients, *self.sinks)]
        self.operator = Operator(self)

    def random_of(self, name):
        return random.Random(f"{self.seed} {name}")

    async def run_alone(self, disk, *, crashes, restored=False, feed=None):
        """A node leads by itself on ``disk``, at a machine of no set, and crashes so often; it makes ``feed``.

        ``restored``: the disk is a copy, as is said at its start.
        """
        self._alone += 1
        name = f"alone-{self._alone}"
        machine = Machine(
            name, self.random_of(name), self.network, self.clock, self.report, lambda node: None, restored=restored
        )
        machine.put_disk(disk)
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(machine.run)
                for _ in range(crashes):
                    machine.start()
                    await machine.up()
                    if feed is not None:
                        await self._fill(name, feed)
                    machine.kill(End.KILL)
                    await machine.life_over()
                scope.cancel()

    async def _fill(self, name, feed):
        host = Host(
            connect=self.network.of("operator").connect,
            worker=InlineWorker,
            random=self.random_of(name),
            new_session=str,
        )
        async with tailrace.connect(self.url_of(name), host=host, connect_timeout=60.0, retry_for=60.0) as client:
            await (await client.create_feed(feed, partitions=1)).put(b"key", b"value")

    async def disk_of_another_cluster(self):
        """That of a node which led by itself and crashed, so that its terms are higher than those of a young set."""
        disk = MemoryDisk()
        disk.make_directory(DATA)
        await self.run_alone(disk, crashes=3, feed="theirs")
        return disk

    async def disk_of_backup(self, disk):
        """A copy of a member's disk that was started by itself, as one that was restored."""
        await self.run_alone(disk, crashes=1, restored=True)
        return disk

    def url_of(self, name):
        return f"tailrace://{name}:{PORT}"

    def machine(self, name):
        return self.machines[self.names.index(name)]

    def partition_of(self, key):
        return partition_of_hash(key_hash(key), PARTITIONS)

    def place(self, partition):
        return self.feed_id, partition

    def _make_keys(self):
        self.all_keys = {level: [b"%s %d" % (level.encode(), n) for n in range(KEYS[level])] for level in KEYS}
        self.keys = dict(self.all_keys)

    def use_fewer_keys(self, rnd):
        """Other partitions fall quiet, or none."""
        some = rnd.sample(range(PARTITIONS), rnd.randint(1, PARTITIONS))
        fewer = {
            level: [key for key in keys if self.partition_of(key) in some] for level, keys in self.all_keys.items()
        }
        self.keys = {level: fewer[level] or self.all_keys[level] for level in fewer}

    def leads(self, machine):
        return machine.is_up and machine.life.node.leaderships.system.role is Role.LEADER

    # What is told

    @contextlib.contextmanager
    def damage(self):
        """A node that could not read a segment says so to whoever asks for what is in it."""
        try:
            yield
        except TailraceError as error:
            if "is damaged at offset" not in str(error):
                raise
            self.report.operation("answer that a segment is damaged")

    def check_was_written(self, who, partition, key, value):
        """Somebody was given a row: it is one that was written once."""
        if (key, value) not in self.histories.places.get(self.place(partition), {}):
            raise Violation(
                f"{who} was given {key!r}: {value!r:.60} of partition {partition}, which nobody has written"
            )

    def check_state(self, who, partition, state, position):
        """Somebody has read up to an end of a snapshot: it is the state that was at the place that he was told."""
        history = self.histories.history(self.place(partition), position.log, position.seq)
        if None in history:
            return
        self.published.check_stands(who, partition, history)
        expected = {key: row.value for key, (_, row) in copies.newest(history).items()}
        wrong = sorted(key for key in state.keys() | expected.keys() if state.get(key) != expected.get(key))
        if wrong:
            raise Violation(
                f"{who} was shown a state at {partition}/{position.seq} that never was: {wrong[0]!r} is "
                f"{state.get(wrong[0])!r:.60}, not {expected.get(wrong[0])!r:.60}"
            )

    def rolled_back(self, who, partition, detail, level):
        self.report.rolled_back(who, partition, detail)
        if self.has_short_logs and detail == "to 0":  # more leaderships have come than the logs know
            return
        if level == "quorum" and self.promises.forced_at is None:
            self.report.violation = Violation(
                f"{who} is rolled back in partition {partition} {detail}, and was shown what a majority had"
            )
            raise self.report.violation

    # A run

    async def run(self):
        """Raises Violation, or whatever else went wrong."""
        for machine in self.machines:
            self.nursery.start_soon(machine.run)
        await self._make_feed()
        for client in (*self.clients, *self.sinks):
            self.nursery.start_soon(client.run)
        faults = Faults(self)
        if self._story is None:
            await faults.run(FAULTY_SECONDS)
        else:
            await self._story(self)
            faults.mend()
        doing = "wait"
        with trio.move_on_after(HEALING_SECONDS_MAX) as healing:
            self.is_over.set()
            doing = "a leader that all follow"
            await self._lead()
            doing = "all clients"
            for client in (*self.writers, *self.others, *self.sinks):
                await client.ended.wait()
            doing = "equal copies"
            await self._level()
            doing = "the followers"
            for follower in self.followers:
                await follower.started.wait()
                await follower.barrier()
        if healing.cancelled_caught:
            raise Violation(
                f"{HEALING_SECONDS_MAX:g} s after everything was healed {doing} is waited for: {self._why()}"
            )
        self._compare()
        self.may_end.set()
        await self._stop_all()

    async def _make_feed(self):
        host = Host(
            connect=self.network.of("operator").connect,
            worker=InlineWorker,
            random=self.random_of("maker"),
            new_session=str,
        )
        async with tailrace.connect(self.url, host=host, connect_timeout=60.0, retry_for=60.0) as client:
            if getattr(self._story, "has_elder_feed", False):
                await self._make_elder_feed(client)
            await client.create_feed(
                FEED, partitions=PARTITIONS, retention=self.retention, tombstone_age_s=TOMBSTONE_AGE_SECONDS
            )
            [info] = [info for info in await client.feeds() if info.name == FEED]
        self.feed_id = info.feed_id
        self.histories.look()

    async def _make_elder_feed(self, client):
        """Makes one that nobody writes to, and waits until the leader has it in a segment; no other one is made."""
        self.network.cut_ways(shapes.between(["founder"], self.names))
        await client.create_feed("elder", partitions=1)
        [leader] = [machine.life.node for machine in self.machines if self.leads(machine)]
        while not leader.feeds.system.partitions[0].flushed_seq:  # noqa: ASYNC110 - it tells nobody
            await trio.sleep(0.1)

    # In the end

    async def _lead(self):
        """Until somebody leads; he leads again by himself, or is asked to."""
        while True:
            with trio.move_on_after(LEADERLESS_SECONDS_MAX):
                while not any(map(self.leads, self.machines)):  # noqa: ASYNC110 - it tells nobody
                    await trio.sleep(0.1)
                return
            self.report.operation("nobody leads by himself")
            name = self.operator.random.choice(self.names)
            await self.operator.promote(name, force=self.may_force and self.operator.random.random() < 0.3)

    async def _level(self):
        """Until all copies say the same of themselves."""
        leaderless_s = 0.0
        while self._why():
            await trio.sleep(0.1)
            leaderless_s = 0.0 if any(map(self.leads, self.machines)) else leaderless_s + 0.1
            if leaderless_s > LEADERLESS_SECONDS_MAX:
                leaderless_s = 0.0
                await self._lead()

    def _why(self):
        """Why not all copies are equal yet; "": they are, as far as they say."""
        for machine in self.machines:
            if not machine.is_up:
                return f"{machine.name} is down"
            if machine.has_given_up:
                return f"{machine.name} has given up"
        leaders = [machine for machine in self.machines if self.leads(machine)]
        if len(leaders) != 1:
            said = [
                f"{m.name} {leadership.role.value} {leadership.term}: {m.life.node.members[0].progress}"
                for m, leadership in ((m, m.life.node.leaderships.system) for m in self.machines)
            ]
            return f"{len(leaders)} lead: {said}"
        for machine in self.machines:
            why = copies.difference(leaders[0].life.node, machine.life.node)
            if why:
                return (
                    f"{leaders[0].name}, which leads in term {leaders[0].life.node.leaderships.system.term}, and "
                    f"{machine.name} ({machine.life.node.members[0].progress}): {why}"
                )
        return ""

    def _compare(self):
        [leader] = [machine.life.node for machine in self.machines if self.leads(machine)]
        for machine in self.machines:
            copies.check_copy(machine.name, machine.life.node, self.histories)
        partitions = {place_of(partition): partition for partition in leader.feeds.of_id(self.feed_id).partitions}
        logs = {place: partition.log for place, partition in partitions.items()}
        high_seqs = {place: partition.high_seq for place, partition in partitions.items()}
        self.promises.judge(logs, high_seqs)
        for level, count in self.promises.lost.items():
            self.report.operations[f"write at {level} lost"] += count
        self.published.judge(leader, logs, high_seqs)
        self._check_barriers(logs, high_seqs)
        self._check_followers(logs, high_seqs)
        self._check_registers()
        for client in self.others:
            for feed_id in getattr(client, "dropped", ()):
                if feed_id in leader.feeds and self.promises.forced_at is None:
                    raise Violation(f"feed {feed_id.hex()} was dropped, and is there")

    def _check_followers(self, logs, high_seqs):
        state = {}
        for place, log in logs.items():
            for row in self.histories.history(place, log, high_seqs[place]):
                if row is not None and row.value is not None:
                    state[row.key] = row.value
                elif row is not None:
                    state.pop(row.key, None)
        for follower in self.followers:
            held = follower.index.state
            wrong = sorted(key for key in held.keys() | state.keys() if held.get(key) != state.get(key))
            if wrong:
                raise Violation(f"{follower.name} differs from the set in {len(wrong)} keys: {wrong[:5]}")

    def _check_barriers(self, logs, high_seqs):
        """What was acknowledged before a barrier was asked for, and still stands, was there when it came back."""
        for who, _, floors, positions in self.barriers:
            for place, count in floors.items():
                lineage = self.histories.lineage(place, logs[place])
                told = self.promises.acknowledged[place][:count]
                standing = [(b, s) for b, s in told if s <= high_seqs[place] and lineage.holds(b, s)]
                if not standing:
                    continue
                branch, seq = max(standing, key=lambda it: it[1])
                position = positions.get(place[1])
                at = None if position is None else self.histories.lineage(place, position.log)
                if at is None or position.seq < seq or not at.holds(branch, seq):
                    raise Violation(
                        f"{who}: a barrier came back at {position and position[:2]}, {short_place(place)}/{seq} of "
                        f"branch {branch.hex()[:8]} had been acknowledged before it was asked for"
                    )

    def _check_registers(self):
        forced_at = self.promises.forced_at
        for key, recorded in self.operations.items():
            operations = [self._by_true_names(operation) for operation in recorded if operation is not None]
            operations = [operation for operation in operations if operation is not None]
            if forced_at is not None:
                operations = [
                    it if it.answered < forced_at else it._replace(answered=float("inf"), outcome=Outcome.UNKNOWN)
                    for it in operations
                    if it.asked < forced_at
                ]
            try:
                holds = is_linearisable(operations)
            except Undecided:
                self.report.undecided += 1
                continue
            self.report.operations["register checked"] += 1
            if not holds:
                raise Violation(f"{key!r} is not linearisable:\n{explain(operations)}")

    def _by_true_names(self, operation):
        """With versions by the names that they were given. A log that has dropped a branch gives them other ones.

        None of a write that was refused since its version is called otherwise now: nothing follows from it.
        """
        version, expected = map(self._by_true_name, (operation.version, operation.expected))
        if operation.outcome is Outcome.REFUSED and version is not None and version != operation.version:
            return None
        return operation._replace(version=version, expected=expected)

    def _by_true_name(self, version):
        if version is None:
            return None
        branch = self.histories.true_branch(self.place(version.partition), version.branch, version.seq)
        return version._replace(branch=branch)

    async def _stop_all(self):
        """And a set that is started again holds the same."""
        if self.random_of("end").random() < 0.7:
            return
        async with trio.open_nursery() as nursery:
            for machine in self.machines:
                nursery.start_soon(machine.stop)
        for machine in self.machines:
            machine.start()
        for machine in self.machines:
            await machine.up()
        with trio.move_on_after(HEALING_SECONDS_MAX) as healing:
            await self._level()
        if healing.cancelled_caught:
            raise Violation(f"{HEALING_SECONDS_MAX:g} s after all were started again: {self._why()}")
        for machine in self.machines:
            copies.check_copy(machine.name, machine.life.node, self.histories)


def short_logs(seed, story):
    """In the body failover logs keep so few entries that a run may have more leaderships; `told_with_short_logs`."""
    by_chance = random.Random(f"{seed} short logs").choice((ENTRIES_MAX, ENTRIES_MAX, ENTRIES_MAX, 3))
    entries_max = by_chance if story is None else getattr(story, "entries_max", ENTRIES_MAX)
    return mock.patch.object(failover, "ENTRIES_MAX", entries_max)


def simulate(seed, *, trace=None, profile="", story=None):
    """A run; its report. What goes wrong is raised, with the seed. ``profile`` and ``story``: as of `World`."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    report = SetReport(trace=trace)

    async def main():
        report.now = trio.current_time
        async with trio.open_nursery() as nursery:
            await World(seed, clock, report, nursery, profile, story).run()
            nursery.cancel_scope.cancel()

    try:
        sizes = small_sizes(in_parts=wants_parts(seed, story)) if wants_sink(seed, story) else contextlib.nullcontext()
        with seeded(seed), bugs_end_the_run(), replays_by_columns(), sizes, short_logs(seed, story):
            trio.run(main, clock=clock)
        if report.violation is not None:
            raise report.violation
    except BaseException as error:
        # What a program of a client raises may be lost, where what that ends has failed first.
        found = most_telling(error) if report.violation is None else report.violation
        if isinstance(found, tailrace.UnknownFeed):
            found = Violation(f"the feed that everybody writes to is gone: {found}")
        found.add_note(f"make simulate SETS=1 SEED={seed}")
        if found is error:
            raise
        raise found from None
    return report
