import contextlib
import errno
import itertools
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tailrace_server.made_directory import DATA, rows_of
from tests.tailrace_server.offline.damage import (
    TIME,
    check_repaired,
    contents_of,
    files_of,
    fill_at,
    journal_of,
    lose,
    make_directory,
    repaired,
    segments_of,
)
from tests.tiers import examples

from tailrace.block import Block
from tailrace.errors import TailraceError
from tailrace.model.failover import ResumeReason, resume_point
from tailrace_server.directory import restored_marks as marks
from tailrace_server.directory.copying import copy_file
from tailrace_server.directory.identity import BadDirectory
from tailrace_server.directory.watcher import Unwatched
from tailrace_server.feeds.feed import SYSTEM_FEED_ID
from tailrace_server.host.disk import read_file
from tailrace_server.journal import DirectoryInUse, RecordKind
from tailrace_server.journal.format import FILE_HEADER_BYTES, RECORD_HEADER_BYTES, JournalHeader, pack_record
from tailrace_server.journal.reader import RawRecord
from tailrace_server.offline.journal_survey import NewerJournal
from tailrace_server.offline.journal_walk import journal_files
from tailrace_server.offline.verify import verify

LOST = f"{DATA}/lost/{TIME}"


def index(disk):
    return [json.loads(line) for line in read_file(disk, f"{LOST}/index.jsonl").splitlines()]


def test_of_a_good_directory_nothing_is_changed(stopped):
    disk = stopped.disk.fork()
    before = contents_of(disk)
    outcome = repaired(stopped, disk)
    assert outcome.actions == []
    assert contents_of(disk) == before, "CLEAN is still there"


def damage(disk, rnd):
    path = rnd.choice(files_of(disk))
    content = disk.content(path)
    kind = rnd.choice(["flip", "flip", "flip", "cut", "zeros", "remove"])
    if kind == "flip":
        disk.flip(path, rnd.randrange(8 * len(content)))
    elif kind == "cut":
        del content[rnd.randrange(len(content)) :]
    elif kind == "zeros":
        begin = rnd.randrange(len(content))
        content[begin : begin + 512] = bytes(len(content[begin : begin + 512]))
    else:
        lose(disk, path)
    return path, kind


@pytest.mark.slow
@settings(max_examples=examples(50))
@given(st.integers(0, 2**32))
def test_a_damaged_directory_starts_after_a_repair_and_all_that_it_lacks_is_listed(stopped, seed):
    rnd = random.Random(seed)
    disk = stopped.disk.fork()
    path, kind = damage(disk, rnd)
    if kind == "remove" and path.endswith("/CLEAN"):
        return
    dry = repaired(stopped, disk.fork(), is_dry=True)
    found = verify(disk, DATA).problems
    before = contents_of(disk)
    outcome = repaired(stopped, disk)
    assert bool(outcome.actions) == bool(found)
    assert (dry.actions, dry.lost.seqs) == (outcome.actions, outcome.lost.seqs)
    assert (dry.lost.lines, dry.lost.moved_files) == (outcome.lost.lines, outcome.lost.moved_files)
    if found:
        assert not disk.exists(f"{DATA}/CLEAN")
        assert marks.is_restored(disk, DATA)
    assert verify(disk, DATA).problems == []
    kept = set(contents_of(disk).values())
    assert all(data in kept for path, data in before.items()), "nothing is deleted, only moved"
    check_repaired(stopped, disk, outcome.lost.seqs)


def test_a_dry_run_changes_nothing(stopped):
    for path in files_of(stopped.disk):
        disk = stopped.disk.fork()
        disk.flip(path, 8 * 20)
        before = contents_of(disk)
        repaired(stopped, disk, is_dry=True)
        assert contents_of(disk) == before


