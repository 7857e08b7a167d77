"""What a start does with each record of the journal, in the order of the files. Pure.

CONTROL    it says something of a feed or a partition                                  applied
FLUSHED    a block that a segment has                                                  skipped
HELD       a block that was applied already                                            skipped
NEXT       a block that begins right above what is held                                applied
GAP        a block behind something that is missing                                    the start stops; exported
DROPPED    of a feed that the journal says to be dropped                               skipped
UNKNOWN    of a feed, or a partition, that neither a FEED nor the journal knows        skipped; exported
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from tailrace.block import Block
from tailrace.failover import FailoverEntry, FailoverLog
from tailrace.model import FeedInfo
from tailrace_server.feed import info_from_json
from tailrace_server.journal import BlockCase, RecordKind, decide_block
from tailrace_server.journal.format import RecordHeader
from tailrace_server.journal.reader import RawRecord

Place: TypeAlias = tuple[bytes, int]  # feed id, partition


class Fate(enum.Enum):
    """What becomes of a record; the table above."""

    CONTROL = "control"
    FLUSHED = "flushed"
    HELD = "held"
    NEXT = "next"
    GAP = "gap"
    DROPPED = "dropped"
    UNKNOWN = "unknown"


class Start(NamedTuple):
    """Where a partition stands by its manifest. ``renamed``: its history was given another name by a repair."""

    flushed_seq: int
    log: FailoverLog
    renamed: bool = False


class Creation(NamedTuple):
    """A feed, and the first branch (16 bytes) of its partitions, as the journal's record has them."""

    info: FeedInfo
    branch: bytes


class BadControl(ValueError):
    """A record that is good as a record, and whose payload a start can't use."""


class _Held:
    """How far a partition has come."""

    __slots__ = ("log", "renamed", "seq", "start", "sums")

    def __init__(self, start: Start) -> None:
        self.start = self.seq = start.flushed_seq
        self.log = start.log
        self.renamed = start.renamed
        self.sums: dict[int, int] = {}  # of the blocks that were applied, by first seq


_CASES = {
    BlockCase.FLUSHED: Fate.FLUSHED,
    BlockCase.HELD: Fate.HELD,
    BlockCase.NEXT: Fate.NEXT,
    BlockCase.GAP: Fate.GAP,
}


class Sieve:
    """Takes records one after the other.

    ``feeds`` are the partitions of each feed that has its FEED, ``starts`` the partitions that have a manifest.
    """

    def __init__(self, feeds: Mapping[bytes, int], starts: Mapping[Place, Start]) -> None:
        self._feeds = dict(feeds)
        self._branches: dict[bytes, bytes] = {}
        self._held = {place: _Held(start) for place, start in starts.items()}
        self.dropped: set[bytes] = set()
        self.creations: dict[bytes, Creation] = {}

    def held_seq(self, place: Place) -> int:
        """The last seq of a partition without a gap below it."""
        return self._held[place].seq if place in self._held else 0

    def log_of(self, place: Place) -> FailoverLog:
        """The partition's failover log as far as it is known."""
        return self._partition(place).log

    def held(self) -> dict[Place, int]:
        """``held_seq`` of all partitions of which anything is known, but for dropped feeds."""
        return {place: held.seq for place, held in self._held.items() if place[0] not in self.dropped}

    def sift(self, record: RawRecord) -> Fate:
        """The fate of the next record. BadControl."""
        header = record.header
        if record.block is None:
            self._control(header, record.payload)
            return Fate.CONTROL
        place = header.feed_id, header.partition
        if header.feed_id in self.dropped:
            return Fate.DROPPED
        if not self._knows(place):
            return Fate.UNKNOWN
        return self._block(self._partition(place), record.block)

    def branch_is_missing(self, record: RawRecord) -> bool:
        """The block extends the partition on a branch of which no record has told. To be asked before ``sift``."""
        place = record.header.feed_id, record.header.partition
        if record.block is None or not self._knows(place):
            return False
        held = self._partition(place)
        if held.renamed or not held.log or record.block.header.first_seq != held.seq + 1:
            return False
        branch = record.header.branch
        return held.seq >= held.log[0].base and all(entry.branch != branch for entry in held.log)

    def add_branch(self, place: Place, branch: bytes) -> FailoverLog:
        """Puts back what a lost record has told: ``branch`` begins where the partition has come to."""
        held = self._partition(place)
        held.log = held.log.with_entry(FailoverEntry(branch, held.log.term + 1, held.seq))
        return held.log

    def is_renamed(self, place: Place) -> bool:
        """The partition's history was given another name by a repair."""
        return place in self._held and self._held[place].renamed

    def is_superseded(self, record: RawRecord) -> bool:
        """A record of a failover of a partition whose history was renamed since."""
        place = record.header.feed_id, record.header.partition
        return record.header.kind == RecordKind.FAILOVER_ENTRY and self.is_renamed(place)

    def _knows(self, place: Place) -> bool:
        return place[1] < self._feeds.get(place[0], 0)

    def _partition(self, place: Place) -> _Held:
        held = self._held.get(place)
        if held is None:
            branch = self._branches.get(place[0])
            log = FailoverLog() if branch is None else FailoverLog([FailoverEntry(branch, 1, 0)])
            held = self._held[place] = _Held(Start(0, log))
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
                    found = FailoverLog.from_json(json.loads(payload))
                    if found.term > held.log.term and not held.renamed:
                        held.log = found
                case _:
                    raise BadControl(f"a record of kind {RecordKind(header.kind).name}, which a start does not know")
        except (KeyError, TypeError, ValueError) as error:
            raise BadControl(f"{RecordKind(header.kind).name}: {error}") from None

    def _created(self, feed_id: bytes, creation: Creation) -> None:
        self.creations[feed_id] = creation
        if feed_id not in self._feeds:
            self._feeds[feed_id] = creation.info.partitions
            self._branches[feed_id] = creation.branch

    @staticmethod
    def _block(held: _Held, block: Block) -> Fate:
        header = block.header
        case = decide_block(
            lsn=0,
            first_seq=header.first_seq,
            last_seq=header.last_seq,
            rollbacks=(),
            flushed_seq=held.start,
            held_seq=held.seq,
            known=held.sums.get(header.first_seq) == header.body_sum,
        )
        if case is BlockCase.NEXT:
            held.sums[header.first_seq] = header.body_sum
            held.seq = header.last_seq
        return _CASES[case]


def creation_of(payload: bytes) -> Creation:
    """What the record of a creation says. KeyError, TypeError, ValueError where it is none."""
    value = json.loads(payload)
    return Creation(info_from_json(value["feed"]), bytes.fromhex(value["branch"]))
