"""Executes a PUBLISH: the rows of some stages become a batch of a sink, in one step for each partition.

    check that every stage is sealed and here, or get it from other members of the set; else publish nothing
    for each partition, in order: if it lacks the batch, read its blocks, and write all of them by one record
    if they are too many for one record: sort them by key hash, and write parts, a record each (cutting.py)
    wait until all of it is durable, and at quorum in a set; answer; remove the stages' files

After a crash or a broken connection between two partitions, the same PUBLISH again does the rest. So does a PUBLISH of
the same batch from other stages: a partition takes its share once, from the first PUBLISH that has it.

A client that asks in steps gets an answer when a step has taken ``STEP_S``, and asks for the next step. So it knows
that the node works, and can use the same timeout as for any other request.

A PUBLISH belongs to the term in which it began. A leader that is deposed in between may lose the rows that it has
written, and lead again in a later term. Then the PUBLISH fails, and the same PUBLISH again checks each partition anew.
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
    UnknownFeed,
    UnknownStage,
)
from tailrace.model import Level, VersionRange
from tailrace.model.hashing import HASH_MAX
from tailrace.wire.stage_messages import Publish
from tailrace_server.host.answers import answered
from tailrace_server.journal.published_record import BLOCKS_MAX
from tailrace_server.partition import published as appending
from tailrace_server.partition.partition import Partition
from tailrace_server.publishing.cuts import Cuts
from tailrace_server.publishing.joining import joined, joining_bytes
from tailrace_server.publishing.stage_file import StagedBlock, by_partition
from tailrace_server.replication.leaderships import Leaderships, Terms
from tailrace_server.replication.waiting import WaitingAnswers
from tailrace_server.state.last_batches import BatchVerdict, LastBatch, decide, first_free

if TYPE_CHECKING:
    from tailrace.block import Block
    from tailrace_server.feeds.feed import Feed
    from tailrace_server.publishing.stage_spreader import StageSpreader
    from tailrace_server.publishing.stages import Stages
    from tailrace_server.replication.leadership import Leadership
    from tailrace_server.stream.open_streams import OpenStreams
    from tailrace_server.upkeep.storage import Storage

# Bytes that are joined on the node's loop: about 0.1 ms, the same as a hop to a thread takes.
JOINED_HERE_BYTES_MAX = 64 * 1024
# Seconds of a step: a fraction of a client's timeout, and long compared with the cost of a step itself.
STEP_S = 5.0
# The partition lacks rows of the batch.
_WANTED = (BatchVerdict.PUBLISH, BatchVerdict.CONTINUE)
# A stage, and its blocks of one partition.
_Share = tuple[bytes, list[StagedBlock]]


class PublishResult(NamedTuple):
    """The versions that were written now, the partitions that had the batch before, and the stages' files to remove.

    ``more`` if the step is over and the batch is not complete. ``copied``: stages of which other members may have
    copies, which are to be dropped.
    """

    written: tuple[VersionRange, ...]
    skipped: tuple[int, ...]
    files: list[str]
    more: bool = False
    copied: tuple[bytes, ...] = ()


class _Step:
    """The work of one request: the whole PUBLISH, or for a client that asks in steps ``STEP_S`` of it.

    ``written`` has the versions that were written now; ``found`` the last seqs of the batch in partitions that had it.
    """

    def __init__(self, request: Publish, monotonic: Callable[[], float]) -> None:
        self.written: list[VersionRange] = []
        self.found: dict[int, int] = {}
        self._monotonic = monotonic
        self._until = monotonic() + STEP_S if request.in_steps else math.inf

    @property
    def is_over(self) -> bool:
        """Whether the time of the step is over. A step does some work before it asks."""
        return self._monotonic() >= self._until

    @property
    def seqs(self) -> dict[int, int]:
        """The last seq of the batch in each partition that has it."""
        return {versions.partition: versions.last_seq for versions in self.written} | self.found


class Publisher:
    """The publisher of one node."""

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
        self._spreader: StageSpreader | None = None

    def spread_by(self, spreader: StageSpreader) -> None:
        """Connects the part that gets stages from other members."""
        self._spreader = spreader

    @property
    def spreader(self) -> StageSpreader:
        """The copies of stages of this node."""
        assert self._spreader is not None, "the node connects it when it is made"
        return self._spreader

    async def publish(self, request: Publish) -> PublishResult:
        """Publishes, and returns once the batch is durable, and in a set at quorum; or after a step.

        Raises BatchBehind, BatchChanged, UnknownFeed, Forbidden if nothing was published, and UnknownStage, TooLarge
        and Retryable errors if a part may have been published.
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
            if any(leadership.in_set for leadership in leaderships):  # the batch is answered at level quorum
                feed.require_quorum()
            self._check_numbers(feed, request)
            self._stages.heard(request.stages)
            step = _Step(request, self._storage.host.clock.monotonic)
            if not await self._fetch(feed, request, leaderships, terms, step):
                return PublishResult((), (), [], more=True)
            shares = await self._shares(feed, request)
            is_done = await self._write(feed, request, shares, terms, step)
            await self._settled(feed, step.seqs, terms)
        if is_done and step.written:
            self._storage.written.published()
        copied = self._stages.copied(request.stages) if is_done and terms.in_set else ()
        files = self._stages.forget(request.stages) if is_done else []
        fresh = {versions.partition for versions in step.written}
        skipped = tuple(number for number in sorted(shares) if number not in fresh) if is_done else ()
        return PublishResult(tuple(step.written), skipped, files, not is_done, copied)

    async def expire(self) -> None:
        """Removes the sorted rows of batches whose PUBLISH did not come again."""
        await self._cuts.expire()

    def close(self) -> None:
        """Closes the scratch files, when the node stops."""
        self._cuts.close()

    @contextlib.asynccontextmanager
    async def _turn(self, request: Publish) -> AsyncIterator[None]:
        """Lets one publish of a sink run at a time: a second one might remove the stages that the first one reads."""
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
        """Refuses a batch that any partition of the feed cannot take, even if the batch has no rows there.

        Raises BatchBehind, BatchChanged.
        """
        lasts = [partition.sinks.find(request.sink) for partition in feed.partitions]
        verdicts = [_decide(last, request) for last in lasts]
        behind = [last for last, verdict in zip(lasts, verdicts, strict=True) if verdict is BatchVerdict.BEHIND]
        first = first_free(lasts)
        if BatchVerdict.CHANGED in verdicts and not behind:
            raise BatchChanged(
                f"batch {request.batch} of sink {request.sink!r} was published before, and comes again with other "
                "rows: its checkpoint was restored or copied, or its rows differ each time they are computed. "
                f"Rows that were not published have to begin at batch {first}",
                first_batch=first,
            )
        if not behind:
            return
        if all(last is not None and last.origin == request.origin for last in behind):
            why = "is older than the last one of the same origin: its checkpoint was restored or copied"
        else:
            why = "has a number that was used already, by another query or checkpoint"
        raise BatchBehind(
            f"batch {request.batch} of sink {request.sink!r} {why}; this one has to begin at batch {first}",
            first_batch=first,
        )

    async def _fetch(
        self, feed: Feed, request: Publish, leaderships: Sequence[Leadership], terms: Terms, step: _Step
    ) -> bool:
        """Gets missing stages from other members of a set; False if the step was over before.

        Raises UnknownStage if a stage is lost, and NotDurable if too few members answer to know that.
        """
        missing = self._stages.missing(request.feed_id, request.stages)
        if not missing or not terms.in_set or self._is_published(feed, request):
            return True
        return await self.spreader.fetch(leaderships, request.feed_id, missing, lambda: step.is_over)

    def _is_published(self, feed: Feed, request: Publish) -> bool:
        """Returns whether all partitions of the batch have it; False if one of them does not exist."""
        known = range(len(feed.partitions))
        numbers = request.partitions
        return bool(numbers) and all(n in known and self._has(feed.partitions[n], request) for n in numbers)

    async def _shares(self, feed: Feed, request: Publish) -> dict[int, list[_Share]]:
        """Returns the share of each partition. If all partitions have the batch already, the stages may be gone."""
        told = set(request.partitions)
        if not told <= set(range(len(feed.partitions))):
            raise UnknownFeed(f"feed {feed.info.name!r} has {len(feed.partitions)} partitions, not {max(told) + 1}")
        missing = self._stages.missing(request.feed_id, request.stages)
        if missing:
            if self._is_published(feed, request):
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
        """Returns the blocks of a sealed stage by partition. UnknownStage if it is missing or damaged."""
        stages = self._stages
        kept = stages.kept.find(stage)
        if kept is not None:
            return {number: share.entries for number, share in kept.items()}
        return by_partition(
            await self._storage.host.workers.in_thread(functools.partial(stages.directory.read_index, stage))
        )

    @staticmethod
    def _has(partition: Partition, request: Publish) -> bool:
        return _decide(partition.sinks.find(request.sink), request) not in _WANTED

    async def _write(
        self, feed: Feed, request: Publish, shares: dict[int, list[_Share]], terms: Terms, step: _Step
    ) -> bool:
        """Writes each partition's share, and notes it in ``step``; False if the step was over before."""
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
        """Writes the missing parts of a partition's share; False if ``step`` was over before."""
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
        if not blocks:  # no rows have a hash above those that the partition has
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
            for block in blocks:
                storage.written.wrote(block.header.rows, block.nbytes)
        storage.wrote(partition)
        self._streams.turn_ended()

    @staticmethod
    def _note_found(partition: Partition, request: Publish, found: dict[int, int]) -> bool:
        """Returns whether ``partition`` has the batch; if so, notes the last seq of the sink there in ``found``."""
        last = partition.sinks.find(request.sink)
        if last is None or _decide(last, request) in _WANTED:
            return False
        found[partition.id] = last.seq
        return True

    def _is_large(self, share: Sequence[_Share]) -> bool:
        """Returns whether ``share`` is too large for one record."""
        entries = [entry for _, found in share for entry in found]
        nbytes = sum(entry.nbytes for entry in entries)
        return nbytes > self._part_bytes_max or len(entries) > BLOCKS_MAX

    async def _blocks(self, number: int, share: Sequence[_Share]) -> list[Block]:
        """Returns a partition's blocks in the order of the stages. UnknownStage if one is damaged. A checkpoint."""
        stages = self._stages
        kept = [found[number].blocks for stage, _ in share if (found := stages.kept.find(stage)) is not None]
        if len(kept) < len(share):
            return await self._storage.host.workers.in_thread(functools.partial(self._read, share))
        blocks = [block for part in kept for block in part]
        if joining_bytes(blocks) > JOINED_HERE_BYTES_MAX:
            return await self._storage.host.workers.in_thread(functools.partial(joined, blocks))
        await trio.lowlevel.checkpoint()  # other tasks run between two partitions
        return joined(blocks)

    def _read(self, share: Sequence[_Share]) -> list[Block]:
        """For a thread: returns the blocks from the stages' files."""
        return joined(block for stage, entries in share for block in self._stages.directory.read_blocks(stage, entries))

    def _check_writable(self, partition: Partition, terms: Terms) -> None:
        """Raises the error that prevents a write now. The write comes without a wait in between."""
        terms.require_writable()
        self._storage.require_durable()
        if partition.is_dropped:
            raise UnknownFeed(f"feed {partition.feed_id.hex()} was dropped")
        if partition.damage is not None:
            raise partition.damage.with_traceback(None)
        self._storage.require_space()

    async def _settled(self, feed: Feed, seqs: Mapping[int, int], terms: Terms) -> None:
        """Waits until ``seqs``, by partition, are durable, and in a set at quorum.

        Raises NotDurable if the journal has failed, and NotLeader if this node has not led in ``terms`` all the time:
        then these seqs may be those of other rows.
        """
        terms.require()
        needs = [(feed.partitions[number], seq) for number, seq in seqs.items()]
        await answered(self._storage.committer.when_durable, self._streams.turn_ended)
        terms.require()
        if terms.in_set:
            await answered(lambda answer: self._waiting.wait(Level.QUORUM, needs, answer), self._streams.turn_ended)
        terms.require()


def _decide(last: LastBatch | None, request: Publish) -> BatchVerdict:
    return decide(last, request.batch, request.origin, request.digest)
