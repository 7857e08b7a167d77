from __future__ import annotations

import errno
import os
import threading

import pytest
from tests.memory_disk import LOSE, MemoryFile

from tailrace.block import encode_block
from tailrace.errors import NoSpace, NotDurable, Overloaded
from tailrace_server.host.disk import RealDisk
from tailrace_server.journal import JournalDamaged, JournalFailed, RecordKind, open_journal
from tailrace_server.journal.format import FILE_HEADER_BYTES, PAYLOAD_BYTES_MAX, RECORD_HEADER_BYTES, split_lsn
from tailrace_server.journal.next_file import SPARE_DESCRIPTORS
from tailrace_server.journal.rotation import Rotation
from tailrace_server.journal.space import ALLOCATE_BYTES
from tailrace_server.journal.statistics import JournalStatistics

FEED = b"F" * 16
BRANCH = b"B" * 16


def block(first_seq, rows=2):
    keys = [b"%d" % seq for seq in range(first_seq, first_seq + rows)]
    return encode_block(keys, [b"value"] * rows, partition=3).stamped(first_seq, 1_000)


def payloads(disk, directory="/journal"):
    _, recovered = open_journal(disk, directory)
    return [record.payload for record in recovered.records]


def append(journal, payload=b"x"):
    return journal.append(RecordKind.FLUSHED, FEED, 3, payload)


def test_a_record_is_durable_once_synced_has_reached_it(journal):
    assert journal.written == journal.synced
    one = append(journal)
    two = append(journal)
    assert journal.synced < one < two == journal.written
    journal.sync()
    assert journal.synced == two


def test_records_come_back_as_they_were_written(disk, journal):
    created = journal.append(RecordKind.FEED_CREATED, FEED, 0, b'{"name": "orders"}')
    one = journal.append_block(FEED, 3, BRANCH, block(1))
    two = journal.append_block(FEED, 3, BRANCH, block(3, rows=1), (1, 9))
    journal.close()
    _, recovered = open_journal(disk, "/journal")
    assert list(recovered.records) == [
        (RecordKind.FEED_CREATED, FEED, 0, bytes(16), (0, 0), b'{"name": "orders"}', None, created, 18),
        (RecordKind.BLOCK, FEED, 3, BRANCH, (0, 0), b"", block(1), one, 96),
        (RecordKind.BLOCK, FEED, 3, BRANCH, (1, 9), b"", block(3, rows=1), two, 96),
    ]


def test_on_a_real_disk(tmp_path):
    journal, _ = open_journal(RealDisk(), str(tmp_path / "journal"))
    for seq in range(1, 100):
        journal.append_block(FEED, 3, BRANCH, block(seq, rows=1))
    journal.sync()
    journal.close()
    _, recovered = open_journal(RealDisk(), str(tmp_path / "journal"))
    assert [record.block.header.first_seq for record in recovered.records] == list(range(1, 100))


def test_a_block_is_written_from_where_it_lies(disk, journal, monkeypatch):
    written = []
    monkeypatch.setattr(journal, "_file", type("Spy", (), {"write_at": lambda self, *a: written.append(a)})())
    one = block(1)
    journal._space.limit = ALLOCATE_BYTES
    journal.append_block(FEED, 3, BRANCH, one)
    ((offset, buffers, nbytes),) = written
    assert offset == FILE_HEADER_BYTES
    assert buffers[1] is one.head
    assert buffers[2] is one.body
    assert nbytes == sum(len(part) for part in buffers)
    assert nbytes % 8 == 0


def test_a_control_record_may_be_empty_but_not_huge(disk, journal):
    append(journal, b"")
    with pytest.raises(ValueError, match="takes at most 67108864"):
        append(journal, bytes(PAYLOAD_BYTES_MAX + 1))
    journal.close()
    assert payloads(disk) == [b""]