def kinds_of_damage():
    made = make_directory()
    made.stop()
    disk = made.disk.fork()
    disk.flip(segments_of(disk)[0], 8 * 150)  # in a block
    yield "block of a segment", made, disk
    disk = made.disk.fork()
    lose(disk, segments_of(disk)[-1])
    yield "missing segment", made, disk
    disk = made.disk.fork()
    disk.flip(next(path for path in files_of(disk) if path.endswith("0/MANIFEST")), 99)
    disk.flip(journal_of(disk)[-1], 8 * 300)
    disk.flip(f"{DATA}/NODE", 8 * 60)
    yield "manifest, journal and node", made, disk


@pytest.mark.slow
@pytest.mark.parametrize(("made", "damaged"), [pytest.param(m, d, id=name) for name, m, d in kinds_of_damage()])
def test_a_repair_that_is_interrupted_anywhere_goes_on(made, damaged, memory_disk):
    rnd = random.Random(3)
    for crash_at in range(10_000):
        disk = damaged.fork()
        before = set(contents_of(disk).values())
        disk.crash_at(crash_at)
        try:
            repaired(made, disk)
        except memory_disk.Crashed:
            disk.cut_power(rnd) if crash_at % 2 else disk.kill()
            if marks.is_marked(disk, DATA, marks.REPAIRING_NAME):
                with pytest.raises(BadDirectory, match="repair"):
                    made.start_on(disk.fork())
            repaired(made, disk)
            assert verify(disk, DATA).problems == []
            assert not marks.is_marked(disk, DATA, marks.REPAIRING_NAME)
            assert before <= set(contents_of(disk).values()), "nothing is deleted, only moved"
            seqs = [
                (bytes.fromhex(line["feed"]), line["partition"], line["first_seq"], line["last_seq"])
                for line in index(disk)
                if line["lost"] in ("rows", "exported")
            ]
            check_repaired(made, disk, seqs)
        else:
            return
    raise AssertionError("the repair has more steps than this test tries")


def lose_a_block(stopped):
    """A damaged block in a segment of partition 0 of "orders" that no journal has any more."""
    disk = stopped.disk.fork()
    orders = stopped.start_on(stopped.disk.fork()).feeds.named("orders")
    [*_, segment] = orders.partitions[0].chain.segments[:1]
    disk.flip(segment.path, 8 * (64 + 96 + 30))
    return disk, orders, segment


def test_consumers_of_a_partition_that_lost_rows_begin_at_0(stopped):
    disk, before, segment = lose_a_block(stopped)
    repaired(stopped, disk)
    node = stopped.start_on(disk)
    for old, new in zip(before.partitions, node.feeds.named("orders").partitions, strict=True):
        resume = resume_point(
            old.log, old.high_seq, old.high_seq, old.high_seq, None, new.log, new.high_seq, new.purge_seq
        )
        restored = marks.restored_term(old.log.term, stopped.host.clock.wall_us())
        assert new.log.term == restored, "no consumer takes the node for one that is behind"
        assert new.high_seq == old.high_seq
        if old.id == 0:
            assert resume == (0, ResumeReason.NO_COMMON_BRANCH)
            assert 0 < new.purge_seq <= segment.identity.last_seq
            [damaged, *_] = new.chain.segments
            assert damaged.identity.deduplicated, "no snapshot ends inside of it"
            assert damaged.identity.last_seq == segment.identity.last_seq
        else:
            assert resume.seq == old.high_seq, "a partition that lost nothing goes on"
            assert new.purge_seq == 0


def test_what_is_lost_of_a_segment_is_listed_to_the_row(stopped):
    disk, _, segment = lose_a_block(stopped)
    [block], _ = segment.read_blocks(0, 1)
    repaired(stopped, disk)
    [line] = index(disk)
    assert line["lost"] == "rows"
    assert (line["partition"], line["first_seq"], line["last_seq"], line["rows"]) == (
        0,
        block.header.first_seq,
        block.header.last_seq,
        block.rows,
    )
    assert line["file"] == segment.path.removeprefix(f"{DATA}/")
    assert line["offset"] == 64
    keys = list(map(bytes.decode, block.columns().keys()))
    assert set(line["keys"]) <= set(keys), "only keys whose hash proves them"
    assert len(line["keys"]) >= len(keys) - 1
    assert disk.exists(f"{LOST}/{line['file']}"), "the damaged file is kept"


