from __future__ import annotations

import itertools

import pytest

from tailrace.block import encode_block
from tailrace.errors import NoSpace
from tailrace_server.journal import JournalDamaged, JournalFailed, RecordKind, open_journal
from tailrace_server.journal.file_case import STOPS, FileCase, FileFacts, decide
from tailrace_server.journal.format import (
    FILE_HEADER_BYTES,
    NO_BRANCH,
    JournalHeader,
    pack_record,
)
from tailrace_server.journal.recovery import copy_from

FEED = b"F" * 16
BRANCH = b"B" * 16
RECORD_BYTES = 96 + 200  # of the records that these tests write
END = FILE_HEADER_BYTES + RECORD_BYTES


@pytest.fixture
def disk(memory_disk):
    return memory_disk()


@pytest.fixture
def large_files(monkeypatch):
    """As if each file were large: never replaced, always followed by a new one."""
    monkeypatch.setattr("tailrace_server.journal.recovery.REPLACE_BYTES_MAX", 0)


def append(journal, number):
    return journal.append(RecordKind.FLUSHED, FEED, 3, b"%200d" % number)


def write(disk, *numbers, synced=(), file_bytes_max=1 << 20, key=None):
    """A journal of these records, synced after those of ``synced``, and then the process dies.

    ``key`` is that of its file, with which the records' checksums are made; None: a random one.
    """
    token = {} if key is None else {"token": lambda count: key.to_bytes(count, "little")}
    journal, _ = open_journal(disk, "/journal", file_bytes_max=file_bytes_max, **token)
    for number in numbers:
        append(journal, number)
        if number in synced:
            journal.sync()
    disk.kill()


def recover(disk):
    journal, recovered = open_journal(disk, "/journal")
    return [int(record.payload) for record in recovered.records], recovered, journal


def cases(recovered):
    return [case for _, case in recovered.cases]


def path(number):
    return f"/journal/{number:08d}.log"


def crash_at_offset(disk, number, size):
    """Cut a file, as if the power had failed before the rest was written."""
    content = disk.content(path(number))
    del content[size:]


def assert_damaged(disk, file, offset, why):
    names = disk.names("/journal")
    before = {name: bytes(disk.content("/journal/" + name)) for name in names}
    with pytest.raises(JournalDamaged, match=why) as caught:
        open_journal(disk, "/journal")
    assert (caught.value.file, caught.value.offset) == (file, offset)
    assert {name: bytes(disk.content("/journal/" + name)) for name in disk.names("/journal")} == before


# The table.


def test_every_input_is_exactly_one_case():
    """The cases written down a second time, as conditions of which one and only one may hold."""
    offsets = (64, 100, 200)
    for size, end, newer, tail, synced, witness, says in itertools.product(
        offsets, (0, *offsets), (False, True), (0, 8), offsets, (0, *offsets), (None, *offsets)
    ):
        if end > size or tail > size - end or (says is not None and end > says):
            continue
        facts = FileFacts(size, end, "bad", newer, tail, synced, witness)
        good, newest = end > 0 and not newer, says is None
        says = says or 0
        lost = end < synced or end < witness
        table = {
            FileCase.BAD_HEADER: end == 0,
            FileCase.NEWER: end > 0 and newer,
            FileCase.SHORT: good and not newest and size < says,
            FileCase.DAMAGED: good and not newest and size >= says and end < says,
            FileCase.LEFTOVER: good and not newest and size > says and end == says,
            FileCase.WHOLE: good and not newest and size == end == says,
            FileCase.LOST: good and newest and lost,
            FileCase.TORN: good and newest and not lost and size > end and tail > 0,
            FileCase.ALLOCATED: good and newest and not lost and size > end and tail == 0,
            FileCase.ENDS: good and newest and not lost and size == end,
        }
        assert sum(table.values()) == 1
        assert table[decide(facts, None if newest else says)]
    assert decide(None, None) == decide(None, 64) == FileCase.MISSING


# Each case, on a disk.


def test_a_new_journal(disk):
    found, recovered, journal = recover(disk)
    assert (found, recovered.end, recovered.torn_bytes, recovered.cases) == ([], (0, 0), 0, ())
    assert disk.names("/journal") == ["00000001.log"]
    assert journal.end == (1, FILE_HEADER_BYTES)


