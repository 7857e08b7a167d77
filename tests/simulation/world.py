"""A cluster with all that use it, what goes wrong with it, and the look at everything after it has healed."""

from __future__ import annotations

import contextlib
import random
import tempfile
from pathlib import Path

import trio
import trio.testing
from tests.fake_host import InlineWorker
from tests.processes.violation import Violation, most_telling

import tailrace
from tailrace.errors import TailraceError
from tailrace.trio.host import Host

from .checks.truth import Truth
from .faults import Faults
from .machine import PORT, Machine, bugs_end_the_run, replays_by_columns
from .network import Network
from .programs.founders import FoundingProcess
from .programs.indexes import chosen
from .programs.process import FEED
from .programs.readers import ConsumingProcess, FollowingProcess, LookingProcess
from .programs.sinks import SinkProcess, has_parts, has_sink, small_sizes
from .programs.writers import Haste, WritingProcess
from .report import Report
from .scheduling import seeded

PARTITIONS = 4
KEYS_PER_PARTITION = 8
NODE = "node-1"
# In the simulated time: how long things go wrong, and how long everything may then take to be well again.
FAULTY_SECONDS = 6.0
HEALING_SECONDS_MAX = 120.0
# So short that deletions are purged while a follower is away.
TOMBSTONE_AGE_SECONDS = 0.3