def test_a_segment_of_which_no_row_is_lost_costs_no_consumer_anything(stopped):
    disk = stopped.disk.fork()
    orders = stopped.start_on(stopped.disk.fork()).feeds.named("orders")
    segment = orders.partitions[0].chain.segments[0]
    disk.flip(segment.path, 8 * (segment.nbytes - 150))  # in the identity
    outcome = repaired(stopped, disk)
    assert outcome.lost.seqs == []
    node = stopped.start_on(disk)
    assert rows_of(node) == stopped.rows
    old, new = orders.partitions[0], node.feeds.named("orders").partitions[0]
    resume = resume_point(old.log, old.high_seq, old.high_seq, old.high_seq, None, new.log, new.high_seq, new.purge_seq)
    assert resume.seq == old.high_seq


def test_rows_that_the_journal_still_has_are_not_lost(stopped):
    made = make_directory()
    made.flush("log")
    made.stop()
    disk = made.disk.fork()
    log = made.start_on(made.disk.fork()).feeds.named("log")
    segment = log.partitions[0].chain.segments[-1]
    disk.flip(segment.path, 8 * (64 + 96 + 3))
    outcome = repaired(made, disk)
    assert outcome.lost.seqs == []
    assert rows_of(made.start_on(disk)) == made.rows


def test_blocks_behind_a_gap_are_exported_with_an_index(stopped):
    disk = stopped.disk.fork()
    path = journal_of(disk)[-2]
    disk.flip(path, 8 * (64 + 96 + 100))
    outcome = repaired(stopped, disk)
    lines = [line for line in index(disk) if line["lost"] == "exported"]
    assert lines
    for line in lines:
        data = read_file(disk, f"{LOST}/{line['file']}")
        block = Block.parse(data[line["offset"] : line["offset"] + line["bytes"]])
        assert (block.header.first_seq, block.header.last_seq) == (line["first_seq"], line["last_seq"])
        assert list(map(bytes.decode, block.columns().keys())) == line["keys"]
    assert sum(line["rows"] for line in lines) == outcome.lost.exported_rows
    assert disk.exists(f"{LOST}/{path.removeprefix(f'{DATA}/')}")
    node, _ = check_repaired(stopped, disk, outcome.lost.seqs)
    for partition in node.feeds.partitions():
        assert partition.log[0].base == partition.high_seq


def test_a_journal_that_is_written_anew_takes_its_space_once(stopped, monkeypatch):
    monkeypatch.setattr("tailrace_server.offline.journal_swap.FILE_BYTES_DEFAULT", 1_000)
    monkeypatch.setattr("tailrace_server.journal.space.ALLOCATE_BYTES", 0)
    disk = stopped.disk.fork()
    disk.flip(journal_of(disk)[-2], 8 * (64 + 96 + 100))
    writes = []
    disk.before = lambda name, path: writes.append(path) if name == "write_at" and "/journal.new/" in path else None
    outcome = repaired(stopped, disk)
    disk.before = None
    files = len([path for path in journal_of(disk) if "/lost/" not in path])
    records = sum(
        isinstance(item, RawRecord) for file in journal_files(disk, f"{DATA}/journal") for item in file.items()
    )
    assert any("written anew" in action for action in outcome.actions)
    assert files > 3
    assert len(writes) <= files + records + files, "headers, records, and the copy of the first record of a file"


