"""A journal written anew: of each partition what goes on from its segments without a gap; the rest is exported.

    journal/      00000003.log (damaged)  00000004.log          moved to lost/
    journal.new/  00000005.log                                  written, fsynced, then moved to journal/

Records keep their order. What segments have is left out; what lies behind a gap goes to lost/. The new files are whole
and durable before the first old one is moved, and REPAIRING says so: a repair that goes on only finishes the move.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from tailrace.block import HEADER_BYTES, Block, BlockHeader
from tailrace.errors import BadBlock, TailraceError
from tailrace_server.directory.lost import Lost
from tailrace_server.journal import Journal, RecordKind
from tailrace_server.journal.clean import CleanMark
from tailrace_server.journal.controls import LogRecord, RollbackRecord
from tailrace_server.journal.file_case import STOPS, FileCase
from tailrace_server.journal.format import FILE_HEADER_BYTES, FileHeader, file_name, file_number
from tailrace_server.journal.held import HELD_NAME, HeldMark
from tailrace_server.journal.next_file import create_file
from tailrace_server.journal.reader import RawRecord
from tailrace_server.journal.rotation import publish_file
from tailrace_server.journal.writer import FILE_BYTES_DEFAULT, file_key
from tailrace_server.offline.journal_walk import (
    Bad,
    Item,
    JournalFile,
    end_of,
    journal_files,
    numbers_in,
)
from tailrace_server.offline.listed import ListedFeeds
from tailrace_server.offline.listing import JOURNAL_NAME
from tailrace_server.offline.salvage import proven_keys
from tailrace_server.offline.sieve import BadControl, Creation, Fate, Place, Sieve, Undone, undone_of

if TYPE_CHECKING:
    from tailrace_server.host.disk import Disk
    from tailrace_server.host.randomness import Randomness

STAGING_NAME = "journal.new"


class JournalSurvey:
    """What one pass over the journal tells, before anything is known of the partitions.

    ``creations`` and ``dropped`` are feeds, ``listed`` those that ``_feeds`` has rows of; ``terms`` the highest term of
    each partition; ``undone`` its rollbacks; ``damaged`` whether a start would stop at it; ``oldest`` the oldest file's
    number, 0 if there is none; ``newest`` the newest one's, and where it ends.
    """

    def __init__(self, disk: Disk, data: str) -> None:
        self._disk = disk
        self._directory = os.path.join(data, JOURNAL_NAME)
        self.creations: dict[bytes, Creation] = {}
        self.dropped: set[bytes] = set()
        self.terms: dict[Place, int] = {}
        self.undone: dict[Place, list[Undone]] = {}
        self.damaged = False
        self.oldest = 0
        self.newest = (0, 0)
        self.listed = ListedFeeds()
        self._torn: dict[int, int] = {}  # files of which only what lies before an offset counts
        self._blocks: dict[Place, list[tuple[int, int, str, int]]] = {}

    def run(self, wanted: Callable[[Place], bool], on_bytes: Callable[[int], None]) -> None:
        """Reads all of it. Where the blocks of the ``wanted`` partitions lie is remembered, for ``spare``."""
        sieve = Sieve({}, {})
        for file in journal_files(self._disk, self._directory):
            offset = 0
            for item in file.items():
                on_bytes(end_of(item) - offset)
                offset = end_of(item)
                if isinstance(item, RawRecord):
                    self._note(sieve, item, file.path, wanted)
                elif item.newer:
                    raise NewerJournal(
                        f"{file.path} at offset {item.offset}: {item.why}; repair it with the Tailrace that wrote it"
                    )
            if file.case in (FileCase.TORN, FileCase.ALLOCATED):
                self._torn[file.number] = file.facts.end
            self.damaged |= file.case in STOPS
            self.oldest = self.oldest or file.number
            self.newest = file.number, file.facts.end
        self.creations, self.dropped = sieve.creations, sieve.dropped

    def _note(self, sieve: Sieve, record: RawRecord, path: str, wanted: Callable[[Place], bool]) -> None:
        header = record.header
        place = header.feed_id, header.partition
        if record.blocks:
            self.listed.add(header.feed_id, record.blocks)
            if wanted(place):
                ends = record.blocks[0].header.first_seq, record.blocks[-1].header.last_seq
                self._blocks.setdefault(place, []).append((*ends, path, header.offset))
            return
        try:
            sieve.sift(record)
        except BadControl:
            self.damaged = True
            return
        undone = undone_of(record)
        if undone is not None:
            self.undone.setdefault(place, []).append(undone)
        if header.kind in (RecordKind.FAILOVER_ENTRY, RecordKind.ROLLED_BACK):
            self.terms[place] = max(self.terms.get(place, 0), sieve.log_of(place).term)

    def spare(self, place: Place, first_seq: int, last_seq: int) -> Iterator[Block]:
        """Blocks of a wanted partition that hold any of these seqs, both included, in seq order."""
        there = [one for one in self._blocks.get(place, []) if one[0] <= last_seq and one[1] >= first_seq]
        paths = {path for _, _, path, _ in there}
        blocks = {}
        for file in journal_files(self._disk, self._directory):
            if file.path in paths:
                offsets = {offset for _, _, path, offset in there if path == file.path}
                for item in file.items():
                    if isinstance(item, RawRecord) and item.header.offset in offsets:
                        blocks.update({block.header.first_seq: block for block in item.blocks})
        for first in sorted(blocks):
            yield blocks[first]

    def items(self) -> Iterator[tuple[JournalFile, Item]]:
        """All that counts: a torn end does not, whatever the disk wrote behind it."""
        for file in journal_files(self._disk, self._directory):
            torn = self._torn.get(file.number)
            if file.is_missing:
                yield file, Bad(0, 0, "the file is missing")
            for item in file.items():
                if torn is not None and end_of(item) > torn:
                    break
                yield file, item

    def sifted(self, sieve: Sieve) -> Sieve | None:
        """``sieve`` once the whole journal has gone through it; None where the journal can't stay as it is.

        It would stop a start then, or it tells of a history that was renamed.
        """
        if self.damaged:
            return None
        for record in (item for _, item in self.items() if isinstance(item, RawRecord)):
            if sieve.is_superseded(record) or _is_of_old_name(sieve, record):
                return None
            if sieve.sift(record) in (Fate.GAP, Fate.UNKNOWN) and record.header.feed_id not in self.dropped:
                return None
        return sieve


class NewerJournal(TailraceError):
    """The journal is of a Tailrace that knows more than this one."""


def _is_of_old_name(sieve: Sieve, record: RawRecord) -> bool:
    place = record.header.feed_id, record.header.partition
    if not record.blocks or not sieve.is_renamed(place):
        return False
    last_seq = record.blocks[-1].header.last_seq
    return last_seq > sieve.held_seq(place) and record.header.branch != sieve.log_of(place).branch


def is_short_of(sieve: Sieve, clean: CleanMark) -> bool:
    """A partition ends elsewhere than the mark of the last clean stop says. The journal has gone through ``sieve``."""
    held = sieve.held()
    return any(held.get((p.feed_id, p.partition), 0) != p.high_seq for p in clean.partitions)


class Resift:
    """One pass over the journal with everything known of the partitions: what is kept, exported, lost.

    What is kept is written to ``journal`` (None: nowhere), the rest to ``lost``.
    """

    def __init__(self, survey: JournalSurvey, sieve: Sieve, lost: Lost, journal: Journal | None) -> None:
        self._survey = survey
        self._sieve = sieve
        self._lost = lost
        self._journal = journal
        self._seen: dict[Place, int] = {}  # up to here of each partition all is told, kept or not
        self._kept_rows = 0
        # Partitions that have a block behind the last bytes of which nothing can be told; None: there are none such.
        self._seen_since: set[Place] | None = None

    def run(self, clean: CleanMark | None) -> int:
        """The pass, and ``tell_end``; how many rows are kept."""
        for file, item in self._survey.items():
            if isinstance(item, Bad):
                self._tell_bad(file, item)
            else:
                self._sift(file, item)
        self.tell_end(clean)
        return self._kept_rows

    def tell_end(self, clean: CleanMark | None) -> None:
        """What the mark of the last clean stop says to be there, and is not. The journal has gone through the sieve."""
        for partition in clean.partitions if clean is not None else ():
            place = partition.feed_id, partition.partition
            told = self._told(place)
            if told < partition.high_seq and partition.feed_id not in self._survey.dropped:
                why = "the mark of the last clean stop says that they were there"
                self._lost.rows(*place, told + 1, partition.high_seq, source="", why=why)
                self._seen[place] = partition.high_seq

    def tell_held(
        self, mark: HeldMark, branches: Mapping[bytes, bytes], places: Iterable[Place], clean: CleanMark | None
    ) -> None:
        """Tells what HELD says to be there, and is not; and where more may be missing, written after HELD was.

        The journal has gone through the sieve, and ``tell_end`` has told what a mark of a clean stop says. ``places``
        are all partitions: any of them may have had rows in a part of the journal that is missing.
        """
        ends = {(p.feed_id, p.partition) for p in clean.partitions} if clean is not None else set()
        is_open = set(places) if self._survey.newest < mark.journal else set[Place]()
        for short in self._sieve.shortfalls(mark, branches):
            place = short.feed_id, short.partition
            is_open.add(place)
            told = self._told(place)
            if told < short.told_seq:
                why = f"{HELD_NAME} says that they were there"
                self._lost.rows(*place, told + 1, short.told_seq, source="", why=why)
                self._seen[place] = short.told_seq
        for place in sorted(is_open - ends):
            if place[0] not in self._survey.dropped:
                why = f"nothing tells which rows it held that were written after {HELD_NAME}"
                self._lost.open_end(*place, self._told(place), why)

    def tell_open_ends(self, places: Iterable[Place], clean: CleanMark | None) -> None:
        """Tells which partitions may have had more rows, in bytes of the journal of which nothing can be told.

        A later block of the partition tells what was before it, and the mark of a clean stop where it ended.
        """
        if self._seen_since is None:
            return
        told = {(p.feed_id, p.partition) for p in clean.partitions} if clean is not None else set()
        for place in places:
            if place not in told and place not in self._seen_since and place[0] not in self._survey.dropped:
                why = "a part of the journal cannot be read, and nothing tells whether rows of the partition were in it"
                self._lost.open_end(*place, self._told(place), why)

    def _told(self, place: Place) -> int:
        return max(self._sieve.held_seq(place), self._seen.get(place, 0))

    def _sift(self, file: JournalFile, record: RawRecord) -> None:
        header, blocks = record.header, record.blocks
        place = header.feed_id, header.partition
        if blocks and self._seen_since is not None:
            self._seen_since.add(place)
        fate = Fate.DROPPED if blocks else Fate.CONTROL
        if header.feed_id not in self._survey.dropped:
            if self._survey.damaged and self._sieve.branch_is_missing(record):
                log = self._sieve.add_branch(place, header.branch)
                payload = LogRecord(log, self._sieve.rollbacks_of(place)).encode()
                self._append(RecordKind.FAILOVER_ENTRY, place, payload)
            try:
                fate = self._sieve.sift(record)
            except BadControl as error:
                self._lost.unknown(file.path, header.offset, header.end - header.offset, str(error))
                return
            if self._sieve.is_superseded(record):
                self._keep_voiding(record, place)
                return
        if not blocks and record.published is None:
            self._append(RecordKind(header.kind), place, record.payload)
        elif fate in (Fate.NEXT, Fate.CONTROL):
            self._kept_rows += sum(block.rows for block in blocks)
            self._keep(record, place)
        elif fate in (Fate.GAP, Fate.UNKNOWN):
            self._tell_gap(place, blocks[0].header.first_seq, file, header.offset)
            why = "a gap is before it" if fate is Fate.GAP else "nothing is known of its feed"
            for block in blocks:
                self._lost.export(*place, block, why)
            self._seen[place] = max(self._told(place), blocks[-1].header.last_seq)

    def _keep(self, record: RawRecord, place: Place) -> None:
        """Writes blocks to the new journal, with what else their record says."""
        if self._journal is None:
            return
        header = record.header
        branch = self._sieve.log_of(place).branch if self._sieve.is_renamed(place) else header.branch
        if record.block is not None:
            self._journal.append_block(*place, branch, record.block, (header.snapshot_first, header.snapshot_last))
        else:
            covered, bodies = record.payload[: header.covered], record.payload[header.covered :]
            self._journal.append_published(*place, branch, covered, (bodies,))

    def _keep_voiding(self, record: RawRecord, place: Place) -> None:
        """Keeps of a superseded rollback that it voids what earlier records tell of rows above it.

        Those records stay: last batches and producers without their rows. The manifest counts the rollback already, so
        that a start takes over nothing else of it.
        """
        if record.header.kind == RecordKind.ROLLED_BACK:
            found = RollbackRecord.decode(record.payload)
            log, rollbacks = self._sieve.log_of(place), self._sieve.rollbacks_of(place)
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
    """The header of the block in a damaged record; None where it can't be told."""
    try:
        return BlockHeader.unpack(payload[:HEADER_BYTES])
    except BadBlock:
        return None


