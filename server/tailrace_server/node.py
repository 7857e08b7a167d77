"""A node: one process, one data directory, the feeds in it, and whoever is connected.

Clock, randomness, disk and network are handed over, so that the whole node also runs in a simulator.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import trio

from tailrace.errors import Overloaded, ProtocolError, TailraceError
from tailrace.failover import FailoverLog
from tailrace.hashing import key_hash, partition_of_hash
from tailrace.transport import Transport
from tailrace.wire.messages import encode_error
from tailrace_server.catalog import Catalog
from tailrace_server.chain import Pins
from tailrace_server.config import Config
from tailrace_server.connection import Connection
from tailrace_server.feed_changes import FeedChanges
from tailrace_server.host.host import Host
from tailrace_server.host.network import Listener
from tailrace_server.identity import Identity
from tailrace_server.intake.committer import Committer
from tailrace_server.journal import (
    Journal,
    Reserve,
    write_clean,
)
from tailrace_server.manifest import ManifestStore
from tailrace_server.memory import MemoryAccount
from tailrace_server.partition import Partition
from tailrace_server.publishing.publisher import Publisher
from tailrace_server.publishing.stage_requests import expire_stages
from tailrace_server.publishing.stages import Stages
from tailrace_server.replication.leadership import Leadership
from tailrace_server.segment import SegmentDamaged
from tailrace_server.status import status_of
from tailrace_server.stream.filter import FilterCache
from tailrace_server.upkeep.compactor import Compactor
from tailrace_server.upkeep.filling import Filling
from tailrace_server.upkeep.flusher import Flusher
from tailrace_server.upkeep.holding import HeldKeeper
from tailrace_server.upkeep.installer import Installer
from tailrace_server.upkeep.policy import FlushLimits
from tailrace_server.upkeep.rollback import roll_back
from tailrace_server.upkeep.space import Space
from tailrace_server.upkeep.trimmer import Trimmer
from tailrace_server.upkeep.uptime import Uptime
from tailrace_server.upkeep.uptime_file import store_uptime, tick_uptime

if TYPE_CHECKING:
    from tailrace_server.replication.member import Member

log = logging.getLogger("tailrace.server")

# How often idle connections and silent peers are looked at, as a part of the interval of noops.
_TICKS_PER_NOOP = 4
# A node that stops gives its consumers this long to take the rest of a snapshot, and again what is on its way to them.
_DRAIN_SECONDS = 1.0
# How often it is looked for stages that have lost their writers, or their batches.
_EXPIRE_SECONDS = 60.0
_INTERNAL_ERROR = "connection of %s ended by an internal error"


class Node(Leadership):
    """A node over an open data directory. ``serve`` runs it; ``stop`` closes the directory."""

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
        super().__init__(config, catalog)
        self.host = host
        self.clock = host.clock
        self.identity = identity
        self.journal = journal
        self.store = store
        self.memory = memory
        self.pins = Pins()
        self.filtered = FilterCache()
        self._build_upkeep(uptime)
        self.damages: dict[str, str] = {}  # segments that were found damaged, and what was said of them
        self.committer = Committer(journal, host.clock, host.workers)
        self.committer.on_committed = self._committed
        self.stages = self._build_stages()
        self.publisher = Publisher(self)
        self.connections: dict[Connection, None] = {}
        self._sessions: dict[str, Connection] = {}  # the newest connection of each client that has said which it is
        self.to_flush: dict[Connection, None] = {}
        # Monotonic, as of this turn of the loop, at most a tick old: for what is measured in seconds.
        self.now = self.started_at = host.clock.monotonic()
        self.listening: tuple[str, int] | None = None
        self.unclean_start: str | None = None
        self.member: Member | None = None  # of a node that is not alone
        self.feed_changes = FeedChanges(self)

    def _build_upkeep(self, uptime: Uptime) -> None:
        """Whoever moves to segments what is durable, folds those, and looks after the files."""
        host, data, storage = self.host, self.config.data, self.config.storage
        self.installer = Installer(host, self.store, self.identity.placement_id, self.pins)
        self.held = HeldKeeper(host, data, self.journal, self.feeds, self.installer)
        trimmer = Trimmer(host, self.journal, self.store, self.installer, self.feeds, self.pins, self.held)
        reserve = Reserve(host.disk, data, storage.reserve_bytes)
        self.space = Space(host, data, reserve, storage.free_bytes_min)
        self.space.on_low = self._let_go_of_files
        limits = FlushLimits(
            storage.segment_bytes,
            storage.flush_age_s,
            storage.memory_bytes_max,
            storage.journal_bytes_max,
            storage.journal_replay_s,
        )
        self.flusher = Flusher(host, self.journal, self.store, self.installer, trimmer, self.space, self.memory, limits)
        self.flusher.on_flushed = self._flushed
        self.flusher.commit = self.all_durable
        self.compactor = Compactor(
            host, data, self.store, self.installer, self.feeds, self.space, uptime, storage.compaction_rate
        )
        self.compactor.on_damage = self.found_damage

    def _build_stages(self) -> Stages:
        clock, storage = self.clock, self.config.storage
        return Stages(
            self.host.disk,
            self.config.data,
            stages_max=storage.stages_max,
            bytes_max=storage.stage_bytes_max,
            kept_bytes_max=storage.stage_kept_bytes_max,
            monotonic=clock.monotonic,
            wall_us=clock.wall_us,
        )

    # Storage

    async def all_durable(self) -> None:
        """Returns once all that has been written is durable. Raises NotDurable where that fails."""
        done = trio.Event()
        failures: list[TailraceError] = []

        def told(error: TailraceError | None) -> None:
            if error is not None:
                failures.append(error)
            done.set()

        self.committer.when_durable(told)
        self.turn_ended()
        await done.wait()
        if failures:
            raise failures[0].with_traceback(None)

    async def roll_back(self, partition: Partition, seq: int, log: FailoverLog) -> int:
        """`tailrace_server.upkeep.rollback.roll_back`."""
        return await roll_back(self, partition, seq, log)

    def begin_filling(self, partition: Partition, after_seq: int, last_seq: int, purge_seq: int) -> Filling:
        """Begins with a run that is not complete, (``after_seq``, ``last_seq``], after ``flusher.flush_all``."""
        return Filling(self, partition, after_seq, last_seq, purge_seq)

    def found_damage(self, error: SegmentDamaged) -> None:
        """A segment could not be read: status says so until the node is restarted."""
        if error.path not in self.damages:
            log.error("%s", error)
        self.damages[error.path] = str(error)

    def _committed(self) -> None:
        if self.committer.failure is not None:
            self.memory.give_up(str(self.committer.failure))
            self.waiting.fail(self.committer.failure)
            for connection in list(self.connections):
                connection.journal_failed(self.committer.failure)
        self.flush()
        if self.memory.is_tight:  # what has just become durable can be flushed
            self.flusher.wake()

    def _flushed(self, partition: Partition) -> None:
        self.compactor.consider(partition)
        self.flush()

    def _let_go_of_files(self) -> None:
        for connection in list(self.connections):
            connection.let_go_of_files()
        self.flush()

    # What goes out

    def turn_ended(self, asker: object = None) -> None:
        """``asker`` has been handled: commits what it wrote, now or soon, and sends what that brought about.

        What replicas are to have leaves first, so that their disks work while this one does.
        """
        if self.to_flush and self.replicas.peers:
            self.flush()
        self.committer.turn_ended(asker)
        if self.to_flush:
            self.flush()

    def flush(self) -> None:
        """Sends what the last events have brought about, to every connection that it concerns."""
        while self.to_flush:
            connections, self.to_flush = self.to_flush, {}
            for connection in connections:
                try:
                    connection.flush()
                except Exception:  # a bug, as in ``handle``: whose news it was must not end with who has them
                    log.exception(_INTERNAL_ERROR, connection.transport.peer)
                    connection.transport.close()

    def begin_session(self, connection: Connection) -> None:
        """Ends the earlier connection of the same client: what comes on it now was given up there, or comes again."""
        earlier = self._sessions.get(connection.session)
        self._sessions[connection.session] = connection
        if earlier is not None:
            earlier.fail(ProtocolError("the client has connected anew: this is an earlier connection of it"))

    # Running

    async def serve(self, listener: Listener) -> None:
        """Serves connections and commits writes until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.committer.run)
            nursery.start_soon(self.flusher.run)
            nursery.start_soon(self.compactor.run)
            nursery.start_soon(self._tick)
            nursery.start_soon(self._expire)
            nursery.start_soon(listener.serve, self.handle)

    async def handle(self, transport: Transport) -> None:
        """Serves one connection to its end. Whatever goes wrong in it stays in it."""
        if len(self.connections) >= self.config.limits.connections_max:
            transport.send(encode_error(Overloaded(f"this node serves {len(self.connections)} connections already")))
            transport.close()
            return
        try:
            async with trio.open_nursery() as nursery:
                connection = Connection(self, transport, nursery)
                self.connections[connection] = None
                try:
                    nursery.start_soon(transport.run)
                    await connection.run()
                finally:
                    del self.connections[connection]
                    if self._sessions.get(connection.session) is connection:
                        del self._sessions[connection.session]
                    self.to_flush.pop(connection, None)
                    nursery.cancel_scope.cancel()
        except Exception:
            # A bug that one connection has met must not end the others; it is logged in full.
            log.exception(_INTERNAL_ERROR, transport.peer)
        finally:
            transport.close()

    async def _tick(self) -> None:
        while True:
            await trio.sleep(self.config.limits.noop_interval_s / _TICKS_PER_NOOP)
            self.now = self.clock.monotonic()
            for connection in list(self.connections):
                connection.tick(self.now)

    async def _expire(self) -> None:
        while True:
            await trio.sleep(_EXPIRE_SECONDS)
            await expire_stages(self)

    async def drain(self) -> None:
        """Ends every stream with DRAINING, as far as there is time at the end of its snapshot, and lets that leave."""
        for end in (Connection.drain, Connection.end_streams):
            for connection in list(self.connections):
                end(connection)
            with trio.move_on_after(_DRAIN_SECONDS):
                for connection in list(self.connections):
                    await connection.drained()

    def stop(self) -> None:
        """Makes everything durable and marks the directory as stopped cleanly; nothing may be served any more."""
        tick_uptime(self.compactor.uptime, self.clock)
        with contextlib.suppress(OSError):  # what is lost is that this run is vouched for
            store_uptime(self.compactor.uptime, self.host.disk, self.config.data)
        self.stages.close()
        self.journal.close()
        for partition in self.feeds.partitions():
            for segment in partition.chain.segments:
                segment.close()
        if self.journal.failed is None:
            write_clean(self.host.disk, self.config.data, self.journal.end, self.feeds.clean_partitions())

    # Status

    def routes(self, keys: Iterable[bytes], partitions: int) -> list[int]:
        """The partition of each key, in a feed of so many."""
        return [partition_of_hash(key_hash(key), partitions) for key in keys]

    def status(self) -> dict[str, Any]:
        """The node as ``tailrace status`` and ``/api/status`` show it."""
        return status_of(self)

    def check(self) -> None:
        """Walks every invariant of every partition; AssertionError names the one that does not hold."""
        for partition in self.feeds.partitions():
            partition.check()
