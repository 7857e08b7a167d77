"""Reads every FEED, MANIFEST and segment of a directory, and compares them with each other.

It changes nothing. Damage is a finding in the result, not an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from tailrace.model.hashing import partition_range
from tailrace_server.directory.watcher import Watcher
from tailrace_server.feeds.feed import SYSTEM_FEED, SYSTEM_FEED_ID
from tailrace_server.host.disk import read_file
from tailrace_server.manifest import FeedFile, Manifest, ManifestDamaged, ManifestStore, SegmentEntry, codec, entry_of
from tailrace_server.manifest.store import DROPPED_NAME, FEED_NAME, FEEDS_NAME, MANIFEST_NAME, segment_name
from tailrace_server.offline.data_directory import is_directory, size_of
from tailrace_server.segment import Problem, Segment, SegmentDamaged, SegmentIdentity

if TYPE_CHECKING:
    from tailrace_server.host.disk import Disk

_T = TypeVar("_T")

_ID = re.compile(r"[0-9a-f]{32}")
_NUMBER = re.compile(r"0|[1-9][0-9]*")
_SEGMENT = re.compile(r"[0-9a-f]{32}\.seg")


class SegmentFindings(NamedTuple):
    """A segment's file. ``entry`` is the manifest's, None if it has no such entry; ``identity`` None: unreadable."""

    path: str
    nbytes: int
    entry: SegmentEntry | None
    identity: SegmentIdentity | None
    is_missing: bool
    problems: list[Problem]

    @property
    def is_good(self) -> bool:
        """Whether the file exists, is undamaged, and matches the manifest."""
        return not self.is_missing and not self.problems


class PartitionFindings(NamedTuple):
    """A partition's directory. ``manifest`` is None if it is missing (``why`` is "" then) or cannot be used.

    ``segments`` are those of the manifest in its order, ``others`` the segments that it does not name, and ``rest``
    other files.
    """

    feed_id: bytes
    number: int
    directory: str
    manifest: Manifest | None
    why: str
    segments: list[SegmentFindings]
    others: list[SegmentFindings]
    rest: list[str]

    @property
    def has_lost_its_manifest(self) -> bool:
        """Whether there was a manifest, which is missing or cannot be used."""
        return self.manifest is None and bool(self.why or self.others)

    @property
    def is_good(self) -> bool:
        """Whether a node can serve the partition."""
        return not self.has_lost_its_manifest and all(segment.is_good for segment in self.segments)


class FeedFindings(NamedTuple):
    """A feed's directory. ``feed`` is None if FEED is missing (``why`` is "" then) or cannot be used."""

    feed_id: bytes
    directory: str
    feed: FeedFile | None
    why: str
    is_dropped: bool
    partitions: list[PartitionFindings]
    rest: list[str]

    @property
    def holds_data(self) -> bool:
        """Whether a partition has a manifest or segments."""
        return any(p.manifest is not None or p.why or p.others for p in self.partitions)


def bytes_of_feeds(disk: Disk, data: str) -> int:
    """Returns the bytes that ``examine_feeds`` reads: those of all segments."""
    total = 0
    for directory in _feed_directories(disk, data):
        for number in _partition_names(disk, directory):
            partition = os.path.join(directory, number)
            names = (name for name in disk.names(partition) if _SEGMENT.fullmatch(name))
            total += sum(size_of(disk, os.path.join(partition, name)) for name in names)
    return total


def examine_feeds(disk: Disk, data: str, watcher: Watcher) -> Iterator[FeedFindings]:
    """Yields the findings of every feed's directory."""
    for directory in _feed_directories(disk, data):
        yield _examine_feed(disk, data, directory, watcher)


def _feed_directories(disk: Disk, data: str) -> list[str]:
    root = os.path.join(data, FEEDS_NAME)
    names = disk.names(root) if disk.exists(root) else []
    return [os.path.join(root, name) for name in names if _ID.fullmatch(name)]


def _partition_names(disk: Disk, directory: str) -> list[str]:
    names = (name for name in disk.names(directory) if _NUMBER.fullmatch(name))
    return sorted((name for name in names if is_directory(disk, os.path.join(directory, name))), key=int)


