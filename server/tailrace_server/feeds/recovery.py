"""Restores the feeds of a node at its start: from the manifests first, then from the journal.

    manifests ── restore ──>  feeds and their segments, up to the flushed seq of each partition
    journal   ── gather ───>  rollbacks: the void blocks, and the rollbacks that no manifest has yet
              ── replay ───>  all other records, in the order of the files

A table of cases (journal/replay.py) decides about each block. ``recover`` applies one record, ``replay`` many at once:
blocks wait (pending_blocks.py) until they are many, or until another record of their partition comes. Then they become
a few large blocks.
"""

from __future__ import annotations

import contextlib
import logging
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from tailrace.block import Block
from tailrace.errors import BadBlock
from tailrace.model.failover import SEQ_MAX
from tailrace_server.blocks import arrays_of, encode_arrays, take
from tailrace_server.directory.identity import BadDirectory, Incomplete
from tailrace_server.feeds.catalog import Catalog
from tailrace_server.feeds.feed import SYSTEM_FEED_ID, Feed, feed_of_creation
from tailrace_server.feeds.pending_blocks import FeedsOf, PendingBlocks, pieces
from tailrace_server.host.disk import Disk, is_out_of_descriptors
from tailrace_server.journal import BlockCase, Journal, JournalRollback, Record, RecordKind, Stretch, decide_block
from tailrace_server.journal.controls import LogRecord, ProducersRecord, RollbackRecord
from tailrace_server.journal.format import file_name
from tailrace_server.journal.published_record import PublishedRecord, decode_published
from tailrace_server.manifest import Manifest, ManifestStore, SegmentEntry, entry_of, producers_from_json
from tailrace_server.partition.chain import Chain, LostSegment
from tailrace_server.partition.cutting import cut_segment, straddling
from tailrace_server.partition.partition import Partition
from tailrace_server.partition.published import recover_batch, recover_sinks
from tailrace_server.segment import Segment, SegmentDamaged
from tailrace_server.state.use_times import UseTimes

# Fewer blocks than this between two other records are applied one at a time, which costs less than gathering them.
TOGETHER_MIN = 64
# Unmerged blocks of a partition that are merged while the journal is read: they take several times their bytes.
UNMERGED_BLOCKS_MAX = 4_096

log = logging.getLogger("tailrace.server")


