"""The feeds of a node, by name and by id, and how they come back: from manifests first, then from the journal.

Which there are the feed ``_feeds`` says; the directories of the others follow it (``reconcile``).
"""

from __future__ import annotations

import contextlib
import errno
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tailrace.block import Block, BlockHeader
from tailrace.errors import BadBlock, FeedExists, Overloaded, UnknownFeed
from tailrace.model import FeedInfo
from tailrace_server.chain import Chain, LostSegment
from tailrace_server.feed import (
    SYSTEM_FEED_ID,
    SYSTEM_FEED_NAME,
    Feed,
    creation_to_bytes,
    feed_of_creation,
    system_feed,
)
from tailrace_server.feed_rows import FeedRows, system_blocks
from tailrace_server.host.disk import Disk
from tailrace_server.identity import BadDirectory
from tailrace_server.journal import BlockCase, CleanPartition, Journal, Record, RecordKind, Rollback, decide_block
from tailrace_server.journal.controls import LogRecord, ProducersRecord, RollbackRecord
from tailrace_server.manifest import Manifest, ManifestStore, SegmentEntry, entry_of, producers_from_json
from tailrace_server.memory import MemoryAccount
from tailrace_server.partition import Partition
from tailrace_server.publishing.record import PublishedRecord, decode_published
from tailrace_server.segment import Segment, SegmentDamaged
from tailrace_server.upkeep.cutting import cut_segment, straddling

# So many blocks of a partition are merged while the journal is read: they take several times their bytes until then.
UNMERGED_BLOCKS_MAX = 4_096

log = logging.getLogger("tailrace.server")


class Drop(NamedTuple):
    """A feed that was dropped, whose files are still there: where the journal says so, and its partitions."""

    place: int
    partitions: tuple[Partition, ...]


