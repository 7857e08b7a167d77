"""Writes a new journal with the rows that follow each partition's segments without a gap, and exports the others.

    journal/      00000003.log (damaged)  00000004.log          moved to lost/
    journal.new/  00000005.log                                  written, fsynced, then moved to journal/

Records keep their order. Blocks that segments have are left out, and blocks above a gap go to lost/. The new files are
complete and durable before the first old one is moved. REPAIRING notes that, so an interrupted repair only finishes the
move.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from tailrace.block import HEADER_BYTES, BlockHeader
from tailrace.errors import BadBlock
from tailrace_server.directory.lost import Lost
from tailrace_server.feeds.feed import SYSTEM_FEED_ID
from tailrace_server.journal import Journal, RecordKind
from tailrace_server.journal.clean import CleanMark
from tailrace_server.journal.controls import LogRecord, RollbackRecord
from tailrace_server.journal.held import HELD_NAME, HeldMark
from tailrace_server.journal.reader import RawRecord
from tailrace_server.offline.dry_replay import (
    BadControl,
    DryReplay,
    Fate,
    Place,
)
from tailrace_server.offline.journal_walk import (
    Bad,
    JournalFile,
)
from tailrace_server.offline.salvage import proven_keys

if TYPE_CHECKING:
    pass

from tailrace_server.offline.journal_survey import JournalSurvey


class JournalRewrite:
    """The second pass over the journal, with the state of all partitions: keeps, exports, or lists each record.

    Kept records are written to ``journal`` (None: nowhere), the others to ``lost``.
    """

    def __init__(self, survey: JournalSurvey, replay: DryReplay, lost: Lost, journal: Journal | None) -> None:
        self._survey = survey
        self._replay = replay
        self._lost = lost
        self._journal = journal
        self._seen: dict[Place, int] = {}  # by partition, the seq up to which rows were kept, exported or listed
        self._kept_rows = 0
        # Partitions with a block after the last unreadable bytes; None: all bytes could be read.
        self._seen_since: set[Place] | None = None

    def run(self, clean: CleanMark | None) -> int:
        """Runs the pass and ``tell_end``. Returns the number of kept rows."""
        for file, item in self._survey.items():
            if isinstance(item, Bad):
                self._tell_bad(file, item)
            else:
                self._replay_record(file, item)
                self._end_rotation()
        self.tell_end(clean)
        return self._kept_rows

    def _end_rotation(self) -> None:
        """Gives a file that the new journal has begun its name. Until then each record would be written twice."""
        journal = self._journal
        if journal is not None and journal.synced_end[0] < journal.end[0]:
            journal.sync()

    def tell_end(self, clean: CleanMark | None) -> None:
        """Tells which rows of the mark of the last clean stop are missing. The whole journal was replayed."""
        for partition in clean.partitions if clean is not None else ():
            place = partition.feed_id, partition.partition
            told = self._told(place)
            if told < partition.high_seq and partition.feed_id not in self._survey.dropped:
                why = "the mark of the last clean stop has them"
                self._lost.rows(*place, told + 1, partition.high_seq, source="", why=why)
                self._seen[place] = partition.high_seq

    def tell_held(
        self, mark: HeldMark, branches: Mapping[bytes, bytes], places: Iterable[Place], clean: CleanMark | None
    ) -> None:
        """Lists rows that HELD has and the partitions lack, and partitions that may lack rows written after HELD.

        Call it after the whole journal was replayed, and after ``tell_end``. ``places`` are all partitions: any of them
        may have had rows in a missing part of the journal.
        """
        ends = {(p.feed_id, p.partition) for p in clean.partitions} if clean is not None else set()
        is_open = set(places) if self._survey.newest < mark.journal else set[Place]()
        for short in self._replay.shortfalls(mark, branches):
            place = short.feed_id, short.partition
            is_open.add(place)
            told = self._told(place)
            if told < short.told_seq:
                why = f"{HELD_NAME} has them"
                self._lost.rows(*place, told + 1, short.told_seq, source="", why=why)
                self._seen[place] = short.told_seq
        for place in sorted(is_open - ends):
            if place[0] not in self._survey.dropped:
                why = f"rows that were written after {HELD_NAME} may be missing"
                self._lost.open_end(*place, self._told(place), why)

    def tell_open_ends(self, places: Iterable[Place], clean: CleanMark | None) -> None:
        """Lists partitions that may have had more rows in unreadable bytes of the journal.

        A later block of the partition shows the seqs before it, and the mark of a clean stop shows its end.
        """
        if self._seen_since is None:
            return
        told = {(p.feed_id, p.partition) for p in clean.partitions} if clean is not None else set()
        for place in places:
            if place not in told and place not in self._seen_since and place[0] not in self._survey.dropped:
                why = "a part of the journal cannot be read, and may have had rows of the partition"
                self._lost.open_end(*place, self._told(place), why)

    def _told(self, place: Place) -> int:
        return max(self._replay.end_seq(place), self._seen.get(place, 0))

    def _replay_record(self, file: JournalFile, record: RawRecord) -> None:
        header, blocks = record.header, record.blocks
        place = header.feed_id, header.partition
        if blocks and self._seen_since is not None:
            self._seen_since.add(place)
        fate = Fate.DROPPED if blocks else Fate.CONTROL
        if header.feed_id not in self._survey.dropped:
            may_miss = self._survey.damaged or header.feed_id == SYSTEM_FEED_ID  # as in ``replayed``
            if may_miss and self._replay.branch_is_missing(record):
                log = self._replay.add_branch(place, header.branch)
                payload = LogRecord(log, self._replay.rollbacks_of(place)).encode()
                self._append(RecordKind.FAILOVER_ENTRY, place, payload)
            try:
                fate = self._replay.replay(record)
            except BadControl as error:
                self._lost.unknown(file.path, header.offset, header.end - header.offset, str(error))
                return
            if self._replay.is_superseded(record):
                self._keep_voiding(record, place)
                return
        if not blocks and record.published is None:
            self._append(RecordKind(header.kind), place, record.payload)
        elif fate in (Fate.NEXT, Fate.CONTROL):
            self._kept_rows += sum(block.rows for block in blocks)
            self._keep(record, place)
        elif fate in (Fate.GAP, Fate.UNKNOWN):
            self._tell_gap(place, blocks[0].header.first_seq, file, header.offset)
            why = "seqs before it are missing" if fate is Fate.GAP else "its feed is unknown"
            for block in blocks:
                self._lost.export(*place, block, why)
            self._seen[place] = max(self._told(place), blocks[-1].header.last_seq)

    def _keep(self, record: RawRecord, place: Place) -> None:
        """Writes the blocks of a record to the new journal, with its other fields."""
        if self._journal is None:
            return
        header = record.header
        branch = self._replay.log_of(place).branch if self._replay.is_renamed(place) else header.branch
        if record.block is not None:
            self._journal.append_block(*place, branch, record.block, (header.snapshot_first, header.snapshot_last))
        else:
            covered, bodies = record.payload[: header.covered], record.payload[header.covered :]
            self._journal.append_published(*place, branch, covered, (bodies,))

    def _keep_voiding(self, record: RawRecord, place: Place) -> None:
        """Keeps a superseded rollback, because it voids earlier records about rows above its seq.

        Those records stay: last batches and producers without their rows. The manifest already counts the rollback, so
        a start uses nothing else of it.
        """
        if record.header.kind == RecordKind.ROLLED_BACK:
            found = RollbackRecord.decode(record.payload)
            log, rollbacks = self._replay.log_of(place), self._replay.rollbacks_of(place)
            self._append(RecordKind.ROLLED_BACK, place, found._replace(log=log, rollbacks=rollbacks).encode())

    def _append(self, kind: RecordKind, place: Place, payload: bytes) -> None:
        if self._journal is not None:
            self._journal.append(kind, *place, payload)

    def _tell_bad(self, file: JournalFile, bad: Bad) -> None:
        header = None
        if bad.head is not None and bad.head.kind == RecordKind.BLOCK:
            header = block_header_in(bad.payload)
        if header is None or bad.head is None:
            self._seen_since = set()
            self._lost.unknown(file.path, bad.offset, bad.end - bad.offset, bad.why)
            return
        place = bad.head.feed_id, bad.head.partition
        if place[0] in self._survey.dropped or header.last_seq <= self._told(place):
            return
        self._tell_gap(place, header.first_seq, file, bad.offset)
        self._lost.rows(
            *place,
            header.first_seq,
            header.last_seq,
            source=file.path,
            offset=bad.offset,
            rows=header.rows,
            keys=proven_keys(bad.payload),
            why=bad.why,
        )
        self._seen[place] = header.last_seq

    def _tell_gap(self, place: Place, first_seq: int, file: JournalFile, offset: int) -> None:
        told = self._told(place)
        if first_seq > told + 1:
            why = "they are missing before this block of the journal"
            self._lost.rows(*place, told + 1, first_seq - 1, source=file.path, offset=offset, why=why)


def block_header_in(payload: bytes) -> BlockHeader | None:
    """Returns the header of the block in a damaged record, or None if it is damaged, too."""
    try:
        return BlockHeader.unpack(payload[:HEADER_BYTES])
    except BadBlock:
        return None