class FeedRecovery:
    """Fills an empty ``catalog``, by ``restore``, ``gather`` and ``recover``. ``times`` are for its producers.

    ``found_records`` tells whether the journal had any record. ``unknown`` are feeds that only records of the journal
    name, with the partition and the file number of the first such record. ``listed_from`` is the first seq of
    ``_feeds`` in the journal. The feeds that rows up to ``made_seq`` list were made here. ``dropped`` are feeds with a
    record of their drop. ``left`` are segments of partitions that were rolled back here: the manifests still name them.
    """

    def __init__(self, catalog: Catalog, disk: Disk, store: ManifestStore, times: UseTimes) -> None:
        self._catalog = catalog
        self._disk = disk
        self._store = store
        self._times = times
        self._rollbacks: dict[tuple[bytes, int], list[JournalRollback]] = {}  # of the journal
        self._pending = PendingBlocks(self._rollbacks, times)
        self._manifests: list[Manifest] = []
        self.dropped: set[bytes] = set()
        self.found_records = False
        self.unknown: dict[bytes, tuple[int, int]] = {}
        self.listed_from = self.made_seq = SEQ_MAX
        self.left: list[tuple[Partition, Sequence[Segment]]] = []

    def restore(self) -> None:
        """Takes over the manifests, before the journal's records. Raises ManifestDamaged, OSError."""
        feeds = [self._catalog.system]
        for feed_file in self._store.feeds():
            feeds.append(Feed.of(feed_file.info, feed_file.branch, self._catalog.account))
            self._catalog.add(feeds[-1])
        for feed in feeds:
            manifests = self._store.read_all(feed.info.feed_id, range(len(feed.partitions)))
            for partition, manifest in zip(feed.partitions, manifests, strict=True):
                if manifest is not None:
                    _restore_partition(partition, manifest, self._disk, self._store, self._times.before)
                    self._manifests.append(manifest)
                    if manifest.feed_id == SYSTEM_FEED_ID:
                        self.made_seq = manifest.made_seq

    def sweep(self) -> None:
        """Removes the files that no manifest and no chain names. OSError.

        Call it after the check that no file is missing. A segment that ``gather`` has cut is in the chain only.
        """
        for manifest in self._manifests:
            feed = self._catalog.find(manifest.feed_id)
            segments = () if feed is None else feed.partitions[manifest.partition].chain.segments
            self._store.sweep(manifest, [segment.identity.segment_id for segment in segments])

    def gather(self, records: Iterable[Record], token: Callable[[int], bytes]) -> None:
        """Takes over the journal's rollbacks, between ``restore`` and ``recover``.

        It finishes a rollback that no manifest has yet: segments above its seq leave the chain, and a segment around
        the seq is cut. ``token`` returns the given number of random bytes. Raises BadDirectory, NoSpace, OSError.
        """
        for record in records:
            if record.kind is RecordKind.ROLLED_BACK:
                with _usable(record):
                    found = RollbackRecord.decode(record.payload)
                place = record.feed_id, record.partition
                self._rollbacks.setdefault(place, []).append(JournalRollback(record.lsn, found.seq))
                feed = self._catalog.find(record.feed_id)
                if feed is not None and found.rollbacks > feed.partitions[record.partition].rollbacks:
                    partition = feed.partitions[record.partition]
                    if found.seq < partition.flushed_seq:
                        left = _finish_rollback(partition, found, self._disk, self._store, token(16))
                        self.left.append((partition, left))

    def replay(self, parts: Iterable[Stretch | Record], journal: Journal) -> None:
        """Applies the whole journal, with the same result as `recover` of each record. Raises BadDirectory."""
        for part in parts:
            if isinstance(part, Record):
                self._replay_one(part, journal)
            else:
                self.found_records = True
                self._replay_stretch(part, journal)
        self._apply_pending(journal)

    def _replay_stretch(self, stretch: Stretch, journal: Journal) -> None:
        begin = 0
        for end in [*np.flatnonzero(~(stretch.is_block | stretch.is_run)).tolist(), len(stretch)]:
            feeds = self._feeds_of(stretch, begin, end) if end - begin >= TOGETHER_MIN else None
            if feeds is not None:
                for first, last in pieces(stretch, begin, end):
                    self._pending.add(stretch, first, last, feeds.part(first - begin, last - begin))
                    if self._pending.is_full:
                        self._apply_pending(journal)
            else:
                for index in range(begin, end):
                    self._replay_one(stretch.record(index), journal)
            if end < len(stretch):
                self._replay_one(stretch.record(end), journal)
            begin = end + 1

    def _feeds_of(self, stretch: Stretch, begin: int, end: int) -> FeedsOf | None:
        """Returns the feeds of the records; None if a record names a partition that its feed does not have."""
        heads = stretch.heads[begin:end]
        ids = list(zip(heads["feed_low"].tolist(), heads["feed_high"].tolist(), strict=True))
        numbers = {id_: number for number, id_ in enumerate(dict.fromkeys(ids))}
        which = np.fromiter(map(numbers.__getitem__, ids), np.intp, len(ids))
        feed_ids = [struct.pack("<QQ", *id_) for id_ in numbers]
        feeds = [self._catalog.find(feed_id) for feed_id in feed_ids]
        sizes = np.array([SEQ_MAX if feed is None else len(feed.partitions) for feed in feeds])
        if (heads["partition"] >= sizes[which]).any():
            return None
        if None in feeds:
            _, firsts = np.unique(which, return_index=True)
            for feed_id, feed, first in zip(feed_ids, feeds, firsts.tolist(), strict=True):
                if feed is None:
                    self._note_unknown(feed_id, int(heads["partition"][first]), stretch.file.number)
        if SYSTEM_FEED_ID in feed_ids:
            first_seqs = stretch.block_heads["first_seq"][begin:end][which == feed_ids.index(SYSTEM_FEED_ID)]
            self.listed_from = min(self.listed_from, int(first_seqs.min()))
        return FeedsOf(feeds, which)

    def _replay_one(self, record: Record, journal: Journal) -> None:
        """Applies one record, after the pending blocks of its partition or feed."""
        feed = self._catalog.find(record.feed_id)
        if feed is not None and self._pending.nbytes:
            concerned = feed.partitions[record.partition : record.partition + 1]
            if record.kind is RecordKind.FEED_DROPPED:
                concerned = feed.partitions
            if any(map(self._pending.has_of, concerned)):
                self._apply_pending(journal)
        self.recover(record, journal)

    def _apply_pending(self, journal: Journal) -> None:
        for record in self._pending.apply():
            self.recover(record, journal)

    def recover(self, record: Record, journal: Journal) -> None:
        """Applies one record of the journal, in the order of the file. Raises BadDirectory."""
        self.found_records = True
        match record.kind:
            case RecordKind.FEED_CREATED:
                self._recover_creation(record)
            case RecordKind.FEED_DROPPED:
                self.unknown.pop(record.feed_id, None)
                self.dropped.add(record.feed_id)
                feed = self._catalog.find(record.feed_id)
                if feed is not None:
                    self._catalog.dropped(feed, record.lsn)
            case RecordKind.BLOCK | RecordKind.PUBLISHED:
                if self._is_known(record, journal):
                    self._recover_blocks(record, journal.file_of(record.lsn))
            case RecordKind.FAILOVER_ENTRY | RecordKind.ROLLED_BACK | RecordKind.PRODUCERS_TOLD:
                if self._is_known(record, journal):
                    self._recover_control(record, journal.file_of(record.lsn))
            case _:
                raise BadDirectory(
                    f"the journal has a record of kind {record.kind.name}, which this version does not know: start the "
                    "version that wrote it"
                )

    def _is_known(self, record: Record, journal: Journal) -> bool:
        """Returns whether the record's feed is here."""
        if record.feed_id in self._catalog:
            return True
        self._note_unknown(record.feed_id, record.partition, journal.file_of(record.lsn))
        return False

    def _note_unknown(self, feed_id: bytes, partition: int, file: int) -> None:
        """Notes a feed that is not here, unless the journal has a record of its drop."""
        if feed_id not in self.dropped:
            self.unknown.setdefault(feed_id, (partition, file))

    def _recover_creation(self, record: Record) -> None:
        if record.feed_id in self._catalog:  # it has its FEED
            return
        with _usable(record):
            created = feed_of_creation(record.payload, self._catalog.account)
        self._catalog.add(created)
        self._catalog.creations[record.feed_id] = record.lsn

    def _recover_blocks(self, record: Record, file: int) -> None:
        partition = self._catalog.partition(record.feed_id, record.partition)
        rollbacks = self._rollbacks.get((record.feed_id, record.partition), ())
        if record.kind is RecordKind.BLOCK:
            if record.feed_id == SYSTEM_FEED_ID and record.block is not None:
                self.listed_from = min(self.listed_from, record.block.seqs[0])
            _recover_block(partition, record, file, self._times.at(record.lsn), rollbacks)
            return
        with _usable(record):
            published = decode_published(record.payload, record.covered)
        _recover_batch(partition, published, record.lsn, file, rollbacks)

    def _recover_control(self, record: Record, file: int) -> None:
        """Applies a record of a partition's log or of its producers."""
        partition = self._catalog.partition(record.feed_id, record.partition)
        now, told_seq = self._times.at(record.lsn), 0
        with _usable(record):
            match record.kind:
                case RecordKind.FAILOVER_ENTRY:
                    _recover_log(partition, LogRecord.decode(record.payload))
                case RecordKind.ROLLED_BACK:
                    _recover_rollback(partition, RollbackRecord.decode(record.payload), now)
                case _:
                    told = ProducersRecord.decode(record.payload)
                    _recover_producers(partition, told, now)
                    told_seq = told.seq
        partition.keep_journal_file(file, told_seq)


