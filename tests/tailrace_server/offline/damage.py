"""A directory with something of everything in it, ways to damage it, and what has to hold of a repaired one."""

from __future__ import annotations

import errno
import itertools

from tests.tailrace_server.made_directory import DATA, MadeDirectory, rows_of

from tailrace_server.feeds.feed import SYSTEM_FEED_ID
from tailrace_server.offline.repair import repair

TIME = "20260131-154500"


def make_directory(seed_of_values=0):
    """Feeds "orders" (compact, two partitions) and "log" (history, one); segments, and blocks above them."""
    made = MadeDirectory(journal_file_bytes_max=4_000)
    made.create("orders")
    made.create("log", 1, "history")
    for number in range(18):
        made.write("orders", [(b"k%d" % ((number * 7 + i) % 23), b"v%d" % number) for i in range(3)])
        made.write("log", [(b"l", b"%d" % (number + seed_of_values))])
        if number == 5:
            made.flush("orders")
            made.flush("log")
        if number == 9:
            made.flush_and_trim("orders")
    return made


def files_of(disk):
    """Every file of the directory but LOCK, sorted."""
    return sorted(path for path in disk.names_now if path.startswith(f"{DATA}/") and not path.endswith("/LOCK"))


def contents_of(disk):
    """What is in each of ``files_of``."""
    return {path: bytes(disk.names_now[path].content.whole()) for path in files_of(disk)}


def segments_of(disk):
    return [path for path in files_of(disk) if path.endswith(".seg")]


def journal_of(disk):
    return [path for path in files_of(disk) if "/journal/" in path]


def lose(disk, path):
    """Removes a file, durably."""
    disk.remove(path)
    disk.sync_directory(path.rpartition("/")[0])


def fill_at(disk, number):
    """The disk is full from the ``number``-th call on that needs space. A list of the calls that failed."""
    failed, calls = [], itertools.count()

    def before(name, path):
        if name in ("write_at", "create", "make_directory", "link") and next(calls) >= number:
            failed.append(path)
            raise OSError(errno.ENOSPC, "No space left on device", path)

    disk.before = before
    return failed


def repaired(made, disk, **options):
    """The outcome of a repair of ``disk``."""
    return repair(disk, DATA, made.host.randomness, made.host.clock, TIME, **options)


def check_repaired(made, disk, seqs):
    """The directory starts; what it holds was written, and what it lacks is in ``seqs``. The node, and what it lacks.

    ``seqs`` are (feed id, partition, first, last). Feeds are told by their ids: their names may be lost.
    """
    node = made.start_on(disk)
    node.check()
    assert not node.storage.damages
    names = {feed.info.name: made.names[feed.info.feed_id] for feed in node.feeds}
    got = {(names[name], partition, seq): row for (name, partition, seq), row in rows_of(node).items()}
    assert got.items() <= made.rows.items(), "nothing is there that was not written"
    missing = made.rows.keys() - got.keys()
    listed = {
        (made.names[feed_id], partition, seq)
        for feed_id, partition, first, last in seqs
        if feed_id != SYSTEM_FEED_ID
        for seq in range(first, last + 1)
    }
    assert missing <= listed, "what is missing is listed"
    return node, missing
