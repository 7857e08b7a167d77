"""A directory of which something is missing is not taken for a new one, and what is left stays as it is."""

from __future__ import annotations

import contextlib
import random

import pytest
from tests.memory_disk import MemoryDisk
from tests.tailrace_server.made_directory import DATA, MadeDirectory, rows_of
from tests.tailrace_server.offline.damage import check_repaired, contents_of, files_of, lose, repaired

from tailrace.model.failover import FailoverLog
from tailrace_server.directory.identity import BadDirectory, Incomplete
from tailrace_server.feeds.feed import SYSTEM_FEED_NAME, creation_to_bytes
from tailrace_server.host.disk import write_atomically
from tailrace_server.journal import RecordKind
from tailrace_server.journal.controls import RollbackRecord
from tailrace_server.journal.format import FILE_HEADER_BYTES
from tailrace_server.manifest.producers import NO_PRODUCERS
from tailrace_server.offline.verify import verify


def remove_tree(disk, directory):
    """As ``rm -r``, or as a volume that is not mounted: durable at once."""
    for path in files_of(disk):
        if path.startswith(f"{directory}/"):
            lose(disk, path)
    below = [d for d in disk.directories if d == directory or d.startswith(f"{directory}/")]
    for path in sorted(below, reverse=True):
        disk.remove_directory(path)
        disk.sync_directory(path.rpartition("/")[0])


def a_life(*, trimmed):
    """Rows in segments and in the journal, whose beginning is still there or not."""
    made = MadeDirectory(journal_file_bytes_max=3_000)
    made.create("orders")
    made.create("quiet", 1)
    made.write("quiet", [(b"q", b"1")])
    for number in range(12):
        made.write("orders", [(b"k%d" % number, b"v")])
        if number == 6:
            made.flush("orders")
        if number == 8 and trimmed:
            made.flush("quiet")
            made.flush_and_trim("orders")
    return made


def end(made, how):
    if how == "clean":
        made.stop()
    else:
        made.kill()


def check_refused(made, disk, name):
    """A start names what is missing, changes nothing that counts, and so does the next; repair lets it start."""
    before = contents_of(disk)
    for _ in range(2):
        with pytest.raises(Incomplete, match=name):
            made.start_on(disk)
    kept = [path for path in before if "/journal/" not in path]
    assert {path: contents_of(disk)[path] for path in kept} == {path: before[path] for path in kept}
    assert verify(disk, DATA).problems
    outcome = repaired(made, disk)
    assert outcome.actions
    assert verify(disk, DATA).problems == []
    branches = {p.log.branch for feed in made.start_on(made.disk.fork()).feeds for p in feed.partitions}
    node = made.start_on(disk)
    assert not branches & {p.log.branch for feed in node.feeds for p in feed.partitions}, (
        "no seq of a branch comes twice"
    )
    return outcome


def test_the_copy_of_a_feed_is_not_taken_for_a_new_directory():
    made = MadeDirectory()
    disk = MemoryDisk()
    disk.make_directory(DATA)
    write_atomically(disk, f"{DATA}/FEED.json", b"{}")
    before = contents_of(disk)
    with pytest.raises(BadDirectory, match=r"is a copy of a feed, .* and no data directory: name another one"):
        made.start_on(disk)
    assert contents_of(disk) == before
    disk.remove(f"{DATA}/FEED.json")
    made.start_on(disk)


def warnings_of(caplog):
    return [message for message in caplog.messages if "is not empty" in message]


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["index.md"], "beside index.md. If"),
        (["b", "a", "LOCK", "lost+found"], "beside a, b. If"),
        ([f"row-{number}.csv" for number in range(12)], "and 7 more. If"),
    ],
)
def test_a_node_that_begins_beside_files_of_others_warns(names, told, caplog):
    made, disk = MadeDirectory(), MemoryDisk()
    disk.make_directory(DATA)
    for name in names:
        write_atomically(disk, f"{DATA}/{name}", b"1")
    made.start_on(disk)
    [warning] = warnings_of(caplog)
    assert told in warning
    caplog.clear()
    made.start_on(disk)  # it is its own directory now
    assert not warnings_of(caplog)


def test_files_that_a_new_directory_may_have_are_no_others(caplog):
    made, disk = MadeDirectory(), MemoryDisk()
    disk.make_directory(DATA)
    for name in ("admin.token", "lost+found", ".snapshot", "NODE.new", "RESERVE"):
        write_atomically(disk, f"{DATA}/{name}", b"1")
    made.start_on(disk)
    assert not warnings_of(caplog)