@contextlib.contextmanager
def _usable(record: Record) -> Iterator[None]:
    """Raises BadDirectory if the body cannot use the record, which is as another version or a bug wrote it."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise BadDirectory(
            f"the journal's {record.kind.name} record of feed {record.feed_id.hex()} cannot be used ({error!r}): start "
            "the version that wrote it, or let `tailrace repair` show the rows that can be saved without it"
        ) from error


def _restore_partition(partition: Partition, manifest: Manifest, disk: Disk, store: ManifestStore, now: float) -> None:
    """Opens the segments. A damaged one sets ``partition.damage``, and leaves other partitions alone."""
    segments: list[Segment] = []
    damage: SegmentDamaged | None = None
    for entry in manifest.segments:
        path = store.segment_path(manifest.feed_id, manifest.partition, entry.id)
        try:
            segments.append(_open_segment(store, path, entry))
        except SegmentDamaged as error:
            log.error("partition %s of feed %s cannot be served: %s", partition.id, partition.feed_name, error)
            damage = damage or error
            segments.append(LostSegment(manifest.identity_of(entry), entry.nbytes, error))
    producers = producers_from_json(manifest.producers, partition.id, now)
    partition.restore(manifest, Chain(segments), producers, damage)


def _open_segment(store: ManifestStore, path: str, entry: SegmentEntry) -> Segment:
    try:
        segment = Segment.open(store.segment_files, path)
    except OSError as error:
        if is_out_of_descriptors(error):  # the segment may be good: the start has to fail
            raise
        raise SegmentDamaged(path, 0, f"it cannot be opened: {error.strerror}") from error
    found = entry_of(segment.identity, segment.nbytes, entry.placements)
    if found != entry:
        segment.close()
        name, said, there = next(
            (name, *both) for name, *both in zip(entry._fields, entry, found, strict=True) if both[0] != both[1]
        )
        raise SegmentDamaged(path, 0, f"its {name} is {there!r}, the manifest says {said!r}")
    return segment


def _finish_rollback(
    partition: Partition, record: RollbackRecord, disk: Disk, store: ManifestStore, segment_id: bytes
) -> Sequence[Segment]:
    """Takes the segments above the rollback out of the chain, as the manifest that was never written would have.

    Returns those segments. If the segment around the rollback's seq cannot be read, the partition is damaged, and its
    chain stays.
    """
    seq, chain = record.seq, partition.chain.through(record.seq)
    whole = straddling(partition.chain, seq)
    if whole is not None:
        try:
            part = cut_segment(disk, store, whole, seq, (record.log or partition.log).branch_at(seq), segment_id)
        except (SegmentDamaged, BadBlock) as error:
            log.error("partition %s of feed %s cannot be served: %s", partition.id, partition.feed_name, error)
            partition.set_damage(SegmentDamaged(whole.path, 0, f"it cannot be cut at seq {seq}: {error}"))
            return ()
        chain = Chain((*chain.segments, part))
    left = partition.chain.segments[len(partition.chain.through(seq).segments) :]
    if not any(isinstance(segment, LostSegment) for segment in chain.segments):
        partition.set_damage(None)
    partition.roll_back_to(chain.flushed_seq, chain, partition.log, partition.rollbacks)
    return left


def _recover_block(
    partition: Partition, record: Record, file: int, now: float, rollbacks: Sequence[JournalRollback]
) -> None:
    assert record.block is not None
    header = record.block.header
    case = _case_of(partition, record.block, header.last_seq, record.lsn, rollbacks)
    if case is BlockCase.NEXT:
        if not partition.log:
            raise BadDirectory(
                f"the journal has blocks of feed {partition.feed_id.hex()}, and no branch of it: repair it"
            )
        partition.append(record.block, partition.log.branch_at(header.last_seq), file, now)
        _merge_some(partition)
    elif case is BlockCase.GAP:
        raise _gap(partition, header.first_seq, header.last_seq, file)


def _recover_batch(
    partition: Partition, published: PublishedRecord, lsn: int, file: int, rollbacks: Sequence[JournalRollback]
) -> None:
    """Applies a published batch: all of its blocks, or none, with the sinks' last batches."""
    if not published.blocks:
        through = min([partition.high_seq, *(rollback.seq for rollback in rollbacks if rollback.lsn > lsn)])
        recover_sinks(partition, published.sinks, through, file)
        return
    first, last = published.blocks[0].header, published.blocks[-1].header
    case = _case_of(partition, published.blocks[0], last.last_seq, lsn, rollbacks)
    if case is BlockCase.NEXT:
        recover_batch(partition, published.blocks, published.sinks, file)
        _merge_some(partition)
    elif case is BlockCase.GAP:
        raise _gap(partition, first.first_seq, last.last_seq, file)


