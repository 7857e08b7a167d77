"""CLEAN: the proof that the last stop lost nothing, so that the node may go on with the branches that it had.

It is written last at a clean stop. The next start reads it first, and removes it when all data that it lists was found:
a start that finds less refuses (feeds/wholeness.py). The mark counts only if all its members agree with the directory.
So the mark of an earlier stop, or one in a copied or restored directory, does not count. (A copy that replaces the
original may get the same inodes; the time of NODE's last change tells it.) A copy of a whole volume cannot be told from
the original.

The file is one line of JSON with its checksum (directory/sealed.py).
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace_server.directory.identity import FILE_NAME as NODE_NAME
from tailrace_server.directory.sealed import seal, unseal
from tailrace_server.host.disk import TEMPORARY, read_file

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tailrace_server.host.disk import Disk

CLEAN_NAME = "CLEAN"
FORMAT = "tailrace clean"
VERSION = 1


class CleanPartition(NamedTuple):
    """The end of a partition: ids of 16 bytes, the newest branch, and the last seq on it."""

    feed_id: bytes
    partition: int
    branch: bytes
    high_seq: int


class CleanMark(NamedTuple):
    """The content of CLEAN, as found or as expected.

    ``device`` and ``inode`` are those of the file itself; ``node_changed_ns`` is the time of NODE's last change.
    """

    journal_end: tuple[int, int]
    partitions: tuple[CleanPartition, ...]
    machine_id: str
    directory: str
    node_changed_ns: int
    device: int
    inode: int


class TakenMark(NamedTuple):
    """The result of ``find_clean``: the mark, or None and ``why``, and the real place of the file."""

    mark: CleanMark | None
    why: str
    machine_id: str
    directory: str
    node_changed_ns: int
    device: int
    inode: int


def write_clean(disk: Disk, directory: str, journal_end: tuple[int, int], partitions: Iterable[CleanPartition]) -> None:
    """Marks the data directory as stopped cleanly; durable when this returns.

    A node does this last, after the journal was closed without an error. ``journal_end`` is ``Journal.end`` then,
    ``partitions`` are all partitions of the node. OSError: there is no mark, or a good one.
    """
    path = os.path.join(directory, CLEAN_NAME)
    with contextlib.closing(disk.create(path + TEMPORARY)) as file:
        where = (*_place(disk, directory), *file.identity())
        data = encode_mark(CleanMark(journal_end, tuple(sorted(partitions)), *where))
        file.write_at(0, (data,), len(data))
        file.sync()
    disk.rename(path + TEMPORARY, path)
    disk.sync_directory(directory)


def find_clean(disk: Disk, directory: str) -> TakenMark:
    """Reads the mark, before the journal is opened. OSError."""
    place = _place(disk, directory)
    path = os.path.join(directory, CLEAN_NAME)
    if not disk.exists(path):
        return TakenMark(None, "there is no mark of a clean stop", *place, 0, 0)
    with contextlib.closing(disk.open(path)) as file:
        device, inode = file.identity()
    mark, why = None, ""
    try:
        mark = decode_mark(read_file(disk, path))
    except ValueError as error:
        why = str(error)
    return TakenMark(mark, why, *place, device, inode)


def remove_clean(disk: Disk, directory: str) -> None:
    """Removes the mark, if there is one, durably.

    To be called before any data that the mark lists is changed. OSError: the node must not start, since the mark may
    still be there.
    """
    path = os.path.join(directory, CLEAN_NAME)
    if disk.exists(path):
        disk.remove(path)
        disk.sync_directory(directory)


def _place(disk: Disk, directory: str) -> tuple[str, str, int]:
    return disk.machine_id(), disk.real_path(directory), disk.changed_ns(os.path.join(directory, NODE_NAME))


def why_unclean(taken: TakenMark, journal_end: tuple[int, int], partitions: Iterable[CleanPartition]) -> str | None:
    """Returns why the last stop does not count as clean, for the log; None if it was clean. Pure.

    ``journal_end`` is ``Recovered.end``; ``partitions`` are all partitions that the node has found, in any order.
    """
    if taken.mark is None:
        return taken.why
    found = CleanMark(journal_end, tuple(sorted(partitions)), *taken[2:])
    for field, marked, is_now in zip(CleanMark._fields, taken.mark, found, strict=True):
        if marked != is_now:
            return f"the mark of the last clean stop is of another state: {_differs(field, marked, is_now)}"
    return None


def _differs(field: str, marked: Any, is_now: Any) -> str:
    if field == "partitions":
        differing = sorted(set(marked) ^ set(is_now))
        first = differing[0]
        return f"{len(differing)} differences in partitions, the first in {first.feed_id.hex()}/{first.partition}"
    return f"its {field.replace('_', ' ')} is {marked}, here it is {is_now}"


def encode_mark(mark: CleanMark) -> bytes:
    """Returns the content of the file."""
    fields = mark._asdict() | {
        "partitions": [[p.feed_id.hex(), p.partition, p.branch.hex(), p.high_seq] for p in mark.partitions],
    }
    return seal(FORMAT, VERSION, fields)


def decode_mark(data: bytes) -> CleanMark:
    """Parses the content of ``encode_mark``. Raises ValueError, with the reason, for others."""
    try:
        fields = unseal(data, FORMAT, VERSION)
    except ValueError as error:
        raise ValueError(f"the mark of a clean stop can't be used: {error}") from None
    return CleanMark(
        journal_end=(fields["journal_end"][0], fields["journal_end"][1]),
        partitions=tuple(
            CleanPartition(bytes.fromhex(feed_id), partition, bytes.fromhex(branch), high_seq)
            for feed_id, partition, branch, high_seq in fields["partitions"]
        ),
        machine_id=fields["machine_id"],
        directory=fields["directory"],
        node_changed_ns=fields["node_changed_ns"],
        device=fields["device"],
        inode=fields["inode"],
    )
