"""The storage of a node as one object: journal, committer, flusher, installer, compactor, and their shared parts.

write ── journal ── committer (durable) ── flusher (segments) ── compactor (fewer segments)
                                               └── installer (manifests), trimmer (journal files)
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable

import trio

from tailrace.errors import NoSpace, NotDurable
from tailrace_server.config import Config, StorageConfig
from tailrace_server.directory.identity import Identity
from tailrace_server.directory.uptime_file import store_uptime, tick_uptime
from tailrace_server.feeds.catalog import Catalog
from tailrace_server.host.answers import Answer, Cancel, answered
from tailrace_server.host.garbage import search_early
from tailrace_server.journal import Journal, JournalFailed, Reserve, write_clean
from tailrace_server.manifest import ManifestStore
from tailrace_server.partition.chain import Pins
from tailrace_server.partition.partition import Partition
from tailrace_server.runtime.host import Host
from tailrace_server.segment import ReadCache, SegmentDamaged
from tailrace_server.state.memory import MemoryAccount
from tailrace_server.state.traffic import WriteTotals
from tailrace_server.state.uptime import Uptime
from tailrace_server.upkeep.ahead_files import AheadFiles
from tailrace_server.upkeep.begun_anew import BegunAnew
from tailrace_server.upkeep.broken_transfers import BrokenTransfers
from tailrace_server.upkeep.checkpoints import Checkpoints
from tailrace_server.upkeep.committer import Committer
from tailrace_server.upkeep.compactor import Compactor
from tailrace_server.upkeep.damage_checks import DamageChecks
from tailrace_server.upkeep.flusher import Flusher
from tailrace_server.upkeep.held_writer import HeldWriter
from tailrace_server.upkeep.incoming_segments import IncomingSegments
from tailrace_server.upkeep.installer import Installer
from tailrace_server.upkeep.policy import FlushLimits
from tailrace_server.upkeep.receive_failures import ReceiveFailures
from tailrace_server.upkeep.received_files import ReceivedFiles
from tailrace_server.upkeep.segment_checks import SegmentChecks
from tailrace_server.upkeep.space import Space
from tailrace_server.upkeep.trimmer import Trimmer

log = logging.getLogger("tailrace.server")


class Storage:
    """Keeps the partitions of one data directory. ``run`` does its work; ``stop`` closes it.

    The owner sets the ``on_...`` callbacks, which run on the loop's thread and may not wait.
    """

    def __init__(
        self,
        config: Config,
        host: Host,
        identity: Identity,
        journal: Journal,
        catalog: Catalog,
        store: ManifestStore,
        memory: MemoryAccount,
        uptime: Uptime,
    ) -> None:
        data, limits = config.data, config.storage
        self._limits = limits
        self._replication = config.replication
        self.host = host
        self.data = data
        self.feeds = catalog
        self.journal = journal
        self.store = store
        self.memory = memory
        self.pins = Pins()
        self.read_cache = ReadCache(limits.read_cache_bytes)
        self.written = WriteTotals()
        self.journal_found = (0, 0)  # number and end of the newest file that the start found
        self.damages: dict[str, str] = {}  # the error of each segment that was found damaged, by path
        self.on_failed: Callable[[NotDurable], None] = _ignore
        self.on_progress: Callable[[], None] = _nothing
        self.on_turn_ended: Callable[[], None] = _nothing
        self.installer = Installer(host, store, identity.placement_id, self.pins, catalog.made_seq)
        self.held = HeldWriter(host, data, journal, catalog, self.installer)
        trimmer = Trimmer(host, journal, store, self.installer, catalog, self.pins, self.held)
        self.space = Space(host, data, Reserve(host.disk, data, limits.reserve_bytes), limits.free_bytes_min)
        self.flusher = Flusher(host, journal, store, self.installer, trimmer, self.space, memory, _flush_limits(limits))
        self.flusher.on_flushed = self._flushed
        self.flusher.commit = self.all_durable
        self.flusher.count_partitions = catalog.count_partitions
        self.checkpoints = Checkpoints(host, self.pins, self.flusher, config.limits)
        self.broken_transfers = BrokenTransfers(self.checkpoints)
        self.damage_checks = DamageChecks(host, self.pins, self.damages, self.found_damage)
        self.incoming = IncomingSegments(host.disk, store, config.limits.incoming_segments_max)
        self.received = ReceivedFiles(host, store, self.pins, self.installer.is_unsure)
        self.ahead = AheadFiles(host, store, self.received)
        self.receive_failures = ReceiveFailures(host.clock)
        self.begun_anew = BegunAnew(catalog)
        self.compactor = Compactor(
            host, data, journal, store, self.installer, catalog, self.space, uptime, limits.compaction_rate
        )
        self.compactor.on_damage = self.found_damage
        self.checks = SegmentChecks(
            host, catalog, self.pins, limits.check_rate, limits.check_pause_s, self.damages, self.found_damage
        )
        self.committer = Committer(journal, host.clock, host.workers)
        self.committer.on_committed = self._committed
        self._waits: dict[Answer, None] = {}  # those of `all_durable`
        self._commits = True  # False once the committer has ended
        self._space_due = trio.Event()  # set if zeros are to be written into the journal

    def limits_changed(self) -> None:
        """Hands the settings of storage that have changed (`StorageConfig.adopt`) to the parts that copy them."""
        limits = self._limits
        self.flusher.set_limits(_flush_limits(limits))
        self.space.set_free_bytes_min(limits.free_bytes_min)
        self.compactor.set_rate_max(limits.compaction_rate)
        self.checks.set_rate(limits.check_rate, limits.check_pause_s)

    async def run(self) -> None:
        """Commits, flushes, compacts and checks segments until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._commit)
            nursery.start_soon(self._write_zeros)
            nursery.start_soon(self.flusher.run)
            nursery.start_soon(self.compactor.run)
            nursery.start_soon(self.damage_checks.run)
            nursery.start_soon(self.checks.run)

    async def _commit(self) -> None:
        """Commits until cancelled. Then no fsync comes any more, and `all_durable` fails."""
        try:
            await self.committer.run()
        finally:
            self._commits = False
            for answer in list(self._waits):
                answer(self._no_commits())

    async def _write_zeros(self) -> None:
        """Writes zeros into the journal before small records need the space, until cancelled or the journal fails."""
        with contextlib.suppress(JournalFailed):  # who uses the journal hears of it
            while True:
                await self._space_due.wait()
                self._space_due = trio.Event()
                while self.journal.begin_zeros() and await self.host.workers.in_thread(self.journal.write_zeros):
                    pass

    def _no_commits(self) -> NotDurable:
        return self.committer.failure or NotDurable("the node is stopping")

    # Writing

    def wrote(self, partition: Partition) -> None:
        """Notes that ``partition`` has grown: it is to be made durable, and flushed later."""
        self.committer.note(partition)
        self.flusher.note(partition)

    def require_durable(self) -> None:
        """Raises NotDurable if the journal has failed. The traceback of an earlier raise is dropped."""
        if self.committer.failure is not None:
            raise self.committer.failure.with_traceback(None)

    def require_space(self) -> None:
        """Raises NoSpace if the disk is nearly full, or if memory is full and cannot be flushed."""
        if self.space.low or (self.memory.stuck and self.memory.is_full):
            raise NoSpace(self.space.low or self.memory.stuck)

    @property
    def refusal(self) -> str:
        """Why writes are refused or wait, though the journal has not failed; "" if it is not known that they do."""
        full = (self.memory.stuck or self.why_no_flush) if self.memory.is_full else ""
        return self.space.low or full or self.journal.refusal

    @property
    def is_hindered(self) -> bool:
        """Whether other members had better lead: this node refuses writes, or will soon, because of its disk."""
        return self.space.is_tight or bool(self.journal.refusal or self.why_no_flush) or self.flusher.is_failing

    @property
    def why_no_flush(self) -> str:
        """The sentence that a flush hangs; "" if none does. Writers wait for its end while memory is full."""
        busy_s = self.flusher.busy_s
        return f"a flush has taken {busy_s:.0f} s so far" if busy_s >= self._replication.disk_timeout_s else ""

    def require_writable(self) -> None:
        """Raises as ``require_durable`` and ``require_space``. Each write asks, and most often nothing is wrong."""
        if self.committer.failure is not None:
            self.require_durable()
        if self.space.low or self.memory.stuck:
            self.require_space()

    async def all_durable(self) -> None:
        """Returns once all that was written before the call is durable.

        Raises NotDurable if that fails, or if the node stops. A caller that cannot be cancelled does not wait for ever.
        """

        def begin(answer: Answer) -> Cancel:
            self._waits[answer] = None
            if self._commits:
                self.committer.when_durable(answer)
            else:
                answer(self._no_commits())
            return lambda: self._waits.pop(answer)

        await answered(begin, lambda: self.on_turn_ended())

    def forget(self, partition: Partition) -> None:
        """Drops all work that is planned for ``partition``, of a feed that was dropped."""
        self.flusher.forget(partition)
        self.compactor.forget(partition)
        self.checkpoints.forget(partition)
        self.damage_checks.forget(partition)
        self.incoming.forget(partition)
        self.ahead.forget(partition)
        self.receive_failures.succeeded(partition)
        self.begun_anew.forget(partition)

    def found_damage(self, error: SegmentDamaged) -> None:
        """Notes that a segment could not be read: status says so until the file is replaced, or the next start."""
        if error.path not in self.damages:
            log.error("%s", error)
        self.damages[error.path] = str(error)

    def forget_damage(self, paths: Iterable[str]) -> bool:
        """Notes that the files at ``paths`` have left their chains, or were replaced by good ones.

        Returns whether any of them was damaged.
        """
        damaged = [path for path in paths if path in self.damages]
        for path in damaged:
            del self.damages[path]
            self.compactor.forget_damage(path)
        return bool(damaged)

    # Ending

    def stop(self) -> None:
        """Makes everything durable and marks the directory as stopped cleanly. Nothing may use the storage then."""
        uptime, disk = self.compactor.uptime, self.host.disk
        tick_uptime(uptime, self.host.clock)
        with contextlib.suppress(OSError):  # only the uptime of this run is lost
            store_uptime(uptime, disk, self.data)
        with contextlib.suppress(OSError, JournalFailed):  # the older one says less
            self.held.store_now()
        self.incoming.close()
        self.journal.close()
        for partition in self.feeds.partitions():
            for segment in partition.chain.segments:
                segment.close()
        if self.journal.failed is None:
            write_clean(disk, self.data, self.journal.end, self.feeds.clean_partitions())

    def _committed(self) -> None:
        failure = self.committer.failure
        if failure is not None:
            self.memory.give_up(str(failure))
            self.on_failed(failure)
        if self.memory.is_tight:  # newly durable blocks can be flushed
            self.flusher.wake()
        if self.journal.begin_zeros():
            self._space_due.set()
        # Writers have their answers, and their next requests are not here yet.
        search_early()
        self.flusher.merger.lulls.begins()

    def _flushed(self, partition: Partition) -> None:
        self.begun_anew.grown(partition)
        self.compactor.consider(partition)
        self.on_progress()


def _nothing() -> None:
    """Until the owner sets a callback."""


def _ignore(failure: NotDurable) -> None:
    """Until the owner sets a callback."""


def _flush_limits(limits: StorageConfig) -> FlushLimits:
    return FlushLimits(
        limits.segment_bytes,
        limits.flush_age_s,
        limits.memory_bytes_max,
        limits.journal_bytes_max,
        limits.journal_replay_s,
        limits.pushed_age_s,
    )
