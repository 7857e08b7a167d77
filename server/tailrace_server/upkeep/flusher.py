"""The task that moves write queues to segments, and then lets go of what nobody needs any more.

A flush writes the blocks as they lie in the tree, in another thread, and adds the key table: superseded rows stay, to
be dropped by a compaction. It takes only what is stable: durable, on a follower at the leader too, and in a set at a
majority, unless memory is tight. Where the disk refuses, everything stays as it was, in memory
and in the journal, and is tried again after a while; the node's status says so.
"""

from __future__ import annotations

import collections
import functools
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import NamedTuple

import trio

from tailrace.errors import NoSpace, TailraceError
from tailrace.link.backoff import backoff_seconds
from tailrace_server.host.disk import is_out_of_descriptors
from tailrace_server.host.randomness import fraction
from tailrace_server.journal import Journal
from tailrace_server.manifest import ManifestStore
from tailrace_server.partition.partition import Partition
from tailrace_server.runtime.host import Host
from tailrace_server.segment import Segment
from tailrace_server.state.memory import MemoryAccount
from tailrace_server.upkeep.flushed_segment import blocks_through, identity_of, write_segment
from tailrace_server.upkeep.installer import Installer
from tailrace_server.upkeep.pace import Pace
from tailrace_server.upkeep.policy import Cause, Due, FlushLimits, Queue, choose
from tailrace_server.upkeep.space import Space
from tailrace_server.upkeep.trimmer import Trimmer

log = logging.getLogger("tailrace.server")

# How often ages are looked at; size and memory wake the flusher by themselves.
TICK_SECONDS = 1.0
# So many small blocks of a partition wake it too: they take twice their bytes until they are merged.
UNMERGED_BLOCKS = 2_048
# A partition whose flush has failed is tried again after so long at most: somebody may have freed space.
PAUSE_SECONDS_MAX = 5.0
# A clean stop flushes if a start would take longer than this to read the journal, and for so long.
FOR_STOP_REPLAY_SECONDS = 1.0
FOR_STOP_SECONDS = 3.0
# If so many partitions are due, or more, so many are flushed at the same time. A flush waits for the disk most of its
# time, but each of these fsyncs is in the way of the journal's.
TOGETHER_FROM = 64
FLUSHED_TOGETHER = 4
# Partitions that are looked at in one turn of the loop: a millisecond or two.
LOOKS_AT_ONCE = 512


class FlushStatistics(NamedTuple):
    """Since the start: flushes, bytes of the segments that they wrote, and why the last try failed ("": it did not)."""

    flushes: int
    bytes: int
    failure: str