def test_a_feed_whose_file_is_lost_keeps_its_rows_under_another_name(stopped):
    disk = stopped.disk.fork()
    orders = stopped.start_on(stopped.disk.fork()).feeds.named("orders")
    path = f"{DATA}/feeds/{orders.info.feed_id.hex()}/FEED"
    disk.flip(path, 8 * 50)
    repaired(stopped, disk)
    found = stopped.start_on(disk).feeds.of_id(orders.info.feed_id)
    assert found.info.name == f"recovered-{orders.info.feed_id.hex()}"
    assert len(found.partitions) == 2


def test_a_directory_that_a_node_has_or_that_is_no_such_is_refused(stopped):
    disk = stopped.disk.fork()
    lock = disk.lock(f"{DATA}/LOCK")
    with pytest.raises(DirectoryInUse):
        repaired(stopped, disk)
    lock.close()
    marks.mark(disk, DATA, marks.BACKUP_NAME)
    with pytest.raises(BadDirectory, match="tailrace restore"):
        repaired(stopped, disk)


def test_a_mark_of_a_repair_that_cannot_be_used_says_what_to_do(stopped):
    disk = stopped.disk.fork()
    disk.create(f"{DATA}/{marks.REPAIRING_NAME}").close()
    with pytest.raises(BadDirectory, match="remove it, and repair again"):
        repaired(stopped, disk)


def test_a_beginning_of_the_journal_that_is_missing_is_listed_by_the_mark_of_the_clean_stop():
    made = make_directory()
    made.create("late", 1)
    made.write("late", [(b"k", bytes(3_000))])
    made.node.storage.journal._rotate()
    made.stop()
    disk = made.disk.fork()
    for path in journal_of(disk)[:-1]:
        lose(disk, path)
    assert verify(disk, DATA).problems
    outcome = repaired(made, disk)
    assert verify(disk, DATA).problems == []
    feed_id = made.start_on(made.disk.fork()).feeds.named("late").info.feed_id
    assert (feed_id, 0, 1, 1) in outcome.lost.seqs
    assert feed_id not in made.start_on(disk).feeds


def test_a_partition_of_which_nothing_can_be_read_begins_empty(stopped):
    disk = stopped.disk.fork()
    for path in files_of(disk):
        if "/feeds/" in path and not path.endswith("/FEED"):
            content = disk.content(path)
            content[:] = bytes(len(content))
    outcome = repaired(stopped, disk)
    assert verify(disk, DATA).problems == []
    _, missing = check_repaired(stopped, disk, outcome.lost.seqs)
    assert missing
    assert {line["lost"] for line in index(disk)} == {"rows", "exported", "bytes"}


def test_a_manifest_that_cannot_be_kept_is_not_replaced(stopped):
    disk = stopped.disk.fork()
    path = next(path for path in files_of(disk) if path.endswith("0/MANIFEST"))
    disk.flip(path, 99)
    damaged = read_file(disk, path)
    disk.fail("write_at", errno.ENOSPC, where=f"lost/{TIME}/{path.removeprefix(f'{DATA}/')}.new")
    with pytest.raises(OSError, match="No space"):
        repaired(stopped, disk)
    disk.before = None
    assert read_file(disk, path) == damaged
    repaired(stopped, disk)
    assert damaged in contents_of(disk).values(), "it is in lost/"
    assert verify(disk, DATA).problems == []


@pytest.mark.slow
def test_a_repair_that_has_no_space_goes_on_later():
    [_, _, (_, made, damaged)] = kinds_of_damage()
    before = set(contents_of(damaged).values())
    for number in itertools.count():
        disk = damaged.fork()
        failed = fill_at(disk, number)
        with contextlib.suppress(OSError, TailraceError):
            repaired(made, disk)
        if not failed:
            return
        disk.before = None
        repaired(made, disk)
        assert verify(disk, DATA).problems == []
        assert before <= set(contents_of(disk).values()), "nothing is deleted, only moved"


