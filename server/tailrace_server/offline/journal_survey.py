"""The first pass of a repair over the journal: finds its feeds, terms, rollbacks and damage."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tailrace.block import Block
from tailrace.block.header import SEQ_MAX
from tailrace.errors import TailraceError
from tailrace.model.failover import FailoverLog
from tailrace_server.feeds.feed import SYSTEM_FEED_ID
from tailrace_server.journal import RecordKind
from tailrace_server.journal.clean import CleanMark
from tailrace_server.journal.file_case import STOPS, FileCase
from tailrace_server.journal.format import lsn
from tailrace_server.journal.reader import RawRecord
from tailrace_server.offline.data_directory import JOURNAL_NAME
from tailrace_server.offline.dry_replay import (
    BadControl,
    Creation,
    DryReplay,
    Fate,
    Place,
    RollbackNote,
    rollback_note_of,
)
from tailrace_server.offline.journal_walk import (
    Bad,
    Item,
    JournalFile,
    end_of,
    journal_files,
)
from tailrace_server.offline.listed_feeds import ListedFeeds
from tailrace_server.offline.partition_repair import JournalState
from tailrace_server.offline.salvage import cut_rows

if TYPE_CHECKING:
    from tailrace_server.host.disk import Disk


class NewerJournal(TailraceError):
    """A newer version of Tailrace has written the journal."""


class JournalSurvey:
    """The results of one pass over the journal, without knowledge of the partitions.

    ``creations`` and ``dropped`` are feeds, and ``listed`` the feeds with rows in ``_feeds``. ``terms`` has the highest
    term of each partition, and ``undone`` its rollbacks. ``damaged``: a start would stop at the journal. ``oldest`` is
    the number of the oldest file, 0 without files; ``newest`` is that of the newest file, and its end.
    """

    def __init__(self, disk: Disk, data: str) -> None:
        self._disk = disk
        self._directory = os.path.join(data, JOURNAL_NAME)
        self.creations: dict[bytes, Creation] = {}
        self.dropped: set[bytes] = set()
        self.terms: dict[Place, int] = {}
        self._logs: dict[Place, FailoverLog] = {}
        self.undone: dict[Place, list[RollbackNote]] = {}
        self.damaged = False
        self.oldest = 0
        self.newest = (0, 0)
        self.listed = ListedFeeds()
        self._torn: dict[int, int] = {}  # by file number, the offset at which a torn file ends
        self._blocks: dict[Place, list[tuple[int, int, str, int]]] = {}

    def run(self, wanted: Callable[[Place], bool], on_bytes: Callable[[int], None]) -> None:
        """Reads the whole journal. Notes the places of blocks of ``wanted`` partitions, for ``journal_blocks``."""
        replay = DryReplay({}, {})
        for file in journal_files(self._disk, self._directory):
            offset = 0
            for item in file.items():
                on_bytes(end_of(item) - offset)
                offset = end_of(item)
                if isinstance(item, RawRecord):
                    self._note(replay, item, file.path, wanted)
                elif item.newer:
                    raise NewerJournal(
                        f"{file.path} at offset {item.offset}: {item.why}. Repair it with the version that wrote it"
                    )
            if file.case in (FileCase.TORN, FileCase.ALLOCATED):
                self._torn[file.number] = file.facts.end
            self.damaged |= file.case in STOPS
            self.oldest = self.oldest or file.number
            self.newest = file.number, file.facts.end
        self.creations, self.dropped = replay.creations, replay.dropped

    def _note(self, replay: DryReplay, record: RawRecord, path: str, wanted: Callable[[Place], bool]) -> None:
        header = record.header
        place = header.feed_id, header.partition
        if record.blocks:
            self.listed.add(header.feed_id, record.blocks)
            if wanted(place):
                ends = record.blocks[0].header.first_seq, record.blocks[-1].header.last_seq
                self._blocks.setdefault(place, []).append((*ends, path, header.offset))
            return
        try:
            replay.replay(record)
        except BadControl:
            self.damaged = True
            return
        undone = rollback_note_of(record)
        if undone is not None:
            self.undone.setdefault(place, []).append(undone)
        if header.kind in (RecordKind.FAILOVER_ENTRY, RecordKind.ROLLED_BACK):
            self._logs[place] = replay.log_of(place)
            self.terms[place] = max(self.terms.get(place, 0), self._logs[place].term)

    def journal_blocks(self, place: Place, first_seq: int, last_seq: int) -> Iterator[Block]:
        """Yields the blocks of a wanted partition that have any of these seqs, both included, in seq order.

        Without rows that a later rollback has voided: other rows have these seqs since.
        """
        there = [one for one in self._blocks.get(place, []) if one[0] <= last_seq and one[1] >= first_seq]
        paths = {path for _, _, path, _ in there}
        blocks = {}
        for file in journal_files(self._disk, self._directory):
            if file.path in paths:
                offsets = {offset for _, _, path, offset in there if path == file.path}
                for item in file.items():
                    if isinstance(item, RawRecord) and item.header.offset in offsets:
                        kept = self._kept_through(place, item)
                        parts = [cut_rows(block, 0, kept) for block in item.blocks]
                        blocks.update({part.header.first_seq: part for part in parts if part is not None})
        for first in sorted(blocks):
            yield blocks[first]

    def _kept_through(self, place: Place, record: RawRecord) -> int:
        """Returns the seq up to which no later rollback has voided the rows of ``record``."""
        end = lsn(record.header.file_number, record.header.end)
        return min((one.seq for one in self.undone.get(place, ()) if one.lsn > end), default=SEQ_MAX)

    def state_of(self, place: Place) -> JournalState:
        """Returns the state of a partition by the journal. Call it after ``run``."""
        rollbacks = max((one.rollbacks for one in self.undone.get(place, ())), default=0)
        return JournalState(self.terms.get(place, 0), self._logs.get(place, FailoverLog()), rollbacks)

    def items(self) -> Iterator[tuple[JournalFile, Item]]:
        """Yields all items of all files, without bytes after a torn end."""
        for file in journal_files(self._disk, self._directory):
            torn = self._torn.get(file.number)
            if file.is_missing:
                yield file, Bad(0, 0, "the file is missing")
            for item in file.items():
                if torn is not None and end_of(item) > torn:
                    break
                yield file, item

    def replayed(self, replay: DryReplay) -> DryReplay | None:
        """Returns ``replay`` after the whole journal, or None if the journal has to be written anew.

        That is so if it would stop a start, or has records of branches that a repair has replaced. The branch of _feeds
        is in the journal's first file alone: if that is missing, the rest looks as after a trim.
        """
        if self.damaged:
            return None
        for record in (item for _, item in self.items() if isinstance(item, RawRecord)):
            if replay.is_superseded(record) or _is_of_old_name(replay, record):
                return None
            if record.header.feed_id == SYSTEM_FEED_ID and replay.branch_is_missing(record):
                return None
            if replay.replay(record) in (Fate.GAP, Fate.UNKNOWN) and record.header.feed_id not in self.dropped:
                return None
        return replay


def _is_of_old_name(replay: DryReplay, record: RawRecord) -> bool:
    place = record.header.feed_id, record.header.partition
    if not record.blocks or not replay.is_renamed(place):
        return False
    last_seq = record.blocks[-1].header.last_seq
    return last_seq > replay.end_seq(place) and record.header.branch != replay.log_of(place).branch


def is_short_of(replay: DryReplay, clean: CleanMark) -> bool:
    """Returns whether a partition ends elsewhere than at the last clean stop. ``replay`` has all of the journal."""
    held = replay.end_seqs()
    return any(held.get((p.feed_id, p.partition), 0) != p.high_seq for p in clean.partitions)
