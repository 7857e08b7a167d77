"""``tailrace repair``: a damaged directory made consistent, with everything that is lost on a list.

    look        every segment, every record of the journal; nothing is changed, and with nothing wrong that is all
    REPAIRING   no node starts from here on, and another repair goes on in the same lost/<time>/
    RESTORED    the next start begins new branches, far on: terms may be among what is lost
    small files, feeds, partitions (mend.py), journal (resift.py)
    CLEAN       goes to lost/, and HELD; then REPAIRING is removed

Each step leaves what the next repair, after an interruption, takes for good or does again. Nothing is deleted: what is
replaced is in lost/<time>/ afterwards.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace.model import FeedInfo
from tailrace.model.hashing import partition_range
from tailrace_server.directory import restored_marks as marks
from tailrace_server.directory import uptime_file
from tailrace_server.directory.identity import FILE_NAME, BadDirectory, load, new_identity, store
from tailrace_server.directory.lost import Lost
from tailrace_server.directory.sealed import seal, unseal
from tailrace_server.directory.watcher import Unwatched, Watcher
from tailrace_server.feeds.feed import SYSTEM_FEED_ID, SYSTEM_FEED_NAME
from tailrace_server.feeds.wholeness import LIST_GONE, LIST_NAME
from tailrace_server.host.clock import Clock
from tailrace_server.host.disk import read_file, write_atomically
from tailrace_server.journal import Journal
from tailrace_server.journal.clean import CLEAN_NAME, CleanMark, decode_mark
from tailrace_server.journal.held import HELD_NAME, HeldMark, decode_held
from tailrace_server.manifest import FeedFile, ManifestStore
from tailrace_server.manifest.fields import read_id
from tailrace_server.manifest.store import FEED_NAME, FEEDS_NAME
from tailrace_server.offline.examine import FeedFindings, PartitionFindings, bytes_of_feeds, examine_feeds
from tailrace_server.offline.journal_walk import bytes_of_journal
from tailrace_server.offline.listed import MissingFeed
from tailrace_server.offline.listing import JOURNAL_NAME, files_below, locked
from tailrace_server.offline.mend import Mender
from tailrace_server.offline.resift import (
    JournalSurvey,
    Resift,
    begin_journal,
    is_short_of,
    swap_journal,
    take_journal,
)
from tailrace_server.offline.sieve import Place, Sieve, Start

if TYPE_CHECKING:
    from tailrace_server.host.disk import Disk
    from tailrace_server.host.randomness import Randomness

_FORMAT = "tailrace repairing"
_VERSION = 1
_TIME = re.compile(r"[0-9]{8}-[0-9]{6}")


class Outcome(NamedTuple):
    """What a repair did, or would do: no action where nothing was wrong. ``lost`` has the list of what is lost."""

    actions: list[str]
    lost: Lost
    is_dry: bool


class _Mark(NamedTuple):
    """REPAIRING: which repair it is, and the first and last new file of the journal once these are durable."""

    time: str
    token: bytes
    journal: tuple[int, int] | None

    def store(self, disk: Disk, data: str) -> None:
        members: dict[str, Any] = {"time": self.time, "token": self.token.hex(), "journal": self.journal}
        write_atomically(disk, os.path.join(data, marks.REPAIRING_NAME), seal(_FORMAT, _VERSION, members))

    @classmethod
    def load(cls, disk: Disk, data: str) -> _Mark | None:
        path = os.path.join(data, marks.REPAIRING_NAME)
        if not disk.exists(path):
            return None
        try:
            members = unseal(read_file(disk, path), _FORMAT, _VERSION)
            fresh = members["journal"]
            if not _TIME.fullmatch(members["time"]):
                raise ValueError("its time is none")
            token = read_id(members["token"])
            return cls(members["time"], token, None if fresh is None else (int(fresh[0]), int(fresh[1])))
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise BadDirectory(
                f"{path} cannot be used ({error}): remove it, and repair again; that finds what is left to do"
            ) from None


def repair(
    disk: Disk,
    directory: str,
    randomness: Randomness,
    clock: Clock,
    time: str,
    *,
    is_dry: bool = False,
    watcher: Watcher | None = None,
) -> Outcome:
    """Repairs a directory that no node has; with ``is_dry`` it only says what it would do.

    ``time``, as 20260131-154500, names the directory below lost/. BadDirectory, DirectoryInUse, NoSpace, OSError: it
    can be called again, and goes on.
    """
    with locked(disk, directory):
        marks.check_usable(disk, directory, but=marks.REPAIRING_NAME)
        earlier = _Mark.load(disk, directory)
        mark = earlier or _Mark(time, randomness.token(16), None)
        lost = Lost(disk, directory, mark.time, is_dry=is_dry)
        with contextlib.closing(lost):
            this = _Repair(disk, directory, randomness, clock, mark, lost, watcher or Unwatched(), is_dry=is_dry)
            this.run(goes_on=earlier is not None)
    return Outcome(this.actions, lost, is_dry)


class _Repair:
    """One run."""

    def __init__(
        self,
        disk: Disk,
        data: str,
        randomness: Randomness,
        clock: Clock,
        mark: _Mark,
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
        self._starts: dict[Place, Start] = {}
        self._held: HeldMark | None = None
        self._names: set[str] = set()
        self.actions: list[str] = []
        self._mender = Mender(disk, data, lost, mark.token, self._survey.spare, self.actions, is_dry=is_dry)

    def run(self, *, goes_on: bool) -> None:
        """Looks, and does what is to be done."""
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
            self._resift(clean)
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
            self.actions.append(f"{FILE_NAME}: new ids, of a cluster of its own ({error}); positions of consumers end")
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
                self.actions.append(f"{HELD_NAME}: removed ({error}); the next start writes it anew")
                steps.append(lambda: None)  # it goes at the end of each repair
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
            steps.append(lambda: None)  # it goes at the end of each repair
            return None

    def _has_good_journal(self, clean: CleanMark | None) -> bool:
        """A start goes through the whole journal, and comes to where the mark of a clean stop says."""
        sieve = self._survey.sifted(self._sieve())
        if sieve is None:
            return False
        if clean is not None and (clean.journal_end != self._survey.newest or is_short_of(sieve, clean)):
            self.actions.append(f"{CLEAN_NAME}: removed; what it says to be there is not all there")
            return False
        held = self._held
        if held is not None and (self._survey.newest < held.journal or sieve.shortfalls(held, self._branches)):
            self.actions.append(f"{HELD_NAME}: removed; what it says to be there is not all there")
            return False
        return True

    # Feeds and partitions

    def _plan_feeds(self, feeds: list[FeedFindings], steps: list[Callable[[], None]]) -> None:
        self._lost.name_feed(SYSTEM_FEED_ID, SYSTEM_FEED_NAME)
        for feed_id, creation in self._survey.creations.items():
            self._lost.name_feed(feed_id, creation.info.name)
        for found in sorted(feeds, key=lambda feed: feed.feed is None):
            is_dropped = found.is_dropped or found.feed_id in self._survey.dropped
            # Until a feed has its FEED the journal has everything of it; a damaged one may have lost some.
            is_told = found.feed_id in self._survey.creations and not found.why and not self._survey.damaged
            if is_dropped or (found.feed is None and (is_told or not (found.why or found.holds_data))):
                continue
            feed = self._feed_of(found)
            if feed is None:
                self.actions.append(f"feed {found.feed_id.hex()}: nothing tells what it was; its files go to lost/")
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
        """What is missing as a whole, which other files tell of: the next start takes it for empty."""
        if marks.is_restored(self._disk, self._data):
            return
        if self._survey.newest == (0, 0) and self._disk.exists(self._path(FILE_NAME)):
            why = "it is missing: nothing tells which rows it held that no segment has"
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
            if missing.partitions:  # else its row cannot be read
                self._lost.name_feed(missing.feed_id, missing.name)
            path = self._store.feed_directory(missing.feed_id)
            self.actions.append(f"feed {missing.feed_id.hex()}: {missing.why}; {missing.name!r} begins empty")
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
            self._starts[place] = self._mender.start_of(place, found.manifest)

    def _mend(self, found: PartitionFindings, info: FeedInfo) -> None:
        place = found.feed_id, found.number
        self._starts[place] = self._mender.mend(found, info, self._survey.terms.get(place, 0))

    def _feed_of(self, found: FeedFindings) -> FeedFile | None:
        """The feed as it is, with what is missing from the journal, or from what the partitions say; None: nothing."""
        feed = found.feed
        creation = self._survey.creations.get(found.feed_id)
        if feed is None and creation is not None:
            feed = FeedFile(creation.info, creation.branch)
        if feed is None:
            count = _partitions_of(found)
            if count is None:
                return None
            feed = FeedFile(self._guess(found, count), self._mender.id_of((found.feed_id, 0), b"feed"))
        if feed.info.name in self._names:
            feed = feed._replace(info=feed.info._replace(name=_recovered_name(found.feed_id)))
        return feed

    @staticmethod
    def _guess(found: FeedFindings, partitions: int) -> FeedInfo:
        """A feed of which only the partitions are known: whoever kept nothing but the latest of each key goes on so."""
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
            self._abandon_partition(partition, "nothing tells what its feed was")
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
        """The repair that was interrupted may not have come to moving what it had replaced."""
        for feed in feeds:
            for partition in feed.partitions:
                if partition.manifest is not None:
                    for segment in partition.others:
                        self._lost.take(segment.path)

    # Journal

    def _sieve(self) -> Sieve:
        return Sieve(self._known, self._starts, self._survey.undone)

    def _resift(self, clean: CleanMark | None) -> None:
        sieve = self._survey.sifted(self._sieve())
        if sieve is not None:  # it can stay as it is
            resift = Resift(self._survey, sieve, self._lost, None)
            resift.tell_end(clean)
            self._tell_held(resift, sieve, clean)
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
        """Writes what can be kept to ``journal``, and tells of the rest; how many rows are kept."""
        sieve = self._sieve()
        resift = Resift(self._survey, sieve, self._lost, journal)
        kept_rows = resift.run(clean)
        self._tell_held(resift, sieve, clean)
        resift.tell_open_ends(self._places(sieve), clean)
        return kept_rows

    def _tell_held(self, resift: Resift, sieve: Sieve, clean: CleanMark | None) -> None:
        if self._held is not None:
            resift.tell_held(self._held, self._branches, self._places(sieve), clean)

    def _places(self, sieve: Sieve) -> list[Place]:
        """Every partition that is known of."""
        feeds = self._known | {feed_id: creation.info.partitions for feed_id, creation in sieve.creations.items()}
        return [(feed_id, number) for feed_id, count in feeds.items() for number in range(count)]


def _partitions_of(found: FeedFindings) -> int | None:
    """How many partitions a feed has, by the hashes that one of them is for; None where no manifest tells."""
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