def test_files_rotate_at_a_size(disk):
    journal, _ = open_journal(disk, "/journal", file_bytes_max=1_000)
    ends = [split_lsn(append(journal, bytes(200))) for _ in range(7)]
    assert ends == [(1, 360), (1, 656), (1, 952), (2, 360), (2, 656), (2, 952), (3, 360)]
    assert disk.names("/journal") == ["00000001.log", "00000002.log", "00000003.log.new"]
    nbytes = 952 + 952 + 360
    replay_seconds = journal.statistics().replay_seconds
    assert journal.statistics() == JournalStatistics(3, 3, nbytes, 7, replay_seconds, 360 - 64, 0, 0.0)
    assert journal.end == (3, 360)
    journal.sync()
    assert disk.names("/journal") == ["00000001.log", "00000002.log", "00000003.log"]
    assert journal.statistics().unsynced_bytes == 0
    journal.close()
    assert len(payloads(disk)) == 7


def test_a_record_over_the_size_gets_a_file_of_its_own(disk):
    journal, _ = open_journal(disk, "/journal", file_bytes_max=1_000)
    for size in (5_000, 5_000, 1):
        append(journal, bytes(size))
    journal.close()
    assert disk.names("/journal") == ["00000001.log", "00000002.log", "00000003.log"]
    assert [len(payload) for payload in payloads(disk)] == [5_000, 5_000, 1]


def calls_of(disk, function):
    """The calls that ``function`` makes, but for descriptors that are kept."""
    calls = []
    disk.before = lambda name, path: calls.append((name, os.path.basename(path)))
    function()
    disk.before = None
    return [call for call in calls if call[0] != "open"]


def written_to_the_end(disk, *, is_next_there):
    journal, _ = open_journal(disk, "/journal", file_bytes_max=1_000)
    for _ in range(2):
        append(journal, bytes(200))
    if is_next_there:
        journal.sync()
        assert "next.log.new" in disk.names("/journal")
    append(journal, bytes(200))
    return journal


FIRST = "00000001.log.new"  # the name by which it was opened


@pytest.mark.parametrize("is_next_there", [False, True])
def test_a_file_is_durable_before_the_next_one_has_its_name_and_cut_after_it(disk, is_next_there):
    journal = written_to_the_end(disk, is_next_there=is_next_there)
    synced, end = journal.synced, journal.end[1]
    temporary = "next.log.new" if is_next_there else "00000002.log.new"
    calls = calls_of(disk, lambda: append(journal, bytes(200)))
    created = [("create", temporary), ("write_at", temporary), ("allocate", temporary)]
    assert calls == [
        *([("write_at", temporary)] if is_next_there else created),
        ("write_at", temporary),
        ("write_at", FIRST),  # a copy
    ]
    assert journal.synced == synced
    assert journal.statistics().unsynced_bytes == end - split_lsn(synced)[1] + 296
    assert calls_of(disk, journal.sync) == [
        ("sync", FIRST),
        ("sync", temporary),
        ("rename", temporary),
        ("sync_directory", "journal"),
        ("truncate", FIRST),
        ("sync", FIRST),
    ]
    assert split_lsn(journal.synced) == (2, 360)
    assert calls_of(disk, lambda: append(journal, bytes(200))) == [("write_at", temporary)]


def test_copies_stay_for_a_backup_that_has_read_them_until_the_next_start(disk):
    journal = written_to_the_end(disk, is_next_there=True)
    end = journal.end[1]
    append(journal, bytes(200))
    file = disk.open("/journal/00000001.log")
    seen = file.read_at(0, end + 296)
    journal.sync()
    assert (file.read_at(0, end + 296), file.size()) == (seen, end + 296)
    journal.close()
    open_journal(disk, "/journal")
    assert file.size() == end


def test_the_next_file_is_created_once_half_of_the_present_one_is_used(disk):
    journal, _ = open_journal(disk, "/journal", file_bytes_max=1_000)
    append(journal, bytes(200))
    assert not journal.is_next_due
    append(journal, bytes(200))
    assert journal.is_next_due
    assert calls_of(disk, journal.sync) == [
        ("sync", FIRST),
        ("create", "next.log.new"),
        ("allocate", "next.log.new"),
    ]
    assert not journal.is_next_due
    journal.close()
    assert disk.names("/journal") == ["00000001.log"]