@pytest.mark.parametrize("how", ["clean", "killed"])
@pytest.mark.parametrize("trimmed", [True, False])
def test_a_missing_journal_is_none_that_is_new(how, trimmed):
    made = a_life(trimmed=trimmed)
    end(made, how)
    disk = made.disk.fork()
    remove_tree(disk, f"{DATA}/journal")
    check_refused(made, disk, "/data/journal is missing")


@pytest.mark.parametrize("how", ["clean", "killed"])
def test_an_empty_journal_is_none_that_is_new(how):
    made = MadeDirectory()
    made.create("orders")
    made.write("orders", [(b"k", b"v")])
    end(made, how)
    disk = made.disk.fork()
    remove_tree(disk, f"{DATA}/journal")
    disk.make_directory(f"{DATA}/journal")
    check_refused(made, disk, "/data/journal is missing")


@pytest.mark.parametrize("how", ["clean", "killed"])
@pytest.mark.parametrize("flushed", [SYSTEM_FEED_NAME, "all"])
def test_missing_feeds_are_none_that_never_were(how, flushed):
    made = a_life(trimmed=True)
    if flushed == "all":  # nothing is left in the journal that tells of them
        made.flush("orders")
        made.flush(SYSTEM_FEED_NAME)
        made.node.storage.journal._rotate()
        made.trim()
    end(made, how)
    disk = made.disk.fork()
    remove_tree(disk, f"{DATA}/feeds")
    check_refused(made, disk, "feeds/")


@pytest.mark.parametrize("how", ["clean", "killed"])
@pytest.mark.parametrize("name", ["orders", "quiet"])
def test_a_missing_feed_is_none_that_was_never_made(how, name):
    """Also one of which the journal tells nothing any more: it was made anew, empty, without a word."""
    made = a_life(trimmed=True)
    feed_id = made.node.feeds.named(name).info.feed_id.hex()
    end(made, how)
    disk = made.disk.fork()
    remove_tree(disk, f"{DATA}/feeds/{feed_id}")
    check_refused(made, disk, f"feeds/{feed_id}/FEED is missing")


def list_unmade(made, name):
    """Writes the row of a feed that is not made yet, as a follower has it from its leader. Returns the feed's id."""
    info = made.node.feeds.named("quiet").info._replace(name=name, feed_id=bytes([len(name)]) * 16)
    rows = {info.feed_id: creation_to_bytes(info, bytes([7]) * 16)}
    journal, [listed] = made.node.storage.journal, made.node.feeds.system.partitions
    made.node.feeds.write_rows(rows, journal, now_us=1, now=0.0)
    journal.sync()
    listed.durable_through(listed.high_seq)
    for feed in made.node.feeds:
        made.flush(feed.info.name)
    made.flush_and_trim(SYSTEM_FEED_NAME)
    return info.feed_id


def test_a_feed_that_was_listed_and_not_made_yet_is_made_by_the_start():
    """A follower has the rows of ``_feeds`` first, flushed or in a segment that came. It makes the feeds then."""
    made = a_life(trimmed=True)
    feed_id = list_unmade(made, "late")
    made.kill()
    node = made.start()
    assert node.feeds.find(feed_id).info.name == "late"
    assert not made.node.storage.damages


@pytest.mark.parametrize("name", ["orders", "late"])
def test_a_feed_that_is_missing_beside_one_that_was_not_made_is_told(name):
    """Also that one, once it was made, and ``_feeds`` was flushed again."""
    made = a_life(trimmed=True)
    list_unmade(made, "late")
    made.kill()
    made.start()
    if name == "late":
        made.write("late", [(b"k", b"v")])
        list_unmade(made, "later")
    feed_id = made.node.feeds.named(name).info.feed_id.hex()
    made.kill()
    disk = made.disk.fork()
    remove_tree(disk, f"{DATA}/feeds/{feed_id}")
    check_refused(made, disk, f"feeds/{feed_id}/FEED is missing")


@pytest.mark.parametrize("how", ["clean", "killed"])
@pytest.mark.parametrize("trimmed", [True, False])
def test_without_node_it_is_no_new_directory(how, trimmed):
    made = a_life(trimmed=trimmed)
    end(made, how)
    disk = made.disk.fork()
    lose(disk, f"{DATA}/NODE")
    check_refused(made, disk, "/data/NODE is missing")