def _case_of(
    partition: Partition, first: Block, last_seq: int, lsn: int, rollbacks: Sequence[JournalRollback]
) -> BlockCase:
    """Decides about the block ``first`` and the blocks behind it in its record, up to ``last_seq``."""
    header = first.header
    return decide_block(
        lsn=lsn,
        first_seq=header.first_seq,
        last_seq=last_seq,
        rollbacks=rollbacks,
        flushed_seq=partition.flushed_seq,
        held_seq=partition.high_seq,
        known=header.first_seq <= partition.high_seq and _is_held(partition, first),
    )


def _is_held(partition: Partition, block: Block) -> bool:
    """Returns whether ``block`` is held; if it was joined with its neighbours since, its rows are compared."""
    first_seq, last_seq = block.seqs
    held = partition.tree.find(first_seq)
    if held is None or held.seqs[1] < last_seq:
        return False
    if held.header.body_sum == block.header.body_sum:
        return True
    own, found = arrays_of(block), arrays_of(held)
    begin, end = np.searchsorted(found.seqs, [first_seq, last_seq + 1])
    part = take(found, slice(int(begin), int(end)))
    own = own._replace(timestamps=part.timestamps)  # the joined block may have a column of timestamps
    return own.rows == part.rows and encode_arrays(own, 0, compress=False) == encode_arrays(part, 0, compress=False)