def test_while_the_next_file_cannot_be_created_a_rotation_creates_it(disk, monkeypatch):
    monkeypatch.setattr("tailrace_server.journal.space.ALLOCATE_BYTES", 300)
    journal, _ = open_journal(disk, "/journal", file_bytes_max=1_000)
    append(journal, bytes(400))
    disk.fail("create", errno.ENOSPC)
    journal.sync()
    assert not journal.is_next_due  # for a while
    append(journal, bytes(300))
    assert journal.is_next_due
    disk.before = None
    append(journal, b"in the second")
    journal.sync()
    assert journal.synced_end[0] == 2
    journal.close()
    assert len(payloads(disk)) == 3


@pytest.mark.parametrize(
    ("code", "error", "why"),
    [(errno.EDQUOT, NoSpace, "Disk quota exceeded"), (errno.EMFILE, Overloaded, "Too many open files")],
)
def test_a_refusal_is_told_until_a_record_was_written(disk, code, error, why):
    journal, _ = open_journal(disk, "/journal", file_bytes_max=1_000)
    assert journal.refusal == ""
    disk.fail("write_at", code)
    with pytest.raises(error):
        append(journal, b"refused")
    assert why in journal.refusal
    disk.before = None
    append(journal, b"taken")
    assert journal.refusal == ""
    journal.close()


def test_a_file_that_fills_up_before_its_name_is_durable_waits_for_that(disk):
    journal, _ = open_journal(disk, "/journal", file_bytes_max=1_000)
    for number in range(10):
        append(journal, b"%200d" % number)
    assert disk.names("/journal") == ["00000001.log", "00000002.log", "00000003.log", "00000004.log.new"]
    assert journal.synced_end == (3, 952)
    disk.kill()
    assert [int(payload) for payload in payloads(disk)] == list(range(10))


def test_a_full_disk_during_a_rotation_gives_the_next_file_its_name(disk):
    """No space for a copy is no reason to refuse a record."""
    journal = written_to_the_end(disk, is_next_there=True)
    append(journal, b"1" * 200)
    disk.fail("write_at", errno.ENOSPC, where="00000001")
    append(journal, b"2" * 200)
    assert journal.end[0] == 2
    assert disk.names("/journal") == ["00000001.log", "00000002.log"]
    disk.kill()
    assert [payload[:1] for payload in payloads(disk)[-2:]] == [b"1", b"2"]


def test_a_sync_that_a_rotation_overtakes_makes_durable_what_was_written_before_it(disk):
    journal = written_to_the_end(disk, is_next_there=True)
    written = journal.written

    def before(name, path):
        if name == "sync":
            disk.before = None
            append(journal, b"2" * 200)

    disk.before = before
    journal.sync()
    assert journal.synced == written
    assert "next.log.new" in disk.names("/journal")
    journal.sync()
    assert journal.synced == journal.written > written
    disk.cut_power(LOSE)
    assert payloads(disk)[-1] == b"2" * 200


def test_a_sync_while_a_rotation_begins_leaves_the_file_that_it_begins(disk):
    """The file that was created ahead has its temporary name, until the rotation is durable."""
    journal = written_to_the_end(disk, is_next_there=True)

    def before(name, path):
        if name == "open" and path.endswith("next.log.new"):  # for a spare descriptor, behind the header
            disk.before = None
            journal.sync()

    disk.before = before
    append(journal, b"3" * 200)
    assert disk.before is None
    journal.sync()
    disk.cut_power(LOSE)
    assert payloads(disk)[-1] == b"3" * 200


@pytest.mark.parametrize("step", ["rename", "sync_directory", "truncate", "last sync"])
def test_records_may_be_appended_at_any_step_of_the_sync_that_ends_a_rotation(disk, step):
    journal = written_to_the_end(disk, is_next_there=True)
    append(journal, b"1" * 200)
    calls = []

    def before(name, path):
        calls.append(name)
        if name == step or (step == "last sync" and name == "sync" and "truncate" in calls):
            disk.before = None
            append(journal, b"2" * 20)
            append(journal, b"3" * 20)

    disk.before = before
    journal.sync()
    assert disk.before is None
    journal.sync()
    disk.cut_power(LOSE)
    assert [payload[:1] for payload in payloads(disk)[-3:]] == [b"1", b"2", b"3"]