class Catalog:
    """The feeds of a node.

    ``creations`` are feeds whose FEED is not written yet, with the place of the journal's record (lsn); ``drops`` are
    feeds whose files are not removed yet.
    """

    def __init__(self, account: MemoryAccount) -> None:
        self.creations: dict[bytes, int] = {}
        self.drops: dict[bytes, Drop] = {}
        self.system = system_feed(account)
        # Feeds that ``reconcile`` would drop, if what says so could not be lost any more.
        self.awaits_drops = False
        self.additions = 0  # how many feeds have come since the start, those that were found there included
        self._reconciled = (0, -1)  # the rollbacks of ``_feeds``, and how far it was read
        self._rollbacks: dict[tuple[bytes, int], list[Rollback]] = {}  # that the journal tells of, for the start
        self._account = account
        self._rows = FeedRows(self.system.partitions[0])
        self._by_name: dict[str, Feed] = {}
        self._by_id: dict[bytes, Feed] = {SYSTEM_FEED_ID: self.system}

    def __iter__(self) -> Iterator[Feed]:
        return iter(sorted(self._by_name.values(), key=lambda feed: feed.info.name))

    def __len__(self) -> int:
        return len(self._by_name)

    def named(self, name: str) -> Feed:
        """The feed of this name. Raises UnknownFeed."""
        feed = self.system if name == SYSTEM_FEED_NAME else self._by_name.get(name)
        if feed is None:
            raise UnknownFeed(f"there is no feed {name!r}; create it, or list the feeds there are")
        return feed

    def of_id(self, feed_id: bytes) -> Feed:
        """The feed of this id. Raises UnknownFeed."""
        feed = self._by_id.get(feed_id)
        if feed is None:
            raise UnknownFeed(f"there is no feed of id {feed_id.hex()}: it was dropped, or belongs to another node")
        return feed

    def partition(self, feed_id: bytes, number: int) -> Partition:
        """A partition. Raises UnknownFeed."""
        partitions = self.of_id(feed_id).partitions
        if number >= len(partitions):
            raise UnknownFeed(f"feed {self.of_id(feed_id).info.name!r} has no partition {number}")
        return partitions[number]

    def partitions(self) -> Iterator[Partition]:
        """Every partition of every feed, that of ``_feeds`` first.

        A feed whose name another one has taken is among them as long as its drop may still be lost.
        """
        yield from self.system.partitions
        for feed in sorted(self._by_id.values(), key=lambda feed: (feed.info.name, feed.info.feed_id)):
            if feed is not self.system:
                yield from feed.partitions

    def known_ids(self) -> set[bytes]:
        """The feeds whose directories have to be there, or are still to be removed."""
        return self._by_id.keys() | self.drops.keys()

    def clean_partitions(self) -> list[CleanPartition]:
        """What the mark of a clean stop says of each partition."""
        return [CleanPartition(p.feed_id, p.id, p.log.branch, p.high_seq) for p in self.partitions() if p.log]

    def _add(self, feed: Feed) -> None:
        self._by_name[feed.info.name] = feed
        self._by_id[feed.info.feed_id] = feed
        self.additions += 1

    def _remove(self, feed: Feed) -> None:
        del self._by_id[feed.info.feed_id]
        del self._by_name[feed.info.name]
        # In a recovery the next one of this name may be there already, from its FEED.
        self._by_name.update(
            {other.info.name: other for other in self._by_id.values() if other.info.name == feed.info.name}
        )

    def existing(self, info: FeedInfo, *, exist_ok: bool) -> Feed | None:
        """The feed that a creation would find, None where there is none. Raises FeedExists.

        Overloaded where it is being dropped: by the time that a creation could be answered it is gone.
        """
        feed = self._by_name.get(info.name)
        if feed is None:
            other = self._by_id.get(info.feed_id)
            if other is not None:
                raise FeedExists(
                    f"feed {other.info.name!r} has the id {info.feed_id.hex()}: ids are random, make another"
                )
            return None
        if self.is_dropping(feed):
            raise Overloaded(f"feed {info.name!r} is being dropped, which may still be lost: ask again")
        if feed.info.feed_id == info.feed_id:
            return feed  # the same request, sent again
        if not exist_ok:
            raise FeedExists(f"there is a feed {info.name!r} already")
        differing = [
            f"{field} is {theirs!r}, not {ours!r}"
            for field, ours, theirs in zip(FeedInfo._fields, info, feed.info, strict=True)
            if field != "feed_id" and ours != theirs
        ]
        if differing:
            raise FeedExists(f"there is a feed {info.name!r} already, and its {'; its '.join(differing)}")
        return feed

    def create(self, info: FeedInfo, journal: Journal, branch: bytes, feeds_max: int) -> Feed:
        """Makes a feed by one record, so there is all of it or nothing. Raises Overloaded, NoSpace, JournalFailed.

        Its row in ``_feeds`` is there already, by ``write_rows``, and is the last one there.
        """
        self.check_room(feeds_max)
        listed_seq = self.system.partitions[0].high_seq
        return self._create(info.feed_id, creation_to_bytes(info, branch), journal, listed_seq)

    def check_room(self, feeds_max: int) -> None:
        """Overloaded where another feed is one too many."""
        if len(self) >= feeds_max:
            raise Overloaded(f"this node holds {len(self)} feeds, and at most {feeds_max}")

    def _create(self, feed_id: bytes, payload: bytes, journal: Journal, listed_seq: int) -> Feed:
        feed = feed_of_creation(payload, self._account)
        self.creations[feed_id] = journal.append(RecordKind.FEED_CREATED, feed_id, 0, payload)
        self._add(feed)
        _listed(feed, listed_seq)
        return feed

    def is_dropping(self, feed: Feed) -> bool:
        """``_feeds`` says that it was dropped, and that may still be lost: until then the feed is there.

        May read segments; SegmentDamaged.
        """
        row = self._rows.read().get(feed.info.feed_id)
        return row is not None and row.creation is None

    def write_rows(self, rows: Mapping[bytes, bytes | None], journal: Journal, *, now_us: int, now: float) -> None:
        """Says in ``_feeds`` which feeds are made (``creation_to_bytes`` by id) or dropped (None). NoSpace, NotDurable.

        Comes before what it says is done, so that a crash between the two is made good by ``reconcile``.
        """
        for block in system_blocks(rows):
            self.system.partitions[0].append(block, journal, now_us=now_us, now=now)

    def reconcile(
        self, journal: Journal, feeds_max: int, *, whole: bool = True, keep_absent: bool = False
    ) -> tuple[list[Feed], list[Feed]]:
        """Makes the feeds equal to what ``_feeds`` says up to its high seq; those dropped, and those created.

        A feed is dropped only where what says so cannot be lost any more (``Partition.stable_seq``); ``awaits_drops``
        tells that some are left, to be dropped by a later call. ``whole``: it says all that the leader's does, so that
        a feed of which it has no row is none; ``keep_absent``: such feeds stay. Where there are more than ``feeds_max``
        the log says so: a replica has to hold what its leader does. Reads segments; SegmentDamaged, NoSpace,
        JournalFailed.
        """
        rows, stable_seq = self._rows.read(), self.system.partitions[0].stable_seq
        created = []
        for feed_id, row in rows.items():
            if row.creation is None or feed_id in self.drops:
                continue
            if feed_id not in self._by_id:
                created.append(self._create(feed_id, row.creation, journal, row.seq))
            feed = self._by_id[feed_id]
            _listed(feed, row.seq)
            self._by_name[feed.info.name] = feed
        if created and len(self) > feeds_max:
            log.warning("this node holds %s feeds, and should hold at most %s", len(self), feeds_max)
        gone = [feed_id for feed_id, row in rows.items() if row.creation is None and feed_id in self._by_id]
        final = [feed_id for feed_id in gone if rows[feed_id].seq <= stable_seq]
        partition = self.system.partitions[0]
        if partition.state != "leader":  # until the leader has said how far it is, it may have more rows
            whole = whole and partition.was_told and partition.high_seq >= partition.leader_durable_seq
        absent = [] if keep_absent else [id for id in self._by_id if id not in rows and id != SYSTEM_FEED_ID]
        if whole and stable_seq >= partition.high_seq:
            final += absent
        self.awaits_drops = True  # also where one of these fails
        dropped = [self.drop(feed_id, journal) for feed_id in final]
        self.awaits_drops = len(final) < len(gone) + len(absent)
        self._reconciled = partition.rollbacks, partition.high_seq
        return dropped, created

    def lists_through(self, seq: int) -> bool:
        """The feeds here are those that ``_feeds`` tells of up to ``seq``, or further, as far as it was taken over."""
        rollbacks, reconciled_seq = self._reconciled
        return rollbacks == self.system.partitions[0].rollbacks and reconciled_seq >= seq

    def unlisted(self) -> dict[bytes, bytes]:
        """The creations of feeds that ``_feeds`` knows nothing of: they were made before there was one."""
        rows = self._rows.read()
        feeds = (feed for feed in self if feed.info.feed_id not in rows)
        return {feed.info.feed_id: creation_to_bytes(feed.info, feed.first_branch) for feed in feeds}

    def __contains__(self, feed_id: bytes) -> bool:
        return feed_id in self._by_id

    def drop(self, feed_id: bytes, journal: Journal) -> Feed:
        """Drops a feed. Raises UnknownFeed."""
        feed = self.of_id(feed_id)
        self._drop(feed, journal.append(RecordKind.FEED_DROPPED, feed.info.feed_id, 0, b""))
        return feed

    def _drop(self, feed: Feed, place: int) -> None:
        self._remove(feed)
        self.creations.pop(feed.info.feed_id, None)
        self.drops[feed.info.feed_id] = Drop(place, tuple(feed.partitions))
        for partition in feed.partitions:
            partition.drop()

    # Recovery

    def restore(self, disk: Disk, store: ManifestStore, now: float) -> None:
        """Takes over what the manifests say: comes before the journal's records. Raises ManifestDamaged, OSError."""
        for feed_file in store.feeds():
            self._add(Feed.of(feed_file.info, feed_file.branch, self._account))
        for feed in self._by_id.values():
            for partition in feed.partitions:
                manifest = store.read(partition.feed_id, partition.id)
                if manifest is not None:
                    _restore_partition(partition, manifest, disk, store, now)
                    store.sweep(manifest)

    def gather(
        self, records: Iterable[Record], disk: Disk, store: ManifestStore, token: Callable[[int], bytes]
    ) -> None:
        """Takes over what the journal says of rollbacks: between ``restore`` and ``recover``.

        One that no manifest tells of yet is finished: its segments leave the chain, and one that it goes into is cut.
        ``token`` gives so many random bytes. Raises BadDirectory, NoSpace, OSError.
        """
        for record in records:
            if record.kind is RecordKind.ROLLED_BACK:
                with _usable(record):
                    found = RollbackRecord.decode(record.payload)
                place = record.feed_id, record.partition
                self._rollbacks.setdefault(place, []).append(Rollback(record.lsn, found.seq))
                feed = self._by_id.get(record.feed_id)
                if feed is not None and found.rollbacks > feed.partitions[record.partition].rollbacks:
                    partition = feed.partitions[record.partition]
                    if found.seq < partition.flushed_seq:
                        _finish_rollback(partition, found, disk, store, token(16))

    def recover(self, record: Record, journal: Journal, now: float) -> None:
        """Applies a record that the journal held, in the order of the file. Raises BadDirectory."""
        file = journal.file_of(record.lsn)
        match record.kind:
            case RecordKind.FEED_CREATED:
                if record.feed_id not in self._by_id:  # else it has its FEED
                    with _usable(record):
                        created = feed_of_creation(record.payload, self._account)
                    self._add(created)
                    self.creations[record.feed_id] = record.lsn
            case RecordKind.FEED_DROPPED:
                feed = self._by_id.get(record.feed_id)
                if feed is not None:
                    self._drop(feed, record.lsn)
            case RecordKind.FAILOVER_ENTRY:
                if record.feed_id in self._by_id:
                    partition = self.partition(record.feed_id, record.partition)
                    with _usable(record):
                        found = LogRecord.decode(record.payload)
                    # Else the manifest has it, or a later one.
                    if (found.rollbacks, found.log.term) > (partition.rollbacks, partition.log.term):
                        partition.log = found.log
                    partition.homes.control(file)
            case RecordKind.ROLLED_BACK:
                if record.feed_id in self._by_id:
                    partition = self.partition(record.feed_id, record.partition)
                    with _usable(record):
                        _recover_rollback(partition, RollbackRecord.decode(record.payload), now)
                    partition.homes.control(file)
            case RecordKind.PRODUCERS_TOLD:
                if record.feed_id in self._by_id:
                    partition = self.partition(record.feed_id, record.partition)
                    with _usable(record):
                        _recover_producers(partition, ProducersRecord.decode(record.payload), now)
                    partition.homes.control(file)
            case RecordKind.BLOCK:
                if record.feed_id in self._by_id:  # else it was dropped with its feed
                    assert record.block is not None
                    partition = self.partition(record.feed_id, record.partition)
                    rollbacks = self._rollbacks.get((record.feed_id, record.partition), ())
                    _recover_block(partition, record.block, record.lsn, file, now, rollbacks)
            case RecordKind.PUBLISHED:
                if record.feed_id in self._by_id:
                    with _usable(record):
                        published = decode_published(record.payload, record.covered)
                    partition = self.partition(record.feed_id, record.partition)
                    rollbacks = self._rollbacks.get((record.feed_id, record.partition), ())
                    _recover_run(partition, published, record.lsn, file, rollbacks)
            case _:
                raise BadDirectory(
                    f"the journal has a record of kind {record.kind.name}, which this version does not know: start the "
                    "version that wrote it"
                )


