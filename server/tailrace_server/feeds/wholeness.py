"""Checks at a start that a data directory is whole: no file is missing that other files name.

A directory that is not mounted, or that was removed, looks like a new one. A node that started on it would lose
acknowledged rows, and would assign the same seqs of the same branch again. So each check names the missing file and
the file that names it. Until then the start has changed nothing that ``tailrace repair`` needs.

    missing                     named by
    --------------------------- ------------------------------------------------------------------------------
    NODE                        CLEAN, a feed, or a record of the journal
    journal/                    NODE: it is written when the journal has its first file
    the journal's end           CLEAN
    feeds/<_feeds>/             any record of the journal: the first one is of _feeds
    feeds/<feed>/FEED           a row of _feeds that the journal has no more, or a block without FEED_DROPPED
    the journal's newest file   HELD (journal/held.py), which open_journal checks; it finds an older copy as well
    rows of a partition         CLEAN; HELD; a block of the journal that does not begin there (recovery.py)
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tailrace.copies.layout import FEED_NAME as COPY_NAME
from tailrace_server.directory.identity import FILE_NAME as NODE_NAME
from tailrace_server.directory.identity import BadDirectory, Incomplete
from tailrace_server.feeds.feed import SYSTEM_FEED_ID
from tailrace_server.journal.clean import CLEAN_NAME
from tailrace_server.journal.format import FILE_HEADER_BYTES, file_name, file_number
from tailrace_server.journal.held import HELD_NAME, HeldMark, shortfalls
from tailrace_server.manifest.store import FEED_NAME, FEEDS_NAME, MANIFEST_NAME

if TYPE_CHECKING:
    from tailrace_server.feeds.catalog import Catalog
    from tailrace_server.feeds.recovery import FeedRecovery
    from tailrace_server.host.disk import Disk
    from tailrace_server.journal import CleanMark, CleanPartition, Recovered

log = logging.getLogger("tailrace.server")

JOURNAL_NAME = "journal"
LIST_NAME = os.path.join(SYSTEM_FEED_ID.hex(), "0", MANIFEST_NAME)
# What may be in the directory of a node that has not begun: by its first start, by an operator, or by the file system.
# The marks of a node have names in capitals.
_AT_FIRST = frozenset((JOURNAL_NAME, FEEDS_NAME, "admin.token", "lost+found"))
_TOLD_MAX = 5
LIST_GONE = "the journal's first record, which is of _feeds, could go only because of it"


def check_is_new(disk: Disk, data: str) -> None:
    """Checks that a node may begin in a directory without NODE.

    Raises Incomplete if it holds anything that only a node could have written, and BadDirectory if it is the copy of a
    feed: an empty node there would look like one that has lost the feed.
    """
    if disk.exists(os.path.join(data, COPY_NAME)):
        raise BadDirectory(
            f"{data} is a copy of a feed, which `tailrace fetch` has made, and no data directory: name another one; "
            "tailrace.SegmentReader reads the copy"
        )
    path = os.path.join(data, NODE_NAME)
    if disk.exists(os.path.join(data, CLEAN_NAME)):
        raise Incomplete(path, f"there is {CLEAN_NAME}, which a node wrote when it stopped")
    if disk.exists(os.path.join(data, HELD_NAME)):
        raise Incomplete(path, f"there is {HELD_NAME}, which a node wrote while it ran")
    feeds = os.path.join(data, FEEDS_NAME)
    if disk.exists(feeds) and disk.names(feeds):
        raise Incomplete(path, f"there are feeds in {feeds}")
    journal = os.path.join(data, JOURNAL_NAME)
    numbers = journal_numbers(disk, data)
    if numbers[1:] or (numbers and _holds_records(disk, os.path.join(journal, file_name(numbers[0])))):
        raise Incomplete(path, f"there is a journal in {journal}")


def warn_of_others(disk: Disk, data: str) -> None:
    """Warns of files of others in a directory in which a node is about to begin: it may be a mistaken one."""
    others = [
        name
        for name in sorted(disk.names(data))
        if not (name in _AT_FIRST or name.isupper() or name.startswith(".") or name.endswith(".new"))
    ]
    if others:
        more = f" and {len(others) - _TOLD_MAX} more" if len(others) > _TOLD_MAX else ""
        log.warning(
            "%s is not empty, and no node's directory: a new node begins beside %s%s. If it is the wrong directory, "
            "stop the node, and name another one with --data",
            data,
            ", ".join(others[:_TOLD_MAX]),
            more,
        )


def check_journal(disk: Disk, data: str) -> None:
    """Raises Incomplete if a directory with NODE has no file of a journal."""
    if not journal_numbers(disk, data):
        path = os.path.join(data, JOURNAL_NAME)
        raise Incomplete(path, f"it holds no file of a journal, and {NODE_NAME} was written after the first one")


def check_recovered(
    data: str,
    recovered: Recovered,
    recovery: FeedRecovery,
    catalog: Catalog,
    mark: CleanMark | None,
    held: HeldMark | None,
) -> None:
    """Raises Incomplete if less was recovered than the files name. ``mark`` is that of a clean stop, if it is good.

    ``held`` is the content of HELD, if that is good. May read segments of ``_feeds``. SegmentDamaged.
    """
    feeds = os.path.join(data, FEEDS_NAME)
    [listed] = catalog.system.partitions
    if not listed.log and (recovery.found_records or recovered.records.extents[0].header.number > 1):
        raise Incomplete(os.path.join(feeds, LIST_NAME), LIST_GONE)
    rows = catalog.rows() if listed.damage is None else {}
    for feed_id, (number, file) in recovery.unknown.items():
        row = rows.get(feed_id)
        if row is None or row.creation is not None:
            path = os.path.join(data, JOURNAL_NAME, file_name(file))
            why = f"{path} has records of its partition {number}, and none of its creation, or that it was dropped"
            raise Incomplete(os.path.join(feeds, feed_id.hex(), FEED_NAME), why)
    for feed_id, row in rows.items():
        is_here = feed_id in catalog or feed_id in catalog.drops
        # A follower makes a feed after it has the row. After a crash in between, this start makes it.
        was_made = row.seq < recovery.listed_from and row.seq <= recovery.made_seq
        if row.creation is not None and not is_here and was_made:
            name = json.loads(row.creation)["feed"]["name"]
            path = os.path.join(feeds, feed_id.hex(), FEED_NAME)
            raise Incomplete(path, f"_feeds lists feed {name!r}, and the journal does not have its creation any more")
    if mark is not None:
        _check_mark(data, recovered.end, catalog.clean_partitions(), mark)
    if held is not None:
        _check_held(data, recovery, catalog, held)


def _check_mark(data: str, end: tuple[int, int], partitions: Iterable[CleanPartition], mark: CleanMark) -> None:
    if end < mark.journal_end:
        number, offset = mark.journal_end
        path = os.path.join(data, JOURNAL_NAME, file_name(number))
        raise Incomplete(f"the end of {path}", f"{CLEAN_NAME} says that the journal ended there, at offset {offset}")
    held = {(p.feed_id, p.partition): p.high_seq for p in partitions}
    for told in mark.partitions:
        high_seq = held.get((told.feed_id, told.partition), 0)
        if high_seq < told.high_seq:
            path = os.path.join(data, FEEDS_NAME, told.feed_id.hex(), str(told.partition))
            raise Incomplete(
                f"something of {path}",
                f"it ends at seq {high_seq}, and at the last clean stop it ended at {told.high_seq}",
            )


def _check_held(data: str, recovery: FeedRecovery, catalog: Catalog, held: HeldMark) -> None:
    def branch_of(feed_id: bytes) -> bytes | None:
        feed = catalog.find(feed_id)
        return None if feed is None or feed_id in recovery.dropped else feed.first_branch

    def standing_of(feed_id: bytes, number: int) -> tuple[int, int]:
        partition = catalog.partition(feed_id, number)
        return partition.rollbacks, partition.high_seq

    for short in shortfalls(held, branch_of, standing_of):
        path = os.path.join(data, FEEDS_NAME, short.feed_id.hex(), str(short.partition))
        raise Incomplete(
            f"something of {path}, or of the journal",
            f"it ends at seq {short.seq}, and {HELD_NAME} says that it was durable up to {short.told_seq}",
        )


def journal_numbers(disk: Disk, data: str) -> list[int]:
    """Returns the numbers of the journal's files, in order."""
    directory = os.path.join(data, JOURNAL_NAME)
    names = disk.names(directory) if disk.exists(directory) else []
    return sorted(number for name in names if (number := file_number(name)) is not None)


def _holds_records(disk: Disk, path: str) -> bool:
    file = disk.open(path)
    try:
        return file.size() > FILE_HEADER_BYTES
    finally:
        file.close()