@pytest.mark.parametrize("is_before", [False, True])
def test_records_may_be_appended_while_the_name_of_a_file_is_noted(disk, monkeypatch, is_before):
    journal = written_to_the_end(disk, is_next_there=True)
    append(journal, b"1" * 200)
    named = Rotation.named

    def append_two():
        append(journal, b"2" * 20)
        append(journal, b"3" * 20)

    def named_between(rotation):
        if is_before:
            append_two()
        named(rotation)
        if not is_before:
            append_two()

    monkeypatch.setattr(Rotation, "named", named_between)
    journal.sync()
    journal.sync()
    disk.cut_power(LOSE)
    assert [payload[:1] for payload in payloads(disk)[-3:]] == [b"1", b"2", b"3"]


def test_a_file_may_fill_up_while_the_one_before_it_is_cut(disk):
    """The next rotation begins while the sync of the last one is under way."""
    journal = written_to_the_end(disk, is_next_there=True)
    append(journal, b"%200d" % 1)

    def before(name, path):
        if name == "truncate":
            disk.before = None
            for number in range(2, 6):
                append(journal, b"%200d" % number)

    disk.before = before
    journal.sync()
    assert disk.before is None
    assert journal.end[0] == 3
    journal.sync()
    disk.cut_power(LOSE)
    assert [int(payload) for payload in payloads(disk)[-5:]] == [1, 2, 3, 4, 5]


def test_the_first_record_after_a_rotation_tells_that_the_ones_before_it_are_durable(disk):
    journal = written_to_the_end(disk, is_next_there=True)
    append(journal, b"durable")
    journal.sync()
    append(journal, b"witness")
    disk.kill()
    disk.content("/journal/00000002.log")[FILE_HEADER_BYTES + RECORD_HEADER_BYTES] ^= 1
    with pytest.raises(JournalDamaged, match=r"00000002.log at offset 64: .*this was durable, up to offset 168"):
        open_journal(disk, "/journal")


def test_space_is_allocated_ahead_and_given_back(disk, journal):
    append(journal)
    size = RECORD_HEADER_BYTES + 8
    assert disk.names_now["/journal/00000001.log"].content.size == FILE_HEADER_BYTES + ALLOCATE_BYTES
    append(journal, bytes(ALLOCATE_BYTES * 2))
    journal.close()
    expected = FILE_HEADER_BYTES + size + RECORD_HEADER_BYTES + ALLOCATE_BYTES * 2
    assert disk.names_now["/journal/00000001.log"].content.size == expected
    assert journal.end == (1, expected)


def test_the_disk_begins_with_all_that_is_not_durable_unless_it_is_in_two_files(disk, monkeypatch):
    begun = []
    monkeypatch.setattr(MemoryFile, "begin_sync", lambda file, *region: begun.append(region))
    journal, _ = open_journal(disk, "/journal", file_bytes_max=1_000)
    append(journal)
    journal.sync()
    durable = journal.end[1]
    append(journal)
    append(journal)
    journal.begin_sync()
    assert begun == [(durable, journal.end[1] - durable)]
    number, _ = journal.end
    while journal.end[0] == number:
        append(journal, bytes(100))
    journal.begin_sync()
    assert len(begun) == 1
    journal.sync()
    append(journal)
    journal.begin_sync()
    assert len(begun) == 2


def test_a_sync_with_nothing_to_do_leaves_the_disk_alone(disk, journal):
    append(journal)
    journal.sync()
    disk.before = lambda name, path: pytest.fail(f"{name} was called")
    journal.sync()
    assert journal.statistics().syncs == 1


def test_the_time_of_a_sync_is_told(disk):
    ticks = iter((10.0, 12.5))
    journal, _ = open_journal(disk, "/journal", clock=lambda: next(ticks))
    append(journal)
    journal.sync()
    assert journal.statistics().last_sync_seconds == 2.5