def _listed(feed: Feed, seq: int) -> None:
    for partition in feed.partitions:
        partition.listed_seq = seq


@contextlib.contextmanager
def _usable(record: Record) -> Iterator[None]:
    """Its checksum is right, so it is what was written: by another version, or by a bug."""
    try:
        yield
    except (KeyError, TypeError, ValueError) as error:
        raise BadDirectory(
            f"the journal's {record.kind.name} record of feed {record.feed_id.hex()} cannot be used ({error!r}): start "
            "the version that wrote it, or see with `tailrace repair` what can be saved without it"
        ) from error


def _restore_partition(partition: Partition, manifest: Manifest, disk: Disk, store: ManifestStore, now: float) -> None:
    """Opens the segments. A damaged one is told by ``partition.damage``: other partitions are not concerned."""
    segments: list[Segment] = []
    for entry in manifest.segments:
        path = store.segment_path(manifest.feed_id, manifest.partition, entry.id)
        try:
            segments.append(_open_segment(disk, path, entry))
        except SegmentDamaged as error:
            log.error("partition %s of feed %s cannot be served: %s", partition.id, partition.feed_id.hex(), error)
            partition.damage = partition.damage or error
            segments.append(LostSegment(manifest.identity_of(entry), entry.nbytes, error))
    producers = producers_from_json(manifest.producers, partition.id, now)
    partition.restore(manifest.flushed_seq, Chain(segments), manifest.log, producers, manifest.last_timestamp)
    partition.purge_seq, partition.trim_seq = manifest.purge_seq, manifest.trim_seq
    partition.sinks.tell(manifest.sinks)
    partition.rollbacks = manifest.rollbacks


