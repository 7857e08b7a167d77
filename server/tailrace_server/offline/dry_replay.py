"""Replays a journal without applying it: tells the effect of each record on a start, in the order of the files. Pure.

CONTROL    tells of a feed or a partition, without blocks                              applied
VOIDED     a block of a history that was rolled back later                             skipped
FLUSHED    a block that a segment has                                                  skipped
HELD       a block that was applied before                                             skipped
NEXT       a block right above the partition's end, or published blocks                applied
GAP        a block above missing seqs                                                  the start stops; exported
DROPPED    of a feed that the journal drops                                            skipped
UNKNOWN    of a feed or partition without a FEED and without a creation in the journal skipped; exported
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from tailrace.block import Block
from tailrace.model import FeedInfo
from tailrace.model.failover import FailoverEntry, FailoverLog
from tailrace_server.feeds.feed import SYSTEM_FEED_ID, info_from_json
from tailrace_server.journal import BlockCase, JournalRollback, RecordKind, decide_block
from tailrace_server.journal.controls import LogRecord, ProducersRecord, RollbackRecord
from tailrace_server.journal.format import RecordHeader, lsn
from tailrace_server.journal.held import HeldMark, Shortfall, shortfalls
from tailrace_server.journal.reader import RawRecord
from tailrace_server.manifest.producers import read_producers

Place: TypeAlias = tuple[bytes, int]  # feed id, partition


class Fate(enum.Enum):
    """The effect of a record on a start; see the table above."""

    CONTROL = "control"
    VOIDED = "voided"
    FLUSHED = "flushed"
    HELD = "held"
    NEXT = "next"
    GAP = "gap"
    DROPPED = "dropped"
    UNKNOWN = "unknown"


class PartitionStart(NamedTuple):
    """The state of a partition in its manifest. ``renamed``: a repair has replaced its branches by a new one."""

    flushed_seq: int
    log: FailoverLog
    renamed: bool = False
    rollbacks: int = 0


class RollbackNote(NamedTuple):
    """A ROLLED_BACK record: its place in the journal, the seq that it went back to, and the count of rollbacks."""

    lsn: int
    seq: int
    rollbacks: int


def rollback_note_of(record: RawRecord) -> RollbackNote | None:
    """Returns the rollback that a record tells of; None for other records, and for one that a start cannot use."""
    header = record.header
    if header.kind != RecordKind.ROLLED_BACK:
        return None
    try:
        found = RollbackRecord.decode(record.payload)
    except (KeyError, TypeError, ValueError):
        return None
    return RollbackNote(lsn(header.file_number, header.end), found.seq, found.rollbacks)


class Creation(NamedTuple):
    """A feed, and the first branch (16 bytes) of its partitions, as recorded in the journal."""

    info: FeedInfo
    branch: bytes


class BadControl(ValueError):
    """A record is intact, but a start cannot use its payload."""


class _ReplayedPartition:
    """The state of a partition after the records that were taken."""

    __slots__ = ("log", "renamed", "rollbacks", "seq", "start", "sums", "undone")

    def __init__(self, start: PartitionStart, undone: Sequence[RollbackNote]) -> None:
        # A start finishes rollbacks that the manifest does not count yet.
        left = [one.seq for one in undone if one.rollbacks > start.rollbacks]
        self.start = self.seq = min([start.flushed_seq, *left])
        self.undone = [JournalRollback(one.lsn, one.seq) for one in undone]
        self.rollbacks = start.rollbacks
        self.log = start.log
        self.renamed = start.renamed
        self.sums: dict[int, int] = {}  # of the blocks that were applied, by first seq


_CASES = {
    BlockCase.VOIDED: Fate.VOIDED,
    BlockCase.FLUSHED: Fate.FLUSHED,
    BlockCase.HELD: Fate.HELD,
    BlockCase.NEXT: Fate.NEXT,
    BlockCase.GAP: Fate.GAP,
}


class DryReplay:
    """Takes the records of a journal in order, and tells the effect of each.

    ``feeds`` has the number of partitions of each feed with a FEED, and ``starts`` the partitions with a manifest.
    ``undone`` are all rollbacks in the journal: they void earlier records.
    """

    def __init__(
        self,
        feeds: Mapping[bytes, int],
        starts: Mapping[Place, PartitionStart],
        undone: Mapping[Place, Sequence[RollbackNote]] = MappingProxyType({}),
    ) -> None:
        self._feeds = {SYSTEM_FEED_ID: 1, **feeds}
        self._undone = undone
        self._branches: dict[bytes, bytes] = {}
        self._held = {place: _ReplayedPartition(start, undone.get(place, ())) for place, start in starts.items()}
        self.dropped: set[bytes] = set()
        self.creations: dict[bytes, Creation] = {}

    def end_seq(self, place: Place) -> int:
        """Returns the last seq of a partition without a gap below it."""
        return self._held[place].seq if place in self._held else 0

    def log_of(self, place: Place) -> FailoverLog:
        """Returns the partition's failover log after these records."""
        return self._partition(place).log

    def rollbacks_of(self, place: Place) -> int:
        """Returns the count of the partition's rollbacks up to these records."""
        return self._partition(place).rollbacks

    def end_seqs(self) -> dict[Place, int]:
        """Returns ``end_seq`` of all partitions that were seen, without dropped feeds."""
        return {place: held.seq for place, held in self._held.items() if place[0] not in self.dropped}

    def shortfalls(self, mark: HeldMark, branches: Mapping[bytes, bytes]) -> list[Shortfall]:
        """Returns the partitions that end below ``mark``. Call it after all records.

        ``branches`` are the first branches of the feeds with a FEED.
        """

        def branch_of(feed_id: bytes) -> bytes | None:
            if feed_id in self.dropped:
                return None
            created = self.creations.get(feed_id)
            if feed_id == SYSTEM_FEED_ID:
                return b""
            return branches.get(feed_id) if created is None else created.branch

        def standing_of(feed_id: bytes, number: int) -> tuple[int, int]:
            place = feed_id, number
            return (self.rollbacks_of(place), self.end_seq(place)) if place in self._held else (0, 0)

        return list(shortfalls(mark, branch_of, standing_of))

    def replay(self, record: RawRecord) -> Fate:
        """Returns the effect of the next record. Raises BadControl."""
        header = record.header
        blocks = record.blocks
        if not blocks:
            if record.published is None:
                self._control(header, record.payload)
            return Fate.CONTROL
        place = header.feed_id, header.partition
        if header.feed_id in self.dropped:
            return Fate.DROPPED
        if not self._knows(place):
            return Fate.UNKNOWN
        return self._block(self._partition(place), blocks, lsn(header.file_number, header.end))

    def branch_is_missing(self, record: RawRecord) -> bool:
        """Returns whether the next record extends the partition on an unknown branch. Call it before ``replay``."""
        place = record.header.feed_id, record.header.partition
        if not record.blocks or not self._knows(place):
            return False
        held, end = self._partition(place), lsn(record.header.file_number, record.header.end)
        if held.renamed or record.blocks[0].header.first_seq != held.seq + 1:
            return False
        if any(one.lsn > end and one.seq < record.blocks[-1].header.last_seq for one in held.undone):
            return False  # its branch ended with the rollback
        if not held.log:  # the first branch of other feeds is in their FEED
            return place[0] == SYSTEM_FEED_ID
        branch = record.header.branch
        return held.seq >= held.log[0].base and all(entry.branch != branch for entry in held.log)

    def add_branch(self, place: Place, branch: bytes) -> FailoverLog:
        """Replaces a lost record: ``branch`` begins at the partition's present end. Returns the failover log."""
        held = self._partition(place)
        held.log = held.log.with_entry(FailoverEntry(branch, held.log.term + 1, held.seq))
        return held.log

    def is_renamed(self, place: Place) -> bool:
        """Returns whether a repair has replaced the partition's branches by a new one."""
        return place in self._held and self._held[place].renamed

    def is_superseded(self, record: RawRecord) -> bool:
        """Returns whether it records failovers or a rollback of a partition whose branches were replaced since."""
        place = record.header.feed_id, record.header.partition
        kinds = RecordKind.FAILOVER_ENTRY, RecordKind.ROLLED_BACK
        return record.header.kind in kinds and self.is_renamed(place)

    def _knows(self, place: Place) -> bool:
        return place[1] < self._feeds.get(place[0], 0)

    def _partition(self, place: Place) -> _ReplayedPartition:
        held = self._held.get(place)
        if held is None:
            branch = self._branches.get(place[0])
            log = FailoverLog() if branch is None else FailoverLog([FailoverEntry(branch, 1, 0)])
            held = self._held[place] = _ReplayedPartition(PartitionStart(0, log), self._undone.get(place, ()))
        return held

    def _control(self, header: RecordHeader, payload: bytes) -> None:
        try:
            match header.kind:
                case RecordKind.FEED_CREATED:
                    self._created(header.feed_id, creation_of(payload))
                case RecordKind.FEED_DROPPED:
                    self.dropped.add(header.feed_id)
                case RecordKind.FAILOVER_ENTRY:
                    held = self._partition((header.feed_id, header.partition))
                    entry = LogRecord.decode(payload)
                    later = (entry.rollbacks, entry.log.term) > (held.rollbacks, held.log.term)
                    if later and not held.renamed:
                        held.log = entry.log
                case RecordKind.ROLLED_BACK:
                    held = self._partition((header.feed_id, header.partition))
                    found = RollbackRecord.decode(payload)
                    read_producers(found.producers)
                    if found.rollbacks > held.rollbacks and not held.renamed:
                        held.log, held.rollbacks = found.log, found.rollbacks
                case RecordKind.PRODUCERS_TOLD:
                    read_producers(ProducersRecord.decode(payload).value)
                case _:
                    raise BadControl(f"a record of unknown kind {RecordKind(header.kind).name}")
        except (KeyError, TypeError, ValueError) as error:
            raise BadControl(f"{RecordKind(header.kind).name}: {error}") from None

    def _created(self, feed_id: bytes, creation: Creation) -> None:
        self.creations[feed_id] = creation
        if feed_id not in self._feeds:
            self._feeds[feed_id] = creation.info.partitions
            self._branches[feed_id] = creation.branch

    @staticmethod
    def _block(held: _ReplayedPartition, blocks: Sequence[Block], place: int) -> Fate:
        header, last_seq = blocks[0].header, blocks[-1].header.last_seq
        case = decide_block(
            lsn=place,
            first_seq=header.first_seq,
            last_seq=last_seq,
            rollbacks=held.undone,
            flushed_seq=held.start,
            held_seq=held.seq,
            known=held.sums.get(header.first_seq) == header.body_sum,
        )
        if case is BlockCase.NEXT:
            held.sums[header.first_seq] = header.body_sum
            held.seq = last_seq
        return _CASES[case]


def creation_of(payload: bytes) -> Creation:
    """Decodes the record of a feed's creation. Raises KeyError, TypeError, ValueError for another payload."""
    value = json.loads(payload)
    return Creation(info_from_json(value["feed"]), bytes.fromhex(value["branch"]))
