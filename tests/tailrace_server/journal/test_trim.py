"""Old files of the journal go, and whatever a crash makes of that, the rest comes back."""

from __future__ import annotations

import contextlib
import errno
import itertools
import sys
import threading
from unittest import mock

import pytest
from tests.memory_disk import KEEP, LOSE, MemoryDisk

from tailrace_server.host.disk import RealDisk
from tailrace_server.journal import Journal, JournalDamaged, JournalFailed, RecordKind, open_journal
from tailrace_server.journal.format import lsn
from tailrace_server.journal.older_files import OlderFiles

FEED = b"F" * 16
FILE_BYTES_MAX = 1_000  # three records


@pytest.fixture(scope="module", autouse=True)
def small_bounds():
    """So that a disk is copied fast."""
    with mock.patch("tailrace_server.journal.space.ALLOCATE_BYTES", 300):
        yield


def append(journal, number):
    return journal.append(RecordKind.FLUSHED, FEED, 0, b"%200d" % number)


def journal_of(disk, files):
    """A journal of so many files, with the numbers 0, 1, ... as records, three in each; the newest has one."""
    journal, _ = open_journal(disk, "/journal", file_bytes_max=FILE_BYTES_MAX)
    for number in range(3 * files - 2):
        append(journal, number)
    journal.sync()
    return journal


def recover(disk):
    _, recovered = open_journal(disk, "/journal", file_bytes_max=FILE_BYTES_MAX)
    return [int(record.payload) for record in recovered.records]


@pytest.fixture
def disk():
    return MemoryDisk()


def test_files_below_a_number_are_removed(disk):
    journal = journal_of(disk, 5)
    before = journal.statistics()
    assert (journal.oldest_number, journal.file_numbers) == (1, range(1, 6))
    assert journal.trim(1) == 0
    assert journal.trim(4) == 3
    assert disk.names("/journal") == ["00000004.log", "00000005.log"]
    assert (journal.oldest_number, journal.file_numbers) == (4, range(4, 6))
    after = journal.statistics()
    assert (after.file, after.files, after.bytes) == (5, 2, before.bytes - 3 * 952)
    assert journal.trim(4) == 0
    disk.kill()
    assert recover(disk) == [9, 10, 11, 12]


def test_the_newest_file_stays(disk):
    journal = journal_of(disk, 2)
    assert journal.trim(99) == 1
    append(journal, 4)
    journal.close()
    assert recover(disk) == [3, 4]


def test_after_a_restart_the_older_files_are_known(disk):
    journal_of(disk, 4).trim(2)
    disk.kill()
    journal, _ = open_journal(disk, "/journal", file_bytes_max=FILE_BYTES_MAX)
    assert journal.file_numbers == range(2, 5)
    assert journal.trim(4) == 2
    assert journal.statistics().files == 1
    disk.kill()
    assert recover(disk) == [9]


def test_a_journal_goes_on_after_everything_old_is_gone(disk):
    for _ in range(4):
        journal = journal_of(disk, 3)
        journal.trim(journal.end[0])
        journal.close()
    assert recover(disk)[-1] == 6


def test_the_file_of_an_lsn(disk):
    journal, _ = open_journal(disk, "/journal", file_bytes_max=FILE_BYTES_MAX)
    assert [journal.file_of(append(journal, number)) for number in range(7)] == [1, 1, 1, 2, 2, 2, 3]
    assert journal.file_of(lsn(7, 0)) == 7


def test_each_removal_is_durable_before_the_next(disk):
    journal = journal_of(disk, 4)
    calls = []
    disk.before = lambda name, path: calls.append((name, path))
    journal.trim(3)
    assert calls == [
        ("remove", "/journal/00000001.log"),
        ("sync_directory", "/journal"),
        ("remove", "/journal/00000002.log"),
        ("sync_directory", "/journal"),
    ]


