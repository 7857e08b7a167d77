"""What a PUBLISH does: the rows of some stages become a batch of a sink, in one step a partition.

    every stage is sealed and here, else nothing is published at all
    for each partition, in order: its blocks are read, and where the batch is not here yet one record has them all
    if they are too many for one record: they are sorted by key hash, and come in parts, a record each (cutting.py)
    all of it is durable, and at quorum in a set: answered; the stages' files go, which nobody waits for

Whatever comes between two partitions, a crash or a broken connection, the same PUBLISH again does what is left. So does
a PUBLISH of the same batch from other stages: a partition takes its share once, from whoever comes first.

A client that asks in steps is answered when a step has taken ``STEP_S``, and asks for the next one: so it knows that
the node goes on, and may be as patient as with any other request.

A PUBLISH belongs to the term in which it began. A leader that is deposed meanwhile may lose what it has written, and
lead again in a later term: the PUBLISH fails then, and the same one again looks anew at what each partition has.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import trio

from tailrace.errors import (
    BatchBehind,
    BatchChanged,
    Forbidden,
    TailraceError,
    UnknownFeed,
    UnknownStage,
)
from tailrace.model import Level, VersionRange
from tailrace.model.hashing import HASH_MAX
from tailrace.wire.stage_messages import Publish
from tailrace_server.journal.published_record import BLOCKS_MAX
from tailrace_server.partition import published as appending
from tailrace_server.partition.partition import Partition
from tailrace_server.publishing.cuts import Cuts
from tailrace_server.publishing.joining import joined, joining_bytes
from tailrace_server.publishing.stage_file import StagedBlock, by_partition
from tailrace_server.replication.leaderships import Leaderships, Terms
from tailrace_server.replication.waiting import Answer, Cancel, WaitingAnswers
from tailrace_server.state.last_batches import BatchVerdict, LastBatch, decide, first_free

if TYPE_CHECKING:
    from tailrace.block import Block
    from tailrace_server.feeds.feed import Feed
    from tailrace_server.publishing.stages import Stages
    from tailrace_server.stream.open_streams import OpenStreams
    from tailrace_server.upkeep.storage import Storage

# What is joined on the loop's thread: about 0.1 ms, as a hop to another one takes.
JOINED_HERE_BYTES_MAX = 64 * 1024
# How long a step works: a fraction of what clients wait for an answer, and long against what a step costs by itself.
STEP_S = 5.0
# There are rows to be published.
_WANTED = (BatchVerdict.PUBLISH, BatchVerdict.CONTINUE)
# A stage and the blocks in it that are of one partition.
_Share = tuple[bytes, list[StagedBlock]]


class PublishResult(NamedTuple):
    """What was written now, and which partitions had the batch already; the files of the stages, to be removed.

    ``more``: the step is over, and the batch is not there yet.
    """

    written: tuple[VersionRange, ...]
    skipped: tuple[int, ...]
    files: list[str]
    more: bool = False


class _Step:
    """What one request does: all that is asked for, or for a client that asks in steps what ``STEP_S`` are enough for.

    ``written`` and ``found`` are what partitions got now, and the last seqs of the batch in those that had it.
    """

    def __init__(self, request: Publish, monotonic: Callable[[], float]) -> None:
        self.written: list[VersionRange] = []
        self.found: dict[int, int] = {}
        self._monotonic = monotonic
        self._until = monotonic() + STEP_S if request.in_steps else math.inf

    @property
    def is_over(self) -> bool:
        """Something was done, and the time is over. Ask when something was done."""
        return self._monotonic() >= self._until

    @property
    def seqs(self) -> dict[int, int]:
        """By partition, up to where the batch is there."""
        return {versions.partition: versions.last_seq for versions in self.written} | self.found


class Publisher:
    """One a node."""

    def __init__(
        self,
        storage: Storage,
        leaderships: Leaderships,
        waiting: WaitingAnswers,
        stages: Stages,
        streams: OpenStreams,
        *,
        part_bytes_max: int,
    ) -> None:
        self._storage = storage
        self._leaderships = leaderships
        self._waiting = waiting
        self._feeds = storage.feeds
        self._stages = stages
        self._streams = streams
        self._locks: dict[tuple[bytes, str], tuple[trio.Lock, int]] = {}
        self._part_bytes_max = part_bytes_max
        self._cuts = Cuts(storage.host, stages, part_bytes_max)

    async def publish(self, request: Publish) -> PublishResult:
        """Does it; returns once it is as safe as it gets here.

        Raises BatchBehind, BatchChanged, UnknownFeed, Forbidden if nothing was published, and UnknownStage, TooLarge
        and Retryable errors if a part may have been.
        """
        async with self._turn(request):
            leaderships = self._leaderships.of_feed(request.feed_id)
            for leadership in leaderships:
                leadership.require_writable()
                leadership.require_publishing()
            terms = Terms(leaderships)
            feed = self._feeds.of_id(request.feed_id)
            if not all(partition.takes_writes for partition in feed.partitions):
                raise Forbidden("_feeds lists the feeds: it is written by creating and dropping them")
            self._check_numbers(feed, request)
            self._stages.heard(request.stages)
            shares = await self._shares(feed, request)
            step = _Step(request, self._storage.host.clock.monotonic)
            is_done = await self._write(feed, request, shares, terms, step)
            await self._settled(feed, step.seqs, terms)
        files = self._stages.forget(request.stages) if is_done else []
        fresh = {versions.partition for versions in step.written}
        skipped = tuple(number for number in sorted(shares) if number not in fresh) if is_done else ()
        return PublishResult(tuple(step.written), skipped, files, not is_done)

    async def expire(self) -> None:
        """Removes what was sorted for batches that are not published any more."""
        await self._cuts.expire()

    def close(self) -> None:
        """The node stops."""
        self._cuts.close()

    @contextlib.asynccontextmanager
    async def _turn(self, request: Publish) -> AsyncIterator[None]:
        """One publish of a sink at a time: another one might remove the stages that this one reads."""
        key = request.feed_id, request.sink
        lock, users = self._locks.get(key, (trio.Lock(), 0))
        self._locks[key] = lock, users + 1
        try:
            async with lock:
                yield
        finally:
            lock, users = self._locks.pop(key)
            if users > 1:
                self._locks[key] = lock, users - 1

    def _check_numbers(self, feed: Feed, request: Publish) -> None:
        """Refuses a batch that is not to go on in some partition of the feed, whether it has rows there or not.

        Raises BatchBehind, BatchChanged.
        """
        lasts = [partition.sinks.find(request.sink) for partition in feed.partitions]
        verdicts = [_decide(last, request) for last in lasts]
        behind = [last for last, verdict in zip(lasts, verdicts, strict=True) if verdict is BatchVerdict.BEHIND]
        first = first_free(lasts)
        if BatchVerdict.CHANGED in verdicts and not behind:
            raise BatchChanged(
                f"batch {request.batch} of sink {request.sink!r} was published before, and comes again with other "
                "rows: as of a checkpoint that was restored or copied, or as rows that are not the same each time they "
                f"are computed. Rows that were not published have to begin at batch {first}",
                first_batch=first,
            )
        if not behind:
            return
        if all(last is not None and last.origin == request.origin for last in behind):
            why = "is older than the last one of the same origin, as of a checkpoint that was restored or copied"
        else:
            why = "has a number that was used already, by another query or checkpoint"
        raise BatchBehind(
            f"batch {request.batch} of sink {request.sink!r} {why}: this one has to begin at batch {first}",
            first_batch=first,
        )

    async def _shares(self, feed: Feed, request: Publish) -> dict[int, list[_Share]]:
        """What each partition is to get. Where every one has the batch already the stages may be gone."""
        told = set(request.partitions)
        if not told <= set(range(len(feed.partitions))):
            raise UnknownFeed(f"feed {feed.info.name!r} has {len(feed.partitions)} partitions, not {max(told) + 1}")
        missing = self._stages.missing(request.feed_id, request.stages)
        if missing:
            if told and all(self._has(feed.partitions[number], request) for number in told):
                return {number: [] for number in told}
            raise UnknownStage(
                f"{len(missing)} of {len(request.stages)} stages are not here (stage {missing[0].hex()}): the batch "
                "has to be staged anew"
            )
        shares: dict[int, list[_Share]] = {number: [] for number in told}
        for stage in request.stages:
            for number, entries in (await self._index(stage)).items():
                if number not in shares:
                    raise UnknownStage(f"stage {stage.hex()} has rows of partition {number}, which was not named")
                shares[number].append((stage, entries))
        return shares

    async def _index(self, stage: bytes) -> dict[int, list[StagedBlock]]:
        """The blocks of a sealed stage by partition. UnknownStage where it is gone, or damaged."""
        stages = self._stages
        kept = stages.kept.find(stage)
        if kept is not None:
            return {number: share.entries for number, share in kept.items()}
        return by_partition(await self._storage.host.workers.in_thread(functools.partial(stages.read_index, stage)))

    @staticmethod
    def _has(partition: Partition, request: Publish) -> bool:
        return _decide(partition.sinks.find(request.sink), request) not in _WANTED

    async def _write(
        self, feed: Feed, request: Publish, shares: dict[int, list[_Share]], terms: Terms, step: _Step
    ) -> bool:
        """Gives each partition its share, and notes it in ``step``; False if that was over before."""
        for number in sorted(shares):
            partition, share = feed.partitions[number], shares[number]
            if self._note_found(partition, request, step.found) or not share:
                continue
            if step.written and step.is_over:
                return False
            is_begun = _decide(partition.sinks.find(request.sink), request) is BatchVerdict.CONTINUE
            if is_begun or self._is_large(share):
                if not await self._write_parts(partition, share, request, terms, step):
                    return False
                continue
            blocks = await self._blocks(number, share)
            await self._storage.memory.room()
            self._check_writable(partition, terms)
            if not self._note_found(partition, request, step.found):
                self._append(partition, blocks, request, step)
        return True

    async def _write_parts(
        self, partition: Partition, share: list[_Share], request: Publish, terms: Terms, step: _Step
    ) -> bool:
        """Gives a partition its share, or what it has not of it, in parts; False if ``step`` was over before."""
        in_thread = self._storage.host.workers.in_thread
        async with self._cuts.turn(request.feed_id, request.sink) as turn:
            while not self._note_found(partition, request, step.found):
                last = partition.sinks.find(request.sink)
                before = last if _decide(last, request) is BatchVerdict.CONTINUE else None
                cut = await turn.find(partition, request, share, before)
                while not cut.is_sorted:
                    await in_thread(cut.advance)
                    self._check_writable(partition, terms)
                    if step.is_over:
                        await in_thread(cut.rest)
                        return False
                part = await in_thread(cut.part)
                await self._storage.memory.room()
                self._check_writable(partition, terms)
                if partition.sinks.find(request.sink) != last:
                    continue
                self._append(partition, part.blocks, request, step, before=before, through=part.through)
                cut.taken(part)
                if part.through < HASH_MAX and step.is_over:
                    return False
            await turn.drop()
        return True

    def _append(
        self,
        partition: Partition,
        blocks: list[Block],
        request: Publish,
        step: _Step,
        *,
        before: LastBatch | None = None,
        through: int | None = None,
    ) -> None:
        storage = self._storage
        if not blocks:  # the hashes above those that are here have no rows
            assert before is not None
            assert through is not None
            appending.note_sinks(
                partition, {request.sink: appending.with_part(before, before, through)}, storage.journal
            )
        else:
            now_us = storage.host.clock.wall_us()
            versions = appending.publish(
                partition,
                blocks,
                request.sink,
                request.batch,
                request.origin,
                storage.journal,
                now_us=now_us,
                digest=request.digest,
                before=before,
                through=through,
            )
            step.written.append(versions)
        storage.wrote(partition)
        self._streams.turn_ended()

    @staticmethod
    def _note_found(partition: Partition, request: Publish, found: dict[int, int]) -> bool:
        """Whether ``partition`` has the batch; then the last seq of the sink there goes into ``found``."""
        last = partition.sinks.find(request.sink)
        if last is None or _decide(last, request) in _WANTED:
            return False
        found[partition.id] = last.seq
        return True

    def _is_large(self, share: Sequence[_Share]) -> bool:
        """Whether one record cannot have all of ``share``."""
        entries = [entry for _, found in share for entry in found]
        nbytes = sum(entry.nbytes for entry in entries)
        return nbytes > self._part_bytes_max or len(entries) > BLOCKS_MAX

    async def _blocks(self, number: int, share: Sequence[_Share]) -> list[Block]:
        """A partition's blocks, in the order of the stages. UnknownStage where one is damaged. A checkpoint."""
        stages = self._stages
        kept = [found[number].blocks for stage, _ in share if (found := stages.kept.find(stage)) is not None]
        if len(kept) < len(share):
            return await self._storage.host.workers.in_thread(functools.partial(self._read, share))
        blocks = [block for part in kept for block in part]
        if joining_bytes(blocks) > JOINED_HERE_BYTES_MAX:
            return await self._storage.host.workers.in_thread(functools.partial(joined, blocks))
        await trio.lowlevel.checkpoint()  # others have their turn between two partitions
        return joined(blocks)

    def _read(self, share: Sequence[_Share]) -> list[Block]:
        """For a thread: what ``_blocks`` gives, from the stages' files."""
        return joined(block for stage, entries in share for block in self._stages.read_blocks(stage, entries))

    def _check_writable(self, partition: Partition, terms: Terms) -> None:
        """Nothing was waited for since: what stands in the way of writing is said."""
        terms.require_writable()
        self._storage.require_durable()
        if partition.is_dropped:
            raise UnknownFeed(f"feed {partition.feed_id.hex()} was dropped")
        if partition.damage is not None:
            raise partition.damage.with_traceback(None)
        self._storage.require_space()

    async def _settled(self, feed: Feed, seqs: Mapping[int, int], terms: Terms) -> None:
        """Returns once ``seqs``, by partition, are as safe as they get here: in a set a majority has them.

        Raises NotDurable if it never will be, and NotLeader if this node has not led in ``terms`` ever since: then the
        seqs that are waited for may be those of other rows.
        """
        terms.require()
        needs = [(feed.partitions[number], seq) for number, seq in seqs.items()]
        await self._answered(lambda answer: self._storage.committer.when_durable(answer))
        terms.require()
        if terms.in_set:
            await self._answered(lambda answer: self._waiting.wait(Level.QUORUM, needs, answer))
        terms.require()

    async def _answered(self, ask: Callable[[Answer], Cancel | None]) -> None:
        """Waits for what ``ask`` is told; raises the error that it is told."""
        done = trio.Event()
        errors: list[TailraceError] = []

        def answer(error: TailraceError | None) -> None:
            if error is not None:
                errors.append(error)
            done.set()

        cancel = ask(answer)
        self._streams.turn_ended()
        try:
            await done.wait()
        finally:
            if cancel is not None:
                cancel()
        if errors:
            raise errors[0].with_traceback(None)


def _decide(last: LastBatch | None, request: Publish) -> BatchVerdict:
    return decide(last, request.batch, request.origin, request.digest)
