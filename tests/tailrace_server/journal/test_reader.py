from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.block import encode_block
from tailrace_server.journal import JournalDamaged, RecordKind, open_journal
from tailrace_server.journal.reader import WINDOW_BYTES, Window, bytes_before_zeros

FEED = b"F" * 16
BRANCH = b"B" * 16


@pytest.fixture
def disk(memory_disk):
    return memory_disk()


def test_a_window_gives_what_the_file_has(disk):
    data = os.urandom(3 * WINDOW_BYTES)
    file = disk.create("/a")
    file.write_at(0, (data,), len(data))
    window = Window(file, "/a")
    assert window.size == len(data)
    places = [(0, 10), (5, 100), (WINDOW_BYTES - 1, 2), (17, 2 * WINDOW_BYTES), (3, 4), (len(data) - 3, 10)]
    for offset, nbytes in places:
        assert window.take(offset, nbytes) == data[offset : offset + nbytes]


def test_small_records_are_read_many_at_a_time(disk):
    journal, _ = open_journal(disk, "/journal")
    for number in range(1_000):
        journal.append(RecordKind.FLUSHED, FEED, 0, b"%d" % number)
    journal.close()
    _, recovered = open_journal(disk, "/journal")
    reads = []
    disk.before = lambda name, path: reads.append(name) if name == "read_at" else None
    assert [int(record.payload) for record in recovered.records] == list(range(1_000))
    assert reads == ["read_at"]


def test_a_block_does_not_keep_the_files_buffer(disk):
    journal, _ = open_journal(disk, "/journal")
    block = encode_block([b"k"], [b"v"], partition=0).stamped(1, 1)
    for _ in range(10):
        journal.append_block(FEED, 0, BRANCH, block)
    _, recovered = open_journal(disk, "/journal")
    for record in recovered.records:
        body = record.block.body
        held = body.obj if isinstance(body, memoryview) else body
        assert len(held) <= block.nbytes


def test_records_can_be_read_again(disk):
    journal, _ = open_journal(disk, "/journal")
    journal.append(RecordKind.FLUSHED, FEED, 0, b"one")
    _, recovered = open_journal(disk, "/journal")
    assert list(recovered.records) == list(recovered.records) != []


def test_damage_since_recovery_is_found(disk):
    journal, _ = open_journal(disk, "/journal")
    journal.append(RecordKind.FLUSHED, FEED, 0, b"one")
    journal.append(RecordKind.FLUSHED, FEED, 0, b"two")
    _, recovered = open_journal(disk, "/journal")
    disk.content("/journal/00000001.log")[64 + 104 + 96] ^= 1
    records = iter(recovered.records)
    assert next(records).payload == b"one"
    with pytest.raises(JournalDamaged, match="checksum") as caught:
        next(records)
    assert (caught.value.file, caught.value.offset) == ("/journal/00000001.log", 64 + 104)


def test_an_error_of_the_disk_is_damage(disk):
    journal, _ = open_journal(disk, "/journal")
    journal.append(RecordKind.FLUSHED, FEED, 0, b"one")
    journal.close()

    disk.fail("read_at")
    with pytest.raises(JournalDamaged, match=r"00000001\.log at offset 0: the disk can't read it: Input/output error"):
        open_journal(disk, "/journal")


@given(st.binary(max_size=20), st.integers(0, 20))
def test_zeros_at_the_end_are_not_counted(data, zeros):
    assert bytes_before_zeros(data + bytes(zeros)) == len(data.rstrip(b"\0"))


def test_a_window_of_zeros_is_empty():
    assert bytes_before_zeros(bytes(WINDOW_BYTES)) == 0
    assert bytes_before_zeros(bytes(WINDOW_BYTES - 1) + b"\1") == WINDOW_BYTES
