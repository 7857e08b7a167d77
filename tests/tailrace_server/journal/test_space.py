"""Zeros ahead of small records: when they come, and that they never meet a record."""

from __future__ import annotations

import errno
import shutil
import threading

import pytest
from tests.tiers import examples

from tailrace_server.host.disk import RealDisk
from tailrace_server.journal import JournalFailed, RecordKind, open_journal, space
from tailrace_server.journal.space import (
    ALLOCATE_BYTES,
    GAP_BYTES,
    PIECE_BYTES,
    SMALL_SYNC_BYTES,
    WRITE_BYTES,
    ZEROS_MIN,
)

FEED = b"F" * 16
FIRST = "/journal/00000001.log"


def append(journal, payload=b"x"):
    return journal.append(RecordKind.FLUSHED, FEED, 3, payload)


def append_and_sync(journal, payload=b"x"):
    append(journal, payload)
    journal.sync()


def payloads(disk, directory="/journal"):
    return [record.payload for record in open_journal(disk, directory)[1].records]


def written_by(disk, function):
    """Calls ``function``; the names of the calls of the disk that it made, beside reads."""
    calls = []
    disk.before = lambda name, path: calls.append(name)
    function()
    disk.before = None
    return [name for name in calls if name != "read_at"]


def test_zeros_are_due_after_the_first_small_record(journal):
    append_and_sync(journal)
    assert journal.begin_zeros()


