"""``tailrace verify``: reads all of a data directory, and compares its parts. It changes nothing.

    NODE, UPTIME, CLEAN, HELD  their checksums; the last two against the ends of the journal and of the partitions
    MEMBERSHIP, CLUSTER        their checksums and their members, if the node is a member of a set, or uses etcd
    feeds/                     FEED, MANIFEST and segments, and their agreement (findings.py)
    journal/                   each record, the cases of a start's recovery, and the effect of each block on a start

Memory: 9 bytes for each row of the largest segment, and an entry for each block of the journal.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from tailrace.errors import BadBlock
from tailrace_server.coordination import static_store
from tailrace_server.coordination.coordinator import StoreDamaged
from tailrace_server.directory import restored_marks as marks
from tailrace_server.directory import uptime_file
from tailrace_server.directory.identity import FILE_NAME, BadDirectory, Incomplete, load
from tailrace_server.directory.lost import LOST_NAME
from tailrace_server.directory.watcher import Unwatched, Watcher
from tailrace_server.feeds.feed import SYSTEM_FEED_ID, SYSTEM_FEED_NAME
from tailrace_server.feeds.wholeness import LIST_GONE, LIST_NAME, check_journal
from tailrace_server.host.disk import read_file
from tailrace_server.journal.clean import CLEAN_NAME, CleanMark, decode_mark
from tailrace_server.journal.file_case import STOPS, FileCase
from tailrace_server.journal.held import HELD_NAME, HeldMark, decode_held
from tailrace_server.journal.lock import LOCK_NAME
from tailrace_server.journal.reader import RawRecord
from tailrace_server.journal.reserve import RESERVE_NAME
from tailrace_server.manifest.store import AHEAD_NAME, DROPPED_NAME, FEED_NAME, FEEDS_NAME, MANIFEST_NAME
from tailrace_server.offline.data_directory import JOURNAL_NAME, is_directory, locked, size_of
from tailrace_server.offline.dry_replay import (
    BadControl,
    DryReplay,
    Fate,
    PartitionStart,
    Place,
    RollbackNote,
    rollback_note_of,
)
from tailrace_server.offline.findings import (
    FeedFindings,
    PartitionFindings,
    SegmentFindings,
    bytes_of_feeds,
    examine_feeds,
)
from tailrace_server.offline.format_versions import files_with_format, format_of, newer_files, version_of
from tailrace_server.offline.journal_walk import JournalFile, bytes_of_journal, end_of, journal_files
from tailrace_server.offline.listed_feeds import ListedFeeds
from tailrace_server.offline.report import FileResult, Report
from tailrace_server.replication import membership

if TYPE_CHECKING:
    from tailrace_server.host.disk import Disk

_MARKS = (marks.RESTORED_NAME, marks.RESTORING_NAME, marks.REPAIRING_NAME, marks.BACKUP_NAME, marks.OF_SET_NAME)
_KNOWN = (
    *(FILE_NAME, CLEAN_NAME, HELD_NAME, LOCK_NAME, RESERVE_NAME, uptime_file.FILE_NAME),
    *(JOURNAL_NAME, FEEDS_NAME, LOST_NAME, membership.FILE_NAME, static_store.FILE_NAME),
)

_STOPS = "a node does not start on it; repair keeps the rows of each partition before the gap"
_NOT_SERVED = "a node does not start on it; repair makes a new one from the segments"
_FEED_LOST = "a node does not know the feed; repair makes it anew from the journal, or under another name"
_JOURNAL_LOST = "a node does not start on it; repair keeps the rows of the segments"
_LISTED_LOST = "a node does not start on it; after a repair it is empty"
_HELD_LOST = "a node does not start: rows were lost, or an older copy restored; repair lists them, and keeps the others"
_PROMISES_LOST = "a member does not start on it; with an empty directory it is filled again by the others"
_NOT_STARTED = "a node does not start on it; without it the node has to reach etcd"
_SWEPT = "left by an interrupted operation; the next start removes it"
_IGNORED = "a node ignores it"
_NOT_ACKNOWLEDGED = "a follower applies them when those have come, or drops them; no other node counts on them"
_CLEAN_DIFFERS = "the last rows are lost, or the mark is of another state of the directory"
_NEWER = "not damage: use the release that wrote it, or a later one; no other check was made"
_PROBLEMS_MAX = 1_000


def verify(disk: Disk, directory: str, watcher: Watcher | None = None) -> Report:
    """Returns the findings of a stopped node's directory. Raises BadDirectory, DirectoryInUse, OSError."""
    with locked(disk, directory):
        return Verification(disk, directory, Unwatched() if watcher is None else watcher).run()


