import contextlib

import pytest
from tests.tailrace_server.made_directory import DATA, MadeDirectory

from tailrace_server.feeds.feed import SYSTEM_FEED_ID
from tailrace_server.journal import JournalDamaged, RecordKind
from tailrace_server.journal.file_case import STOPS, FileCase
from tailrace_server.journal.inspection import survey
from tailrace_server.offline.journal_walk import Bad, journal_files

JOURNAL = f"{DATA}/journal"
PATH = f"{JOURNAL}/00000001.log"


@pytest.fixture(scope="module")
def made():
    made = MadeDirectory()
    made.create("orders", 1)
    for number in range(10):
        made.write("orders", [(b"k%d" % number, bytes(100))])
    return made


def walked(disk, number=0):
    file = journal_files(disk, JOURNAL)[number]
    return file, list(file.items())


def seqs(items):
    """Of the blocks of clients."""
    records = [item for item in items if not isinstance(item, Bad) and item.header.feed_id != SYSTEM_FEED_ID]
    return [record.block.header.first_seq for record in records if record.block is not None]


def test_a_good_file_has_all_its_records(made):
    disk = made.disk.fork()
    file, items = walked(disk)
    assert seqs(items) == list(range(1, 11))
    assert file.case is FileCase.ALLOCATED
    [found] = survey(disk, JOURNAL)
    assert (found.case, found.facts) == (file.case, file.facts)


def record_offsets(disk):
    return [item.header.offset for item in walked(disk)[1] if not isinstance(item, Bad)]


@pytest.mark.parametrize(("place", "has_head"), [(3, False), (60, False), (96 + 50, False), (96 + 110, True)])
def test_behind_a_bad_record_the_others_are_found(made, place, has_head):
    disk = made.disk.fork()
    offset = record_offsets(disk)[6]  # seq 4: first are the branch and the row of the list of feeds, and the creation
    disk.flip(PATH, 8 * (offset + place))
    file, items = walked(disk)
    assert seqs(items) == [1, 2, 3, 5, 6, 7, 8, 9, 10]
    [bad, *_] = [item for item in items if isinstance(item, Bad)]
    assert bad.offset == offset
    assert (bad.head is not None) == has_head
    if bad.head is not None:
        assert bad.head.kind == RecordKind.BLOCK
    assert file.case is FileCase.LOST


def test_it_makes_of_each_file_what_a_start_makes_of_it(made):
    disk = made.disk.fork()
    end = record_offsets(disk)[-1]
    del disk.content(PATH)[end + 1_000 :]
    for bit in range(0, 8 * (end + 300), 97):
        disk.flip(PATH, bit)
        file, _ = walked(disk)
        if file.case in STOPS:
            with pytest.raises(JournalDamaged):
                survey(disk, JOURNAL)
        else:
            [found] = survey(disk, JOURNAL)
            assert (found.case, found.facts) == (file.case, file.facts)
        disk.flip(PATH, bit)


def test_a_damaged_file_header_hides_no_record(made):
    disk = made.disk.fork()
    disk.flip(PATH, 8 * 40)
    file, items = walked(disk)
    assert file.case is FileCase.BAD_HEADER
    assert seqs(items) == list(range(1, 11))


def test_a_place_that_the_disk_cannot_read_is_passed_over(made):
    disk = made.disk.fork()
    offset = record_offsets(disk)[4]
    sector = 4096 * (offset // 4096) if offset >= 4096 else None

    disk.fail("read_at", where=PATH)
    file, _ = walked(disk)
    assert file.unread
    assert file.case is FileCase.BAD_HEADER
    assert sector is None or sector in file.unread
    with contextlib.suppress(OSError):
        disk.open(PATH).read_at(0, 1)


def test_a_file_between_others_that_is_missing_is_told():
    made = MadeDirectory(journal_file_bytes_max=1_000)
    made.create("orders", 1)
    for _ in range(10):
        made.write("orders", [(b"k", bytes(300))])
    numbers = [file.number for file in journal_files(made.disk, JOURNAL)]
    assert len(numbers) > 3
    made.disk.remove(f"{JOURNAL}/{numbers[1]:08d}.log")
    files = journal_files(made.disk, JOURNAL)
    assert [list(file.items()) == [] for file in files][:3] == [False, True, False]
    assert files[1].case is FileCase.MISSING
    assert all(file.case not in STOPS for file in files if file.number != numbers[1])
