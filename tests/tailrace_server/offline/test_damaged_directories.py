"""Every file and directory of a data directory, missing, cut, zeroed, older, or another's, against what was written.

A start refuses and names the file, or serves without the damaged partition, or has everything that was acknowledged.
A repair lists what is lost, no more and no less; where nothing tells how much, it says behind which seq.
"""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.partitions import blocks_of
from tests.tailrace_server.made_directory import DATA, MadeDirectory, rows_of
from tests.tailrace_server.offline.damage import contents_of, files_of, lose, repaired
from tests.tiers import examples

from tailrace.errors import TailraceError
from tailrace_server.offline.verify import verify

KINDS = ("/journal/", ".seg", "MANIFEST", "/FEED", "NODE", "UPTIME", "CLEAN", "HELD")


def kind_of(path):
    return next((kind for kind in KINDS if kind in path), path)


class Life(NamedTuple):
    """A directory after a life in which everything occurs, what it was earlier, and another node's of the same life."""

    made: MadeDirectory
    rows: dict
    names: dict
    older: list
    foreign: dict


def live(how):
    made, older = MadeDirectory(journal_file_bytes_max=3_000), []
    for name, partitions, retention in (("orders", 2, "compact"), ("log", 1, "history"), ("old", 2, "compact")):
        made.create(name, partitions, retention)
    made.create("gone", 1)
    made.write("old", [(b"o%d" % number, b"1") for number in range(10)])
    made.write("gone", [(b"g", b"1")])
    for number in range(18):
        made.write("orders", [(b"k%d" % ((number * 7 + i) % 23), b"v%d" % number) for i in range(3)])
        made.write("log", [(b"l", b"%d" % number)])
        if number == 3:
            made.flush_and_trim("old")
        if number == 5:
            made.flush("orders")
            made.flush("log")
        if number == 9:
            made.flush_and_trim("orders")
            made.flush_and_trim("log")
            older.append(contents_of(made.disk))
            made.drop("gone")
        if number == 12:
            made.flush("orders", 0)
            made.create("new", 1)
            made.write("new", [(b"n", b"1")])
        if number == 13:
            made.flush_and_trim("orders")
            older.append(contents_of(made.disk))
    rows = {place: row for place, row in made.rows.items() if place[0] != "gone"}
    names = {feed.info.feed_id: feed.info.name for feed in made.node.feeds}
    made.keep()
    made.stop() if how == "clean" else made.kill()
    return made, rows, names, older


@pytest.fixture(scope="module", params=["clean", "killed"])
def life(request):
    other, *_ = live(request.param)
    made, rows, names, older = live(request.param)
    assert rows_of(made.start_on(made.disk.fork())) == rows
    return Life(made, rows, names, older, contents_of(other.disk))


def rows_of_partition(name, partition):
    return {
        (name, partition.id, seq): (key, value)
        for block in blocks_of(partition)
        for columns in [block.columns()]
        for seq, key, value in zip(columns.seqs(), columns.keys(), columns.values(), strict=True)
    }


def put(disk, path, content):
    inode = disk.names_now[path]
    inode.content.whole()[:] = content
    inode.sync()


def remove_below(disk, directory):
    for path in files_of(disk):
        if path.startswith(f"{directory}/"):
            lose(disk, path)
    below = [d for d in disk.directories if d == directory or d.startswith(f"{directory}/")]
    for path in sorted(below, reverse=True):
        disk.remove_directory(path)
        disk.sync_directory(path.rpartition("/")[0])


def put_back(disk, directory, older):
    remove_below(disk, directory)
    for path, content in older.items():
        if path.startswith(f"{directory}/"):
            disk.make_directory(path.rpartition("/")[0])
            file = disk.create(path)
            file.write_at(0, (content,), len(content))
            file.sync()
            file.close()
            disk.sync_directory(path.rpartition("/")[0])


