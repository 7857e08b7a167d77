"""The directory of a copy while a fetch works on it. All methods wait for the disk; layout.py has the layout.

A partition changes in this order, each step durable before the next:

    new segments, under their names ── CHECKPOINT.json, which names them ── segments that it does not name are removed

So a reader finds a whole copy at every moment, the old one or the new one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from typing import NamedTuple

from tailrace.copies.compare import is_of_a_segment, surplus_files, unused_files
from tailrace.copies.copy_file import open_regular
from tailrace.copies.layout import (
    CHECKPOINT_NAME,
    FEED_NAME,
    FILE_BYTES_MAX,
    TEMPORARY_SUFFIX,
    FeedCopy,
    PartitionCopy,
    decode_checkpoint,
    encode_checkpoint,
)
from tailrace.copies.receiver import with_path
from tailrace.errors import BadCopy

LOCK_NAME = "LOCK"


class HeldPartition(NamedTuple):
    """A partition in the directory: its copy, None without one, and the sizes of all its files by name."""

    copy: PartitionCopy | None
    sizes: dict[str, int]


class CopyDirectory:
    """A directory, locked against other fetches until ``close``. Threads may work on different partitions."""

    def __init__(self, path: str) -> None:
        """Makes the directory if it is not there, and locks it.

        Raises BadCopy if another fetch works on it, or if it has files and is no copy; OSError.
        """
        self.path = path
        self._pid = os.getpid()
        try:
            os.makedirs(path, exist_ok=True)
        except (FileExistsError, NotADirectoryError):
            raise BadCopy(f"{path} is no directory, or below a file: name another one", path=path) from None
        _sync_directory(os.path.dirname(os.path.abspath(path)))
        names = set(os.listdir(path)) - {LOCK_NAME, FEED_NAME + TEMPORARY_SUFFIX}
        if names and FEED_NAME not in names:
            raise BadCopy(f"{path} is no copy of a feed, and not empty: name another directory", path=path)
        self._lock = os.open(os.path.join(path, LOCK_NAME), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
            raise BadCopy(f"another fetch works on {path}: wait until it has ended", path=path) from None

    def close(self) -> None:
        """Unlocks the directory. May be called again."""
        fd, self._lock = self._lock, -1
        if fd >= 0:
            if os.getpid() == self._pid:  # a process that was forked meanwhile has the descriptor, too
                fcntl.flock(fd, fcntl.LOCK_UN)
            os.close(fd)

    def begin(self, copy: FeedCopy) -> None:
        """Makes the directory a copy of this feed; the partitions of earlier fetches stay in it.

        Raises BadCopy if it is a copy of another feed, or if FEED.json is damaged; OSError.
        """
        path = os.path.join(self.path, FEED_NAME)
        held = None
        if os.path.exists(path):
            try:
                held = FeedCopy.decode(_read(path))
            except ValueError as error:
                raise BadCopy(f"{path} is damaged: {error}; fetch into another directory", path=path) from None
            if held.feed.feed_id != copy.feed.feed_id:
                raise BadCopy(
                    f"{self.path} is a copy of the feed {held.feed.name!r} with the id {held.feed.feed_id.hex()}, not "
                    f"of {copy.feed.name!r} with the id {copy.feed.feed_id.hex()}: name another directory",
                    path=path,
                )
            if held.cluster_id != copy.cluster_id:
                raise BadCopy(
                    f"{self.path} is a copy of a feed of the cluster {held.cluster_id.hex()}, not of "
                    f"{copy.cluster_id.hex()}: name another directory",
                    path=path,
                )
            copy = copy._replace(fetched=tuple(sorted({*held.fetched, *copy.fetched})))
        if copy != held:
            _replace(path, copy.encode())

    def open_partition(self, feed_id: bytes, partition: int) -> HeldPartition:
        """Returns the state of a partition in the directory. BadCopy for a file that cannot be used; OSError."""
        folder = self.folder(partition)
        if not os.path.isdir(folder):
            if os.path.lexists(folder):
                raise BadCopy(f"{folder} is no directory: remove it, and run the fetch again", path=folder)
            os.mkdir(folder)
            _sync_directory(self.path)
        with os.scandir(folder) as entries:
            sizes = {entry.name: _size(entry) for entry in entries}
        copy, path = None, os.path.join(folder, CHECKPOINT_NAME)
        if CHECKPOINT_NAME in sizes:
            try:
                copy = decode_checkpoint(_read(path), feed_id, partition)
            except ValueError as error:
                raise BadCopy(f"{path} is damaged: {error}; remove it to fetch the partition anew", path=path) from None
        return HeldPartition(copy, sizes)

    def require_room(self, nbytes: int, held: PartitionCopy | None, copy: PartitionCopy) -> None:
        """Raises OSError (ENOSPC) if the file system has no room for ``nbytes`` more.

        If there is too little, files of earlier fetches go that neither ``held`` has, the installed copy, nor ``copy``.
        """
        if nbytes > self._free_bytes():
            folder = self.folder(copy.partition)
            _sync_directory(folder)  # the name of the CHECKPOINT.json that was read
            for name in unused_files(filter(None, (held, copy)), os.listdir(folder)):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(folder, name))
        free = self._free_bytes()
        if nbytes > free:
            raise OSError(errno.ENOSPC, f"{nbytes:,} bytes are to be fetched, and {free:,} are free", self.path)

    def _free_bytes(self) -> int:
        status = os.statvfs(self.path)
        return status.f_bavail * status.f_frsize

    def install(self, feed_id: bytes, copy: PartitionCopy) -> None:
        """Makes ``copy``, whose files are all there, the copy of its partition. OSError: the old or the new one is."""
        folder = self.folder(copy.partition)
        _sync_directory(folder)  # the names of the segments
        _replace(os.path.join(folder, CHECKPOINT_NAME), encode_checkpoint(feed_id, copy))
        self.remove_surplus(copy)

    def remove_surplus(self, copy: PartitionCopy) -> None:
        """Removes the segments, and the half files, that the installed ``copy`` does not have. OSError."""
        folder = self.folder(copy.partition)
        _sync_directory(folder)  # the names of segments that were fetched again for an installed copy
        for name in (*surplus_files(copy, os.listdir(folder)), CHECKPOINT_NAME + TEMPORARY_SUFFIX):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(folder, name))

    def folder(self, partition: int) -> str:
        """Returns the path of a partition's directory."""
        return os.path.join(self.path, str(partition))