class Verification:
    """One pass over a locked directory."""

    def __init__(self, disk: Disk, directory: str, watcher: Watcher) -> None:
        self._disk = disk
        self._directory = directory
        self._watcher = watcher
        self._report = Report()
        self._clean: CleanMark | None = None
        self._held: HeldMark | None = None
        self._feeds: list[FeedFindings] = []
        self._listed = ListedFeeds()

    def run(self) -> Report:
        """Returns the report."""
        if self._tell_newer():
            return self._report
        self._check_all()
        for file in self._report.files:
            file.version = version_of(self._disk, self._directory, file.path)
        return self._report

    def _tell_newer(self) -> bool:
        """Lists the files with their versions if any is newer than this program, which then cannot judge the others."""
        newer = {os.path.relpath(each.path, self._directory): each for each in newer_files(self._disk, self._directory)}
        for path in files_with_format(self._disk, self._directory) if newer else ():
            format = format_of(path)
            assert format is not None
            result = self._file(os.path.join(self._directory, path), format.name)
            result.version = version_of(self._disk, self._directory, path)
            if path in newer:
                result.problem(newer[path], _NEWER)
        return bool(newer)

    def _check_all(self) -> None:
        files = journal_files(self._disk, os.path.join(self._directory, JOURNAL_NAME))
        directory = self._directory
        self._watcher.expect(bytes_of_feeds(self._disk, directory) + bytes_of_journal(self._disk, directory))
        self._check_small_files()
        self._check_there_is_a_journal()
        self._feeds = list(examine_feeds(self._disk, self._directory, self._watcher))
        self._listed.read_segments(self._disk, self._feeds)
        replay = DryReplay(*known_of(self._feeds), rollback_notes_in(files))
        self._check_journal(files, replay)
        self._check_feeds(replay)
        self._check_listed(replay, files)
        self._check_clean(files, replay)
        self._check_held(files, replay)
        self._report.name_feeds(lambda feed_id: self._name_of(feed_id, replay))

    def _name_of(self, feed_id: bytes, replay: DryReplay) -> str | None:
        """Returns the name of a feed from its FEED, the journal or ``_feeds``; None if it is in none of them."""
        if feed_id == SYSTEM_FEED_ID:
            return SYSTEM_FEED_NAME
        told = (feed.feed.info.name for feed in self._feeds if feed.feed is not None and feed.feed_id == feed_id)
        creation = replay.creations.get(feed_id)
        return next(told, self._listed.name_of(feed_id) if creation is None else creation.info.name)

    def _file(self, path: str, kind: str) -> FileResult:
        return self._report.file(os.path.relpath(path, self._directory), kind, size_of(self._disk, path))

    # Small files

    def _check_small_files(self) -> None:
        self._check_one(FILE_NAME, "node", lambda _: load(self._disk, self._directory), "repair gives it new ids", True)
        self._check_one(
            uptime_file.FILE_NAME, "uptime", _check_uptime, "ages count from the next start; nothing is lost"
        )
        self._check_one(CLEAN_NAME, "mark", self._check_mark, "the next start begins new branches; nothing is lost")
        self._check_one(HELD_NAME, "mark", self._check_held_mark, "a node starts without it, and writes it again")
        self._check_one(membership.FILE_NAME, "membership", membership.check_content, _PROMISES_LOST)
        path = os.path.join(self._directory, static_store.FILE_NAME)
        self._check_one(
            static_store.FILE_NAME, "cluster", lambda _: static_store.check_store(self._disk, path), _NOT_STARTED
        )
        for name in self._disk.names(self._directory):
            path = os.path.join(self._directory, name)
            if name in (LOCK_NAME, RESERVE_NAME):
                self._file(path, "lock" if name == LOCK_NAME else "reserve")  # its content does not count
            elif name in _MARKS:
                self._file(path, "mark").note("the mark is set", _meaning_of_mark(name))
            elif name not in _KNOWN and not is_directory(self._disk, path):
                self._file(path, "other").note("unknown file", _SWEPT if name.endswith(".new") else _IGNORED)

    def _check_one(
        self, name: str, kind: str, check: Callable[[bytes], object], means: str, is_needed: bool = False
    ) -> None:
        path = os.path.join(self._directory, name)
        if not self._disk.exists(path):
            if is_needed:
                self._report.file(name, kind).problem("it is missing", means)
            return
        result = self._file(path, kind)
        try:
            check(read_file(self._disk, path))
        except (BadDirectory, StoreDamaged, ValueError, KeyError, TypeError) as error:
            result.problem(error, means)
        except OSError as error:
            result.problem(f"the disk cannot read it: {error.strerror}", means)

    def _check_there_is_a_journal(self) -> None:
        if marks.is_restored(self._disk, self._directory):
            return
        try:
            check_journal(self._disk, self._directory)
        except Incomplete as error:
            self._report.file(JOURNAL_NAME, "journal").problem(error, _JOURNAL_LOST)

    def _check_mark(self, data: bytes) -> None:
        self._clean = decode_mark(data)

    def _check_held_mark(self, data: bytes) -> None:
        self._held = decode_held(data)

    # Journal

    def _check_journal(self, files: list[JournalFile], replay: DryReplay) -> None:
        gaps: dict[Place, int] = {}
        unknown: dict[bytes, tuple[FileResult, int, str]] = {}
        for file in files:
            result = self._file(file.path, "journal")
            self._watcher.begin(file.path)
            offset = 0
            for item in file.items():
                self._watcher.read(end_of(item) - offset)
                offset = end_of(item)
                if isinstance(item, RawRecord):
                    self._check_record(result, item, replay, gaps, unknown)
            _tell_case(file, result)
        for name in self._disk.names(os.path.join(self._directory, JOURNAL_NAME)) if files else []:
            if all(name != os.path.basename(file.path) for file in files):
                self._file(os.path.join(self._directory, JOURNAL_NAME, name), "other").note("unknown file", _SWEPT)
        for feed_id, (result, offset, what) in unknown.items():
            if feed_id not in replay.dropped:
                result.problem(what, "the feed's FEED, or the record of its creation, is lost", offset)

    def _check_record(
        self,
        result: FileResult,
        record: RawRecord,
        replay: DryReplay,
        gaps: dict[Place, int],
        unknown: dict[bytes, tuple[FileResult, int, str]],
    ) -> None:
        header = record.header
        place = header.feed_id, header.partition
        try:
            fate = replay.replay(record)
            if fate is not Fate.DROPPED:
                for block in record.blocks:
                    block.open_columns()
                self._listed.add(header.feed_id, record.blocks)
        except (BadControl, BadBlock) as error:
            result.problem(error, _STOPS, header.offset)
            return
        if fate is Fate.UNKNOWN:
            what = f"blocks of partition {header.partition} of feed {header.feed_id.hex()}, which is unknown"
            unknown.setdefault(header.feed_id, (result, header.offset, what))
        elif fate is Fate.GAP and place not in gaps:
            gaps[place] = first_seq = record.blocks[0].header.first_seq
            missing = f"({replay.end_seq(place)}, {first_seq - 1}]"
            result.problem(f"seqs {missing} of {_name(place)} are missing before this block", _STOPS, header.offset)

    # Feeds

    def _check_feeds(self, replay: DryReplay) -> None:
        names: dict[str, str] = {}
        for feed in self._feeds:
            path = os.path.join(feed.directory, FEED_NAME)
            if feed.is_dropped:
                self._file(os.path.join(feed.directory, DROPPED_NAME), "feed").note("the feed was dropped", _SWEPT)
                continue
            is_told = feed.feed_id in replay.creations and not feed.why
            if feed.feed_id != SYSTEM_FEED_ID and (feed.feed is not None or not is_told):
                self._tell_feed(feed, self._file(path, "feed"), names)
            for name in feed.rest:
                self._file(os.path.join(feed.directory, name), "other").note("unknown file", _IGNORED)
            for partition in feed.partitions:
                # Until a feed has its FEED, the journal has all of its records, and other files do not count.
                self._tell_partition(partition, is_ignored=feed.feed is None and is_told)

    def _check_listed(self, replay: DryReplay, files: list[JournalFile]) -> None:
        if marks.is_restored(self._disk, self._directory):  # the next start makes it, on another branch
            return
        is_told = any(p.has_lost_its_manifest for f in self._feeds if f.feed_id == SYSTEM_FEED_ID for p in f.partitions)
        if files and files[0].number > 1 and not is_told and not replay.log_of((SYSTEM_FEED_ID, 0)):
            self._report.file(os.path.join(FEEDS_NAME, LIST_NAME), "manifest").problem(LIST_GONE, _LISTED_LOST)
        known = {feed.feed_id for feed in self._feeds} | replay.creations.keys() | replay.dropped
        for missing in self._listed.missing(known):
            path = os.path.join(FEEDS_NAME, missing.feed_id.hex(), FEED_NAME)
            self._report.file(path, "feed").problem(missing.why, _LISTED_LOST)

    def _tell_feed(self, feed: FeedFindings, result: FileResult, names: dict[str, str]) -> None:
        if feed.feed is None:
            if feed.why or feed.holds_data:
                result.problem(feed.why or "it is missing", f"feed {feed.feed_id.hex()}: {_FEED_LOST}")
            else:
                result.note("it is missing, and the directory is empty", _SWEPT)
            return
        name = feed.feed.info.name
        if name in names:
            result.problem(f"feed {names[name]} also has the name {name!r}", "a node serves only one of the two")
        names[name] = feed.feed_id.hex()

    def _tell_partition(self, found: PartitionFindings, *, is_ignored: bool) -> None:
        name = f"partition {found.number} of feed {found.feed_id.hex()}"
        path = os.path.join(found.directory, MANIFEST_NAME)
        if found.manifest is not None or found.has_lost_its_manifest:
            result = self._file(path, "manifest")
            if found.has_lost_its_manifest and not is_ignored:
                result.problem(found.why or "it is missing, but there are segments", f"{name}: {_NOT_SERVED}")
        for segment in found.segments:
            self._tell_segment(segment, name, is_ignored=is_ignored)
        for segment in found.others:
            result = self._file(segment.path, "segment")
            if found.manifest is not None or is_ignored:
                result.note("no manifest names it", _SWEPT)
            for problem in segment.problems if found.manifest is None and not is_ignored else []:
                result.problem(problem.why, f"{name}: it cannot be used for a new manifest", problem.offset)
        for other in found.rest:
            result = self._file(os.path.join(found.directory, other), "other")
            if other == AHEAD_NAME:
                result.note("rows that came ahead of others below them", _NOT_ACKNOWLEDGED)
            else:
                result.note("unknown file", _SWEPT if other.endswith(".new") else _IGNORED)

    def _tell_segment(self, segment: SegmentFindings, name: str, *, is_ignored: bool) -> None:
        entry = segment.entry
        assert entry is not None
        result = self._file(segment.path, "segment")
        if is_ignored:
            return
        rows = (
            f"{name}: rows of the seqs ({entry.after_seq}, {entry.last_seq}] cannot be served; repair saves the others"
        )
        if segment.is_missing:
            result.problem("it is missing", rows)
        for problem in segment.problems:
            result.problem(problem.why, rows, problem.offset)

    # The marks of the last run

    def _check_held(self, files: list[JournalFile], replay: DryReplay) -> None:
        if self._held is None or marks.is_restored(self._disk, self._directory):
            return
        result = next(file for file in self._report.files if file.path == HELD_NAME)
        found = (files[-1].number, files[-1].facts.end) if files else (0, 0)
        if found < self._held.journal:
            result.problem(
                f"the journal was durable up to {_show_end(self._held.journal)}, but ends at {_show_end(found)}",
                _HELD_LOST,
            )
        branches = {feed.feed_id: feed.feed.branch for feed in self._feeds if feed.feed is not None}
        for short in replay.shortfalls(self._held, branches)[:_PROBLEMS_MAX]:
            name = _name((short.feed_id, short.partition))
            result.problem(f"{name} was durable up to seq {short.told_seq}, but ends at {short.seq}", _HELD_LOST)

    def _check_clean(self, files: list[JournalFile], replay: DryReplay) -> None:
        if self._clean is None:
            return
        result = next(file for file in self._report.files if file.path == CLEAN_NAME)
        found = (files[-1].number, files[-1].facts.end) if files else (0, 0)
        if found != self._clean.journal_end:
            result.problem(
                f"the journal ended at {_show_end(self._clean.journal_end)}, but ends at {_show_end(found)} now",
                _CLEAN_DIFFERS,
            )
        held = replay.end_seqs()
        for partition in self._clean.partitions:
            seq = held.get((partition.feed_id, partition.partition), 0)
            if seq != partition.high_seq and len(result.findings) < _PROBLEMS_MAX:
                place = partition.feed_id, partition.partition
                result.problem(
                    f"{_name(place)} ended at seq {partition.high_seq}, but ends at {seq} now",
                    _CLEAN_DIFFERS,
                )