def test_what_is_written_during_a_sync_waits_for_the_next_one(disk, journal):
    """And a rotation meanwhile waits for that sync, so that nobody's file is closed under his feet."""
    syncing, go_on = threading.Event(), threading.Event()
    first = append(journal)

    def before(name, path):
        if name == "sync" and not syncing.is_set():
            syncing.set()
            assert go_on.wait(60)

    disk.before = before
    thread = threading.Thread(target=journal.sync)
    thread.start()
    assert syncing.wait(60)
    second = append(journal)
    assert journal.synced < first
    go_on.set()
    thread.join(60)
    assert journal.synced == first
    journal.sync()
    assert journal.synced == second


def test_syncs_in_a_thread_and_rotations_get_along(disk):
    journal, _ = open_journal(disk, "/journal", file_bytes_max=2_000)
    stop = threading.Event()

    def sync_on():
        while not stop.is_set():
            journal.sync()

    thread = threading.Thread(target=sync_on)
    thread.start()
    for number in range(300):
        append(journal, b"%d" % number)
        assert journal.synced <= journal.written
    stop.set()
    thread.join(60)
    journal.sync()
    assert journal.synced == journal.written
    journal.close()
    assert payloads(disk) == [b"%d" % number for number in range(300)]


# What happens when the disk does not do what it should.


def test_hazard_6d_a_full_disk_leaves_no_part_of_a_record(disk, journal):
    append(journal, b"first")
    journal.sync()
    disk.size_bytes -= disk.free
    written, end = journal.written, journal.end
    with pytest.raises(NoSpace, match="no space is left for the journal in /journal"):
        append(journal, bytes(ALLOCATE_BYTES))
    assert (journal.written, journal.end, journal.failed) == (written, end, None)
    assert disk.names_now["/journal/00000001.log"].content.size == end[1]
    append(journal, b"the cut gave space back")
    disk.size_bytes *= 2
    append(journal, b"second")
    journal.sync()
    journal.close()
    assert payloads(disk) == [b"first", b"the cut gave space back", b"second"]


def test_a_full_disk_at_a_rotation_leaves_the_old_file_in_use(disk):
    journal, _ = open_journal(disk, "/journal", file_bytes_max=1_000)
    for number in range(3):
        append(journal, b"%200d" % number)
    disk.size_bytes = 952 + 40
    for _ in range(2):
        with pytest.raises(NoSpace):
            append(journal, b"refused")
    journal.sync()
    disk.size_bytes = 10_000_000
    append(journal, b"3")
    journal.close()
    assert [int(payload) for payload in payloads(disk)] == [0, 1, 2, 3]


def test_without_allocation_it_works_as_well(disk, journal):
    disk.fail("never")
    journal._file.allocate = lambda offset, nbytes: False
    for number in range(5):
        append(journal, b"%d" % number)
    journal.close()
    assert payloads(disk) == [b"0", b"1", b"2", b"3", b"4"]


def assert_failed(journal, why):
    for call in (lambda: append(journal), journal.sync, lambda: journal.append_block(FEED, 3, BRANCH, block(1))):
        with pytest.raises(JournalFailed, match=why):
            call()
    assert isinstance(journal.failed, NotDurable)


def test_hazard_6c_after_a_failed_fsync_nothing_is_acknowledged_any_more(disk, journal):
    append(journal, b"durable")
    journal.sync()
    synced = journal.synced
    append(journal, b"in the cache")
    disk.fail("sync")
    with pytest.raises(JournalFailed, match="an fsync failed: Input/output error"):
        journal.sync()
    disk.before = None
    assert_failed(journal, "an fsync failed")
    assert journal.synced == synced
    journal.close()
    assert journal.synced == synced


def test_a_bad_disk_ends_the_journal(disk, journal):
    append(journal, b"kept")
    disk.fail("write_at")
    with pytest.raises(JournalFailed, match="a write failed: Input/output error"):
        append(journal, b"refused")
    disk.before = None
    assert_failed(journal, "a write failed")
    journal.close()
    assert payloads(disk) == [b"kept"]


def test_a_write_that_cannot_be_taken_back_ends_the_journal(disk, journal):
    append(journal, b"kept")
    disk.size_bytes -= disk.free
    disk.fail("truncate")
    with pytest.raises(JournalFailed, match="could not be taken back"):
        append(journal, bytes(ALLOCATE_BYTES))
    disk.before = None
    assert_failed(journal, "could not be taken back")
    disk.kill()
    disk.size_bytes *= 2
    assert payloads(disk) == [b"kept"]


