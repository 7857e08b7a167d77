"""The directories of feeds and partitions: writes and removes their files, in an order that every crash leaves whole.

    feeds/<feed id>/                made first
    feeds/<feed id>/<partition>/    made with its MANIFEST, before its first segment
    feeds/<feed id>/FEED            made when it replaces the journal's record of the creation

1. A file has its name only once its content is durable, and ``write`` returns when the name is durable as well.
2. A segment without a MANIFEST beside it is damage: a partition gets its first manifest before its first segment.
3. A segment that the manifest does not name was never part of the partition, or has left it: ``sweep`` removes it.
4. A process that was killed may leave names in the system's cache only. ``read``, ``read_all`` and ``feeds`` make them
   durable, since journal files and segments are removed later because of them.
5. A feed is dropped by renaming FEED to FEED.dropped. From then on it is no feed, although files are left. The next
   start finishes an interrupted removal.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
from typing import TYPE_CHECKING

from tailrace_server.host.disk import TEMPORARY, raise_if_no_space, read_file, replace_file, write_atomically
from tailrace_server.host.open_files import OpenFiles
from tailrace_server.manifest import codec
from tailrace_server.manifest.errors import ManifestDamaged
from tailrace_server.manifest.feed_file import FeedFile
from tailrace_server.manifest.manifest import Manifest, SegmentEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from tailrace_server.host.disk import Disk

log = logging.getLogger("tailrace.server")

FEEDS_NAME = "feeds"
FEED_NAME = "FEED"
DROPPED_NAME = "FEED.dropped"
MANIFEST_NAME = "MANIFEST"
AHEAD_NAME = "AHEAD"

# Segments that keep a descriptor while they are not being read: well below the usual limit of 1,024.
SEGMENTS_OPEN_MAX = 512

_ID = re.compile(r"[0-9a-f]{32}")
_SEGMENT = re.compile(r"[0-9a-f]{32}\.seg")


def segment_name(segment_id: bytes) -> str:
    """Returns the name of a segment's file in its partition's directory."""
    return f"{segment_id.hex()}.seg"


class ManifestStore:
    """The feeds' part of a data directory.

    All calls block. Calls about different partitions may run at the same time in different threads.
    ``segment_files`` opens segments for reading, with descriptors that they share.
    """

    def __init__(self, disk: Disk, data: str, segments_open_max: int = SEGMENTS_OPEN_MAX) -> None:
        self._disk = disk
        self._root = os.path.join(data, FEEDS_NAME)
        self.segment_files = OpenFiles(disk, segments_open_max)

    def feed_directory(self, feed_id: bytes) -> str:
        """Returns the path of a feed's directory."""
        return os.path.join(self._root, feed_id.hex())

    def partition_directory(self, feed_id: bytes, partition: int) -> str:
        """Returns the path of the directory of a partition's manifest and segments."""
        return os.path.join(self._root, feed_id.hex(), str(partition))

    def segment_path(self, feed_id: bytes, partition: int, segment_id: bytes) -> str:
        """Returns the path of a segment's file."""
        return os.path.join(self.partition_directory(feed_id, partition), segment_name(segment_id))

    # Feeds.

    def write_feed(self, feed: FeedFile) -> None:
        """Writes or replaces FEED, which makes a directory a feed; durable when this returns.

        The journal's record of the creation may be removed then, if the partitions have manifests. Raises NoSpace,
        OSError: the old state is still there, or (if the directory's fsync failed) either one.
        """
        self.write_feeds((feed,))

    def write_feeds(self, feeds: Sequence[FeedFile]) -> None:
        """Writes or replaces FEED of several feeds as ``write_feed``, with about a third of the fsyncs.

        Raises NoSpace, OSError: each of them has its old state or the new one.
        """
        directories = [self.feed_directory(feed.info.feed_id) for feed in feeds]
        try:
            self._disk.make_directories(directories)
            for directory, feed in zip(directories, feeds, strict=True):
                replace_file(self._disk, os.path.join(directory, FEED_NAME), feed.encode())
            self._disk.sync_directories(directories)
        except OSError as error:
            raise_if_no_space(error, f"in {directories[0] if len(directories) == 1 else self._root}")
            raise

    def feeds(self) -> list[FeedFile]:
        """Returns every feed that has its FEED, in the order of their ids, durable when this returns; for the start.

        Raises ManifestDamaged, OSError. No removal is finished.
        """
        feeds = []
        for name in self._feed_names():
            path = os.path.join(self._root, name, FEED_NAME)
            if self._disk.exists(path):
                feed = FeedFile.decode(self._read(path), path)
                if feed.info.feed_id.hex() != name:
                    raise ManifestDamaged(path, f"it is the file of feed {feed.info.feed_id.hex()}")
                feeds.append(feed)
        self._disk.sync_directories([self.feed_directory(feed.info.feed_id) for feed in feeds])
        return feeds

    def begin_drop(self, feed_id: bytes) -> None:
        """Marks a feed's directory as dropped, durably. Does nothing if there is no directory. OSError.

        The journal's record of the drop may be removed then: the next start finishes the removal without it.
        """
        directory = self.feed_directory(feed_id)
        if not self._disk.exists(directory):
            return
        path, dropped = os.path.join(directory, FEED_NAME), os.path.join(directory, DROPPED_NAME)
        if self._disk.exists(path):
            self._disk.rename(path, dropped)
        elif not self._disk.exists(dropped):
            write_atomically(self._disk, dropped, b"")
        self._disk.sync_directory(directory)

    def drop_feed(self, feed_id: bytes) -> None:
        """Removes a feed's directory with all its files, durably. Does nothing if there is no directory.

        OSError: all removable files are gone. The next call, or ``finish_drops`` at the next start, removes the rest.
        """
        self.begin_drop(feed_id)
        directory = self.feed_directory(feed_id)
        if self._disk.exists(directory):
            self._remove_rest(directory, self._disk.remove_large)

    def finish_drops(self, known: Collection[bytes]) -> list[bytes]:
        """Removes the rest of interrupted drops and creations, at a start. Returns the ids of those feeds.

        ``known`` are the feeds that the node has after reading the journal; without a FEED these are left alone. (If
        the journal has the drop of a feed that has its FEED, call ``drop_feed``.) A directory of no feed that holds
        segments is damage: ManifestDamaged. Files that cannot be removed are left, with a line in the log.
        """
        removed = []
        for name in self._feed_names():
            directory = os.path.join(self._root, name)
            if self._disk.exists(os.path.join(directory, FEED_NAME)):
                continue
            feed_id = bytes.fromhex(name)
            if not self._disk.exists(os.path.join(directory, DROPPED_NAME)):
                if feed_id in known:
                    continue
                if any(self._segments(os.path.join(directory, partition)) for partition in self._partitions(directory)):
                    raise ManifestDamaged(os.path.join(directory, FEED_NAME), "it is missing, and there are segments")
            try:
                self._remove_rest(directory, self._disk.remove)
            except OSError as error:
                log.warning("a dropped feed is left at %s, and tried again at the next start: %s", directory, error)
                continue
            removed.append(feed_id)
        return removed

    def _remove_rest(self, directory: str, remove: Callable[[str], None]) -> None:
        """Removes a dropped feed's directory. Its mark is made durable first, and removed last."""
        disk = self._disk
        disk.sync_directory(directory)
        failures: list[OSError] = []
        for name in self._partitions(directory):
            partition = os.path.join(directory, name)
            paths = [os.path.join(partition, file) for file in disk.names(partition)]
            left = [error for path in paths if (error := _error_of(remove, path))]
            if not left:
                disk.remove_directory(partition)
            failures += left
        for failure in failures:
            raise failure
        disk.sync_directory(directory)
        for name in disk.names(directory):
            disk.remove(os.path.join(directory, name))
        disk.remove_directory(directory)
        disk.sync_directory(self._root)

    def _feed_names(self) -> list[str]:
        if not self._disk.exists(self._root):
            return []
        return [name for name in self._disk.names(self._root) if _ID.fullmatch(name)]

    def _partitions(self, directory: str) -> list[str]:
        return [name for name in self._disk.names(directory) if name.isdecimal()]

    # Partitions.

    def write(self, manifest: Manifest) -> None:
        """Replaces the partition's manifest; makes its directory if it is missing. Durable when this returns.

        Every segment that the manifest names must have its name durably. Raises NoSpace and OSError: the old manifest
        is still there, or (if the directory's fsync failed) either one. Then no segment of either may be removed.
        """
        data = codec.encode(manifest)
        directory = self.partition_directory(manifest.feed_id, manifest.partition)
        try:
            self._disk.make_directory(directory)
            write_atomically(self._disk, os.path.join(directory, MANIFEST_NAME), data)
        except OSError as error:
            raise_if_no_space(error, f"in {directory}")
            raise

    def make_partition(self, feed_id: bytes, partition: int) -> None:
        """Makes a partition's directory if it is missing. OSError."""
        self._disk.make_directory(self.partition_directory(feed_id, partition))

    def read(self, feed_id: bytes, partition: int) -> Manifest | None:
        """Returns a partition's manifest, durable when this returns; None if the partition has no files yet.

        Raises ManifestDamaged, OSError.
        """
        [manifest] = self.read_all(feed_id, (partition,))
        return manifest

    def read_all(self, feed_id: bytes, partitions: Iterable[int]) -> list[Manifest | None]:
        """Returns the manifests of several partitions, as ``read`` does; their directories are synced together.

        Raises ManifestDamaged, OSError.
        """
        manifests = [self._read_manifest(feed_id, partition) for partition in partitions]
        found = [manifest for manifest in manifests if manifest is not None]
        self._disk.sync_directories([self.partition_directory(feed_id, manifest.partition) for manifest in found])
        return manifests

    def _read_manifest(self, feed_id: bytes, partition: int) -> Manifest | None:
        directory = self.partition_directory(feed_id, partition)
        path = os.path.join(directory, MANIFEST_NAME)
        if not self._disk.exists(path):
            if self._segments(directory):
                raise ManifestDamaged(path, "it is missing, and there are segments")
            return None
        manifest = codec.decode(self._read(path), path)
        if (manifest.feed_id, manifest.partition) != (feed_id, partition):
            raise ManifestDamaged(path, f"it is of partition {manifest.feed_id.hex()}/{manifest.partition}")
        return manifest

    def missing(self, manifest: Manifest) -> list[SegmentEntry]:
        """Returns the segments that have no file of their size."""
        return [entry for entry in manifest.segments if not self._is_there(manifest, entry)]

    def sweep(self, manifest: Manifest, kept: Collection[bytes] = ()) -> list[str]:
        """Removes temporaries and segments that ``manifest``, the one on disk, does not name. Returns their names.

        For the start, or with the ids of all segments that are being read or written as ``kept``. Files with other
        names are left alone, and so are files that cannot be removed, and all segments beside an AHEAD: they were
        received for a chain that is still coming. The removals are not synced: if a crash undoes one, the next sweep
        does it again. Space is given back at once: at a start no fsync waits for it.
        """
        directory = self.partition_directory(manifest.feed_id, manifest.partition)
        named = {segment_name(id_) for id_ in (*kept, *(entry.id for entry in manifest.segments))}
        named |= {name + TEMPORARY for name in named}
        names = self._disk.names(directory)
        is_ahead = AHEAD_NAME in names
        unnamed = [
            name
            for name in names
            if name not in named and (name.endswith(TEMPORARY) or (not is_ahead and _SEGMENT.fullmatch(name)))
        ]
        removed = []
        for name in unnamed:
            error = _error_of(self._disk.remove, os.path.join(directory, name))
            if error is None:
                removed.append(name)
            else:
                log.warning("a file that no manifest names is left until the next start: %s", error)
        return removed

    def unnamed_segments(self, feed_id: bytes, partition: int, named: Collection[str]) -> list[str]:
        """Returns the paths of a partition's segments that are not among ``named`` paths."""
        directory = self.partition_directory(feed_id, partition)
        paths = (os.path.join(directory, name) for name in self._segments(directory))
        return [path for path in paths if path not in named]

    def _segments(self, directory: str) -> list[str]:
        if not self._disk.exists(directory):
            return []
        return [name for name in self._disk.names(directory) if _SEGMENT.fullmatch(name)]

    def _is_there(self, manifest: Manifest, entry: SegmentEntry) -> bool:
        path = self.segment_path(manifest.feed_id, manifest.partition, entry.id)
        if not self._disk.exists(path):
            return False
        with contextlib.closing(self._disk.open(path)) as file:
            return file.size() == entry.nbytes

    def _read(self, path: str) -> bytes:
        try:
            return read_file(self._disk, path)
        except OSError as error:  # EIO: the disk itself says that it lost something
            raise ManifestDamaged(path, f"the disk can't read it: {error.strerror}") from error


def _error_of(remove: Callable[[str], None], path: str) -> OSError | None:
    """Removes a file. Returns the error if the disk refuses."""
    try:
        remove(path)
    except OSError as error:
        return error
    return None