def test_rows_that_the_mark_of_a_clean_stop_tells_of_have_to_be_there():
    made = a_life(trimmed=True)
    end(made, "clean")
    disk = made.disk.fork()
    path = max(path for path in files_of(disk) if "/journal/" in path)
    inode = disk.names_now[path]
    del inode.content.whole()[FILE_HEADER_BYTES:]
    inode.sync()
    outcome = check_refused(made, disk, "the end of /data/journal/")
    check_repaired(made, disk.fork(), outcome.lost.seqs)


def test_a_feed_without_rows_in_the_journal_and_its_drop_are_no_damage():
    made = a_life(trimmed=True)
    made.drop("quiet")
    made.trim()
    made.kill()
    assert rows_of(made.start()) == made.rows
    made.stop()
    assert rows_of(made.start()) == made.rows


def test_a_start_that_was_interrupted_at_any_call_is_no_damage(memory_disk):
    """Of a new directory, and of one with feeds: whatever is there then was left by a start."""
    for crash_at in range(200):
        disk = memory_disk()
        disk.crash_at(crash_at)
        try:
            made = MadeDirectory(disk)
            made.create("orders")
        except memory_disk.Crashed:
            disk.cut_power(random.Random(crash_at)) if crash_at % 2 else disk.kill()
            made = MadeDirectory(disk)
            made.stop()
        else:
            break
    disk.before = None
    assert crash_at > 10
    made.write("orders", [(b"k", b"v")])
    made.stop()
    for crash_at in range(200):
        disk = made.disk.fork()
        disk.crash_at(crash_at)
        try:
            made.start_on(disk)
        except memory_disk.Crashed:
            disk.cut_power(random.Random(crash_at)) if crash_at % 2 else disk.kill()
            assert rows_of(made.start_on(disk)) == made.rows
        else:
            break
    assert crash_at > 5


def test_an_unfinished_start_that_was_refused_leaves_the_mark():
    made = a_life(trimmed=True)
    end(made, "clean")
    disk = made.disk.fork()
    feed_id = made.start_on(made.disk.fork()).feeds.named("quiet").info.feed_id.hex()
    whole = contents_of(disk)
    remove_tree(disk, f"{DATA}/feeds/{feed_id}")
    with pytest.raises(Incomplete):
        made.start_on(disk)
    for path, content in whole.items():
        if feed_id in path:
            disk.make_directory(path.rpartition("/")[0])
            with contextlib.closing(disk.create(path)) as file:
                file.write_at(0, (content,), len(content))
                file.sync()
    node = made.start_on(disk)
    assert node.services.unclean_start is None, "once it was put back the stop counts as clean"
    assert rows_of(node) == made.rows


def put_back(disk, directory, older):
    """The directory as it was in ``older``, the contents of a disk; durable at once."""
    remove_tree(disk, directory)
    for path, content in older.items():
        if path.startswith(f"{directory}/"):
            disk.make_directory(path.rpartition("/")[0])
            with contextlib.closing(disk.create(path)) as file:
                file.write_at(0, (content,), len(content))
                file.sync()
            disk.sync_directory(path.rpartition("/")[0])


def newest_of(disk):
    """The path of the newest file with a name; not that which is created ahead."""
    return max(path for path in files_of(disk) if "/journal/" in path and path.endswith(".log"))


@pytest.mark.parametrize("how", ["clean", "killed"])
def test_a_missing_newest_file_of_the_journal_is_told(how):
    made = a_life(trimmed=False)
    made.keep()
    end(made, how)
    disk = made.disk.fork()
    path = newest_of(disk)
    lose(disk, path)
    outcome = check_refused(made, disk, path)
    assert outcome.lost.seqs


@pytest.mark.parametrize("how", ["clean", "killed"])
@pytest.mark.parametrize("what", ["the newest file", "journal"])
def test_an_older_copy_of_the_journal_is_told(how, what):
    """Of the same process: the file has the same number and key, and only ends earlier."""
    made = a_life(trimmed=True)
    older = contents_of(made.disk)
    made.write("orders", [(b"after", b"v")])
    made.keep()
    assert newest_of(made.disk) in older
    end(made, how)
    disk = made.disk.fork()
    if what == "journal":
        put_back(disk, f"{DATA}/journal", older)
    else:
        path = newest_of(disk)
        disk.names_now[path].content.whole()[:] = older[path]
        disk.names_now[path].sync()
    outcome = check_refused(made, disk, newest_of(disk))
    check_repaired(made, disk.fork(), outcome.lost.seqs)