def _open_segment(disk: Disk, path: str, entry: SegmentEntry) -> Segment:
    try:
        segment = Segment.open(disk, path)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):  # says nothing about the segment: the start has to fail
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


def _case_of(
    partition: Partition, first: BlockHeader, last_seq: int, lsn: int, rollbacks: Sequence[Rollback]
) -> BlockCase:
    """What becomes of the block of ``first``, and of those behind it in its record, up to ``last_seq``."""
    held = partition.tree.find(first.first_seq)
    return decide_block(
        lsn=lsn,
        first_seq=first.first_seq,
        last_seq=last_seq,
        rollbacks=rollbacks,
        flushed_seq=partition.flushed_seq,
        held_seq=partition.high_seq,
        known=held is not None and held.header.body_sum == first.body_sum,
    )


def _recover_run(
    partition: Partition, published: PublishedRecord, lsn: int, file: int, rollbacks: Sequence[Rollback]
) -> None:
    """As ``_recover_block``, of blocks that are there together or not at all, with the batches that they are of."""
    if not published.blocks:
        partition.recover_run((), published.sinks, file)
        return
    first, last = published.blocks[0].header, published.blocks[-1].header
    case = _case_of(partition, first, last.last_seq, lsn, rollbacks)
    if case is BlockCase.NEXT:
        partition.recover_run(published.blocks, published.sinks, file)
        _merge_some(partition)
    elif case is BlockCase.GAP:
        raise _gap(partition, first.first_seq, last.last_seq)