def damages(life):
    """Every (path, kind of damage, function of a disk)."""
    contents = contents_of(life.made.disk)
    for path, content in contents.items():
        yield path, "missing", lambda disk, path=path: lose(disk, path)
        for end in sorted({0, len(content) // 3, len(content) // 2, len(content) - 1}):
            cut, zeros = content[:end], content[:end] + bytes(len(content) - end)
            yield path, f"cut at {end}", lambda disk, path=path, cut=cut: put(disk, path, cut)
            yield path, f"zeros from {end}", lambda disk, path=path, zeros=zeros: put(disk, path, zeros)
        for number, older in enumerate(life.older):
            if older.get(path, content) != content:
                yield path, f"older {number}", lambda disk, path=path, old=older[path]: put(disk, path, old)
        for other, its in contents.items():
            if other != path and kind_of(other) == kind_of(path):
                yield path, f"that of {other}", lambda disk, path=path, its=its: put(disk, path, its)
        if life.foreign.get(path, content) != content:
            yield path, "another node's", lambda disk, path=path: put(disk, path, life.foreign[path])
    for directory in sorted(d for d in life.made.disk.directories if d.startswith(f"{DATA}/")):
        yield directory, "missing", lambda disk, path=directory: remove_below(disk, path)
        for number, older in enumerate(life.older):
            yield directory, f"older {number}", lambda disk, path=directory, old=older: put_back(disk, path, old)


def names_of(path):
    """What a message may call a file or a directory: its path, its name, or the feed that it is of."""
    path = path.removeprefix(f"{DATA}/")
    yield path
    yield path.rpartition("/")[2]
    yield path.partition("/")[0] if "journal" in path else "/".join(path.split("/")[:2])


def start(life, disk):
    """Why it was refused, "" if it was not; which partitions are not served, and the rows of the others."""
    try:
        node = life.made.start_on(disk)
    except TailraceError as error:
        return str(error), set(), {}
    served, lost = {}, set()
    for feed in node.feeds:
        for partition in feed.partitions:
            if partition.damage is not None:
                lost.add((feed.info.name, partition.id))
            else:
                served |= rows_of_partition(feed.info.name, partition)
    assert len(node.storage.damages) >= len(lost)
    assert len(node.storage.damages) == len(lost) or node.feeds.system.partitions[0].damage is not None
    return "", lost, served


def check(life, path, damage, change):
    disk = life.made.disk.fork()
    change(disk)
    damaged = disk.fork()
    why, unserved, served = start(life, disk)
    assert not why or any(name in why for name in names_of(path)), f"{why} does not name {path}"
    expected = {place: row for place, row in life.rows.items() if place[:2] not in unserved}
    is_whole = bool(why) or served == expected
    assert is_whole, "acknowledged rows are gone, and nothing is said"
    refused = bool(why or unserved)
    assert verify(damaged, DATA).problems or not refused, f"verify does not see what a start does: {why}"
    outcome = repaired(life.made, damaged)
    assert outcome.actions or not refused
    node = life.made.start_on(damaged)
    node.check()
    assert not node.storage.damages
    names = {feed.info.name: life.names.get(feed.info.feed_id, feed.info.name) for feed in node.feeds}
    got = {(names[name], number, seq): row for (name, number, seq), row in rows_of(node).items()}
    assert {place: row for place, row in got.items() if place[0] != "gone"}.items() <= life.rows.items()
    listed = {
        (life.names.get(feed_id), partition, seq)
        for feed_id, partition, first, last in outcome.lost.seqs
        for seq in range(first, last + 1)
    }
    assert not listed & got.keys(), "nothing is listed as lost that is there"
    ends = {(life.names.get(feed_id), partition): seq for feed_id, partition, seq in outcome.lost.open_ends}
    missing = life.rows.keys() - got.keys() - listed
    missing = {place for place in missing if place[2] <= ends.get(place[:2], 1 << 62)}
    # Without its list nothing tells of a feed whose files are gone too.
    is_untold_feed = path == f"{DATA}/feeds" and not damaged.exists(f"{DATA}/CLEAN")
    assert not missing or is_untold_feed, "all that is missing is listed"


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(seed=st.integers(0, 2**32))
def test_a_damaged_directory_loses_nothing_in_silence(life, seed):
    check(life, *random.Random(seed).choice(list(damages(life))))


@pytest.mark.soak
def test_no_damage_of_any_file_loses_anything_in_silence(life):
    for path, damage, change in damages(life):
        try:
            check(life, path, damage, change)
        except BaseException as error:
            error.add_note(f"{path}: {damage}")
            raise


@pytest.mark.slow
def test_a_segment_of_another_partition_is_not_poured_into_this_one(life):
    """What a wrong copy that is put back holds are rows of other keys, with the same seqs."""
    concerned = [one for one in damages(life) if one[0].endswith(".seg") and one[1].startswith("that of")]
    for one in random.Random(5).sample(concerned, 12):
        check(life, *one)


@pytest.mark.slow
def test_what_an_older_file_of_the_journal_held_is_listed_or_its_end_is_open(life):
    newest = max(path for path in files_of(life.made.disk) if "/journal/" in path)
    older = [one for one in damages(life) if "/journal/" in one[0] and one[0] != newest]
    concerned = [one for one in older if one[1].startswith(("cut", "zeros", "missing"))]
    for one in random.Random(5).sample(concerned, 8):
        check(life, *one)
