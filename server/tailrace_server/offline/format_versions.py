"""The formats of a data directory, the versions that this program reads, and the refusal of newer files.

A start, a repair, a backup and a restore look at all files before they change any. So a directory that a later release
has written to is refused as it is, with the file, its version and the known one. Source: docs/formats/versions.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import xxhash

from tailrace import __version__
from tailrace.segment import ends as segment
from tailrace_server.coordination import static_store
from tailrace_server.directory import identity, uptime_file
from tailrace_server.directory import restored_marks as marks
from tailrace_server.directory.identity import BadDirectory
from tailrace_server.host.disk import read_file
from tailrace_server.journal import clean, held
from tailrace_server.journal import format as journal
from tailrace_server.manifest import codec, feed_file
from tailrace_server.manifest.store import AHEAD_NAME, DROPPED_NAME, FEED_NAME, FEEDS_NAME, MANIFEST_NAME
from tailrace_server.offline import repairing_mark
from tailrace_server.offline.data_directory import JOURNAL_NAME
from tailrace_server.publishing import stage_directory, stage_file
from tailrace_server.replication import membership
from tailrace_server.upkeep import ahead_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tailrace_server.host.disk import Disk

# The part of a file that tells its version: the headers of binary files are shorter, and JSON names the version first.
HEAD_BYTES = 128
# A JSON file that says to be newer is read whole, to tell that from damage. Real ones are far below this.
_JSON_BYTES_MAX = 64 << 20
_JSON_VERSION = re.compile(rb'\A\{\s*(?:"format":\s*"[a-z_ ]{1,40}",\s*)?"version":\s*([0-9]{1,9})[,}\s]')
_SEALED = re.compile(rb'\A\{"format":')
_SUM = struct.Struct("<Q")
# Their checksum covers all other members, as JSON in their order.
_SUMMED = (membership.FILE_NAME, static_store.FILE_NAME)


class FileFormat(NamedTuple):
    """A format: its name in words, the files that have it, the version that is written, and the oldest that is read.

    ``magic`` begins a binary file; b"" for JSON.
    """

    name: str
    files: str
    version: int
    oldest: int = 1
    magic: bytes = b""


JOURNAL = FileFormat("journal", "journal/<number>.log", journal.VERSION, magic=journal.FILE_MAGIC)
SEGMENT = FileFormat("segment", "feeds/<feed id>/<partition>/<id>.seg", segment.VERSION, magic=segment.MAGIC)
AHEAD = FileFormat("rows ahead", "feeds/<feed id>/<partition>/AHEAD", ahead_file.VERSION, magic=ahead_file.MAGIC)
STAGE = FileFormat("stage", "staging/<id>.open, staging/<id>.stage", stage_file.VERSION, magic=stage_file.MAGIC)
FEED = FileFormat("feed", "feeds/<feed id>/FEED", feed_file.VERSION)
MANIFEST = FileFormat("manifest", "feeds/<feed id>/<partition>/MANIFEST", codec.VERSION)
_TOP = {
    identity.FILE_NAME: FileFormat("ids", "NODE", identity.FORMAT_VERSION),
    membership.FILE_NAME: FileFormat("membership", "MEMBERSHIP", membership.FORMAT_VERSION),
    static_store.FILE_NAME: FileFormat("cluster", "CLUSTER", static_store.FORMAT_VERSION),
    clean.CLEAN_NAME: FileFormat("clean stop", "CLEAN", clean.VERSION),
    held.HELD_NAME: FileFormat("held data", "HELD", held.VERSION),
    uptime_file.FILE_NAME: FileFormat("uptime", uptime_file.FILE_NAME, uptime_file.VERSION),
    marks.REPAIRING_NAME: FileFormat("mark of a repair", "REPAIRING", repairing_mark.VERSION),
    marks.BACKUP_NAME: FileFormat("mark of a backup", "BACKUP", marks.BACKUP_VERSION),
    **{
        name: FileFormat("mark", name, marks.VERSION)
        for name in (marks.RESTORED_NAME, marks.RESTORING_NAME, marks.OF_SET_NAME)
    },
}
_PARTITION = {MANIFEST_NAME: MANIFEST, AHEAD_NAME: AHEAD}
FORMATS = (*_TOP.values(), JOURNAL, FEED, MANIFEST, SEGMENT, AHEAD, STAGE)


class NewerFile(NamedTuple):
    """A file of a version that this program does not know."""

    path: str
    version: int
    format: FileFormat

    def __str__(self) -> str:
        known = self.format.version
        return (
            f"{self.path} has version {self.version} of the format {self.format.name!r}; tailrace {__version__} knows "
            f"versions up to {known}"
        )


class NewerFormat(BadDirectory):
    """A later release has written to the directory. Nothing was changed."""

    def __init__(self, newer: list[NewerFile]) -> None:
        more = f" ({len(newer) - 1} more files are newer)" if len(newer) > 1 else ""
        super().__init__(
            f"{newer[0]}{more}: use the release that wrote it, or a later one. Nothing was changed; `tailrace verify` "
            "names the versions of all files"
        )
        self.newer = newer


def format_of(path: str) -> FileFormat | None:
    """Returns the format of a file by its path below the data directory; None if it has none, or is not known. Pure."""
    folder, _, name = path.rpartition("/")
    depth = folder.count("/")
    if not folder:
        return _TOP.get(name)
    if folder == JOURNAL_NAME:
        return JOURNAL if journal.file_number(name) is not None else None
    if folder == stage_directory.DIRECTORY:
        return STAGE if name.endswith((stage_directory.SEALED_SUFFIX, stage_directory.OPEN_SUFFIX)) else None
    if not folder.startswith(f"{FEEDS_NAME}/"):
        return None
    if depth == 1:
        return FEED if name in (FEED_NAME, DROPPED_NAME) else None
    if depth == 2:
        return SEGMENT if name.endswith(".seg") else _PARTITION.get(name)
    return None


def version_in(format: FileFormat, head: bytes) -> int | None:
    """Returns the version that the beginning of a file tells; None if it is damaged, or not of the format. Pure."""
    if not format.magic:
        told = _JSON_VERSION.match(head)
        return int(told[1]) if told is not None else None
    if not head.startswith(format.magic):
        return None
    if format is AHEAD:
        version, header_bytes = int.from_bytes(head[8:12], "little"), ahead_file.HEADER_BYTES
    else:
        version, header_bytes = (int.from_bytes(head[at : at + 2], "little") for at in (4, 6))
    return _version_if_whole(head, version, header_bytes)


def _version_if_whole(head: bytes, version: int, header_bytes: int) -> int | None:
    """Returns ``version`` if the header, which ends with its checksum, is whole: a changed bit is damage."""
    end = header_bytes - _SUM.size
    if not 0 < end <= len(head) - _SUM.size or _SUM.unpack_from(head, end)[0] != xxhash.xxh3_64_intdigest(head[:end]):
        return None
    return version


def version_of(disk: Disk, directory: str, path: str) -> int | None:
    """Returns the version of a file by its path below ``directory``; None if it has none that can be read."""
    format = format_of(path)
    if format is None:
        return None
    place = os.path.join(directory, path)
    with contextlib.suppress(OSError), contextlib.closing(disk.open(place)) as file:
        version = version_in(format, file.read_at(0, HEAD_BYTES))
        if version is None or version <= format.version or format.magic or _is_whole(disk, place):
            return version
    return None


def _is_whole(disk: Disk, path: str) -> bool:
    """Returns whether a JSON file of an unknown version is intact, as far as every version lets one know."""
    if disk.size_of(path) > _JSON_BYTES_MAX:
        return False
    data = read_file(disk, path)
    text, _, checksum = data.partition(b"\n")
    if _SEALED.match(data):
        return checksum == b"%016x\n" % xxhash.xxh3_64_intdigest(text)
    try:
        value: Any = json.loads(data)
    except (ValueError, RecursionError):
        return False
    if not isinstance(value, dict) or os.path.basename(path) not in _SUMMED:
        return isinstance(value, dict)
    told = value.pop("checksum", None)
    return bool(told == f"{xxhash.xxh3_64_intdigest(json.dumps(value).encode()):016x}")


def files_with_format(disk: Disk, directory: str) -> Iterator[str]:
    """Yields the path of each file that has a format, below a data directory or a backup."""
    top = disk.names(directory)
    yield from (name for name in top if name in _TOP)
    for folder in (JOURNAL_NAME, stage_directory.DIRECTORY):
        yield from _paths(disk, directory, folder) if folder in top else ()
    for feed in _names(disk, os.path.join(directory, FEEDS_NAME)) if FEEDS_NAME in top else ():
        path = f"{FEEDS_NAME}/{feed}"
        for name in _names(disk, os.path.join(directory, path)):
            if name.isdecimal():
                yield from _paths(disk, directory, f"{path}/{name}")
            elif format_of(f"{path}/{name}") is not None:
                yield f"{path}/{name}"


def _paths(disk: Disk, directory: str, folder: str) -> Iterator[str]:
    paths = (f"{folder}/{name}" for name in _names(disk, os.path.join(directory, folder)))
    return (path for path in paths if format_of(path) is not None)


def _names(disk: Disk, path: str) -> list[str]:
    try:
        return disk.names(path)
    except OSError:
        return []


def newer_files(disk: Disk, directory: str) -> list[NewerFile]:
    """Returns the files of a data directory, or of a backup, that are newer than this program."""
    found = []
    for path in files_with_format(disk, directory):
        format, version = format_of(path), version_of(disk, directory, path)
        if format is not None and version is not None and version > format.version:
            found.append(NewerFile(os.path.join(directory, path), version, format))
    return found


def check_versions(disk: Disk, directory: str) -> None:
    """Raises NewerFormat, with the files, if a later release has written to the directory; changes nothing. OSError."""
    newer = newer_files(disk, directory) if disk.exists(directory) else []
    if newer:
        raise NewerFormat(newer)