def test_a_control_record_that_cannot_be_used_is_listed():
    made = make_directory()
    made.node.storage.journal.append(RecordKind.FEED_CREATED, b"x" * 16, 0, b"{}")
    made.stop()
    assert any("FEED_CREATED" in finding.what for _, finding in verify(made.disk, DATA).problems)
    repaired(made, made.disk)
    assert [line["lost"] for line in index(made.disk)] == ["bytes"]
    assert rows_of(made.start_on(made.disk)) == made.rows


def test_a_journal_of_a_newer_version_is_left_to_it(stopped):
    disk = stopped.disk.fork()
    content = disk.content(journal_of(disk)[-1])
    [*_, newest] = journal_files(disk, f"{DATA}/journal")
    assert all(isinstance(item, RawRecord) for item in newest.items())
    end, header = newest.facts.end, JournalHeader.unpack(bytes(content[:FILE_HEADER_BYTES]))
    record = pack_record(header.key, newest.number, end, end, 8, 99, 0, b"f" * 16, bytes(16), (0, 0), b"is newer")
    content[end:] = record + b"is newer"
    before = contents_of(disk)
    with pytest.raises(NewerJournal, match="with the version that wrote it"):
        repaired(stopped, disk)
    assert contents_of(disk) == before


def flip_record(disk, kind, number=-1):
    """Damages the payload of one record of this kind; whether the record was there."""
    headers = [
        (file.path, item.header)
        for file in journal_files(disk, f"{DATA}/journal")
        for item in file.items()
        if isinstance(item, RawRecord) and item.header.kind == kind
    ]
    path, header = headers[number]
    disk.flip(path, 8 * (header.offset + RECORD_HEADER_BYTES + 3))


def restarted():
    """A directory whose node was killed: each partition has a second branch, which only the journal tells of."""
    made = make_directory()
    made.kill()
    made.start()
    for number in range(6):
        made.write("orders", [(b"k%d" % i, b"w%d" % number) for i in range(8)])
        made.write("log", [(b"l", b"w%d" % number)])
    made.stop()
    return made


@pytest.mark.parametrize("number", range(4))
def test_a_branch_whose_record_is_lost_is_put_back(number):
    made = restarted()
    before = made.start_on(made.disk.fork())
    disk = made.disk.fork()
    flip_record(disk, RecordKind.FAILOVER_ENTRY, number)
    outcome = repaired(made, disk)
    node, missing = check_repaired(made, disk, outcome.lost.seqs)
    assert not missing
    for old, new in zip(before.feeds.partitions(), node.feeds.partitions(), strict=True):
        if old.feed_id == SYSTEM_FEED_ID:  # nothing was written on its branch, so nothing tells of it
            continue
        assert {entry.branch for entry in old.log} <= {entry.branch for entry in new.log}


def test_branches_of_a_history_that_was_renamed_leave_the_journal(stopped):
    made = restarted()
    disk, orders, _ = lose_a_block(made)
    outcome = repaired(made, disk)
    assert outcome.lost.seqs
    node, _ = check_repaired(made, disk, outcome.lost.seqs)
    new = node.feeds.of_id(orders.info.feed_id).partitions[0]
    assert not {entry.branch for entry in orders.partitions[0].log} & {entry.branch for entry in new.log}


def test_a_damaged_journal_does_not_bring_a_dropped_feed_back():
    made = make_directory()
    made.drop("log")
    made.write("orders", [(b"k%d" % i, b"last") for i in range(8)])
    made.stop()
    disk = made.disk.fork()
    flip_record(disk, RecordKind.BLOCK)
    outcome = repaired(made, disk)
    node, _ = check_repaired(made, disk, outcome.lost.seqs)
    assert [feed.info.name for feed in node.feeds] == ["orders"]