class World:
    """See the module."""

    def __init__(self, seed, clock, report, nursery, directory):
        self.seed = seed
        self.directory = directory  # of the files of indexes
        self.clock = clock
        self.report = report
        self.nursery = nursery
        self.network = Network(self.random_of("network"), nursery, report.arrived)
        self.in_parts = has_parts(seed)  # the batches of sinks come so
        self.truth = Truth(PARTITIONS, report, in_parts=self.in_parts)
        self.keys = self._make_keys()
        self.keys_in_use = self.keys
        self.versions = {}  # that writers know of each key
        self.is_over = trio.Event()  # nobody writes or asks any more
        self.may_end = trio.Event()  # and all has been looked at
        self.read_again = trio.Event()  # somebody has gone back, and has read again what he lost
        self.haste = Haste()
        self.url = f"tailrace://{NODE}:{PORT}"
        self._has_feed = False
        self.retention = self.random_of("feed").choice(("compact", "compact", "compact", "history"))
        self.machine = Machine(NODE, self.random_of("node"), self.network, clock, report, self._node_started)
        self.writers = [
            WritingProcess(self, "writer-1"),
            WritingProcess(self, "writer-2", "memory"),
            WritingProcess(self, "writer-3", pipelined=True),
        ]
        kinds = chosen(self.random_of("indexes"), 3)
        self.followers = [
            FollowingProcess(self, "steady", kinds[0]),
            FollowingProcess(self, "restless", kinds[1]),
            FollowingProcess(self, "hasty", kinds[2], "memory"),
        ]
        self.others = [
            ConsumingProcess(self, "consumer"),
            ConsumingProcess(self, "choosy", key_prefix=self.random_of("filter").choice((b"key 1", b"key 2", b"none"))),
            ConsumingProcess(self, "terse", key_prefix=b"key ", keys_only=True),
            LookingProcess(self, "looker"),
            FoundingProcess(self, "founder"),
        ]
        # What befalls them they decide themselves.
        self.sinks = [SinkProcess(self, "sink")] if has_sink(seed) else []

    @property
    def processes(self):
        """All that use the feed."""
        return [*self.writers, *self.followers, *self.others]

    def random_of(self, name):
        return random.Random(f"{self.seed} {name}")

    def rolled_back(self, name, partition, detail):
        """Somebody has been told to go back."""
        self.report.rolled_back(name, partition, detail)

    def has_read_again(self):
        """Somebody has read again what he lost, and not yet what follows."""
        read_again, self.read_again = self.read_again, trio.Event()
        read_again.set()

    def _make_keys(self):
        keys = {number: [] for number in range(PARTITIONS)}
        number = 0
        while any(len(found) < KEYS_PER_PARTITION for found in keys.values()):
            key = b"key %d" % number
            found = keys[self.truth.history.partition_of(key)]
            if len(found) < KEYS_PER_PARTITION:
                found.append(key)
            number += 1
        return [key for found in keys.values() for key in found]

    @contextlib.contextmanager
    def damage(self):
        """A node that could not read a segment says so to whoever asks for what is in it."""
        try:
            yield
        except TailraceError as error:
            if "is damaged at offset" not in str(error):
                raise
            self.report.operation("answer that a segment is damaged")

    def _node_started(self, node):
        if self._has_feed:
            machine = self.machine
            self.truth.restarted(
                node, FEED, machine.starts, lost_power=machine.lost_power, may_be_clean=machine.may_be_clean
            )

    async def run(self):
        """Raises Violation, or whatever else went wrong."""
        self.nursery.start_soon(self.machine.run)
        await self._make_feed()
        for process in (*self.processes, *self.sinks):
            self.nursery.start_soon(process.run)
        await Faults(self).run(FAULTY_SECONDS)
        with trio.move_on_after(HEALING_SECONDS_MAX) as healing:
            await self._heal()
            await self._all_caught_up()
        if healing.cancelled_caught:
            raise Violation(f"{HEALING_SECONDS_MAX:g} s after everything was healed: {self._who_is_behind()}")
        self._compare()
        self.may_end.set()
        await self._stop_cleanly()

    async def _make_feed(self):
        await self.machine.up()
        host = Host(
            connect=self.network.of("operator").connect,
            worker=InlineWorker,
            random=self.random_of("operator"),
            new_session=str,
        )
        async with tailrace.connect(self.url, host=host) as client:
            await client.create_feed(
                FEED, partitions=PARTITIONS, retention=self.retention, tombstone_age_s=TOMBSTONE_AGE_SECONDS
            )
        self._has_feed = True
        self.report.feed_id = self.machine.life.node.feeds.named(FEED).info.feed_id
        self.truth.restarted(self.machine.life.node, FEED, 1, lost_power=False, may_be_clean=False)

    # In the end

    async def _heal(self):
        self.is_over.set()
        for process in (*self.writers, *self.others, *self.sinks):
            await process.ended.wait()

    async def _all_caught_up(self):
        async with trio.open_nursery() as nursery:
            for process in self.followers:
                nursery.start_soon(self._catch_up, process)

    async def _catch_up(self, process):
        await process.started.wait()
        await process.barrier()

    def _who_is_behind(self):
        return "; ".join(
            f"{process.name}: {process.follower.status() if process.follower else 'not started'}"
            for process in self.followers
        )

    def _compare(self):
        """Every index is what the node is, and the node keeps what was promised."""
        node = self.machine.life.node
        node.check()
        self.truth.judge()
        state = self.truth.state()
        for process in self.followers:
            held = {key: value for key, (_, value) in process.index.held().items()}
            wrong = sorted(key for key in held.keys() | state.keys() if held.get(key) != state.get(key))
            if wrong:
                raise Violation(
                    f"{process.name} ({process.index.kind}) differs from the node in {len(wrong)} keys: {wrong[:5]}"
                )
        self._check_look_ups(node, state)
        self._check_sinks(node)

    def _check_look_ups(self, node, state):
        """The node finds by key what was written."""
        for key in self.keys:
            partition = node.feeds.named(FEED).partitions[self.truth.history.partition_of(key)]
            partition.keys.catch_up(partition.tree, lambda: False)
            found = partition.find(key)
            value = None if found is None else found.value
            if value != state.get(key):
                raise Violation(f"the node finds {value!r} for {key!r}, which is {state.get(key)!r}")

    def _check_sinks(self, node):
        """The node remembers of each sink the batch that it has published last, in each partition."""
        for sink in self.sinks:
            for partition in node.feeds.named(FEED).partitions:
                runs = self.truth.partitions[partition.id].runs
                last, run = partition.sinks.find(sink.name), runs.newest(sink.name)
                is_whole = run is not None and runs.of(run.share.batch) is not None
                known = None if last is None else (last.batch, last.seq, last.is_complete)
                if known != (run and (run.share.batch[1], run.last_seq, is_whole)):
                    raise Violation(f"partition {partition.id} knows of {sink.name} {last}, and has {run}")

    async def _stop_cleanly(self):
        """And a node that starts again holds the same, without a new branch."""
        await self.machine.stop()
        self.machine.start()
        await self.machine.up()
        self.machine.life.node.check()
        self._check_sinks(self.machine.life.node)


@contextlib.contextmanager
def _own_directory():
    """One for the files of indexes, which goes with what is in it."""
    directory = Path(tempfile.mkdtemp(prefix="tailrace-simulation-"))
    try:
        yield directory
    finally:
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()


def simulate(seed, *, trace=None):
    """A run; its report. What goes wrong is raised, with the seed."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    report = Report(trace=trace)

    async def main():
        report.now = trio.current_time
        async with trio.open_nursery() as nursery:
            await World(seed, clock, report, nursery, directory).run()
            nursery.cancel_scope.cancel()

    try:
        sizes = small_sizes(in_parts=has_parts(seed)) if has_sink(seed) else contextlib.nullcontext()
        with _own_directory() as directory, seeded(seed), bugs_end_the_run(), sizes, replays_by_columns():
            trio.run(main, clock=clock)
    except BaseException as error:
        found = most_telling(error)
        found.add_note(f"make simulate SEED={seed}")
        if found is error:
            raise
        raise found from None
    return report