@pytest.mark.parametrize("how", ["clean", "killed"])
@pytest.mark.parametrize("what", ["missing", "older"])
def test_a_partition_that_nothing_is_written_to_any_more_has_to_be_there(how, what):
    """All that it had has left the journal, so nothing there begins behind it."""
    made = a_life(trimmed=False)
    made.flush("quiet")
    older = contents_of(made.disk)
    made.write("quiet", [(b"r", b"1")])
    made.flush("quiet")
    made.flush_and_trim("orders")
    made.keep()
    directory = f"{DATA}/feeds/{made.node.feeds.named('quiet').info.feed_id.hex()}/0"
    end(made, how)
    disk = made.disk.fork()
    if what == "missing":
        remove_tree(disk, directory)
    else:
        put_back(disk, directory, older)
    outcome = check_refused(made, disk, directory)
    check_repaired(made, disk.fork(), outcome.lost.seqs)


def test_a_crash_before_the_mark_of_what_is_held_is_no_damage():
    """What was written since HELD is there after a crash, and a directory from before there was a HELD starts."""
    made = a_life(trimmed=True)
    made.keep()
    made.write("orders", [(b"after", b"v")])
    made.kill()
    disk = made.disk.fork()
    lose(disk, f"{DATA}/HELD")
    assert rows_of(made.start_on(disk)) == made.rows
    assert disk.exists(f"{DATA}/HELD"), "the start writes it"
    assert rows_of(made.start()) == made.rows


@pytest.mark.parametrize("content", [b"", b"{}\n", b'{"format":"tailrace held"}\nxx\n'])
def test_a_mark_of_what_is_held_that_cannot_be_read_stops_nothing(content):
    made = a_life(trimmed=True)
    made.keep()
    made.kill()
    disk = made.disk.fork()
    disk.names_now[f"{DATA}/HELD"].content.whole()[:] = content
    disk.names_now[f"{DATA}/HELD"].sync()
    damaged = disk.fork()
    assert rows_of(made.start_on(disk)) == made.rows
    assert verify(damaged, DATA).problems
    assert repaired(made, damaged).actions
    assert rows_of(made.start_on(damaged)) == made.rows


def test_a_feed_that_was_dropped_or_made_again_lacks_nothing():
    made = a_life(trimmed=True)
    made.keep()
    feed_id = made.node.feeds.named("quiet").info.feed_id
    made.drop("quiet")
    made.kill()
    assert rows_of(made.start_on(made.disk.fork())) == made.rows
    made.start()
    made.trim()
    made.node.feed_changes.create({"name": "quiet", "feed_id": feed_id.hex(), "partitions": 1})
    made._sync_feeds()
    made.kill()
    assert rows_of(made.start()) == made.rows


def test_a_partition_that_was_rolled_back_lacks_nothing():
    made = a_life(trimmed=False)
    made.keep()
    partition = made.node.feeds.named("quiet").partitions[0]
    made.node.storage.journal.append(
        RecordKind.ROLLED_BACK,
        partition.feed_id,
        0,
        RollbackRecord(0, FailoverLog(), 1, NO_PRODUCERS).encode(),
    )
    made.node.storage.journal.sync()
    made.kill()
    node = made.start()
    assert node.feeds.named("quiet").partitions[0].high_seq == 0


@pytest.mark.slow
def test_a_crash_at_any_call_between_writes_flushes_and_marks_is_no_damage(memory_disk):
    """The mark is written while rows are written, flushed and trimmed: whatever a crash keeps, a start takes."""

    def live(made):
        made.create("orders")
        for number in range(4):
            made.write("orders", [(b"k%d" % number, b"v" * 400)])
            made.keep()
            if number == 1:
                made.flush("orders")
            if number == 2:
                made.flush_and_trim("orders")
                made.keep()

    for crash_at in range(0, 1_000, 3):
        disk = memory_disk()
        made = MadeDirectory(disk, journal_file_bytes_max=3_000)
        disk.crash_at(crash_at)
        try:
            live(made)
        except memory_disk.Crashed:
            disk.cut_power(random.Random(crash_at)) if crash_at % 2 else disk.kill()
            made.start()
        else:
            break
    assert crash_at > 100
