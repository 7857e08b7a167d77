"""The compactor: the task that compacts segments, one partition after the other, and trims histories by age or size.

After each flush of a partition, and from time to time because rows age, the policy chooses segments of its chain.
Another process compacts them. The installer puts the result in place; until then nothing has changed.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import trio

from tailrace.block.header import TIMESTAMP_MAX
from tailrace.errors import NoSpace, TailraceError
from tailrace.model import FeedInfo
from tailrace.model.failover import SEQ_MAX
from tailrace_server.compaction.policy import CompactionPlan, PartitionRetention, choose, trim
from tailrace_server.compaction.process import Rate
from tailrace_server.compaction.task import CompactionResult, CompactionTask
from tailrace_server.directory.uptime_file import store_uptime, tick_uptime
from tailrace_server.feeds.catalog import Catalog
from tailrace_server.journal import Journal
from tailrace_server.manifest import ManifestStore
from tailrace_server.partition.chain import LostSegment
from tailrace_server.partition.partition import Partition
from tailrace_server.runtime.host import Host
from tailrace_server.segment import Segment, SegmentDamaged
from tailrace_server.state.ahead import Mark, PartitionPlace, is_ahead
from tailrace_server.state.durations import WORK_BOUNDS, Durations
from tailrace_server.state.uptime import Uptime
from tailrace_server.upkeep.compaction_state import CompactionState, PlannedCompaction, RunningCompaction
from tailrace_server.upkeep.installer import Installer, RolledBack, check_history, entries_of
from tailrace_server.upkeep.space import Space

log = logging.getLogger("tailrace.server")

# The interval at which every chain is checked for aged rows.
SWEEP_SECONDS = 60.0
# The interval at which the rate follows the writers.
RATE_SECONDS = 0.25
# The interval at which the node's uptime is stored: a crash loses this much of it.
UPTIME_SECONDS = 600.0
# A chain of this many segments is compacted at full speed, also beside writers: compaction has fallen behind.
SEGMENTS_BEHIND = 48
# Segments with at most these bytes (of keys and values) and rows are compacted in a thread: 3 to 10 ms of processor
# time. A process takes 450 ms to start, so thousands of slowly written partitions would outrun it.
SMALL_BYTES_MAX = 1024 * 1024
SMALL_ROWS_MAX = 4_096
# After a failed compaction a partition has a pause of this length, which doubles with each failure up to the second.
# For lack of room it is always the shorter one: the room is checked before anything is read.
PAUSE_SECONDS = 60.0
# In a history that is kept for ever, a stream since a time finds its place by marks up to a week back.
UNBOUNDED_US = 7 * 86_400_000_000
PAUSE_SECONDS_MAX = 3_600.0


class CompactionStatistics(NamedTuple):
    """Since the start: compactions, bytes of their segments, rows read and dropped; the last error, or ""."""

    compactions: int
    compacted_bytes: int
    rows_read: int
    rows_dropped: int
    compaction_failure: str


class _Chosen(NamedTuple):
    """A plan for ``segments``, in a stretch of the chain that begins at index ``begin``, and what decides it."""

    begin: int
    segments: tuple[Segment, ...]
    plan: CompactionPlan
    retention: PartitionRetention
    stable_seq: int
    purge_before_us: int | None
    old_seq: int


class Compactor:
    """Compacts the partitions of a node, which has one compactor."""

    def __init__(
        self,
        host: Host,
        data: str,
        journal: Journal,
        store: ManifestStore,
        installer: Installer,
        catalog: Catalog,
        space: Space,
        uptime: Uptime,
        rate_max: int,
    ) -> None:
        """``rate_max`` bounds the bytes a second of a compaction beside writes; 0: no bound."""
        self._host = host
        self._data = data
        self._journal = journal
        self._store = store
        self._installer = installer
        self._catalog = catalog
        self._space = space
        self._rate_max = rate_max
        self._rate = Rate()
        self._candidates: dict[Partition, None] = {}
        self._tended: Partition | None = None
        # The partition whose segments are being compacted, these segments, and the begin (monotonic).
        self._running: tuple[Partition, tuple[Segment, ...], float] | None = None
        self._holds = 0  # bodies of `holding_pushed` that run
        self._held: dict[Partition, None] = {}  # candidates that wait for their end
        # Partitions in a pause: its end (monotonic), and the error, "" for damage.
        self._paused: dict[Partition, tuple[float, str]] = {}
        self._tries: dict[Partition, int] = {}  # of these, the count of failures in a row
        self._damaged: set[str] = set()  # segments that could not be read
        self._told: set[tuple[Partition, int]] = set()  # whose wrong hashes were logged
        self._wanted = trio.Event()
        self._compacting = trio.Event()  # set while another process compacts
        self._written_before = journal.written  # as of the last look at the rate
        self._compactions = self._bytes = self._rows_read = self._rows_dropped = 0
        self.durations = Durations(WORK_BOUNDS)
        self.uptime = uptime
        self.on_damage: Callable[[SegmentDamaged], None] = lambda _: None

    @property
    def failure(self) -> str:
        """The error of a compaction, other than damage; "" if all is well."""
        return next((why for _, why in self._paused.values() if why), "")

    def statistics(self) -> CompactionStatistics:
        """Returns counts for status."""
        return CompactionStatistics(self._compactions, self._bytes, self._rows_read, self._rows_dropped, self.failure)

    def consider(self, partition: Partition) -> None:
        """Notes that the chain of ``partition`` has changed."""
        if partition.is_dropped:
            return
        self._candidates[partition] = None
        self._wanted.set()

    def forget_damage(self, path: str) -> None:
        """Notes that the segment at ``path``, which could not be read, has a good file now, or has left its chain."""
        self._damaged.discard(path)

    def forget(self, partition: Partition) -> None:
        """Drops all plans for ``partition``, of a feed that was dropped."""
        self._candidates.pop(partition, None)
        self._held.pop(partition, None)
        self._recovered(partition)
        self._told = {told for told in self._told if told[0] is not partition}
        self.uptime.ahead.forget(PartitionPlace(partition.feed_id, partition.id))

    @contextlib.contextmanager
    def holding_pushed(self) -> Iterator[None]:
        """Begins no compaction of partitions in replication mode ``segment`` while the body runs.

        Their followers would get all rows of the result, before newer ones.
        """
        self._holds += 1
        try:
            yield
        finally:
            self._holds -= 1
            if not self._holds and self._held:
                self._candidates.update(self._held)
                self._held.clear()
                self._wanted.set()

    async def run(self) -> None:
        """Compacts until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_rate)
            nursery.start_soon(self._keep_uptime)
            sweep_at = trio.current_time() + SWEEP_SECONDS
            while True:
                with trio.move_on_at(sweep_at):
                    await self._wanted.wait()
                self._wanted = trio.Event()
                tick_uptime(self.uptime, self._host.clock)
                if trio.current_time() >= sweep_at:
                    sweep_at = trio.current_time() + SWEEP_SECONDS
                    self._candidates.update(dict.fromkeys(self._catalog.partitions()))
                # If partitions come faster than they are compacted, the others get their turn all the same.
                while self._candidates and trio.current_time() < sweep_at:
                    self._tended = next(iter(self._candidates))
                    del self._candidates[self._tended]
                    await trio.lowlevel.checkpoint()  # mostly there is no work, thousands of times in a row
                    await self._tend(self._tended)
                self._tended = None

    async def _tend(self, partition: Partition) -> None:
        """Does all work of one partition. Logs an error, and tries again after a pause."""
        if partition.is_dropped:
            return
        if partition in self._paused and self._host.clock.monotonic() < self._paused[partition][0]:
            return
        try:
            info = self._catalog.retention_of(partition.feed_id)
            self.look_ahead(partition, info)
            await self.trim(partition, info)
            while not self._is_left(partition) and await self.compact(partition, info):
                pass
        except SegmentDamaged as error:
            self._damaged.add(error.path)
            self.on_damage(error)
            self._pause(partition)
        except RolledBack as error:
            log.info("%s", error)
            self.consider(partition)
        except (OSError, TailraceError) as error:
            if not partition.is_dropped:
                log.error(
                    "partition %s of feed %s cannot be compacted: %s", partition.id, partition.feed_id.hex(), error
                )
                self._pause(partition, str(error), grows=not isinstance(error, NoSpace))
        else:
            self._recovered(partition)

    def _is_left(self, partition: Partition) -> bool:
        """Returns whether ``partition`` is not compacted now: its leader's segments are pushed."""
        if not partition.pushes.by_segments:
            return False
        if self._holds:
            self._held[partition] = None
            return True
        return partition.state != "leader"  # it gets the leader's

    def _recovered(self, partition: Partition) -> None:
        self._paused.pop(partition, None)
        self._tries.pop(partition, None)

    def _pause(self, partition: Partition, failure: str = "", *, grows: bool = False) -> None:
        if partition.is_dropped:
            return
        if grows:
            self._tries[partition] = self._tries.get(partition, 0) + 1
        # The exponent is bounded, since the pause is.
        pause = min(PAUSE_SECONDS * 2.0 ** min(max(0, self._tries.get(partition, 0) - 1), 16), PAUSE_SECONDS_MAX)
        self._paused[partition] = self._host.clock.monotonic() + pause, failure

    def look_ahead(self, partition: Partition, info: FeedInfo) -> None:
        """Marks the flushed seq of a partition whose stamps lie ahead of the clock, as of the last tick."""
        place, uptime = PartitionPlace(partition.feed_id, partition.id), self.uptime
        wall_us = self._host.clock.wall_us()
        if is_ahead(partition.last_timestamp, wall_us):
            if partition.flushed_seq and partition.log:
                branch = partition.log.branch_at(partition.flushed_seq)
                mark = Mark(branch, partition.flushed_seq, SEQ_MAX if uptime.is_behind else wall_us, uptime.now_us)
                uptime.ahead.see(place, mark, partition.log, _keep_us(info))
        elif not uptime.suspended:  # else the clock may have jumped ahead as well
            uptime.ahead.forget(place)

    def _old_seq(self, partition: Partition, age_us: int) -> int:
        """Returns the seq up to which a partition that is ahead of the clock has this age; 0 if it is not ahead."""
        place = PartitionPlace(partition.feed_id, partition.id)
        return self.uptime.ahead.old_seq(place, partition.log, age_us, self.uptime.now_us)

    async def trim(self, partition: Partition, info: FeedInfo) -> None:
        """Drops the oldest segments of a history that is bounded by age or size. OSError, NoSpace."""
        retention = PartitionRetention.of(info)
        if not retention.history:
            return
        rollbacks = partition.rollbacks
        found = trim(
            entries_of(partition.chain.segments),
            before_us=None if retention.age_us is None else self.uptime.cutoff(retention.age_us),
            bytes_max=retention.nbytes,
            old_seq=0 if retention.age_us is None else self._old_seq(partition, retention.age_us),
        )
        if found is None:
            return
        count = found.segments
        if partition.pushes.by_segments:  # a follower comes to the last seq by the newest segment only
            count = min(count, len(partition.chain.segments) - 1)
        if count:
            await self._installer.drop_oldest(partition, count, rollbacks)

    async def compact(self, partition: Partition, info: FeedInfo) -> bool:
        """Compacts the segments that the policy chooses. Returns False if there are none.

        Raises SegmentDamaged, CompactionFailed, OSError.
        """
        rollbacks = partition.rollbacks
        chosen = self._choose(partition, info)
        if chosen is None:
            return False
        begin, folded, plan, retention, stable_seq, purge_before_us, old_seq = chosen
        behind = partition.chain.segments[begin + plan.last + 1 :][:1]
        # Without room it is not begun: its reading and writing would be in vain, time after time.
        await self._space.check_room(plan.nbytes, f"the compaction of {len(folded)} segments")
        is_major = plan.is_major and begin == 0
        if old_seq:  # the seq decides, not the stamps
            purge_before_us, stable_seq = TIMESTAMP_MAX, min(stable_seq, old_seq)
        segment_id = self._host.randomness.token(16)
        output = self._store.segment_path(partition.feed_id, partition.id, segment_id)
        task = CompactionTask(
            inputs=tuple(segment.path for segment in folded),
            output=output,
            segment_id=segment_id,
            hash_first=partition.hash_first,
            hash_last=partition.hash_last,
            is_major=is_major,
            history=retention.history,
            purge_before_us=purge_before_us if is_major else None,
            stable_seq=stable_seq,
            cuts=tuple(sorted({entry.base for entry in partition.log})),
            next_base_id=behind[0].identity.base_id if behind else b"",
        )
        began_at = self._host.clock.monotonic()
        self._running = partition, folded, began_at
        try:
            if _is_small(folded):
                result = await self._host.workers.compact_small(task)
            else:
                result = await self._compact_elsewhere(task)
        except (OSError, TailraceError):
            check_history(partition, rollbacks)  # its inputs have left the chain then, and their files may be gone
            raise
        finally:
            self._running = None
        try:
            made = await self._host.workers.in_thread(lambda: Segment.open(self._store.segment_files, output))
            try:
                await self._installer.install_compacted(partition, folded, made, rollbacks)
            except BaseException:
                made.close()
                raise
        except BaseException:
            self._installer.orphan(partition, output)
            raise
        self.durations.add(self._host.clock.monotonic() - began_at)
        self._note(partition, plan, result)
        return True

    async def _compact_elsewhere(self, task: CompactionTask) -> CompactionResult:
        """Compacts in another process, at a rate that is kept meanwhile: a look at it now and then delays writes."""
        self._set_rate()
        self._compacting.set()
        try:
            return await self._host.workers.compact(task, self._rate)
        finally:
            self._compacting = trio.Event()

    def _choose(self, partition: Partition, info: FeedInfo) -> _Chosen | None:
        """Returns the segments that the policy chooses now, and what decides it; None if there are none."""
        retention = PartitionRetention.of(info)
        stable_seq = partition.stable_seq
        begin, whole = self._whole_stretch(partition)
        # Behind a segment that is left out tombstones have to stay, so no compaction is begun for them.
        may_purge = begin == 0 and not retention.history
        age_us = int(info.tombstone_age_s * 1e6)
        purge_before_us = self.uptime.cutoff(age_us) if may_purge else None
        old_seq = self._old_seq(partition, age_us) if may_purge else 0
        plan = choose(
            entries_of(whole),
            retention=retention,
            stable_seq=stable_seq,
            purge_before_us=purge_before_us,
            old_seq=old_seq,
            marks=self.uptime.ahead.seqs(PartitionPlace(partition.feed_id, partition.id)),
        )
        if plan is None:
            return None
        segments = whole[plan.first : plan.last + 1]
        return _Chosen(begin, segments, plan, retention, stable_seq, purge_before_us, old_seq)

    def state_of(self, partition: Partition) -> CompactionState:
        """Returns the compaction of ``partition`` that runs, and the one that the policy would begin now."""
        now = self._host.clock.monotonic()
        pause_until, failure = self._paused.get(partition, (now, ""))
        running = None if self._running is None else _running_of(partition, now, *self._running)
        planned = None if running else self._planned(partition)
        return CompactionState(running, planned, pause_until - now if pause_until > now else None, failure)

    def _planned(self, partition: Partition) -> PlannedCompaction | None:
        if partition.is_dropped or (partition.pushes.by_segments and partition.state != "leader"):
            return None
        chosen = self._choose(partition, self._catalog.retention_of(partition.feed_id))
        if chosen is None:
            return None
        begin, plan = chosen.begin, chosen.plan
        is_major = plan.is_major and begin == 0
        return PlannedCompaction(
            begin + plan.first, begin + plan.last, plan.nbytes, plan.rows, plan.reason.value, is_major
        )

    def _whole_stretch(self, partition: Partition) -> tuple[int, tuple[Segment, ...]]:
        """Returns the longest stretch of readable segments in the chain, and its index."""
        segments = partition.chain.segments
        bad = [-1]
        bad += [i for i, s in enumerate(segments) if isinstance(s, LostSegment) or s.path in self._damaged]
        bad.append(len(segments))
        before, after = max(itertools.pairwise(bad), key=lambda pair: pair[1] - pair[0])
        return before + 1, segments[before + 1 : after]

    def _note(self, partition: Partition, plan: CompactionPlan, result: CompactionResult) -> None:
        self._compactions += 1
        self._bytes += result.nbytes
        self._rows_read += result.rows
        self._rows_dropped += result.superseded + result.purged
        log.info(
            "partition %s of feed %s: %s segments compacted (%s), %s of %s rows left",
            *(partition.id, partition.feed_id.hex(), plan.last - plan.first + 1, plan.reason.value),
            *(result.identity.rows, result.rows),
        )
        for foreign in result.foreign:
            if (partition, foreign.producer_id) in self._told:
                continue
            self._told.add((partition, foreign.producer_id))
            log.warning(
                "producer %016x has sent %s rows to partition %s of feed %s whose hash is not that of their key, the "
                "first one is seq %s, key %r; %s of them are corrected, the others cannot be found by their key",
                *(foreign.producer_id, foreign.rows, partition.id, partition.feed_id.hex()),
                *(foreign.seq, foreign.key, foreign.corrected),
            )

    def set_rate_max(self, rate_max: int) -> None:
        """Changes the bytes a second of a compaction beside writes; 0: no bound."""
        self._rate_max = rate_max

    async def _keep_rate(self) -> None:
        while True:
            await self._compacting.wait()
            await trio.sleep(RATE_SECONDS)
            self._set_rate()

    def _set_rate(self) -> None:
        """Sets the rate of compactions by the bytes that were written since the last call."""
        written = self._journal.written
        is_written, self._written_before = written != self._written_before, written
        self._rate.set(self._rate_max if is_written and not self._is_behind() else 0)

    def _is_behind(self) -> bool:
        waiting = [*self._candidates, *([self._tended] if self._tended else [])]
        return any(len(partition.chain.segments) >= SEGMENTS_BEHIND for partition in waiting)

    async def _keep_uptime(self) -> None:
        while True:
            # At the start too: a run without a stored uptime could have stamped rows by a wrong clock.
            tick_uptime(self.uptime, self._host.clock)
            try:
                await self._host.workers.in_thread(lambda: store_uptime(self.uptime, self._host.disk, self._data))
            except OSError as error:
                log.warning("the uptime of this node cannot be stored: %s", error)
            await trio.sleep(UPTIME_SECONDS)


def _running_of(
    partition: Partition, now: float, other: Partition, folded: tuple[Segment, ...], began_at: float
) -> RunningCompaction | None:
    """Returns the compaction of ``folded`` if it is of ``partition``, and a rollback has not removed them meanwhile."""
    segments = partition.chain.segments
    if other is not partition or folded[0] not in segments:
        return None
    first = segments.index(folded[0])
    return RunningCompaction(first, first + len(folded) - 1, sum(segment.nbytes for segment in folded), now - began_at)


def _keep_us(info: FeedInfo) -> int:
    """Returns the age at which a feed drops rows, or tombstones; UNBOUNDED_US if it drops none by age."""
    age_s = info.history_age_s if info.retention == "history" else info.tombstone_age_s
    return UNBOUNDED_US if age_s is None else int(age_s * 1e6)


def _is_small(segments: Sequence[Segment]) -> bool:
    identities = [segment.identity for segment in segments]
    return (
        sum(identity.rows for identity in identities) <= SMALL_ROWS_MAX
        and sum(identity.key_value_bytes for identity in identities) <= SMALL_BYTES_MAX
    )