def _read(path: str) -> bytes:
    """Returns the content of a file. ValueError if it is too long, BadCopy if it is no regular file, OSError."""
    with open(open_regular(path), "rb") as file:
        data = file.read(FILE_BYTES_MAX + 1)
    if len(data) > FILE_BYTES_MAX:
        raise ValueError(f"it has more than {FILE_BYTES_MAX} bytes")
    return data


def _size(entry: os.DirEntry[str]) -> int:
    """Returns the size of a file of a partition. Raises BadCopy if a segment's name is another thing's; OSError."""
    if not is_of_a_segment(entry.name):
        return 0
    if not entry.is_file():
        raise BadCopy(f"{entry.path} is no regular file: remove it, and run the fetch again", path=entry.path)
    return entry.stat().st_size


def _replace(path: str, data: bytes) -> None:
    """Replaces a file as a whole: after a crash the old one or the new one is there. Durable when this returns.

    Raises BadCopy if there is something else in the place of the temporary file; OSError.
    """
    try:
        with open(open_regular(path + TEMPORARY_SUFFIX, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise with_path(error, path) from None
    os.replace(path + TEMPORARY_SUFFIX, path)
    _sync_directory(os.path.dirname(path))


def _sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        raise with_path(error, path) from None
    finally:
        os.close(fd)