def test_ends(disk):
    journal, _ = open_journal(disk, "/journal")
    append(journal, 1)
    journal.close()
    found, recovered, _ = recover(disk)
    assert (found, cases(recovered), recovered.end) == ([1], [FileCase.ENDS], (1, END))
    assert recovered.torn_bytes == 0


def test_allocated(disk):
    write(disk, 1, 2, synced=[2])
    found, recovered, _ = recover(disk)
    assert (found, cases(recovered), recovered.torn_bytes) == ([1, 2], [FileCase.ALLOCATED], 0)


@pytest.mark.parametrize("kept", [1, 95, 96, 97, RECORD_BYTES - 1])
def test_torn_at_any_place(disk, kept):
    write(disk, 1, 2, synced=[1], key=1)
    crash_at_offset(disk, 1, END + kept)
    assert disk.content(path(1))[END], "by this key the record begins with a byte that is no zero"
    found, recovered, journal = recover(disk)
    assert (found, cases(recovered), recovered.end) == ([1], [FileCase.TORN], (1, END))
    assert 0 < recovered.torn_bytes <= kept
    append(journal, 3)
    journal.close()
    assert recover(disk)[0] == [1, 3]


def test_torn_behind_a_zero_is_as_if_nothing_was_written(disk):
    """The first byte of a record is one of its checksum. If it is a zero, it may be allocated space as well."""
    write(disk, 1, 2, synced=[1], key=256)
    assert not disk.content(path(1))[END], "by this key the record begins with a zero"
    crash_at_offset(disk, 1, END + 1)
    found, recovered, journal = recover(disk)
    assert (found, cases(recovered), recovered.torn_bytes) == ([1], [FileCase.ALLOCATED], 0)
    append(journal, 3)
    journal.close()
    assert recover(disk)[0] == [1, 3]


def test_hazard_6a_good_records_behind_a_torn_one_are_cut_with_it(disk):
    """Several records waited for one fsync, and the disk wrote the second page and not the first."""
    write(disk, 1, 2, 3, synced=[1])
    disk.content(path(1))[END : END + RECORD_BYTES] = bytes(RECORD_BYTES)
    found, recovered, _ = recover(disk)
    assert (found, cases(recovered)) == ([1], [FileCase.TORN])
    assert recovered.torn_bytes == 2 * RECORD_BYTES


def test_hazard_6a_a_durable_record_that_rots_is_damage(disk):
    """The third record says that the first two were durable."""
    write(disk, 1, 2, 3, synced=[2])
    disk.content(path(1))[END + 100] ^= 1
    assert_damaged(disk, path(1), END, "was durable, up to offset 656; now: the record's checksum")


def test_lost_although_the_witness_is_the_last_one_in_a_long_file(disk):
    write(disk, *range(5_000), synced=[4_998], file_bytes_max=1 << 30)
    disk.content(path(1))[END + 100] ^= 1
    assert_damaged(disk, path(1), END, "was durable")


def test_lost_where_the_file_was_cut(disk):
    """The header of a file that recovery made says how much of it was durable when it got its name."""
    write(disk, 1, 2, synced=[2])
    recover(disk)
    crash_at_offset(disk, 1, END)
    assert_damaged(disk, path(1), END, "was durable, up to offset 656; now: the file ends here")


def test_a_block_whose_body_is_damaged(disk):
    journal, _ = open_journal(disk, "/journal")
    block = encode_block([b"key"], [b"value"], partition=3).stamped(1, 1)
    journal.append_block(FEED, 3, BRANCH, block)
    journal.sync()
    disk.content(path(1))[FILE_HEADER_BYTES + 96 + 96 + 2] ^= 1
    assert cases(recover(disk)[1]) == [FileCase.TORN]
    journal, _ = open_journal(disk, "/journal")
    journal.append_block(FEED, 3, BRANCH, block)
    journal.sync()
    append(journal, 1)
    disk.content(path(1))[FILE_HEADER_BYTES + 96 + 96 + 2] ^= 1
    assert_damaged(disk, path(1), FILE_HEADER_BYTES, "the block in the record: the body's checksum")


def test_bytes_behind_a_record_are_zeros(disk):
    journal, _ = open_journal(disk, "/journal")
    journal.append(RecordKind.FLUSHED, FEED, 0, b"x")
    append(journal, 1)
    disk.content(path(1))[FILE_HEADER_BYTES + 96 + 3] = 1
    found, recovered, _ = recover(disk)
    assert (found, cases(recovered)) == ([], [FileCase.TORN])


