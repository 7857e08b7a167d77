"""HELD: a lower bound of the data on a running node's disk. By it a start after a crash detects lost or older files.

A crash keeps at least the durable part of each file. So if the journal ends before the position in HELD, or a partition
before its seq, files were replaced or lost. A loss of data that was written after HELD looks like a crash.

The file is one line of JSON with its checksum (directory/sealed.py), replaced as a whole. Source:
docs/formats/journal.md.
"""

from __future__ import annotations

import logging
import os
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tailrace_server.directory.sealed import seal, unseal
from tailrace_server.host.disk import read_file, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tailrace_server.host.disk import Disk

HELD_NAME = "HELD"
FORMAT = "tailrace held"
VERSION = 1

log = logging.getLogger("tailrace.server")


# The last start of another member's directory: number, token, and the end of the durable journal.
OtherStart: TypeAlias = tuple[int, bytes, tuple[int, int]]


class HeldFeed(NamedTuple):
    """A feed's first branch, and of each partition the last seq and the count of rollbacks (0 if absent)."""

    branch: bytes
    seqs: tuple[int, ...]
    rollbacks: dict[int, int]


class HeldMark(NamedTuple):
    """The content of HELD: number and offset up to which the journal was durable, and each feed by its id.

    ``others`` has the starts of other members' directories, by placement id (replication/lineage.py).
    """

    journal: tuple[int, int]
    feeds: dict[bytes, HeldFeed]
    others: Mapping[bytes, OtherStart] = MappingProxyType({})


class Shortfall(NamedTuple):
    """A partition that ends at ``seq``, though it was durable up to ``told_seq``."""

    feed_id: bytes
    partition: int
    seq: int
    told_seq: int


def load_held(disk: Disk, directory: str) -> HeldMark | None:
    """Reads HELD. Returns None, and logs a line, if there is no valid HELD. Raises OSError."""
    path = os.path.join(directory, HELD_NAME)
    if not disk.exists(path):
        return None
    try:
        return decode_held(read_file(disk, path))
    except ValueError as error:
        log.warning("%s cannot be used (%s): this start cannot tell an older copy by it", path, error)
        return None


def store_held(disk: Disk, directory: str, mark: HeldMark) -> None:
    """Replaces HELD, durably. Raises OSError: the old one or the new one is there."""
    write_atomically(disk, os.path.join(directory, HELD_NAME), encode_held(mark))


def remove_held(disk: Disk, directory: str) -> None:
    """Removes HELD, durably, if it is there. Raises OSError."""
    path = os.path.join(directory, HELD_NAME)
    if disk.exists(path):
        disk.remove(path)
        disk.sync_directory(directory)


def encode_held(mark: HeldMark) -> bytes:
    """Returns the content of the file."""
    feeds = {
        feed_id.hex(): {"branch": feed.branch.hex(), "seqs": feed.seqs, "rollbacks": feed.rollbacks}
        for feed_id, feed in mark.feeds.items()
    }
    others = {id.hex(): [number, token.hex(), *end] for id, (number, token, end) in mark.others.items()}
    return seal(FORMAT, VERSION, {"journal": mark.journal, "feeds": feeds, "others": others})


def decode_held(data: bytes) -> HeldMark:
    """Parses the content of ``encode_held``. Raises ValueError, with the reason, for others."""
    members = unseal(data, FORMAT, VERSION)
    try:
        number, offset = members["journal"]
        feeds = {
            bytes.fromhex(feed_id): HeldFeed(
                bytes.fromhex(feed["branch"]),
                tuple(map(int, feed["seqs"])),
                {int(partition): int(count) for partition, count in feed["rollbacks"].items()},
            )
            for feed_id, feed in members["feeds"].items()
        }
        others = {
            bytes.fromhex(placement_id): (int(start), bytes.fromhex(token), (int(file), int(end)))
            for placement_id, (start, token, file, end) in members["others"].items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"its members are not those of {HELD_NAME}: {error!r}") from None
    return HeldMark((int(number), int(offset)), feeds, others)


def shortfalls(
    mark: HeldMark,
    branch_of: Callable[[bytes], bytes | None],
    standing_of: Callable[[bytes, int], tuple[int, int]],
) -> Iterator[Shortfall]:
    """Yields each partition that has less than ``mark`` has. Pure.

    A rollback takes seqs away, and counts itself; a feed that was dropped, or made again, has nothing of its old rows.

    Args:
        mark: The content of HELD.
        branch_of: Returns the first branch of a feed; None if there is no such feed, or if it was dropped since.
        standing_of: Returns the count of a partition's rollbacks, and its last seq.
    """
    for feed_id, feed in mark.feeds.items():
        if branch_of(feed_id) != feed.branch:
            continue
        for number, told_seq in enumerate(feed.seqs):
            rollbacks, seq = standing_of(feed_id, number)
            if (rollbacks, seq) < (feed.rollbacks.get(number, 0), told_seq):
                yield Shortfall(feed_id, number, seq, told_seq)