def append_and_sync(journal, payload):
    append(journal, payload)
    journal.sync()


@pytest.mark.parametrize(
    ("failing", "why"),
    [
        ("truncate", "a finished file could not be cut"),
        ("sync", "an fsync failed"),
        ("create", "a write failed"),
        ("rename", "could not be made durable"),
        ("sync_directory", "could not be made durable"),
    ],
)
def test_a_rotation_that_fails_ends_the_journal(disk, failing, why):
    journal, _ = open_journal(disk, "/journal", file_bytes_max=1_000)
    for number in range(3):
        append(journal, b"%200d" % number)
    disk.fail(failing)
    with pytest.raises(JournalFailed, match=why):
        append_and_sync(journal, b"3")
    disk.before = None
    assert_failed(journal, why)
    journal.close()
    found = [int(payload) for payload in payloads(disk)]
    assert found == ([0, 1, 2] if failing == "create" else [0, 1, 2, 3])


def test_closing_is_final_and_no_failure(disk, journal):
    append(journal)
    journal.close()
    assert journal.synced == journal.written
    journal.close()
    assert journal.failed is None
    with pytest.raises(JournalFailed, match="the journal is closed"):
        append(journal)
    with pytest.raises(JournalFailed, match="the journal is closed"):
        journal.sync()


def test_a_close_that_fails_says_so(disk, journal):
    append(journal)
    disk.fail("sync")
    with pytest.raises(JournalFailed, match="an fsync failed"):
        journal.close()
    assert journal.failed is not None


def fill(journal):
    """Records up to the end of a file; the next one begins another."""
    number, _ = journal.end
    while journal.end[1] + RECORD_HEADER_BYTES + 208 <= 1_000:
        append(journal, bytes(200))
    assert journal.end[0] == number


@pytest.fixture
def small_files(disk):
    return open_journal(disk, "/journal", file_bytes_max=1_000)[0]


def test_a_process_without_a_free_descriptor_begins_the_next_file_with_those_that_are_kept(disk, small_files):
    for number in range(1, 6):
        fill(small_files)
        disk.files_max = disk.files
        append(small_files, bytes([number]) * 200)
        assert small_files.end[0] == number + 1
    assert disk.files == 1 + SPARE_DESCRIPTORS
    disk.files_max = 100
    disk.kill()
    assert [payload[0] for payload in payloads(disk) if payload[0]] == [1, 2, 3, 4, 5]


def test_without_any_descriptor_a_record_is_refused_and_a_later_one_is_taken(disk, small_files):
    """Other threads are quicker with those that were kept: for the next file none is left."""
    fill(small_files)
    disk.files_max = 1
    written = small_files.written
    for _ in range(3):
        with pytest.raises(Overloaded, match="no file descriptor is free"):
            append(small_files, bytes(200))
        small_files.sync()
        assert (small_files.written, small_files.failed) == (written, None)
    disk.files_max += 1
    append(small_files, b"taken")
    small_files.sync()
    disk.files_max = 100
    disk.cut_power(LOSE)
    assert payloads(disk) == [bytes(200)] * 3 + [b"taken"]


def test_one_descriptor_is_enough_for_the_next_file_and_its_name(disk, small_files):
    fill(small_files)
    disk.files_max = 2
    append(small_files, b"taken")
    small_files.sync()
    disk.files_max = 100
    disk.cut_power(LOSE)
    assert payloads(disk) == [bytes(200)] * 3 + [b"taken"]


def test_with_a_file_that_was_created_ahead_no_descriptor_is_needed(disk):
    journal = written_to_the_end(disk, is_next_there=True)
    disk.files_max = 1
    append(journal, b"taken")
    append(journal, bytes(200))
    journal.sync()
    disk.files_max = 100
    disk.cut_power(LOSE)
    assert payloads(disk)[-2:] == [b"taken", bytes(200)]