def _examine_feed(disk: Disk, data: str, directory: str, watcher: Watcher) -> FeedFindings:
    feed_id = bytes.fromhex(os.path.basename(directory))
    feed, why = _read_feed(disk, os.path.join(directory, FEED_NAME), feed_id)
    if feed_id == SYSTEM_FEED_ID:  # every directory has it, without a FEED
        feed, why = FeedFile(SYSTEM_FEED, b""), ""
    is_dropped = feed is None and not why and disk.exists(os.path.join(directory, DROPPED_NAME))
    names = _partition_names(disk, directory)
    partitions = []
    if not is_dropped:
        partitions = [examine_partition(disk, data, feed_id, int(name), feed, watcher) for name in names]
    rest = [name for name in disk.names(directory) if name not in (FEED_NAME, DROPPED_NAME, *names)]
    return FeedFindings(feed_id, directory, feed, why, is_dropped, partitions, rest)


def _read_feed(disk: Disk, path: str, feed_id: bytes) -> tuple[FeedFile | None, str]:
    feed, why = _read(disk, path, FeedFile.decode)
    if feed is not None and feed.info.feed_id != feed_id:
        return None, f"it is the file of feed {feed.info.feed_id.hex()}"
    return feed, why


def _read(disk: Disk, path: str, decode: Callable[[bytes, str], _T]) -> tuple[_T | None, str]:
    """Returns the decoded file and "", or None and the reason why it cannot be used; (None, "") if it is missing."""
    if not disk.exists(path):
        return None, ""
    try:
        return decode(read_file(disk, path), path), ""
    except ManifestDamaged as error:
        return None, error.why
    except OSError as error:
        return None, f"the disk cannot read it: {error.strerror}"


def examine_partition(
    disk: Disk, data: str, feed_id: bytes, number: int, feed: FeedFile | None, watcher: Watcher
) -> PartitionFindings:
    """Returns the findings of a partition's directory. ``feed`` is None if the feed is unknown."""
    store = ManifestStore(disk, data)
    directory = store.partition_directory(feed_id, number)
    manifest, why = _read_manifest(disk, os.path.join(directory, MANIFEST_NAME), feed_id, number, feed)
    entries = manifest.segments if manifest is not None else ()
    segments = [_examine_segment(disk, store.segment_path(feed_id, number, e.id), e, watcher) for e in entries]
    named = {segment_name(entry.id) for entry in entries} | {MANIFEST_NAME}
    rest = [name for name in disk.names(directory) if name not in named]
    unnamed = [name for name in rest if _SEGMENT.fullmatch(name)]
    others = [_examine_segment(disk, os.path.join(directory, name), None, watcher) for name in unnamed]
    rest = [name for name in rest if name not in unnamed]
    return PartitionFindings(feed_id, number, directory, manifest, why, segments, others, rest)


def _read_manifest(
    disk: Disk, path: str, feed_id: bytes, number: int, feed: FeedFile | None
) -> tuple[Manifest | None, str]:
    manifest, why = _read(disk, path, codec.decode)
    if manifest is None:
        return None, why
    if (manifest.feed_id, manifest.partition) != (feed_id, number):
        return None, f"it is of partition {manifest.feed_id.hex()}/{manifest.partition}"
    if feed is not None:
        if number >= feed.info.partitions:
            return None, f"the feed has {feed.info.partitions} partitions"
        if (manifest.hash_first, manifest.hash_last) != partition_range(number, feed.info.partitions):
            return None, f"its hashes are not those of partition {number} of {feed.info.partitions}"
    return manifest, ""


def _examine_segment(disk: Disk, path: str, entry: SegmentEntry | None, watcher: Watcher) -> SegmentFindings:
    if not disk.exists(path):
        return SegmentFindings(path, 0, entry, None, True, [])
    watcher.begin(path)
    try:
        segment = Segment.open(disk, path)
    except SegmentDamaged as error:
        nbytes = size_of(disk, path)
        watcher.read(nbytes)
        return SegmentFindings(path, nbytes, entry, None, False, [Problem(error.offset, error.why)])
    except OSError as error:
        return SegmentFindings(path, 0, entry, None, False, [Problem(0, f"it cannot be opened: {error.strerror}")])
    try:
        problems = segment.verify(watcher.read)
        identity = segment.identity
        if entry is not None and entry_of(identity, segment.nbytes, entry.placements) != entry:
            problems.append(Problem(0, "its identity differs from its entry in the manifest"))
        return SegmentFindings(path, segment.nbytes, entry, identity, False, problems)
    finally:
        segment.close()