def _merge_some(partition: Partition) -> None:
    if partition.tree.unmerged_blocks >= UNMERGED_BLOCKS_MAX:
        partition.put_tree(partition.tree.merge_aged(partition.high_seq, partition.merge_cuts))


def _gap(partition: Partition, first_seq: int, last_seq: int) -> BadDirectory:
    return BadDirectory(
        f"the journal has seqs {first_seq} to {last_seq} of partition {partition.id} after seq {partition.high_seq}: "
        "what lies between is missing; restore the directory from a backup"
    )


def _finish_rollback(
    partition: Partition, record: RollbackRecord, disk: Disk, store: ManifestStore, segment_id: bytes
) -> None:
    """Takes what is above out of the chain, as a manifest that was never written would have said.

    Where that goes into a segment which cannot be read, the partition is damaged, and stays as it was.
    """
    seq, chain = record.seq, partition.chain.through(record.seq)
    whole = straddling(partition.chain, seq)
    if whole is not None:
        try:
            part = cut_segment(disk, store, whole, seq, (record.log or partition.log).branch_at(seq), segment_id)
        except (SegmentDamaged, BadBlock) as error:
            log.error("partition %s of feed %s cannot be served: %s", partition.id, partition.feed_id.hex(), error)
            partition.damage = SegmentDamaged(whole.path, 0, f"it cannot be cut at seq {seq}: {error}")
            return
        chain = Chain((*chain.segments, part))
    for segment in partition.chain.segments[len(partition.chain.through(seq).segments) :]:
        segment.close()
    if not any(isinstance(segment, LostSegment) for segment in chain.segments):
        partition.damage = None
    partition.stand_at(chain.flushed_seq, chain, partition.log, partition.rollbacks)


def _recover_rollback(partition: Partition, record: RollbackRecord, now: float) -> None:
    """What was voided has not been applied, so nothing is above but what a manifest has that was written later."""
    if record.rollbacks <= partition.rollbacks:
        return
    partition.log, partition.rollbacks = record.log, record.rollbacks
    partition.producers = producers_from_json(record.producers, partition.id, now)
    partition.last_timestamp = partition.held_timestamp


def _recover_producers(partition: Partition, record: ProducersRecord, now: float) -> None:
    """A manifest of a later seq has them; of blocks that were voided they are not wanted."""
    if partition.flushed_seq <= record.seq == partition.high_seq:
        partition.producers = producers_from_json(record.value, partition.id, now)
        partition.producers.drop_above(record.seq)


def _recover_block(
    partition: Partition, block: Block, lsn: int, file: int, now: float, rollbacks: Sequence[Rollback]
) -> None:
    header = block.header
    case = _case_of(partition, header, header.last_seq, lsn, rollbacks)
    if case is BlockCase.NEXT:
        if not partition.log:
            raise BadDirectory(
                f"the journal has blocks of feed {partition.feed_id.hex()}, and no branch of it: repair it"
            )
        partition.recover_block(block, file, now)
        _merge_some(partition)
    elif case is BlockCase.GAP:
        raise _gap(partition, header.first_seq, header.last_seq)


def begin_branch(partition: Partition, branch: bytes, journal: Journal, term: int | None = None) -> None:
    """Begins a new branch where the partition ends, with the next term, or with this one.

    The entry stands in the journal after the blocks up to its base.
    """
    log = partition.new_branch(branch, term)
    payload = LogRecord(log, partition.rollbacks).encode()
    place = journal.append(RecordKind.FAILOVER_ENTRY, partition.feed_id, partition.id, payload)
    partition.homes.control(journal.file_of(place))
    # Whoever begins a branch leads: what a leader before has told is not what there is to follow any more, and what it
    # had above is of another history.
    partition.log, partition.leader_log = log, None
    partition.forget_above(partition.high_seq)
