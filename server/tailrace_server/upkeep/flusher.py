"""The flusher: the task that moves write queues to segments, and then trims the journal.

A flush writes the blocks of the tree as they are, in another thread, and adds the key table. Superseded rows stay; a
compaction drops them. A flush takes only stable blocks: durable here; on a follower, durable at the leader too; in a
set, durable at a majority, unless memory is tight, or followers get segments instead of rows. If the disk refuses,
memory and journal stay as they were, and the flush is tried again after a while; the node's status says so.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import NamedTuple

import trio

from tailrace.block import Block
from tailrace.errors import NoSpace
from tailrace_server.host.disk import is_out_of_descriptors
from tailrace_server.journal import Journal
from tailrace_server.manifest import ManifestStore
from tailrace_server.partition.partition import Partition
from tailrace_server.runtime.host import Host
from tailrace_server.segment import Segment
from tailrace_server.state.durations import WORK_BOUNDS, Durations
from tailrace_server.state.memory import MemoryAccount
from tailrace_server.upkeep.dirty_queues import DirtyQueues
from tailrace_server.upkeep.flush_failures import FlushFailures, error_of
from tailrace_server.upkeep.flushed_segment import (
    blocks_through,
    divided_at,
    flushable_seq,
    identity_of,
    lacks_end,
    write_segment,
)
from tailrace_server.upkeep.installer import Installer
from tailrace_server.upkeep.merger import LOOKS_AT_ONCE, Merger
from tailrace_server.upkeep.pace import Pace
from tailrace_server.upkeep.policy import Cause, Due, FlushLimits, WriteQueue, choose
from tailrace_server.upkeep.space import Space
from tailrace_server.upkeep.trimmer import Trimmer

log = logging.getLogger("tailrace.server")

# The interval at which ages are checked; size and memory wake the flusher by themselves.
TICK_SECONDS = 1.0
# This number of small blocks of a partition wakes it too: they take twice their bytes until they are merged.
UNMERGED_BLOCKS = 2_048
# A clean stop flushes if a start would take longer than this to read the journal, and for FOR_STOP_SECONDS at most.
FOR_STOP_REPLAY_SECONDS = 1.0
FOR_STOP_SECONDS = 3.0
# If at least TOGETHER_FROM partitions are due, FLUSHED_TOGETHER are flushed at the same time. A flush mostly waits for
# the disk, but each of its fsyncs delays those of the journal.
TOGETHER_FROM = 64
FLUSHED_TOGETHER = 4


class FlushStatistics(NamedTuple):
    """Since the start: flushes, bytes of their segments, and the error of the last try ("" if it succeeded)."""

    flushes: int
    bytes: int
    failure: str


class Flusher:
    """Flushes the partitions of a node, which has one flusher."""

    def __init__(
        self,
        host: Host,
        journal: Journal,
        store: ManifestStore,
        installer: Installer,
        trimmer: Trimmer,
        space: Space,
        account: MemoryAccount,
        limits: FlushLimits,
    ) -> None:
        self._host = host
        self._journal = journal
        self._store = store
        self._installer = installer
        self._trimmer = trimmer
        self._space = space
        self._account = account
        self._limits = limits
        self._dirty = DirtyQueues()  # partitions with something to flush, and since when
        self._unmerged: dict[Partition, None] = {}  # of these, the ones that may have blocks to merge
        self._crowded: dict[Partition, None] = {}  # of these, the ones that cannot wait for the end of a flush
        self.merger = Merger(host)
        self._wanted = trio.Event()
        self._is_woken = False  # by `wake`, since the last trim was asked for
        self._to_trim = trio.Event()
        self._failures = FlushFailures(host)
        self._looked_at = -TICK_SECONDS  # monotonic, when the disk's free space was last looked at
        self._flushing: collections.defaultdict[Partition, trio.Lock] = collections.defaultdict(trio.Lock)
        self._flushes = self._bytes = 0
        self._flushing_since: float | None = None  # monotonic, since when the flushes of a pass are under way
        self.durations = Durations(WORK_BOUNDS)
        self._flush_failure = self._trim_failure = ""
        self.commit: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint  # makes all written records durable
        self.on_flushed: Callable[[Partition], None] = lambda _: None
        self.count_partitions: Callable[[], int] = lambda: 1  # those of the node, which a start opens

    @property
    def busy_s(self) -> float:
        """The seconds that the present flush of a pass has taken so far; 0.0 without one."""
        return 0.0 if self._flushing_since is None else self._host.clock.monotonic() - self._flushing_since

    @property
    def is_failing(self) -> bool:
        """Whether flushes fail, so that memory gets full."""
        return bool(self._flush_failure)

    @property
    def failure(self) -> str:
        """The error of a flush or a trim that failed; "" if all is well."""
        return self._flush_failure or self._trim_failure

    def statistics(self) -> FlushStatistics:
        """Returns counts for status."""
        return FlushStatistics(self._flushes, self._bytes, self.failure)

    def wake(self) -> None:
        """Wakes the flusher, because a flush may be due."""
        self._dirty.must_look()
        self._is_woken = True
        self._wanted.set()

    def ages_changed(self) -> None:
        """Notes that the age at which queues are due is another one."""
        self._dirty.must_look()

    def note(self, partition: Partition) -> None:
        """Notes that ``partition`` has just been written to."""
        if partition not in self._dirty:
            self._dirty.begin(partition, self._host.clock.monotonic(), self._age_bound_s(partition))
        self._unmerged[partition] = None
        tree = partition.tree
        if tree.unmerged_blocks >= UNMERGED_BLOCKS:
            self._crowded[partition] = None
            self._wanted.set()
        if tree.memory_bytes >= self._limits.segment_bytes:
            self.wake()

    def set_limits(self, limits: FlushLimits) -> None:
        """Flushes by these limits from now on."""
        self._limits = limits
        self.wake()

    def forget(self, partition: Partition) -> None:
        """Drops all plans for ``partition``, of a feed that was dropped."""
        self._dirty.forget(partition)
        for known in (self._unmerged, self._crowded, self._flushing):
            known.pop(partition, None)
        self._failures.forget(partition)

    async def run(self) -> None:
        """Merges, flushes and trims until cancelled. A trim delays no flush."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._trim_after_flushes)
            flushes, trim_at = self._flushes, 0.0
            while True:
                with trio.move_on_after(TICK_SECONDS):
                    await self._wanted.wait()
                await self.flush_due()
                # A pass that has only merged, as each 1,024 single rows want one, has left nothing to trim.
                now = self._host.clock.monotonic()
                if self._is_woken or self._flushes != flushes or now >= trim_at:
                    self._is_woken, flushes, trim_at = False, self._flushes, now + TICK_SECONDS
                    self._to_trim.set()

    async def _trim_after_flushes(self) -> None:
        while True:
            await self._to_trim.wait()
            self._to_trim = trio.Event()
            await self.trim()

    async def pass_once(self) -> None:
        """Merges, flushes and then trims everything that is due now; for tests that take single steps."""
        await self.flush_due()
        while self._wanted.is_set():
            await self.flush_due()
        await self.trim()

    async def flush_due(self) -> None:
        """Merges and flushes the due queues. Ends early, and wakes the flusher again, if others may be more urgent.

        If the disk refuses, the queue stays as it was, and ``failure`` tells the error.
        """
        self._wanted = trio.Event()
        self.merger.begin_pass()
        failure = await self.merger.merge_all(self._unmerged)
        began = self._host.clock.monotonic()
        flushes = self._flushes
        due = collections.deque(await self._due())
        pace = self._begin_pace(due)
        while due:
            together = [due.popleft() for _ in range(FLUSHED_TOGETHER if len(due) >= TOGETHER_FROM else 1)]
            self._flushing_since = self._host.clock.monotonic()
            failure = await self._flush_together(together) or failure
            self._flushing_since = None
            if pace is not None:
                pace.flushed(len(together))
                self._account.look_again()
            # A flush may take long, and these cannot wait for it.
            failure = await self.merger.merge_all(self._crowded, keep_unstable=False) or failure
            if due and self._must_look_again(due[0].cause, began):
                self._wanted.set()
                break
        else:
            self._account.slow_down(None)
        if self.merger.has_left:
            self._wanted.set()
        now = self._host.clock.monotonic()
        if failure or self.failure or now - self._looked_at >= TICK_SECONDS:
            self._looked_at = now
            failure = await error_of(self._space.look) or failure
        failure = failure or self._failures.first
        # As long as flushes succeed there will be room again, and writers wait for it.
        self._account.set_stuck(failure or self._why_not_yet() if self._flushes == flushes else "")
        self._tell(failure, self._trim_failure)

    def _begin_pace(self, due: Collection[Due[Partition]]) -> Pace | None:
        """Slows writers down from now on if queues are due because a start would take long to read the journal."""
        replay_s = self._journal.statistics().replay_seconds
        bound_s = self._limits.replay_bound_s(self.count_partitions())
        if replay_s <= bound_s or not any(cause is Cause.JOURNAL for _, cause in due):
            return None
        pace, journal = Pace(replay_s, bound_s, len(due)), self._journal
        before_ns = journal.written_ns
        self._account.slow_down(lambda: replay_s + (journal.written_ns - before_ns) / 1e9 >= pace.allowed_s)
        return pace

    async def _flush_together(self, together: Sequence[Due[Partition]]) -> str:
        """Flushes these at the same time. Returns the error of one, "" if all succeeded."""
        failures: list[str] = []

        async def flush(partition: Partition, cause: Cause) -> None:
            log.debug("flush of partition %s of feed %s: %s", partition.id, partition.feed_id.hex(), cause)
            failures.append(await self._try_flush(partition))

        if len(together) == 1:
            await flush(*together[0])
        else:
            async with trio.open_nursery() as nursery:
                for each in together:
                    nursery.start_soon(flush, *each)
        return next(filter(None, failures), "")

    def _must_look_again(self, cause: Cause, began: float) -> bool:
        """Returns True if the queues chosen at ``began`` may not be the most urgent now.

        Thousands of old queues must not delay a full one. ``cause`` is that of the next chosen queue. A wake-up is
        urgent; ages and retries are checked with every tick anyway.
        """
        if self._wanted.is_set() and cause in (Cause.AGE, Cause.RETRY):
            return True
        return self._host.clock.monotonic() - began >= TICK_SECONDS

    async def trim(self) -> None:
        """Trims journal, segments and feeds. If the disk refuses, ``failure`` tells the error."""
        self._tell(self._flush_failure, await error_of(self._trim_or_free))

    def _tell(self, flush_failure: str, trim_failure: str) -> None:
        """Sets the failures, and logs a change."""
        before = self.failure
        self._flush_failure, self._trim_failure = flush_failure, trim_failure
        if self.failure and not before:
            log.error("storage: %s; it is tried again, and nothing is lost meanwhile", self.failure)
        elif before and not self.failure:
            log.info("storage: all is well again")

    async def _try_flush(self, partition: Partition) -> str:
        """Flushes a partition. If that fails, the partition has a pause; others are not concerned."""
        why = await error_of(functools.partial(self._flush_or_free, partition), partition)
        self._failures.note(partition, why)
        return why

    async def _flush_or_free(self, partition: Partition) -> None:
        """Flushes. On a full disk it releases the reserve, since only a flush lets the journal be trimmed.

        Without a free descriptor it closes those of idle segments.
        """
        try:
            await self.flush(partition)
        except NoSpace:
            if not await self._space.release():
                raise
            await self.flush(partition)
        except OSError as error:
            if not is_out_of_descriptors(error) or not self._store.segment_files.close_idle():
                raise
            await self.flush(partition)

    async def _trim_or_free(self) -> None:
        """Trims. On a full disk it releases the reserve, since a trim frees space."""
        try:
            await self._trimmer.trim()
        except NoSpace:
            if not await self._space.release():
                raise
            await self._trimmer.trim()

    def _why_not_yet(self) -> str:
        """Returns why a follower without room has to receive more: the leader may tell what is durable there."""
        if not self._account.is_full:
            return ""
        held = [partition for partition in self._dirty if partition.tree.block_count]
        if not held or any(p.state == "leader" for p in held):
            return ""
        if any(blocks_through(partition, self._limit(partition)) for partition in held):
            return ""
        return "the leader has not told yet how much of this it has on its disk"

    async def _due(self) -> Sequence[Due[Partition]]:
        """Returns the queues to flush now."""
        journal, journal_oldest = self._journal.statistics(), self._journal.oldest_number
        # On a nearly full disk all older files of the journal are to go.
        is_low = bool(self._space.low) and len(self._journal.file_numbers) > 1
        is_long = is_low or self._limits.is_journal_long(journal.bytes, journal.replay_seconds, self.count_partitions())
        is_pressed = self._account.is_tight or is_long
        now = self._host.clock.monotonic()
        queues = await self._queues(now, is_pressed=is_pressed) if is_pressed or self._dirty.may_be_due(now) else []
        chosen = choose(
            queues,
            self._limits,
            memory_used=self._account.used,
            journal_is_long=is_long,
            journal_oldest=journal_oldest,
        )
        again = [Due(partition, Cause.RETRY) for partition in self._failures.due(now)]
        return [*chosen, *again]

    async def _queues(self, now: float, *, is_pressed: bool) -> list[WriteQueue[Partition]]:
        """Returns the queues that may be due; with ``is_pressed`` all."""
        queues, next_at = [], math.inf
        self._dirty.begin_look()
        for number, (partition, since) in enumerate(self._dirty.items(), 1):
            if number % LOOKS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            small = partition.tree.memory_bytes < self._limits.segment_bytes
            due_at = since + self._age_bound_s(partition)
            next_at = min(next_at, due_at if small else now)
            if partition in self._failures or (small and now < due_at and not is_pressed):
                continue
            nbytes, oldest = self._stable_bytes(partition), partition.journal_references.oldest
            queues.append(WriteQueue(partition, nbytes, now - since, oldest, partition.pushes.by_segments))
        self._dirty.looked(next_at)
        return queues

    def _age_bound_s(self, partition: Partition) -> float:
        return self._limits.age_bound_s(is_pushed=partition.pushes.by_segments)

    async def flush(self, partition: Partition) -> Segment | None:
        """Moves the stable blocks of a partition's write queue to a segment. Returns None if there are none.

        OSError, NoSpace: nothing has changed.
        """
        return await self._flush(partition, lambda: self._limit(partition))

    async def _flush(self, partition: Partition, limit: Callable[[], int]) -> Segment | None:
        # One flush of a partition at a time: the flusher's may be under way when a replica needs all to be flushed.
        # ``limit`` is asked when the turn has come: blocks on both sides of an earlier limit may be merged meanwhile.
        async with self.holding(partition):
            return await self._flush_alone(partition, limit)

    @contextlib.asynccontextmanager
    async def holding(self, partition: Partition) -> AsyncIterator[None]:
        """Keeps ``partition`` from being flushed while the body runs."""
        try:
            async with self._flushing[partition]:
                yield
        finally:
            if partition.is_dropped:  # during the flush, after `forget`
                self.forget(partition)

    async def _flush_alone(self, partition: Partition, limit: Callable[[], int]) -> Segment | None:
        blocks = blocks_through(partition, limit())
        if blocks and not partition.has_manifest:  # this makes the directory, and comes before the first segment
            await self._installer.write(partition)
            blocks = blocks_through(partition, limit())  # no blocks if the feed was dropped meanwhile
        if not blocks:
            return None
        with divided_at(partition, blocks[-1].seqs[1]):
            return await self._add_segment(partition, partition.flushed_seq, blocks[-1].header.last_seq, blocks)

    async def flush_end(self, partition: Partition) -> None:
        """Gives a history whose segments were all trimmed one without rows, which ends at the flushed seq.

        Followers that get segments only come to that seq by it. OSError, NoSpace: nothing has changed.
        """
        async with self.holding(partition):
            if lacks_end(partition):
                await self._add_segment(partition, partition.flushed_seq - 1, partition.flushed_seq, ())

    async def _add_segment(
        self, partition: Partition, after_seq: int, last_seq: int, blocks: Sequence[Block]
    ) -> Segment:
        began_at, rollbacks = self._host.clock.monotonic(), partition.rollbacks
        identity = identity_of(partition, after_seq, last_seq, self._host.randomness.token(16))
        path = self._store.segment_path(partition.feed_id, partition.id, identity.segment_id)
        try:
            disk, files = self._host.disk, self._store.segment_files
            segment = await self._host.workers.in_thread(lambda: write_segment(disk, files, path, identity, blocks))
            try:
                await self._installer.add(partition, segment, rollbacks)
            except BaseException:
                segment.close()
                raise
        except BaseException:
            self._installer.orphan(partition, path)
            raise
        self._flushes += 1
        self.durations.add(self._host.clock.monotonic() - began_at)
        self._bytes += segment.nbytes
        if partition.tree.block_count:
            self._dirty.begin(partition, self._host.clock.monotonic(), self._age_bound_s(partition))
            if partition.tree.memory_bytes >= self._limits.segment_bytes:
                self._dirty.must_look()
        else:
            self._dirty.forget(partition)
        self.on_flushed(partition)
        return segment

    async def flush_all(self, partition: Partition) -> None:
        """Moves the whole write queue to segments, made durable first. Raises as `flush`, and NotDurable.

        Rows that are written meanwhile are moved, too.
        """
        while partition.tree.block_count and not partition.is_dropped:
            await self.commit()
            await self._flush(partition, lambda: partition.durable_seq)

    async def flush_for_stop(self) -> None:
        """Moves stable blocks to segments before a clean stop, so that the next start reads less of the journal.

        Only if the journal is long, and for FOR_STOP_SECONDS at most; the queues that need the oldest file come first.
        After an error of the disk, or if this is cancelled, the rest stays in the journal.
        """
        journal = self._journal.statistics()
        if journal.replay_seconds <= FOR_STOP_REPLAY_SECONDS:
            return
        log.info("the journal has %s records: flushing, for the next start", journal.records)
        waiting = [(partition.journal_references.oldest, partition) for partition in self._dirty]
        oldest_first = sorted(
            [(oldest, -partition.tree.memory_bytes, partition) for oldest, partition in waiting if oldest is not None],
            key=lambda place: place[:2],
        )
        with trio.move_on_after(FOR_STOP_SECONDS):
            count = FLUSHED_TOGETHER if len(oldest_first) >= TOGETHER_FROM else 1
            for begin in range(0, len(oldest_first), count):
                async with trio.open_nursery() as nursery:
                    for _, _, partition in oldest_first[begin : begin + count]:
                        nursery.start_soon(self._flush_stable, partition)
            await error_of(self._trim_or_free)

    async def _flush_stable(self, partition: Partition) -> None:
        flushed_seq = -1
        while flushed_seq < partition.flushed_seq < flushable_seq(partition):
            flushed_seq = partition.flushed_seq
            await error_of(functools.partial(self._flush_or_free, partition), partition)

    async def flush_through(self, partition: Partition, seq: int) -> None:
        """Moves the write queue up to ``seq`` to segments; as ``flush_all``.

        ``seq`` is the end of a block, and not inside of a published batch.
        """
        with divided_at(partition, seq):
            await self.commit()
            while partition.flushed_seq < seq <= partition.durable_seq and not partition.is_dropped:
                await self._flush(partition, lambda: seq)

    async def write_feeds(self) -> None:
        """Writes the FEED of durably created feeds, so that the journal need not keep the record. NoSpace, OSError."""
        await self._trimmer.write_feeds()

    def _limit(self, partition: Partition) -> int:
        """Returns the seq up to which ``partition`` may be flushed now."""
        return partition.safe_seq if self._account.is_tight else flushable_seq(partition)

    def _stable_bytes(self, partition: Partition) -> int:
        """Returns about how many bytes of the queue can be flushed; counts the few that are not stable yet."""
        return partition.tree.memory_bytes if self._limit(partition) > partition.flushed_seq else 0