def test_whole_and_ends(disk):
    write(disk, *range(7), synced=[6], file_bytes_max=1_000)
    found, recovered, _ = recover(disk)
    assert found == list(range(7))
    # The first record of a file has a copy in the file before it, until a start cuts it off.
    assert cases(recovered) == [FileCase.LEFTOVER, FileCase.LEFTOVER, FileCase.ALLOCATED]
    _, recovered, _ = recover(disk)
    assert cases(recovered) == [FileCase.WHOLE, FileCase.WHOLE, FileCase.ENDS]


def test_hazard_6e_the_end_of_a_finished_file_is_known(disk):
    write(disk, *range(7), synced=[6], file_bytes_max=1_000)
    crash_at_offset(disk, 2, 952 - RECORD_BYTES)
    assert_damaged(disk, path(2), 952 - RECORD_BYTES, "has 656 bytes, and 952 according to the one after it")


def test_short_inside_a_record(disk):
    write(disk, *range(7), synced=[6], file_bytes_max=1_000)
    crash_at_offset(disk, 1, 940)
    assert_damaged(disk, path(1), 952 - RECORD_BYTES, "has 940 bytes, and 952")


@pytest.mark.parametrize("offset", [FILE_HEADER_BYTES, END + 10, 951])
def test_damaged_anywhere_in_a_finished_file(disk, offset):
    write(disk, *range(7), synced=[6], file_bytes_max=1_000)
    disk.content(path(2))[offset] ^= 1
    begin = offset - (offset - FILE_HEADER_BYTES) % RECORD_BYTES
    assert_damaged(disk, path(2), begin, "00000002.log at offset")


def test_leftover(disk, large_files):
    """The power fails between the new file's name and the cut of the old one."""
    write(disk, 1, 2, 3, synced=[1, 2])

    def before(name, path):
        if name == "truncate":
            raise disk.Crashed

    disk.before = before
    with pytest.raises(disk.Crashed):
        recover(disk)
    disk.kill()
    assert disk.names("/journal") == ["00000001.log", "00000002.log"]
    disk.content(path(1))[656 + 5] ^= 1  # what lies behind the end may even be damaged
    found, recovered, _ = recover(disk)
    assert found == [1, 2, 3]
    assert cases(recovered) == [FileCase.LEFTOVER, FileCase.ENDS]
    assert len(disk.content(path(1))) == 656


def test_missing(disk):
    write(disk, *range(7), synced=[6], file_bytes_max=1_000)
    disk.remove(path(2))
    assert_damaged(disk, path(2), 0, "the file is missing")


def test_the_oldest_files_may_be_gone(disk):
    """They are removed, oldest first, when all in them has its home elsewhere."""
    write(disk, *range(7), synced=[6], file_bytes_max=1_000)
    disk.remove(path(1))
    found, _, journal = recover(disk)
    assert found == [3, 4, 5, 6]
    assert journal.statistics().files == 2


@pytest.mark.parametrize("number", [1, 2, 3])
def test_bad_header(disk, number):
    write(disk, *range(7), synced=[6], file_bytes_max=1_000)
    disk.content(path(number))[20] ^= 1
    assert_damaged(disk, path(number), 0, "the file header's checksum")


def test_an_empty_file_has_no_header(disk):
    write(disk, 1, synced=[1])
    crash_at_offset(disk, 1, 0)
    assert_damaged(disk, path(1), 0, "the file's header has 0 of 64 bytes")


def test_a_file_under_another_number(disk):
    write(disk, 1, synced=[1])
    disk.rename(path(1), path(2))
    assert_damaged(disk, path(2), 0, "says that it is number 1")


def test_a_newer_version(disk):
    write(disk, 1, synced=[1])
    disk.content(path(1))[4] = 3
    assert_damaged(disk, path(1), 0, "version 3 of the journal; this Tailrace knows versions up to 2")


def test_newer(disk):
    """A record that is valid is never cut, even in the newest file."""
    write(disk, 1, synced=[1])
    content = disk.content(path(1))
    header = JournalHeader.unpack(bytes(content[:FILE_HEADER_BYTES]))
    record = pack_record(header.key, 1, END, END, 4, 99, 0, FEED, NO_BRANCH, (0, 0), b"new!") + b"new!" + bytes(4)
    content[END : END + len(record)] = record
    assert_damaged(disk, path(1), END, "a record of kind 99, written by a newer Tailrace")


