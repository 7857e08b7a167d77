from __future__ import annotations

import contextlib
import errno
import itertools

import pytest
from tests.memory_disk import KEEP, LOSE, MemoryDisk

from tailrace.errors import NoSpace
from tailrace_server.host.disk import RealDisk, read_file, write_atomically
from tailrace_server.journal import RecordKind, Reserve, open_journal
from tailrace_server.journal.reserve import PIECE_BYTES, RESERVE_BYTES_DEFAULT

SIZE = 10_000


@pytest.fixture
def disk():
    disk = MemoryDisk(size_bytes=100_000)
    disk.make_directory("/data")
    return disk


def fill(disk):
    """Nobody has a byte left."""
    file = disk.create(f"/data/{disk.changes}")
    free = disk.free_bytes("/")
    file.write_at(0, (bytes(free),), free)
    file.close()


def test_it_is_kept_and_given_back(disk):
    reserve = Reserve(disk, "/data", SIZE)
    assert (reserve.held_bytes, disk.names("/data")) == (0, [])
    assert reserve.make()
    assert reserve.make()
    assert (reserve.held_bytes, disk.free_bytes("/")) == (SIZE, 90_000)
    assert reserve.release()
    assert (reserve.held_bytes, disk.free_bytes("/")) == (0, 100_000)
    assert not reserve.release()
    assert reserve.make()


def test_on_a_real_disk(tmp_path):
    reserve = Reserve(RealDisk(), str(tmp_path), 1 << 20)
    assert reserve.make()
    status = (tmp_path / "RESERVE").stat()
    assert (status.st_size, status.st_blocks * 512 >= 1 << 20) == (1 << 20, True)
    assert reserve.release()
    assert (tmp_path / "RESERVE").stat().st_blocks == 0


def test_a_full_disk_takes_a_flush_once_it_is_released(disk):
    reserve = Reserve(disk, "/data", SIZE)
    reserve.make()
    fill(disk)
    with pytest.raises(OSError, match="No space"):
        write_atomically(disk, "/data/segment", bytes(SIZE // 2))
    assert reserve.release()
    write_atomically(disk, "/data/segment", bytes(SIZE // 2))
    assert not reserve.make()
    assert (reserve.held_bytes, disk.free_bytes("/")) == (0, SIZE // 2)
    disk.remove("/data/segment")
    assert reserve.make()


def test_small_files_are_written_on_a_full_disk_by_pieces_of_it():
    disk = MemoryDisk(size_bytes=10 * PIECE_BYTES)
    disk.make_directory("/data")
    write_atomically(disk, "/data/small", b"0")
    reserve = Reserve(disk, "/data", 3 * PIECE_BYTES)
    reserve.make()
    for number in range(1, 4):
        fill(disk)
        reserve.write_small("/data/small", b"%d" % number)
        assert read_file(disk, "/data/small") == b"%d" % number
        assert reserve.held_bytes == (3 - number) * PIECE_BYTES
    fill(disk)
    with pytest.raises(OSError, match="No space"):
        reserve.write_small("/data/small", b"4")
    assert read_file(disk, "/data/small") == b"3"
    disk.remove(f"/data/{min(name for name in disk.names('/data') if name.isdecimal())}")
    assert reserve.make()
    assert reserve.held_bytes == 3 * PIECE_BYTES


def test_a_failure_that_is_no_lack_of_space_leaves_it(disk):
    reserve = Reserve(disk, "/data", SIZE)
    reserve.make()
    disk.fail_at(0, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        reserve.write_small("/data/small", b"1")
    assert reserve.held_bytes == SIZE


def test_the_whole_way_out_of_a_full_disk(disk):
    """Writers fill it with journal files; the reserve takes the segment, and the trim makes room for a new reserve."""
    reserve = Reserve(disk, "/data", SIZE)
    reserve.make()
    journal, _ = open_journal(disk, "/data/journal", file_bytes_max=20_000)
    with contextlib.suppress(NoSpace):
        while True:
            journal.append(RecordKind.FLUSHED, b"F" * 16, 0, bytes(500))
    with pytest.raises(OSError, match="No space"):
        write_atomically(disk, "/data/segment", bytes(8_000))
    reserve.release()
    write_atomically(disk, "/data/segment", bytes(8_000))
    assert journal.trim(journal.end[0]) > 0
    assert reserve.make()
    journal.append(RecordKind.FLUSHED, b"F" * 16, 0, bytes(500))
    journal.close()


def test_it_is_not_what_fills_the_disk(disk):
    reserve = Reserve(disk, "/data", SIZE)
    assert not reserve.make(free_bytes_min=90_001)
    assert disk.free_bytes("/") == 100_000
    assert reserve.make(free_bytes_min=90_000)


def test_one_that_is_there_is_taken_over_at_a_start(disk):
    Reserve(disk, "/data", SIZE).make()
    disk.kill()
    fill(disk)
    reserve = Reserve(disk, "/data", SIZE)
    assert reserve.make(free_bytes_min=1)
    assert disk.free_bytes("/") == 0
    smaller = Reserve(disk, "/data", SIZE // 2)
    assert smaller.make()
    assert disk.free_bytes("/") == SIZE // 2


def test_a_start_may_release_what_an_earlier_process_kept(disk):
    Reserve(disk, "/data", SIZE).make()
    disk.kill()
    fill(disk)
    assert Reserve(disk, "/data", SIZE).release()
    assert disk.free_bytes("/") == SIZE


def test_none_is_wanted(disk):
    reserve = Reserve(disk, "/data", 0)
    assert reserve.make()
    assert disk.names("/data") == []
    assert not reserve.release()


def test_a_bad_disk_is_told(disk):
    reserve = Reserve(disk, "/data", SIZE)
    disk.fail_at(0, errno.ENOSPC)
    assert not reserve.make()
    disk.fail_at(0, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        reserve.make()
    assert reserve.make()
    disk.fail_at(1, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        reserve.release()
    assert reserve.held_bytes == 0


@pytest.mark.parametrize("fate", [LOSE, KEEP])
@pytest.mark.parametrize("what", ["make", "release"])
def test_after_a_crash_at_any_call_it_is_made_again(what, fate):
    for number in itertools.count():
        disk = MemoryDisk(size_bytes=100_000)
        disk.make_directory("/data")
        reserve = Reserve(disk, "/data", SIZE)
        if what == "release":
            reserve.make()
        disk.crash_at(number)
        stopped = False
        try:
            getattr(reserve, what)()
        except disk.Crashed:
            stopped = True
        disk.cut_power(fate)
        again = Reserve(disk, "/data", SIZE)
        assert again.make()
        assert disk.free_bytes("/") == 90_000
        assert again.release()
        if not stopped:
            return


def test_its_size():
    assert RESERVE_BYTES_DEFAULT == 64 << 20