def begin_journal(disk: Disk, data: str, randomness: Randomness, clock: Callable[[], float]) -> tuple[Journal, int]:
    """An empty journal in the staging directory, and its first number: above all that there are."""
    staging = os.path.join(data, STAGING_NAME)
    disk.make_directory(staging)
    for name in disk.names(staging):  # of this repair, before it was interrupted
        disk.remove(os.path.join(staging, name))
    first = max([1, *numbers_in(disk, os.path.join(data, JOURNAL_NAME))]) + 1
    header = FileHeader(first, file_key(randomness.token), FILE_HEADER_BYTES, FILE_HEADER_BYTES)
    path = os.path.join(staging, file_name(first))
    file = create_file(disk, path, header)
    publish_file(disk, path, file)
    journal = Journal(
        disk,
        staging,
        disk.open_directory(staging),
        file,
        header,
        FILE_HEADER_BYTES,
        older=(),
        file_bytes_max=FILE_BYTES_DEFAULT,
        token=randomness.token,
        clock=clock,
    )
    return journal, first


def take_journal(disk: Disk, data: str, lost: Lost, fresh: Sequence[int] = (0, 0)) -> None:
    """Moves the journal's files to ``lost``, but for the new ones, first to last number."""
    directory = os.path.join(data, JOURNAL_NAME)
    for name in disk.names(directory) if disk.exists(directory) else []:
        number = file_number(name)
        if number is None or not fresh[0] <= number <= fresh[1]:
            lost.take(os.path.join(directory, name))


def swap_journal(disk: Disk, data: str, lost: Lost, fresh: Sequence[int]) -> None:
    """Moves the old files to ``lost`` and the new ones, first to last number, to their place. May be done again."""
    directory, staging = os.path.join(data, JOURNAL_NAME), os.path.join(data, STAGING_NAME)
    disk.make_directory(directory)
    take_journal(disk, data, lost, fresh)
    if not disk.exists(staging):
        return
    for number in numbers_in(disk, staging):
        disk.rename(os.path.join(staging, file_name(number)), os.path.join(directory, file_name(number)))
    disk.sync_directory(directory)
    disk.sync_directory(staging)
    for name in disk.names(staging):
        disk.remove(os.path.join(staging, name))
    disk.remove_directory(staging)
    disk.sync_directory(data)