@pytest.mark.parametrize("end", ["close", "kill"])
def test_a_journal_that_ends_without_a_descriptor_for_its_next_file_is_whole(disk, small_files, end):
    fill(small_files)
    expected = [bytes(200)] * 3
    disk.files_max = 1
    with pytest.raises(Overloaded):
        append(small_files, bytes(200))
    getattr(small_files if end == "close" else disk, end)()
    disk.files_max = 100
    assert payloads(disk) == expected
    assert payloads(disk) == expected


def test_what_is_removed_takes_no_space_because_of_the_descriptors_that_are_kept(disk, small_files):
    fill(small_files)
    append(small_files, bytes(200))
    assert small_files.trim(2) == 0  # the second has no name yet
    small_files.sync()
    free = disk.free
    assert small_files.trim(2) == 1
    assert disk.free > free


def test_a_file_ends_where_its_records_cost_a_start_much(disk, monkeypatch):
    monkeypatch.setattr("tailrace_server.journal.writer.FILE_SURPLUS_NS_MAX", 1_000_000)
    journal, _ = open_journal(disk, "/journal")
    for _ in range(100):
        journal.append(RecordKind.FLUSHED, FEED, 0, bytes(200))
    assert journal.statistics().files > 3
    assert journal.statistics().records == 100
    journal.close()
    assert payloads(disk) == [bytes(200)] * 100


def test_records_are_counted_over_all_files_and_restarts(disk):
    journal, _ = open_journal(disk, "/journal", file_bytes_max=1_000)
    for number in range(20):
        journal.append(RecordKind.FLUSHED, FEED, 0, bytes(number))
    assert journal.statistics().records == 20
    expected = journal.statistics().replay_seconds
    journal.close()
    journal, recovered = open_journal(disk, "/journal", file_bytes_max=1_000)
    assert journal.statistics().records == 20 == len(list(recovered.records))
    assert journal.statistics().replay_seconds == pytest.approx(expected)
    journal.append(RecordKind.FLUSHED, FEED, 0, b"")
    journal.trim(journal.end[0])
    journal.close()
    journal, recovered = open_journal(disk, "/journal", file_bytes_max=1_000)
    assert journal.statistics().records == len(list(recovered.records)) < 21


def versions(disk):
    return {name: disk.content(f"/journal/{name}")[4] for name in disk.names("/journal") if name.endswith(".log")}


def with_ttl(seq):
    return encode_block([b"%d" % seq], [b"value"], partition=3, ttls=[60]).stamped(seq, 1_000)


@pytest.mark.parametrize("records_before", [0, 1])
def test_the_first_block_with_a_ttl_begins_a_file_of_version_2(disk, journal, records_before):
    for seq in range(1, records_before + 1):
        journal.append_block(FEED, 3, BRANCH, block(seq, rows=1))
    journal.append_block(FEED, 3, BRANCH, with_ttl(records_before + 1))
    # No part of it is in the file of version 1: the new one has its name already.
    assert versions(disk) == {"00000001.log": 1, "00000002.log": 2}
    journal.append_block(FEED, 3, BRANCH, block(records_before + 2, rows=1))
    journal.append_block(FEED, 3, BRANCH, with_ttl(records_before + 3))
    assert journal.end[0] == 2
    disk.kill()
    reopened, recovered = open_journal(disk, "/journal")
    assert [record.block.header.first_seq for record in recovered.records] == [*range(1, records_before + 4)]
    assert versions(disk)["00000002.log"] == 2
    reopened.append_block(FEED, 3, BRANCH, with_ttl(9))
    assert reopened.end[0] == 2


def test_a_file_after_one_without_ttls_has_version_1_again(disk):
    journal, _ = open_journal(disk, "/journal", file_bytes_max=1_000)
    journal.append_block(FEED, 3, BRANCH, with_ttl(1))
    for seq in range(2, 20):
        journal.append_block(FEED, 3, BRANCH, block(seq, rows=1))
    journal.sync()
    found = list(versions(disk).values())
    assert found[:3] == [1, 2, 2]
    assert set(found[3:]) == {1}


def test_a_block_with_a_ttl_is_refused_as_any_other_by_a_journal_that_is_closed(journal):
    journal.close()
    with pytest.raises(JournalFailed, match="closed"):
        journal.append_block(FEED, 3, BRANCH, with_ttl(1))