class Flusher:
    """One a node."""

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
        self._dirty: dict[Partition, float] = {}  # partitions with something to flush, and since when
        self._unmerged: dict[Partition, None] = {}  # of these, such that may have blocks to merge
        self._crowded: dict[Partition, None] = {}  # of these, such that cannot wait for the end of a flush
        self._has_merges_left = False
        self._wanted = trio.Event()
        self._to_trim = trio.Event()
        # Partitions whose flush has failed: how often, until when they are left alone (monotonic), and why.
        self._failed: dict[Partition, tuple[int, float, str]] = {}
        self._looked_at = -TICK_SECONDS  # monotonic, when the disk's free space was last looked at
        self._flushing: collections.defaultdict[Partition, trio.Lock] = collections.defaultdict(trio.Lock)
        self._flushes = self._bytes = 0
        self._flush_failure = self._trim_failure = ""
        self.commit: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint  # makes durable what is written
        self.on_flushed: Callable[[Partition], None] = lambda _: None
        self.count_partitions: Callable[[], int] = lambda: 1  # those of the node, which a start opens

    @property
    def failure(self) -> str:
        """Why something could not be flushed or trimmed, "" if all could."""
        return self._flush_failure or self._trim_failure

    def statistics(self) -> FlushStatistics:
        """For status."""
        return FlushStatistics(self._flushes, self._bytes, self.failure)

    def wake(self) -> None:
        """Something may be due."""
        self._wanted.set()

    def note(self, partition: Partition) -> None:
        """``partition`` has just been written to."""
        if partition not in self._dirty:
            self._dirty[partition] = self._host.clock.monotonic()
        self._unmerged[partition] = None
        tree = partition.tree
        if tree.unmerged_blocks >= UNMERGED_BLOCKS:
            self._crowded[partition] = None
            self._wanted.set()
        elif tree.memory_bytes >= self._limits.segment_bytes:
            self._wanted.set()

    def forget(self, partition: Partition) -> None:
        """The partition is no more."""
        for known in (self._dirty, self._unmerged, self._crowded, self._failed, self._flushing):
            known.pop(partition, None)

    async def run(self) -> None:
        """Merges, flushes and trims for ever, whatever is due. A trim holds up no flush."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._trim_after_flushes)
            while True:
                with trio.move_on_after(TICK_SECONDS):
                    await self._wanted.wait()
                await self.flush_due()
                self._to_trim.set()

    async def _trim_after_flushes(self) -> None:
        while True:
            await self._to_trim.wait()
            self._to_trim = trio.Event()
            await self.trim()

    async def pass_once(self) -> None:
        """Merges, flushes and then trims everything that is due now, for whoever goes a step at a time."""
        await self.flush_due()
        while self._wanted.is_set():
            await self.flush_due()
        await self.trim()

    async def flush_due(self) -> None:
        """Merges and flushes what is due; ends early, with another one wanted, if something may be more pressing.

        What the disk refuses is left as it was, and told by ``failure``.
        """
        self._wanted = trio.Event()
        self._has_merges_left = False
        failure = await self._merge_all(self._unmerged)
        began = self._host.clock.monotonic()
        flushes = self._flushes
        due = collections.deque(await self._due())
        pace = self._begin_pace(due)
        while due:
            together = [due.popleft() for _ in range(FLUSHED_TOGETHER if len(due) >= TOGETHER_FROM else 1)]
            failure = await self._flush_together(together) or failure
            if pace is not None:
                pace.flushed(len(together))
                self._account.look_again()
            failure = await self._merge_all(self._crowded) or failure  # a flush may take long
            if due and self._must_look_again(due[0].cause, began):
                self._wanted.set()
                break
        else:
            self._account.slow_down(None)
        if self._has_merges_left:
            self._wanted.set()
        now = self._host.clock.monotonic()
        if failure or self.failure or now - self._looked_at >= TICK_SECONDS:
            self._looked_at = now
            failure = await self._try(self._space.look) or failure
        failure = failure or next((why for _, _, why in self._failed.values()), "")
        # As long as something is flushed there will be room again, and it is worth waiting for.
        self._account.stuck = failure or self._why_not_yet() if self._flushes == flushes else ""
        self._tell(failure, self._trim_failure)

    def _begin_pace(self, due: Collection[Due[Partition]]) -> Pace | None:
        """Slows writers down from now on if what is due is so because of a journal that a start would read for long."""
        replay_s = self._journal.statistics().replay_seconds
        bound_s = self._limits.replay_bound_s(self.count_partitions())
        if replay_s <= bound_s or not any(cause is Cause.JOURNAL for _, cause in due):
            return None
        pace, journal = Pace(replay_s, bound_s, len(due)), self._journal
        before_ns = journal.written_ns
        self._account.slow_down(lambda: replay_s + (journal.written_ns - before_ns) / 1e9 >= pace.allowed_s)
        return pace

    async def _flush_together(self, together: Sequence[Due[Partition]]) -> str:
        """Flushes these at the same time; why one has failed, "" if none has."""
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
        """Thousands of old queues must not hold up a full one: what was chosen at ``began`` may not be the first now.

        ``cause`` is why the next one of these is due. Whoever wakes the flusher has no time; what is due with every
        look, as ages are, is looked at with every tick.
        """
        if self._wanted.is_set() and cause in (Cause.AGE, Cause.RETRY):
            return True
        return self._host.clock.monotonic() - began >= TICK_SECONDS

    async def trim(self) -> None:
        """Lets go of what nobody needs any more. What the disk refuses is told by ``failure``."""
        self._tell(self._flush_failure, await self._try(self._trim_or_free))

    def _tell(self, flush_failure: str, trim_failure: str) -> None:
        """Takes over what has failed, and says so if that is news."""
        before = self.failure
        self._flush_failure, self._trim_failure = flush_failure, trim_failure
        if self.failure and not before:
            log.error("storage: %s; it is tried again, and nothing is lost meanwhile", self.failure)
        elif before and not self.failure:
            log.info("storage: all is well again")

    async def _try_flush(self, partition: Partition) -> str:
        """Flushes; where that fails the partition is left alone for a while, the others are not concerned."""
        why = await self._try(functools.partial(self._flush_or_free, partition), partition)
        if why:
            tries = self._failed[partition][0] + 1 if partition in self._failed else 1
            pause = min(backoff_seconds(tries, lambda: fraction(self._host.randomness)), PAUSE_SECONDS_MAX)
            self._failed[partition] = tries, self._host.clock.monotonic() + pause, why
        else:
            self._failed.pop(partition, None)
        return why

    async def _merge_all(self, waiting: dict[Partition, None]) -> str:
        """Merges what of ``waiting`` is stable; why that has failed, "" if it has not.

        After TICK_SECONDS it leaves the rest to the next look: after a start there may be a minute's work, and flushes
        that are due do not wait for it.
        """
        failure, until = "", self._host.clock.monotonic() + TICK_SECONDS
        for number, partition in enumerate(list(waiting), 1):
            failure = await self._try(functools.partial(self.merge, partition, until), partition) or failure
            if self._host.clock.monotonic() >= until:
                self._has_merges_left = True
                break
            if waiting is self._crowded or partition.is_dropped or partition.stable_seq == partition.high_seq:
                waiting.pop(partition, None)  # else it goes on with what becomes stable
            if number % LOOKS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
        return failure

    async def _try(self, step: Callable[[], Awaitable[object]], partition: Partition | None = None) -> str:
        """Does ``step``; why it has failed, "" where it has not."""
        try:
            await step()
        except (OSError, TailraceError) as error:
            if partition is None or not partition.is_dropped:
                return str(error)
        return ""

    async def _flush_or_free(self, partition: Partition) -> None:
        """Flushes; on a full disk with what is kept for that, since only a flush lets the journal be trimmed.

        Without a free descriptor idle segments give theirs.
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
        """Trims; on a full disk with what is kept for that, since a trim frees space."""
        try:
            await self._trimmer.trim()
        except NoSpace:
            if not await self._space.release():
                raise
            await self._trimmer.trim()

    async def merge(self, partition: Partition, until: float = math.inf) -> None:
        """Makes few blocks of many small ones, as far as they are stable; in short steps, between which others run.

        It goes on ``until`` then (monotonic seconds) at most, and once more.
        """
        while True:
            plan = partition.tree.merge_plan(partition.stable_seq, partition.merge_cuts)
            if plan is None:
                return
            if plan.is_compressed:
                merged = await self._host.workers.in_thread(plan.merge)
            else:
                merged = []
                for block in plan.steps():
                    if block is not None:
                        merged.append(block)
                    await trio.lowlevel.checkpoint()
            partition.replace_tree(partition.tree.replaced(plan, merged, partition.merge_cuts))
            if self._host.clock.monotonic() >= until:
                return

    def _why_not_yet(self) -> str:
        """Why a follower has to go on, though it has no room: what comes next may say what it may flush."""
        held = [partition for partition in self._dirty if partition.tree.block_count]
        if not self._account.is_full or not held or any(p.state == "leader" for p in held):
            return ""
        if any(blocks_through(partition, self._limit(partition)) for partition in held):
            return ""
        return "nobody has said yet what of this the leader has on its disk"

    async def _due(self) -> Sequence[Due[Partition]]:
        """What has to be flushed now."""
        journal, journal_oldest = self._journal.statistics(), self._journal.oldest_number
        # On a disk that is nearly full each older file of the journal is one too many.
        is_low = bool(self._space.low) and len(self._journal.file_numbers) > 1
        is_long = is_low or self._limits.is_journal_long(journal.bytes, journal.replay_seconds, self.count_partitions())
        is_pressed = self._account.is_tight or is_long
        now = self._host.clock.monotonic()
        queues = []
        for number, (partition, since) in enumerate(list(self._dirty.items()), 1):
            if number % LOOKS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            small, young = partition.tree.memory_bytes < self._limits.segment_bytes, now - since < self._limits.age_s
            if partition in self._failed or (small and young and not is_pressed):
                continue
            queues.append(
                Queue(partition, self._stable_bytes(partition), now - since, partition.journal_references.oldest)
            )
        chosen = choose(
            queues,
            self._limits,
            memory_used=self._account.used,
            journal_is_long=is_long,
            journal_oldest=journal_oldest,
        )
        again = [Due(partition, Cause.RETRY) for partition, (_, until, _) in self._failed.items() if now >= until]
        return [*chosen, *again]

    async def flush(self, partition: Partition) -> Segment | None:
        """Moves what is stable of a partition's write queue to a segment; None where there is nothing.

        OSError, NoSpace: nothing has changed.
        """
        return await self._flush(partition, self._limit(partition))

    async def _flush(self, partition: Partition, seq: int) -> Segment | None:
        # One at a time of a partition: the flusher's own may be under way when a replica needs all to be flushed.
        try:
            async with self._flushing[partition]:
                return await self._flush_alone(partition, seq)
        finally:
            if partition.is_dropped:  # meanwhile, after it was forgotten
                self.forget(partition)

    async def _flush_alone(self, partition: Partition, seq: int) -> Segment | None:
        rollbacks = partition.rollbacks
        blocks = blocks_through(partition, seq)
        if blocks and not partition.has_manifest:  # it makes the directory, and comes before the first segment
            await self._installer.write(partition)
            rollbacks = partition.rollbacks
            blocks = blocks_through(partition, seq)  # none where the feed was dropped meanwhile
        if not blocks:
            return None
        identity = identity_of(partition, blocks, self._host.randomness.token(16))
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
        self._bytes += segment.nbytes
        if partition.tree.block_count:
            self._dirty[partition] = self._host.clock.monotonic()
        else:
            self._dirty.pop(partition, None)
        self.on_flushed(partition)
        return segment

    async def flush_all(self, partition: Partition) -> None:
        """Moves the whole write queue to segments, made durable first. Raises as `flush`, and NotDurable."""
        await self.commit()
        while partition.tree.block_count and not partition.is_dropped:
            await self._flush(partition, partition.durable_seq)

    async def flush_for_stop(self) -> None:
        """Moves what is stable to segments before a clean stop, so that the next start has less of the journal to read.

        Only if the journal is long, for FOR_STOP_SECONDS at most, what the oldest file waits for first. What the disk
        refuses stays in the journal. Cancelling leaves a part of it there.
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
            await self._try(self._trim_or_free)

    async def _flush_stable(self, partition: Partition) -> None:
        flushed_seq = -1
        while flushed_seq < partition.flushed_seq < partition.stable_seq:
            flushed_seq = partition.flushed_seq
            await self._try(functools.partial(self._flush_or_free, partition), partition)

    async def flush_through(self, partition: Partition, seq: int) -> None:
        """Moves the write queue up to ``seq``, the end of a block, to segments; as ``flush_all``."""
        await self.commit()
        while partition.flushed_seq < seq <= partition.durable_seq and not partition.is_dropped:
            await self._flush(partition, seq)

    async def write_feeds(self) -> None:
        """Gives what is durable of the creation of feeds a home beside the journal. NoSpace, OSError."""
        await self._trimmer.write_feeds()

    def _limit(self, partition: Partition) -> int:
        """Up to where it may be flushed now."""
        return partition.safe_seq if self._account.is_tight else partition.stable_seq

    def _stable_bytes(self, partition: Partition) -> int:
        """About how much of the write queue can be flushed: all of it, but for the little that is not stable yet."""
        return partition.tree.memory_bytes if self._limit(partition) > partition.flushed_seq else 0