def _merge_some(partition: Partition) -> None:
    if partition.tree.unmerged_blocks >= UNMERGED_BLOCKS_MAX:
        partition.replace_tree(partition.tree.merge_aged(partition.high_seq, partition.merge_cuts))


def _gap(partition: Partition, first_seq: int, last_seq: int, file: int) -> Incomplete:
    return Incomplete(
        f"something of feeds/{partition.feed_id.hex()}/{partition.id}, or of the journal before {file_name(file)},",
        f"that file has seqs {first_seq} to {last_seq}, and the rows before it end at seq {partition.high_seq}",
    )


def _recover_log(partition: Partition, record: LogRecord) -> None:
    """Takes over the log, unless the manifest has it, or a later one."""
    if (record.rollbacks, record.log.term) > (partition.rollbacks, partition.log.term):
        partition.restore_log(record.log)


def _recover_rollback(partition: Partition, record: RollbackRecord, now: float) -> None:
    """Takes over a rollback, unless the manifest was written after it. The void blocks were not applied."""
    if record.rollbacks <= partition.rollbacks:
        partition.restore_producers(None)  # an earlier leader sent them ahead of its blocks
        return
    producers = producers_from_json(record.producers, partition.id, now)
    partition.restore_rollback(record.log, record.rollbacks, producers)


def _recover_producers(partition: Partition, record: ProducersRecord, now: float) -> None:
    """Takes over a leader's producers as of a seq, above the flushed seq, whose producers the manifest has.

    If the blocks up to the record's seq do not all follow, ``settle_producers`` forgets the results above: at the end
    of the start, or by a record of its own.
    """
    if record.seq < partition.high_seq:
        partition.restore_producers(None)
        return
    partition.restore_producers(producers_from_json(record.value, partition.id, now), record.seq, now)