def test_zeros_are_durable_when_records_get_their_space(disk, journal):
    append_and_sync(journal)
    assert journal.begin_zeros()
    limit = journal._space.limit
    calls = written_by(disk, journal.write_zeros)
    assert calls == ["open", *["write_at"] * (PIECE_BYTES // WRITE_BYTES), "sync"]
    assert journal._space.limit == limit + PIECE_BYTES


def test_zeros_come_piece_by_piece_as_records_need_them(disk, journal):
    append_and_sync(journal)
    while journal.begin_zeros():
        assert journal.write_zeros()
    for _ in range(2):
        before = journal.end[1]
        while not journal.begin_zeros():
            append_and_sync(journal, bytes(SMALL_SYNC_BYTES // 2))
        assert 0 <= ZEROS_MIN - (journal._space.limit - journal.end[1]) < SMALL_SYNC_BYTES
        assert written_by(disk, journal.write_zeros).count("sync") == 1
        assert not journal.begin_zeros()
        assert journal.end[1] - before < PIECE_BYTES + SMALL_SYNC_BYTES


def test_large_records_get_no_zeros(journal):
    for _ in range(3):
        append_and_sync(journal, bytes(4 * SMALL_SYNC_BYTES))
        assert not journal.begin_zeros()


def test_large_records_after_many_small_ones_get_no_more_zeros(disk, journal, monkeypatch):
    monkeypatch.setattr("tailrace_server.journal.writer.FILE_SURPLUS_NS_MAX", 1 << 60)  # all are in one file
    for _ in range(1_000):
        append_and_sync(journal)
    pieces = 0
    for _ in range(4 * ALLOCATE_BYTES // (4 * SMALL_SYNC_BYTES)):
        append_and_sync(journal, bytes(4 * SMALL_SYNC_BYTES))
        while journal.begin_zeros() and journal.write_zeros():
            pieces += 1
    assert 0 < pieces * PIECE_BYTES <= ALLOCATE_BYTES + 2 * PIECE_BYTES


def test_records_that_share_an_fsync_count_as_one(journal):
    for _ in range(2 * SMALL_SYNC_BYTES // 1_000):
        append(journal, bytes(1_000))
    journal.sync()
    assert not journal.begin_zeros()


def test_a_large_record_does_not_wait_for_zeros(disk, journal):
    append_and_sync(journal)
    journal.begin_zeros()
    append(journal, b"l" * 2 * GAP_BYTES)  # across the place at which they were to begin
    journal.write_zeros()
    append(journal, b"last")
    disk.kill()
    assert payloads(disk) == [b"x", b"l" * 2 * GAP_BYTES, b"last"]


def test_a_record_does_not_wait_for_an_fsync_of_zeros(disk, journal):
    append_and_sync(journal)
    journal.begin_zeros()
    ended = []

    def before(name, path):
        if name == "sync":
            disk.before = None
            thread = threading.Thread(target=append, args=(journal, b"l" * 2 * GAP_BYTES), daemon=True)
            thread.start()
            thread.join(timeout=5)
            ended.append(not thread.is_alive())

    disk.before = before
    assert not journal.write_zeros()  # the record has their place
    assert ended == [True]
    append(journal, b"last")
    disk.kill()
    assert payloads(disk) == [b"x", b"l" * 2 * GAP_BYTES, b"last"]


def test_a_journal_that_failed_gets_no_zeros(disk, journal):
    append_and_sync(journal)
    journal.begin_zeros()
    append(journal)
    disk.fail("sync")
    with pytest.raises(JournalFailed):
        journal.sync()
    assert written_by(disk, journal.write_zeros) == []


@pytest.mark.parametrize("call", ["open", "write_at"])
def test_a_disk_that_refuses_zeros_gets_none_in_this_file(disk, journal, call):
    append_and_sync(journal)
    journal.begin_zeros()
    disk.fail(call, errno.EIO)
    journal.write_zeros()
    disk.before = None
    assert not journal.begin_zeros()
    append_and_sync(journal, b"after")
    disk.kill()
    assert payloads(disk) == [b"x", b"after"]


def test_a_failed_fsync_of_zeros_fails_the_journal(disk, journal):
    append_and_sync(journal)
    journal.begin_zeros()
    append(journal, b"in doubt")  # the system may have dropped it with the zeros
    disk.fail("sync", errno.EIO)
    with pytest.raises(JournalFailed, match="an fsync failed"):
        journal.write_zeros()
    disk.before = None
    assert not journal.begin_zeros()
    with pytest.raises(JournalFailed):
        journal.sync()


def test_a_file_that_takes_no_more_records_gets_no_zeros(disk):
    journal, _ = open_journal(disk, "/journal", file_bytes_max=1 << 20)
    append_and_sync(journal)
    journal.begin_zeros()
    first = journal._file
    append(journal, bytes(1 << 20))  # in the next file
    assert written_by(disk, journal.write_zeros) == []  # that has no name yet
    journal.sync()
    assert written_by(disk, lambda: journal._space.write_zeros(FIRST, first)) == ["open"]


def test_zeros_end_where_the_file_ends(disk):
    journal, _ = open_journal(disk, "/journal", file_bytes_max=300_000)
    append_and_sync(journal)
    pieces = 0
    while journal.begin_zeros():
        assert journal.write_zeros()
        pieces += 1
    assert pieces == 1
    assert journal._space.limit == 300_000


def test_a_journal_that_is_closed_asks_for_none(journal):
    append_and_sync(journal)
    assert journal.begin_zeros()
    journal.close()
    assert not journal.begin_zeros()


@pytest.mark.slow
def test_a_thread_writes_zeros_beside_records(tmp_path, monkeypatch):
    monkeypatch.setattr(space, "GAP_BYTES", 4_096)
    monkeypatch.setattr(space, "PIECE_BYTES", 8_192)
    monkeypatch.setattr(space, "ALLOCATE_BYTES", 256 * 1024)
    directory = str(tmp_path / "journal")
    journal, _ = open_journal(RealDisk(), directory, file_bytes_max=1 << 20)
    made = []
    for number in range(examples(2_000)):
        made.append(b"%d " % number * (1 + number % 7 * 100))
        append(journal, made[-1])
        if number % 3 == 0:
            journal.sync()
        if number % 50 == 0:
            journal.begin_zeros()
            thread = threading.Thread(target=lambda: [journal.write_zeros() for _ in range(20)])
            thread.start()
        if number % 50 == 49:
            thread.join()
    thread.join()
    journal.sync()
    assert payloads_beside(directory, tmp_path) == made


def payloads_beside(directory, tmp_path):
    """The payloads of a copy: the journal itself was not closed."""
    shutil.copytree(directory, tmp_path / "copy")
    return payloads(RealDisk(), str(tmp_path / "copy"))