def known_of(feeds: list[FeedFindings]) -> tuple[dict[bytes, int], dict[Place, PartitionStart]]:
    """Returns the arguments of ``DryReplay``: the partitions of each feed, and the state of those with a manifest."""
    known = [feed for feed in feeds if feed.feed is not None]
    starts = {
        (feed.feed_id, found.number): PartitionStart(
            found.manifest.flushed_seq, found.manifest.log, rollbacks=found.manifest.rollbacks
        )
        for feed in known
        for found in feed.partitions
        if found.manifest is not None
    }
    return {feed.feed_id: feed.feed.info.partitions for feed in known if feed.feed is not None}, starts


def rollback_notes_in(files: list[JournalFile]) -> dict[Place, list[RollbackNote]]:
    """Returns all rollbacks in the journal. They are read first, because they void earlier records."""
    undone: dict[Place, list[RollbackNote]] = {}
    for file in files:
        for item in file.items():
            found = rollback_note_of(item) if isinstance(item, RawRecord) else None
            if found is not None and isinstance(item, RawRecord):
                undone.setdefault((item.header.feed_id, item.header.partition), []).append(found)
    return undone


def _tell_case(file: JournalFile, result: FileResult) -> None:
    facts = file.facts
    case = file.case
    for offset in sorted(file.unread):
        result.problem("the disk cannot read it", _STOPS, offset)
    if case in STOPS:
        why = "the file is missing" if case is FileCase.MISSING else facts.bad or "the file ends here"
        result.problem(f"{why} (case {case.value})", _STOPS, facts.end)
    elif case is FileCase.TORN:
        result.note(
            f"{facts.tail_bytes} bytes that are no record: {facts.bad}",
            "an interrupted write; no record shows that it was durable, and the next start cuts it",
            facts.end,
        )
    elif case is FileCase.LEFTOVER:
        result.note("bytes after the file's end", "the next file has them again; they do not count", facts.end)


def _check_uptime(data: bytes) -> None:
    uptime_file.decode(data, 0)


def _meaning_of_mark(name: str) -> str:
    return {
        marks.RESTORED_NAME: "the next start begins a new branch of every partition, as after a restore",
        marks.RESTORING_NAME: "a restore was not finished; a node does not start on it",
        marks.REPAIRING_NAME: "a repair was not finished: run it again; a node does not start on it",
        marks.BACKUP_NAME: "it is a backup; a node does not start on it",
        marks.OF_SET_NAME: "it is from a set's member; restored, a node starts on it only with --restored",
    }[name]


def _show_end(end: tuple[int, int]) -> str:
    return f"file {end[0]}, offset {end[1]}"


def _name(place: Place) -> str:
    return f"partition {place[1]} of feed {place[0].hex()}"
