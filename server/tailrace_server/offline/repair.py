"""``tailrace repair``: makes a damaged directory consistent, and lists all that is lost.

    read        every segment, and every record of the journal, without changes; a good directory needs no more
    REPAIRING   no node starts any more, and another repair continues in the same lost/<time>/
    RESTORED    the next start begins new branches with far higher terms, because terms may be lost
    small files, feeds, partitions (partition_repair.py), journal (journal_rewrite.py)
    CLEAN, HELD go to lost/; then REPAIRING is removed

If a repair is interrupted, the next one continues: a finished step is good for it, and an unfinished step is repeated.
Nothing is deleted: replaced files are in lost/<time>/ afterwards.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from tailrace.model import FeedInfo
from tailrace.model.hashing import partition_range
from tailrace_server.directory import restored_marks as marks
from tailrace_server.directory import uptime_file
from tailrace_server.directory.identity import FILE_NAME, BadDirectory, load, new_identity, store
from tailrace_server.directory.lost import Lost
from tailrace_server.directory.watcher import Unwatched, Watcher
from tailrace_server.feeds.feed import SYSTEM_FEED_ID, SYSTEM_FEED_NAME
from tailrace_server.feeds.wholeness import LIST_GONE, LIST_NAME
from tailrace_server.host.clock import Clock
from tailrace_server.host.disk import read_file
from tailrace_server.journal import Journal
from tailrace_server.journal.clean import CLEAN_NAME, CleanMark, decode_mark
from tailrace_server.journal.held import HELD_NAME, HeldMark, decode_held
from tailrace_server.manifest import FeedFile, ManifestStore
from tailrace_server.manifest.store import FEED_NAME, FEEDS_NAME
from tailrace_server.offline.data_directory import JOURNAL_NAME, files_below, locked
from tailrace_server.offline.dry_replay import DryReplay, PartitionStart, Place
from tailrace_server.offline.findings import FeedFindings, PartitionFindings, bytes_of_feeds, examine_feeds
from tailrace_server.offline.format_versions import check_versions
from tailrace_server.offline.journal_rewrite import JournalRewrite
from tailrace_server.offline.journal_survey import JournalSurvey, is_short_of
from tailrace_server.offline.journal_swap import begin_journal, swap_journal, take_journal
from tailrace_server.offline.journal_walk import bytes_of_journal
from tailrace_server.offline.listed_feeds import MissingFeed
from tailrace_server.offline.partition_repair import PartitionRepair
from tailrace_server.offline.repairing_mark import RepairingMark

if TYPE_CHECKING:
    from tailrace_server.host.disk import Disk
    from tailrace_server.host.randomness import Randomness


class RepairOutcome(NamedTuple):
    """The actions of a repair, or of a dry run; empty if nothing was damaged. ``lost`` lists the losses."""

    actions: list[str]
    lost: Lost
    is_dry: bool


def repair(
    disk: Disk,
    directory: str,
    randomness: Randomness,
    clock: Clock,
    time: str,
    *,
    is_dry: bool = False,
    watcher: Watcher | None = None,
) -> RepairOutcome:
    """Repairs the directory of a stopped node; with ``is_dry`` it only lists its actions.

    ``time``, such as 20260131-154500, names the directory below lost/. Raises BadDirectory, DirectoryInUse, NoSpace,
    OSError; a further call continues.
    """
    with locked(disk, directory):
        check_versions(disk, directory)
        marks.check_usable(disk, directory, but=marks.REPAIRING_NAME)
        earlier = RepairingMark.load(disk, directory)
        mark = earlier or RepairingMark(time, randomness.token(16), None)
        lost = Lost(disk, directory, mark.time, is_dry=is_dry)
        with contextlib.closing(lost):
            this = _Repair(disk, directory, randomness, clock, mark, lost, watcher or Unwatched(), is_dry=is_dry)
            this.run(goes_on=earlier is not None)
    return RepairOutcome(this.actions, lost, is_dry)


class _Repair:
    """One run of a repair."""

    def __init__(
        self,
        disk: Disk,
        data: str,
        randomness: Randomness,
        clock: Clock,
        mark: RepairingMark,
        lost: Lost,
        watcher: Watcher,
        *,
        is_dry: bool,
    ) -> None:
        self._disk = disk
        self._data = data
        self._randomness = randomness
        self._clock = clock
        self._mark = mark
        self._lost = lost
        self._watcher = watcher
        self._is_dry = is_dry
        self._store = ManifestStore(disk, data)
        self._survey = JournalSurvey(disk, data)
        self._known: dict[bytes, int] = {}
        self._branches: dict[bytes, bytes] = {}  # the first one of each known feed
        self._starts: dict[Place, PartitionStart] = {}
        self._held: HeldMark | None = None
        self._names: set[str] = set()
        self.actions: list[str] = []
        self._partition_repair = PartitionRepair(
            disk, data, lost, mark.token, self._survey.journal_blocks, self.actions, is_dry=is_dry
        )

    def run(self, *, goes_on: bool) -> None:
        """Reads the directory, plans the steps, and runs them."""
        if self._mark.journal is not None and not self._is_dry:
            swap_journal(self._disk, self._data, self._lost, self._mark.journal)
            self._put_mark(None)
        self._watcher.expect(bytes_of_feeds(self._disk, self._data) + bytes_of_journal(self._disk, self._data))
        feeds = list(examine_feeds(self._disk, self._data, self._watcher))
        bad = {(p.feed_id, p.number) for feed in feeds for p in feed.partitions if not p.is_good}
        self._watcher.begin(self._path(JOURNAL_NAME))
        self._survey.run(lambda place: place in bad, self._watcher.read)
        steps: list[Callable[[], None]] = []
        steps += self._small_files()
        self._plan_feeds(feeds, steps)
        self._plan_missing(feeds, steps)
        if goes_on:
            steps.insert(0, lambda: self._take_replaced(feeds))
        clean = self._clean(steps)
        if steps or goes_on or not self._has_good_journal(clean):
            self._begin()
            for step in steps:
                step()
            self._rewrite_journal(clean)
            self._end()

    def _path(self, *parts: str) -> str:
        return os.path.join(self._data, *parts)

    def _put_mark(self, journal: tuple[int, int] | None) -> None:
        self._mark = self._mark._replace(journal=journal)
        self._mark.store(self._disk, self._data)

    def _begin(self) -> None:
        if not self._is_dry:
            self._put_mark(None)
            marks.mark(self._disk, self._data, marks.RESTORED_NAME)

    def _end(self) -> None:
        for path in (self._path(CLEAN_NAME), self._path(HELD_NAME)):
            if self._disk.exists(path):
                self._lost.take(path)
        self._lost.sync()
        if not self._is_dry:
            marks.unmark(self._disk, self._data, marks.REPAIRING_NAME)

    # Small files

    def _small_files(self) -> list[Callable[[], None]]:
        steps: list[Callable[[], None]] = []
        try:
            load(self._disk, self._data)
        except (BadDirectory, OSError) as error:
            self.actions.append(f"{FILE_NAME}: new ids, of a new cluster ({error}); positions of consumers end")
            steps.append(self._make_identity)
        path = self._path(uptime_file.FILE_NAME)
        if self._disk.exists(path):
            try:
                uptime_file.decode(read_file(self._disk, path), 0)
            except (ValueError, OSError) as error:
                self.actions.append(f"{uptime_file.FILE_NAME}: removed ({error}); ages count from the next start on")
                steps.append(lambda: self._lost.take(path))
        path_of_held = self._path(HELD_NAME)
        if self._disk.exists(path_of_held):
            try:
                self._held = decode_held(read_file(self._disk, path_of_held))
            except (ValueError, OSError) as error:
                self.actions.append(f"{HELD_NAME}: removed ({error}); the next start writes it again")
                steps.append(lambda: None)  # each repair removes it at its end
        return steps

    def _make_identity(self) -> None:
        if self._disk.exists(self._path(FILE_NAME)):
            self._lost.take(self._path(FILE_NAME))
        if not self._is_dry:
            store(self._disk, self._data, new_identity(self._randomness))

    def _clean(self, steps: list[Callable[[], None]]) -> CleanMark | None:
        path = self._path(CLEAN_NAME)
        if not self._disk.exists(path):
            return None
        try:
            return decode_mark(read_file(self._disk, path))
        except (OSError, ValueError, KeyError, TypeError) as error:
            self.actions.append(f"{CLEAN_NAME}: removed ({error})")
            steps.append(lambda: None)  # each repair removes it at its end
            return None

    def _has_good_journal(self, clean: CleanMark | None) -> bool:
        """Returns whether a start can replay the whole journal, and ends at the marks of the last run."""
        replay = self._survey.replayed(self._replay())
        if replay is None:
            return False
        if clean is not None and (clean.journal_end != self._survey.newest or is_short_of(replay, clean)):
            self.actions.append(f"{CLEAN_NAME}: removed; rows that it has are missing")
            return False
        held = self._held
        if held is not None and (self._survey.newest < held.journal or replay.shortfalls(held, self._branches)):
            self.actions.append(f"{HELD_NAME}: removed; rows that it has are missing")
            return False
        return True

    # Feeds and partitions

    def _plan_feeds(self, feeds: list[FeedFindings], steps: list[Callable[[], None]]) -> None:
        self._lost.name_feed(SYSTEM_FEED_ID, SYSTEM_FEED_NAME)
        for feed_id, creation in self._survey.creations.items():
            self._lost.name_feed(feed_id, creation.info.name)
        for found in sorted(feeds, key=lambda feed: feed.feed is None):
            is_dropped = found.is_dropped or found.feed_id in self._survey.dropped
            # Until a feed has its FEED, the journal has all of its records; a damaged journal may have lost some.
            is_told = found.feed_id in self._survey.creations and not found.why and not self._survey.damaged
            if is_dropped or (found.feed is None and (is_told or not (found.why or found.holds_data))):
                continue
            feed = self._feed_of(found)
            if feed is None:
                self.actions.append(f"feed {found.feed_id.hex()}: its settings are lost; its files go to lost/")
                steps.append(lambda found=found: self._abandon(found))  # type: ignore[misc]
                continue
            if feed != found.feed:
                self.actions.append(f"feed {found.feed_id.hex()}: a new FEED, under the name {feed.info.name!r}")
                steps.append(lambda found=found, feed=feed: self._write_feed(found, feed))  # type: ignore[misc]
            self._names.add(feed.info.name)
            self._lost.name_feed(found.feed_id, feed.info.name)
            self._known[found.feed_id] = feed.info.partitions
            self._branches[found.feed_id] = feed.branch
            for partition in found.partitions:
                self._plan_partition(partition, feed.info, steps)

    def _plan_missing(self, feeds: list[FeedFindings], steps: list[Callable[[], None]]) -> None:
        """Plans steps for a missing journal or feed that other files name: the next start takes it for empty."""
        if marks.is_restored(self._disk, self._data):
            return
        if self._survey.newest == (0, 0) and self._disk.exists(self._path(FILE_NAME)):
            why = "it is missing, with all rows that no segment has"
            self.actions.append(f"{JOURNAL_NAME}: {why}")
            steps.append(lambda: self._tell_missing_journal(why))
        is_there = any(feed.holds_data for feed in feeds if feed.feed_id == SYSTEM_FEED_ID)
        if self._survey.oldest > 1 and not is_there and (SYSTEM_FEED_ID, 0) not in self._survey.terms:
            self.actions.append(f"the list of feeds is missing: {LIST_GONE}")
            steps.append(lambda: self._lost.unknown(self._path(FEEDS_NAME, LIST_NAME), 0, 0, LIST_GONE))
        listed = self._survey.listed
        listed.read_segments(self._disk, feeds)
        known = {feed.feed_id for feed in feeds} | self._survey.creations.keys() | self._survey.dropped
        for missing in listed.missing(known):
            if missing.partitions:  # 0 if its row cannot be read
                self._lost.name_feed(missing.feed_id, missing.name)
            path = self._store.feed_directory(missing.feed_id)
            self.actions.append(f"feed {missing.feed_id.hex()}: {missing.why}; {missing.name!r} will be empty")
            steps.append(lambda path=path, missing=missing: self._tell_missing_feed(path, missing))  # type: ignore[misc]

    def _tell_missing_journal(self, why: str) -> None:
        self._lost.unknown(self._path(JOURNAL_NAME), 0, 0, why)
        for feed_id, partitions in self._known.items():
            for number in range(partitions):
                start = self._starts.get((feed_id, number))
                self._lost.open_end(feed_id, number, 0 if start is None else start.flushed_seq, why)

    def _tell_missing_feed(self, path: str, missing: MissingFeed) -> None:
        self._lost.unknown(path, 0, 0, missing.why)
        for number in range(missing.partitions):
            self._lost.open_end(missing.feed_id, number, 0, missing.why)

    def _plan_partition(self, found: PartitionFindings, info: FeedInfo, steps: list[Callable[[], None]]) -> None:
        place = found.feed_id, found.number
        if found.number >= info.partitions:
            self.actions.append(f"{found.directory}: the feed has no such partition; its files go to lost/")
            steps.append(lambda: self._abandon_partition(found, "the feed has no such partition"))
        elif not found.is_good:
            steps.append(lambda: self._mend(found, info))
        elif found.manifest is not None:
            self._starts[place] = self._partition_repair.start_of(place, found.manifest)

    def _mend(self, found: PartitionFindings, info: FeedInfo) -> None:
        place = found.feed_id, found.number
        self._starts[place] = self._partition_repair.repair(found, info, self._survey.state_of(place))

    def _feed_of(self, found: FeedFindings) -> FeedFile | None:
        """Returns the feed's FEED, or one made from the journal or from the partitions; None if these do not tell."""
        feed = found.feed
        creation = self._survey.creations.get(found.feed_id)
        if feed is None and creation is not None:
            feed = FeedFile(creation.info, creation.branch)
        if feed is None:
            count = _partitions_of(found)
            if count is None:
                return None
            feed = FeedFile(self._guess(found, count), self._partition_repair.id_of((found.feed_id, 0), b"feed"))
        if feed.info.name in self._names:
            feed = feed._replace(info=feed.info._replace(name=_recovered_name(found.feed_id)))
        return feed

    @staticmethod
    def _guess(found: FeedFindings, partitions: int) -> FeedInfo:
        """Returns settings for a feed of which only the partitions are known; compact if a segment is deduplicated."""
        entries = [s.identity for p in found.partitions for s in (*p.segments, *p.others) if s.identity is not None]
        is_compact = any(identity.deduplicated for identity in entries)
        return FeedInfo(
            name=_recovered_name(found.feed_id),
            feed_id=found.feed_id,
            partitions=partitions,
            keyspace="hash",
            retention="compact" if is_compact else "history",
            history_age_s=None,
            history_bytes=None,
            tombstone_age_s=259_200,
            replication="stream",
        )

    def _write_feed(self, found: FeedFindings, feed: FeedFile) -> None:
        path = os.path.join(found.directory, FEED_NAME)
        self._lost.feed(found.feed_id, feed.info.name, found.why or "its FEED was missing, or its name was taken")
        if self._disk.exists(path):
            self._lost.copy(path)
        if not self._is_dry:
            self._lost.sync()
            self._store.write_feed(feed)

    def _abandon(self, found: FeedFindings) -> None:
        for partition in found.partitions:
            self._abandon_partition(partition, "the settings of its feed are lost")
        path = os.path.join(found.directory, FEED_NAME)
        if self._disk.exists(path):
            self._lost.take(path)

    def _abandon_partition(self, found: PartitionFindings, why: str) -> None:
        for segment in (*found.segments, *found.others):
            run = segment.entry or segment.identity
            if run is not None:
                place = found.feed_id, found.number
                self._lost.rows(*place, run.after_seq + 1, run.last_seq, source=segment.path, rows=run.rows, why=why)
        self._lost.sync()
        for name in files_below(self._disk, found.directory):
            self._lost.take(os.path.join(found.directory, name))

    def _take_replaced(self, feeds: list[FeedFindings]) -> None:
        """Moves files that the interrupted repair had replaced, but not moved yet."""
        for feed in feeds:
            for partition in feed.partitions:
                if partition.manifest is not None:
                    for segment in partition.others:
                        self._lost.take(segment.path)

    # Journal

    def _replay(self) -> DryReplay:
        return DryReplay(self._known, self._starts, self._survey.undone)

    def _rewrite_journal(self, clean: CleanMark | None) -> None:
        replay = self._survey.replayed(self._replay())
        if replay is not None:  # it needs no rewrite
            rewrite = JournalRewrite(self._survey, replay, self._lost, None)
            rewrite.tell_end(clean)
            self._tell_held(rewrite, replay, clean)
            return
        if self._is_dry:
            kept_rows = self._pour(clean, None)
            take_journal(self._disk, self._data, self._lost)
        else:
            journal, first = begin_journal(self._disk, self._data, self._randomness, self._clock.monotonic)
            try:
                kept_rows = self._pour(clean, journal)
            finally:
                journal.close()
            fresh = first, journal.end[0]
            self._lost.sync()
            self._put_mark(fresh)
            swap_journal(self._disk, self._data, self._lost, fresh)
        self.actions.append(
            f"journal: written anew with {kept_rows} rows; {self._lost.exported_rows} rows are exported"
        )

    def _pour(self, clean: CleanMark | None, journal: Journal | None) -> int:
        """Writes the records that can stay to ``journal``, and lists the others. Returns the number of kept rows."""
        replay = self._replay()
        rewrite = JournalRewrite(self._survey, replay, self._lost, journal)
        kept_rows = rewrite.run(clean)
        self._tell_held(rewrite, replay, clean)
        rewrite.tell_open_ends(self._places(replay), clean)
        return kept_rows

    def _tell_held(self, rewrite: JournalRewrite, replay: DryReplay, clean: CleanMark | None) -> None:
        if self._held is not None:
            rewrite.tell_held(self._held, self._branches, self._places(replay), clean)

    def _places(self, replay: DryReplay) -> list[Place]:
        """Returns every known partition."""
        feeds = self._known | {feed_id: creation.info.partitions for feed_id, creation in replay.creations.items()}
        return [(feed_id, number) for feed_id, count in feeds.items() for number in range(count)]


def _partitions_of(found: FeedFindings) -> int | None:
    """Returns a feed's number of partitions, from the hash range of one; None without a good manifest."""
    for partition in found.partitions:
        manifest = partition.manifest
        if manifest is not None:
            hashes = manifest.hash_first, manifest.hash_last
            count = round((1 << 64) / (manifest.hash_last - manifest.hash_first + 1))
            if partition.number < count and partition_range(partition.number, count) == hashes:
                return count
    return None


def _recovered_name(feed_id: bytes) -> str:
    return f"recovered-{feed_id.hex()}"