@pytest.mark.parametrize("call", range(6))
def test_a_call_that_fails_is_made_up_for_by_the_next_trim(disk, call):
    journal = journal_of(disk, 5)
    disk.fail_at(call, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        journal.trim(4)
    assert journal.statistics().files == len(disk.names("/journal")) == 5 - (call + 1) // 2
    append(journal, 13)
    journal.trim(4)
    assert disk.names("/journal") == ["00000004.log", "00000005.log"]
    journal.sync()
    disk.cut_power(LOSE)
    assert recover(disk) == [9, 10, 11, 12, 13]


def test_a_failed_journal_is_left_as_it_is(disk):
    journal = journal_of(disk, 3)
    append(journal, 7)
    disk.fail_at(0, errno.EIO)
    with pytest.raises(JournalFailed):
        journal.sync()
    with pytest.raises(JournalFailed):
        journal.trim(2)
    assert len(disk.names("/journal")) == 3


@pytest.fixture
def restless():
    """Threads take turns often, and none has to wait 5 ms for one that never stops."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.slow
@pytest.mark.usefixtures("restless")
def test_in_a_thread_beside_a_writer(tmp_path):
    journal, _ = open_journal(RealDisk(), str(tmp_path), file_bytes_max=FILE_BYTES_MAX)
    stop = threading.Event()
    removed = []

    def trim_on():
        while not stop.is_set():
            removed.append(journal.trim(journal.end[0]))

    thread = threading.Thread(target=trim_on)
    thread.start()
    for number in range(600):
        append(journal, number)
        statistics = journal.statistics()
        assert statistics.bytes >= 0 < statistics.files
    stop.set()
    thread.join(60)
    journal.sync()  # the newest file gets its name
    removed.append(journal.trim(journal.end[0]))
    assert sum(removed) == 199
    assert journal.file_numbers == range(200, 201)
    journal.close()
    _, recovered = open_journal(RealDisk(), str(tmp_path))
    assert [int(record.payload) for record in recovered.records] == [597, 598, 599]


# Crashes.


def crashes_of_a_trim():
    """A disk for each call of a trim that a crash may stop, and for each set of removals that may be left of it."""
    for number in itertools.count():
        disk = MemoryDisk()
        journal = journal_of(disk, 6)
        append(journal, 16)
        disk.crash_at(number)
        stopped = False
        try:
            journal.trim(5)
        except disk.Crashed:
            stopped = True
        for names in disk.survivals():
            for fate in (LOSE, KEEP):
                cut = disk.fork()
                cut.cut_power(fate, names)
                yield cut
        disk.kill()
        yield disk
        if not stopped:
            return


def test_a_trim_crashed_at_each_call_loses_nothing_that_was_to_stay():
    found = set()
    for disk in crashes_of_a_trim():
        records = recover(disk)
        assert records[0] % 3 == 0
        assert records[0] <= 12
        assert records == list(range(records[0], records[-1] + 1))
        assert records[-1] in (15, 16)
        assert recover(disk) == records
        found.add(records[0])
    assert found == {0, 3, 6, 9, 12}


def test_without_the_syncs_between_a_crash_leaves_a_gap():
    """What they are for."""

    def trim_at_once(self, before_number):
        with mock.patch.object(OlderFiles, "_sync_removal"):
            removed = trim(self, before_number)
        self._older._sync_removal()
        return removed

    def recover_all():
        for disk in crashes_of_a_trim():
            recover(disk)

    trim = Journal.trim
    with mock.patch.object(Journal, "trim", trim_at_once), pytest.raises(JournalDamaged, match="the file is missing"):
        recover_all()


def test_a_trim_crashed_twice_with_a_start_in_between():
    for first, second in itertools.product(range(8), range(8)):
        disk = MemoryDisk()
        journal = journal_of(disk, 6)
        disk.crash_at(first)
        with contextlib.suppress(disk.Crashed):
            journal.trim(4)
        disk.kill()  # the page cache outlives the process: what was not synced still is not
        journal, _ = open_journal(disk, "/journal", file_bytes_max=FILE_BYTES_MAX)
        disk.crash_at(second)
        with contextlib.suppress(disk.Crashed):
            journal.trim(6)
        for names in disk.survivals():
            cut = disk.fork()
            cut.cut_power(LOSE, names)
            assert recover(cut)[-1] == 15