def test_every_stop_is_tested_and_named():
    assert {case.name for case in STOPS} == {"MISSING", "BAD_HEADER", "NEWER", "SHORT", "DAMAGED", "LOST"}


def test_a_forged_record_in_a_value_is_not_taken_for_one(disk):
    """Its writer can guess everything but the key of the file."""
    write(disk, 1, synced=[1])
    header = JournalHeader.unpack(bytes(disk.content(path(1))[:FILE_HEADER_BYTES]))
    inner = END + 96
    forged = pack_record(header.key ^ 1, 1, inner, inner, 0, 5, 0, FEED, NO_BRANCH, (0, 0), b"")
    journal, _ = open_journal(disk, "/journal", token=lambda size: header.key.to_bytes(8, "little"))
    journal.append(RecordKind.FLUSHED, FEED, 0, forged)
    disk.kill()
    disk.content(path(1))[END + 5] ^= 1
    assert cases(recover(disk)[1]) == [FileCase.TORN]
    real = pack_record(header.key, 1, inner, inner, 0, 5, 0, FEED, NO_BRANCH, (0, 0), b"")
    journal, _ = open_journal(disk, "/journal", token=lambda size: header.key.to_bytes(8, "little"))
    journal.append(RecordKind.FLUSHED, FEED, 0, real)
    disk.kill()
    disk.content(path(1))[END + 5] ^= 1
    assert_damaged(disk, path(1), END, "was durable")


def test_other_files_are_left_alone(disk):
    write(disk, 1, synced=[1])
    disk.create("/journal/notes.txt")
    disk.create("/journal/00000001.log.new")
    recover(disk)
    assert disk.names("/journal") == ["00000001.log", "notes.txt"]


# What recovery writes.


def test_hazard_6b_what_was_not_known_durable_is_durable_after_recovery(disk, large_files):
    write(disk, 1, 2, 3, synced=[1])
    disk.names_now[path(1)].durable.change(END, None)  # the disk never got the rest, the page cache has it
    disk.names_now[path(1)].pending.clear()
    found, recovered, _ = recover(disk)
    assert (found, recovered.copied_bytes) == ([1, 2, 3], 2 * RECORD_BYTES)
    assert disk.names_durable.keys() == {path(1), path(2)}
    assert disk.names_durable[path(2)].durable.whole() == disk.names_now[path(2)].content.whole()
    assert disk.names_durable[path(1)].durable.size == END


def test_a_small_file_is_replaced_so_that_restarts_leave_no_crowd(disk):
    for number in range(20):
        write(disk, number, synced=[number])
    found, _, journal = recover(disk)
    assert found == list(range(20))
    assert disk.names("/journal") == ["00000001.log"]
    assert journal.end == (1, FILE_HEADER_BYTES + 20 * RECORD_BYTES)


def test_a_large_file_is_gone_on_with_in_the_next(disk, large_files):
    write(disk, 1, 2, synced=[1, 2])  # only the second record tells of a sync, the one before it
    found, recovered, journal = recover(disk)
    assert (found, recovered.copied_bytes) == ([1, 2], RECORD_BYTES)
    assert journal.end == (2, END)
    assert journal.statistics().bytes == END + END
    append(journal, 3)
    journal.close()
    assert recover(disk)[0] == [1, 2, 3]


def test_where_copying_begins():
    assert copy_from(64) == 64
    assert copy_from(1 << 20) == 64
    assert copy_from((1 << 20) + 8) == (1 << 20) + 8


def test_lsns_go_on(disk):
    write(disk, 1, 2, synced=[2])
    _, recovered, journal = recover(disk)
    lsns = [record.lsn for record in recovered.records]
    assert lsns == sorted(lsns)
    assert lsns[-1] == journal.written == journal.synced < append(journal, 3)


def test_a_full_disk_stops_the_start_and_changes_nothing(disk):
    write(disk, 1, 2, synced=[1])
    disk.size_bytes -= disk.free
    with pytest.raises(NoSpace, match="to recover the journal in /journal"):
        recover(disk)
    disk.kill()
    disk.size_bytes *= 2
    assert recover(disk)[0] == [1, 2]


def test_a_bad_disk_stops_the_start(disk):
    write(disk, 1, 2, synced=[1])

    disk.fail("sync")
    with pytest.raises(JournalFailed, match="can't be recovered"):
        recover(disk)
    disk.kill()
    assert recover(disk)[0] == [1, 2]