def test_what_nothing_is_known_of_goes_to_lost(stopped):
    """A feed of which there is no FEED, no record and no manifest; and a partition that its feed does not have."""
    disk = stopped.disk.fork()
    node = stopped.start_on(stopped.disk.fork())
    orders, log = (f"{DATA}/feeds/{node.feeds.named(name).info.feed_id.hex()}" for name in ("orders", "log"))
    for path in files_of(disk):
        if path.startswith(log) and path.endswith("MANIFEST"):
            lose(disk, path)
    disk.flip(f"{log}/FEED", 8 * 30)
    disk.make_directory(f"{orders}/7")
    for path in files_of(disk):
        if path.startswith(f"{orders}/0/"):
            copy_file(disk, path, path.replace(f"{orders}/0/", f"{orders}/7/"), Unwatched())
    for path in journal_of(disk):
        lose(disk, path)
    for path in files_of(disk):
        if f"/{SYSTEM_FEED_ID.hex()}/" in path:  # the list of feeds would name it
            lose(disk, path)
    outcome = repaired(stopped, disk)
    assert any("its settings are lost" in action for action in outcome.actions)
    assert any("the feed has no such partition" in action for action in outcome.actions)
    assert verify(disk, DATA).problems == []
    assert [feed.info.name for feed in stopped.start_on(disk).feeds] == ["orders"]


def test_a_feed_of_which_only_the_list_of_feeds_knows_begins_empty_on_another_branch(stopped):
    disk = stopped.disk.fork()
    log = stopped.start_on(stopped.disk.fork()).feeds.named("log")
    for path in files_of(disk):
        if f"/{log.info.feed_id.hex()}/" in path or path in journal_of(disk):
            lose(disk, path)
    repaired(stopped, disk)
    node = stopped.start_on(disk)
    again = node.feeds.named("log")
    assert (again.info, again.partitions[0].high_seq) == (log.info, 0)
    assert not {entry.branch for entry in again.partitions[0].log} & {entry.branch for entry in log.partitions[0].log}
    node.check()


def test_a_file_of_ages_that_is_damaged_is_moved(stopped):
    disk = stopped.disk.fork()
    disk.flip(f"{DATA}/UPTIME", 8 * 20)
    outcome = repaired(stopped, disk)
    assert any("ages count from the next start on" in action for action in outcome.actions)
    assert disk.exists(f"{LOST}/UPTIME")


def test_a_chain_of_which_manifest_and_a_segment_are_lost_has_a_gap():
    made = make_directory()
    made.flush("log")
    made.stop()
    log = made.start_on(made.disk.fork()).feeds.named("log").partitions[0]
    assert len(log.chain.segments) > 1
    disk = made.disk.fork()
    first, *_, last = log.chain.segments
    lose(disk, f"{first.path.rpartition('/')[0]}/MANIFEST")
    lose(disk, first.path)
    disk.flip(last.path, 8 * (64 + 96 + 3))
    for path in journal_of(disk):
        lose(disk, path)
    outcome = repaired(made, disk)
    node, missing = check_repaired(made, disk, outcome.lost.seqs)
    assert missing
    assert node.feeds.named("log").partitions[0].trim_seq == first.identity.last_seq


def test_a_manifest_that_the_disk_cannot_read_is_made_anew(stopped):
    disk = stopped.disk.fork()
    manifest = next(path for path in files_of(disk) if path.endswith("0/MANIFEST"))

    disk.fail("read_at", where=manifest)
    outcome = repaired(stopped, disk)
    disk.before = None
    assert any("a new manifest" in action for action in outcome.actions)
    assert verify(disk, DATA).problems == []
    check_repaired(stopped, disk, outcome.lost.seqs)


def test_space_that_was_allocated_and_never_written_is_not_lost():
    made = make_directory()
    newest = journal_of(made.disk)[-1]
    made.disk.content(newest).extend(bytes(64_000))
    made.kill()
    flip_record(made.disk, RecordKind.BLOCK, -2)
    repaired(made, made.disk)
    assert verify(made.disk, DATA).problems == []
    assert all(line.get("bytes", 0) < 64_000 for line in index(made.disk))
