"""A journal written anew: of each partition what goes on from its segments without a gap; the rest is exported.

    journal/      00000003.log (damaged)  00000004.log          moved to lost/
    journal.new/  00000005.log                                  written, fsynced, then moved to journal/

Records keep their order. What segments have is left out; what lies behind a gap goes to lost/. The new files are whole
and durable before the first old one is moved, and REPAIRING says so: a repair that goes on only finishes the move.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from tailrace.block import HEADER_BYTES, Block, BlockHeader
from tailrace.errors import BadBlock
from tailrace_server.journal import Journal, RecordKind
from tailrace_server.journal.clean import CleanMark
from tailrace_server.journal.format import FILE_HEADER_BYTES, FileHeader, file_name, file_number
from tailrace_server.journal.reader import RawRecord
from tailrace_server.journal.recovery import STOPS, FileCase
from tailrace_server.journal.writer import FILE_BYTES_DEFAULT, create_file, file_key, publish_file
from tailrace_server.offline.journal_walk import Bad, Item, JournalFile, journal_files
from tailrace_server.offline.lost import Lost
from tailrace_server.offline.salvage import proven_keys
from tailrace_server.offline.sieve import BadControl, Creation, Fate, Place, Sieve

if TYPE_CHECKING:
    from tailrace_server.host.disk import Disk
    from tailrace_server.host.randomness import Randomness

STAGING_NAME = "journal.new"
JOURNAL_NAME = "journal"


class JournalSurvey:
    """What one pass over the journal tells, before anything is known of the partitions.

    ``creations`` and ``dropped`` are feeds; ``terms`` the highest term of each partition; ``ends`` up to where each
    file counts; ``damaged`` whether a start would stop at it.
    """

    def __init__(self, disk: Disk, data: str) -> None:
        self._disk = disk
        self._directory = os.path.join(data, JOURNAL_NAME)
        self.creations: dict[bytes, Creation] = {}
        self.dropped: set[bytes] = set()
        self.terms: dict[Place, int] = {}
        self.ends: dict[int, int] = {}
        self.damaged = False
        self.newest = (0, 0)
        self._blocks: dict[Place, list[tuple[int, int, str, int]]] = {}

    def run(self, wanted: Callable[[Place], bool], on_bytes: Callable[[int], None]) -> None:
        """Reads all of it. Where the blocks of the ``wanted`` partitions lie is remembered, for ``spare``."""
        sieve = Sieve({}, {})
        for file in journal_files(self._disk, self._directory):
            offset = 0
            for item in file.items():
                end = item.end if isinstance(item, Bad) else item.header.end
                on_bytes(end - offset)
                offset = end
                if isinstance(item, RawRecord):
                    self._note(sieve, item, file.path, wanted)
                elif item.newer:
                    raise NewerJournal(
                        f"{file.path} at offset {item.offset}: {item.why}; repair it with the Tailrace that wrote it"
                    )
            self.ends[file.number] = file.facts.end if file.case in (FileCase.TORN, FileCase.ALLOCATED) else 1 << 62
            self.damaged |= file.case in STOPS
            self.newest = file.number, file.facts.end
        self.creations, self.dropped = sieve.creations, sieve.dropped

    def _note(self, sieve: Sieve, record: RawRecord, path: str, wanted: Callable[[Place], bool]) -> None:
        header = record.header
        place = header.feed_id, header.partition
        if record.block is not None:
            if wanted(place):
                block = record.block.header
                self._blocks.setdefault(place, []).append((block.first_seq, block.last_seq, path, header.offset))
            return
        try:
            sieve.sift(record)
        except BadControl:
            self.damaged = True
            return
        if header.kind == RecordKind.FAILOVER_ENTRY:
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
                    if isinstance(item, RawRecord) and item.header.offset in offsets and item.block is not None:
                        blocks[item.block.header.first_seq] = item.block
        for first in sorted(blocks):
            yield blocks[first]


class NewerJournal(BadControl):
    """The journal is of a Tailrace that knows more than this one."""


class Resift:
    """One pass over the journal with everything known of the partitions: what is kept, exported, lost."""

    def __init__(self, disk: Disk, data: str, survey: JournalSurvey, make_sieve: Callable[[], Sieve]) -> None:
        self._disk = disk
        self._data = data
        self._directory = os.path.join(data, JOURNAL_NAME)
        self._survey = survey
        self._make_sieve = make_sieve
        self.kept_rows = 0

    @property
    def is_needed(self) -> bool:
        """The journal as it is would stop a start, or tells of a history that was renamed."""
        if self._survey.damaged:
            return True
        sieve = self._make_sieve()
        for _, item in self._items():
            if isinstance(item, RawRecord):
                if sieve.is_superseded(item) or self._is_of_old_name(sieve, item):
                    return True
                if sieve.sift(item) in (Fate.GAP, Fate.UNKNOWN) and item.header.feed_id not in self._survey.dropped:
                    return True
        return False

    @staticmethod
    def _is_of_old_name(sieve: Sieve, record: RawRecord) -> bool:
        place = record.header.feed_id, record.header.partition
        if record.block is None or not sieve.is_renamed(place):
            return False
        return (
            record.block.header.last_seq > sieve.held_seq(place) and record.header.branch != sieve.log_of(place).branch
        )

    def _items(self) -> Iterator[tuple[JournalFile, Item]]:
        """All that counts: a torn end does not, whatever the disk wrote behind it."""
        for file in journal_files(self._disk, self._directory):
            end = self._survey.ends.get(file.number, 1 << 62)
            if file.is_missing:
                yield file, Bad(0, 0, "the file is missing")
            for item in file.items():
                if (item.offset if isinstance(item, Bad) else item.header.offset) >= end:
                    break
                yield file, item

    def run(self, journal: Journal | None, lost: Lost, clean: CleanMark | None) -> None:
        """Writes what is kept to ``journal`` (None: nowhere), and the rest to ``lost``."""
        sieve = self._make_sieve()
        seen: dict[Place, int] = {}  # up to here of each partition all is told, kept or not
        for file, item in self._items():
            if isinstance(item, Bad):
                self._tell_bad(file, item, sieve, seen, lost)
                continue
            self._sift(file, item, sieve, seen, journal, lost)
        if clean is not None:
            self._tell_end(sieve, seen, lost, clean)

    def tell_end(self, lost: Lost, clean: CleanMark) -> None:
        """Of a journal that is kept as it is: what the mark of the last clean stop says to be there, and is not."""
        self._tell_end(self._sifted(), {}, lost, clean)

    def is_short_of(self, clean: CleanMark) -> bool:
        """A partition ends elsewhere than the mark of the last clean stop says."""
        held = self._sifted().held()
        return any(held.get((p.feed_id, p.partition), 0) != p.high_seq for p in clean.partitions)

    def _sifted(self) -> Sieve:
        """A sieve through which the whole journal has gone."""
        sieve = self._make_sieve()
        for _, item in self._items():
            if isinstance(item, RawRecord):
                sieve.sift(item)
        return sieve

    def _tell_end(self, sieve: Sieve, seen: dict[Place, int], lost: Lost, clean: CleanMark) -> None:
        for partition in clean.partitions:
            place = partition.feed_id, partition.partition
            top = max(sieve.held_seq(place), seen.get(place, 0))
            if top < partition.high_seq and partition.feed_id not in self._survey.dropped:
                why = "the mark of the last clean stop says that they were there"
                lost.rows(*place, top + 1, partition.high_seq, source="", why=why)

    def _sift(
        self,
        file: JournalFile,
        record: RawRecord,
        sieve: Sieve,
        seen: dict[Place, int],
        journal: Journal | None,
        lost: Lost,
    ) -> None:
        header, block = record.header, record.block
        place = header.feed_id, header.partition
        if header.feed_id in self._survey.dropped:
            fate = Fate.CONTROL if block is None else Fate.DROPPED
        else:
            if self._survey.damaged and block is not None and sieve.branch_is_missing(record):
                log = sieve.add_branch(place, header.branch)
                if journal is not None:
                    payload = json.dumps(log.to_json()).encode()
                    journal.append(RecordKind.FAILOVER_ENTRY, *place, payload)
            superseded = sieve.is_superseded(record)
            try:
                fate = sieve.sift(record)
            except BadControl as error:
                lost.unknown(file.path, header.offset, header.end - header.offset, str(error))
                return
            if superseded:
                return
        if block is None:
            if journal is not None:
                journal.append(RecordKind(header.kind), *place, record.payload)
        elif fate is Fate.NEXT:
            self.kept_rows += block.rows
            if journal is not None:
                branch = sieve.log_of(place).branch if sieve.is_renamed(place) else header.branch
                journal.append_block(*place, branch, block, (header.snapshot_first, header.snapshot_last))
        elif fate in (Fate.GAP, Fate.UNKNOWN):
            self._export(file, record, block, fate, sieve, seen, lost)

    def _export(
        self,
        file: JournalFile,
        record: RawRecord,
        block: Block,
        fate: Fate,
        sieve: Sieve,
        seen: dict[Place, int],
        lost: Lost,
    ) -> None:
        place = record.header.feed_id, record.header.partition
        told = max(sieve.held_seq(place), seen.get(place, 0))
        if block.header.first_seq > told + 1:
            lost.rows(
                *place,
                told + 1,
                block.header.first_seq - 1,
                source=file.path,
                offset=record.header.offset,
                why="they are missing before this block of the journal",
            )
        why = "a gap is before it" if fate is Fate.GAP else "nothing is known of its feed"
        lost.export(*place, block, why)
        seen[place] = max(told, block.header.last_seq)

    def _tell_bad(self, file: JournalFile, bad: Bad, sieve: Sieve, seen: dict[Place, int], lost: Lost) -> None:
        header = None
        if bad.head is not None and bad.head.kind == RecordKind.BLOCK:
            header = block_header_in(bad.payload)
        if header is None or bad.head is None:
            lost.unknown(file.path, bad.offset, bad.end - bad.offset, bad.why)
            return
        place = bad.head.feed_id, bad.head.partition
        told = max(sieve.held_seq(place), seen.get(place, 0))
        if place[0] in self._survey.dropped or header.last_seq <= told:
            return
        if header.first_seq > told + 1:
            why = "they are missing before this block of the journal"
            lost.rows(*place, told + 1, header.first_seq - 1, source=file.path, offset=bad.offset, why=why)
        keys = proven_keys(bad.payload)
        lost.rows(
            *place,
            header.first_seq,
            header.last_seq,
            source=file.path,
            offset=bad.offset,
            rows=header.rows,
            keys=keys,
            why=bad.why,
        )
        seen[place] = header.last_seq


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
        file,
        header,
        FILE_HEADER_BYTES,
        older=(),
        file_bytes_max=FILE_BYTES_DEFAULT,
        token=randomness.token,
        clock=clock,
    )
    return journal, first


def numbers_in(disk: Disk, directory: str) -> list[int]:
    """The numbers of the journal files in a directory."""
    if not disk.exists(directory):
        return []
    return [number for name in disk.names(directory) if (number := file_number(name)) is not None]


def swap_journal(disk: Disk, data: str, lost: Lost, fresh: Sequence[int]) -> None:
    """Moves the old files to ``lost`` and the new ones, first to last number, to their place. May be done again."""
    first, last = fresh
    directory, staging = os.path.join(data, JOURNAL_NAME), os.path.join(data, STAGING_NAME)
    disk.make_directory(directory)
    for name in disk.names(directory):
        number = file_number(name)
        if number is None or not first <= number <= last:
            lost.take(os.path.join(directory, name))
    if not disk.exists(staging):
        return
    for number in sorted(numbers_in(disk, staging)):
        disk.rename(os.path.join(staging, file_name(number)), os.path.join(directory, file_name(number)))
    disk.sync_directory(directory)
    disk.sync_directory(staging)
    for name in disk.names(staging):
        disk.remove(os.path.join(staging, name))
    disk.remove_directory(staging)
    disk.sync_directory(data)
