"""Any number of files, and a bounded number of descriptors: what is read, and what is open meanwhile."""

from __future__ import annotations

import os
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.memory_disk import MemoryDisk

from tailrace_server.host.disk import RealDisk
from tailrace_server.host.open_files import OpenFiles, SpareFiles

NBYTES = 200


def content(number):
    return bytes([number]) * NBYTES


def disk_with(count):
    disk = MemoryDisk()
    disk.make_directory("/d")
    for number in range(count):
        file = disk.create(f"/d/{number}")
        file.write_at(0, (content(number),), NBYTES)
        file.close()
    return disk


@given(
    open_max=st.integers(0, 4),
    steps=st.lists(st.tuples(st.sampled_from(("read", "cached", "close", "close_idle")), st.integers(0, 5))),
)
def test_every_read_gives_its_file_and_no_more_are_open_than_may_be(open_max, steps):
    disk = disk_with(6)
    pool = OpenFiles(disk, open_max)
    files = [pool.open(f"/d/{number}") for number in range(6)]
    closed = set()
    for step, number in steps:
        file = files[number]
        if step == "close_idle":
            pool.close_idle()
            assert disk.files == 0
        elif step == "close":
            file.close()
            closed.add(number)
        elif number in closed:
            with pytest.raises(OSError, match="Bad file descriptor"):
                file.read_at(0, 1)
        elif step == "read":
            assert file.read_at(10, 5) == content(number)[10:15]
        else:
            assert file.read_cached(10, 5) in (content(number)[10:15], None)
        assert disk.files == pool.idle <= open_max
    for file in files:
        file.close()
    assert disk.files == 0


def test_the_least_recently_used_one_is_closed():
    disk = disk_with(3)
    pool = OpenFiles(disk, 2)
    first, second = pool.open("/d/0"), pool.open("/d/1")
    assert first.read_cached(0, 1) == b"\0"
    third = pool.open("/d/2")
    assert [file.read_cached(0, 1) for file in (first, second, third)] == [b"\0", None, b"\2"]
    assert second.read_at(0, 1) == b"\1"


def test_idle_descriptors_make_room_for_a_file_that_has_to_be_opened():
    disk = disk_with(6)
    disk.files_max = 3
    pool = OpenFiles(disk, 100)
    files = [pool.open(f"/d/{number}") for number in range(6)]
    for number in (0, 5, 1, 4, 2, 3):
        assert files[number].read_at(0, NBYTES) == content(number)


def test_without_any_descriptor_the_system_s_error_is_raised_and_a_later_read_succeeds():
    disk = disk_with(1)
    file = OpenFiles(disk, 0).open("/d/0")
    disk.files_max = 0
    with pytest.raises(OSError, match="Too many open files"):
        file.read_at(0, 1)
    disk.files_max = 1
    assert file.read_at(0, 1) == b"\0"
    assert disk.files == 0


@pytest.mark.parametrize("other", [content(1), content(0)[:-1]])
def test_a_file_that_was_put_in_its_place_is_not_read(other):
    disk = disk_with(1)
    file = OpenFiles(disk, 0).open("/d/0")
    disk.content("/d/0")[:] = other
    with pytest.raises(OSError, match="another file has been put in its place"):
        file.read_at(0, 1)
    disk.content("/d/0")[:] = content(0)
    assert file.read_at(0, 1) == b"\0"
    assert disk.files == 0


def test_a_file_is_closed_only_after_the_last_read_of_it():
    disk = disk_with(1)
    file = OpenFiles(disk, 1).open("/d/0")
    reading, go_on, found = threading.Event(), threading.Event(), []

    def before(name, path):
        reading.set()
        assert go_on.wait(60)

    disk.before = before
    thread = threading.Thread(target=lambda: found.append(file.read_at(0, 3)))
    thread.start()
    assert reading.wait(60)
    file.close()
    assert disk.files == 1
    go_on.set()
    thread.join(60)
    assert (found, disk.files) == ([content(0)[:3]], 0)


def test_many_threads_read_many_files(tmp_path):
    paths = [str(tmp_path / str(number)) for number in range(20)]
    for number, path in enumerate(paths):
        with open(path, "wb") as file:
            file.write(content(number))
    pool = OpenFiles(RealDisk(), 3)
    before = len(os.listdir("/proc/self/fd"))
    files = [pool.open(path) for path in paths]
    wrong = []

    def read(seed):
        for turn in range(600):
            number = (turn * seed + turn // 7) % 20
            if turn % 50 == 49:
                pool.close_idle()
            if files[number].read_at(turn % 100, 9) != content(number)[:9]:
                wrong.append(number)
            if files[number].read_cached(0, 9) not in (content(number)[:9], None):
                wrong.append(number)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in (1, 3, 7, 11, 13)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert pool.idle <= 3
    for file in files:
        file.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_spare_descriptors_are_held_and_given_up():
    disk = disk_with(2)
    spares = SpareFiles(disk, 3)
    assert not spares.release()
    spares.keep("/d/0")
    assert disk.files == 3
    spares.keep("/d/1")
    disk.remove("/d/0")
    assert disk.files == 3
    disk.files_max = 2
    spares.keep("/d/1")
    assert disk.files == 2
    assert spares.release()
    assert disk.files == 0
