"""The disk of the tests does to a program what its module says, and nothing worse."""

from __future__ import annotations

import errno
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.memory_disk import KEEP, LOSE, SECTOR_BYTES, MemoryDisk

from tailrace_server.host.disk import read_file, write_atomically


@pytest.fixture
def disk():
    disk = MemoryDisk()
    disk.make_directory("/d")
    return disk


def make(disk, path, data=b""):
    """A file whose content is durable, and whose name is not."""
    file = disk.create(path)
    file.write_at(0, (data,), len(data))
    file.sync()
    file.close()


def outcomes(disk):
    """What may be in /d after a power cut now: sets of names."""
    found = set()
    for names in disk.survivals():
        cut = disk.fork()
        cut.cut_power(LOSE, names)
        found.add(tuple(cut.names("/d")))
    return found


# Names.


def test_names_come_and_go_each_on_its_own(disk):
    for name in "ab":
        make(disk, f"/d/{name}")
    assert outcomes(disk) == {(), ("a",), ("b",), ("a", "b")}
    disk.sync_directory("/d")
    assert outcomes(disk) == {("a", "b")}
    disk.remove("/d/a")
    disk.remove("/d/b")
    assert outcomes(disk) == {(), ("a",), ("b",), ("a", "b")}


def test_changes_of_one_name_stay_in_order(disk):
    make(disk, "/d/a", b"1")
    disk.sync_directory("/d")
    disk.remove("/d/a")
    make(disk, "/d/a", b"2")
    found = set()
    for names in disk.survivals():
        cut = disk.fork()
        cut.cut_power(LOSE, names)
        found.add(read_file(cut, "/d/a") if cut.exists("/d/a") else None)
    assert found == {b"1", None, b"2"}
    assert len(list(disk.survivals())) == 3


def test_a_rename_is_there_for_both_names_or_for_none(disk):
    make(disk, "/d/a", b"old")
    disk.sync_directory("/d")
    make(disk, "/d/a.new", b"new")
    disk.rename("/d/a.new", "/d/a")
    assert outcomes(disk) == {("a",), ("a", "a.new")}
    disk.cut_power(LOSE, [])
    assert read_file(disk, "/d/a") == b"old"


def test_a_directory_goes_after_what_was_in_it(disk):
    disk.make_directory("/d/x")
    make(disk, "/d/x/a")
    disk.sync_directory("/d/x")
    disk.remove("/d/x/a")
    disk.remove_directory("/d/x")
    assert list(disk.survivals()) == [frozenset(), {0}, {0, 1}]
    disk.sync_directory("/d")
    assert disk.pending == []
    disk.cut_power(LOSE)
    assert disk.names("/d") == []


def test_a_directory_that_was_made_is_durable(disk):
    disk.make_directory("/d/x")
    disk.remove_directory("/d/x")
    disk.make_directory("/d/x/y")
    disk.cut_power(LOSE)
    assert disk.names("/d/x") == ["y"]


def test_a_sync_of_a_directory_concerns_no_other_one(disk):
    disk.make_directory("/e")
    make(disk, "/d/a")
    make(disk, "/e/b")
    disk.sync_directory("/e")
    disk.cut_power(LOSE)
    assert (disk.names("/d"), disk.names("/e")) == ([], ["b"])


def test_a_link_and_its_file_go_and_come_apart(disk):
    make(disk, "/d/a", b"x")
    disk.sync_directory("/d")
    disk.link("/d/a", "/d/b")
    disk.remove("/d/a")
    assert outcomes(disk) == {("a",), ("b",), (), ("a", "b")}


@given(
    steps=st.lists(st.tuples(st.sampled_from(["make", "move", "remove", "sync"]), st.sampled_from("abc")), max_size=8),
    rnd=st.randoms(use_true_random=False),
)
def test_what_chance_leaves_is_one_of_what_may_be_left(steps, rnd):
    disk = MemoryDisk()
    disk.make_directory("/d")
    for step, name in steps:
        path = f"/d/{name}"
        if step == "make":
            make(disk, path)
        elif step == "sync":
            disk.sync_directory("/d")
        elif disk.exists(path):
            disk.remove(path) if step == "remove" else disk.rename(path, "/d/z")
    possible = outcomes(disk)
    now = tuple(disk.names("/d"))
    assert now in possible
    for _ in range(5):
        cut = disk.fork()
        cut.cut_power(rnd)
        assert tuple(cut.names("/d")) in possible
    assert tuple(disk.names("/d")) == now


# Content.


def test_what_was_synced_stays_and_the_rest_may_go(disk):
    write_atomically(disk, "/d/a", b"durable")
    file = disk.open("/d/a", writable=True)
    file.write_at(7, (b" and not",), 8)
    lost = disk.fork()
    lost.cut_power(LOSE)
    assert read_file(lost, "/d/a") == b"durable"
    disk.cut_power(KEEP)
    assert read_file(disk, "/d/a") == b"durable and not"


def test_any_sectors_survive_and_the_last_write_to_any_byte(disk):
    write_atomically(disk, "/d/a", b"")
    file = disk.open("/d/a", writable=True)
    file.write_at(0, (b"x" * SECTOR_BYTES * 3,), SECTOR_BYTES * 3)
    file.write_at(SECTOR_BYTES * 3, (b"y" * 10,), 10)
    patterns, ends = set(), set()
    for seed in range(400):
        cut = disk.fork()
        cut.cut_power(random.Random(seed))
        data = read_file(cut, "/d/a").ljust(SECTOR_BYTES * 3 + 10, b"\0")
        sectors = [data[at : at + SECTOR_BYTES] for at in range(0, SECTOR_BYTES * 3, SECTOR_BYTES)]
        assert all(sector in (b"x" * SECTOR_BYTES, bytes(SECTOR_BYTES)) for sector in sectors)
        patterns.add(tuple(sector[0] for sector in sectors))
        ends.add(data.count(b"y"))
    assert len(patterns) == 2**3
    assert ends == set(range(11))


def test_a_size_may_survive_without_its_data(disk):
    write_atomically(disk, "/d/a", b"")
    disk.open("/d/a", writable=True).write_at(0, (b"data",), 4)
    found = set()
    for seed in range(100):
        cut = disk.fork()
        cut.cut_power(random.Random(seed))
        found.add(read_file(cut, "/d/a"))
    assert {b"", bytes(4), b"data", b"da", b"da\0\0"} <= found


def test_a_name_may_be_durable_without_its_content(disk):
    file = disk.create("/d/a")
    file.write_at(0, (b"data",), 4)
    disk.sync_directory("/d")
    disk.cut_power(LOSE)
    assert read_file(disk, "/d/a") == b""


def test_a_killed_process_leaves_what_it_wrote_and_a_part_of_its_last_write(disk):
    disk.torn_bytes = 3
    file = disk.create("/d/a")
    disk.crash_at(0)
    with pytest.raises(disk.Crashed):
        file.write_at(0, (b"abc", b"def"), 6)
    disk.kill()
    assert read_file(disk, "/d/a") == b"abc"


def test_bits_flip_on_the_platter(disk):
    write_atomically(disk, "/d/a", b"\x00\x00")
    disk.flip("/d/a", 9)
    disk.cut_power(LOSE)
    assert read_file(disk, "/d/a") == b"\x00\x02"


# Calls that fail.


def everything(disk):
    """Every call that can fail, once."""
    yield "create", lambda: disk.create("/d/b")
    file = disk.create("/d/a")
    yield "write_at", lambda: file.write_at(0, (b"x",), 1)
    yield "truncate", lambda: file.truncate(0)
    yield "sync", file.sync
    yield "read_at", lambda: file.read_at(0, 1)
    yield "make_directory", lambda: disk.make_directory("/d/x")
    disk.make_directory("/d/y")
    yield "names", lambda: disk.names("/d")
    yield "open", lambda: disk.open("/d/a")
    yield "link", lambda: disk.link("/d/a", "/d/c")
    yield "rename", lambda: disk.rename("/d/a", "/d/d")
    yield "remove", lambda: disk.remove("/d/c")
    yield "remove_directory", lambda: disk.remove_directory("/d/y")
    yield "sync_directory", lambda: disk.sync_directory("/d")
    yield "free_bytes", lambda: disk.free_bytes("/d")


def state(disk):
    return {path: bytes(inode.content.whole()) for path, inode in disk.names_now.items()}, set(disk.directories)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_any_call_fails_when_it_is_told_to_and_has_no_effect(disk, code):
    for name, call in everything(disk):
        before = state(disk)
        disk.fail_at(0, code)
        with pytest.raises(OSError, match=r".") as caught:
            call()
        assert caught.value.errno == code, name
        assert state(disk) == before
        call()  # the next one succeeds


def test_allocation_that_fails_says_so(disk):
    file = disk.create("/d/a")
    disk.fail_at(0, errno.EIO)
    assert not file.allocate(0, 10)
    assert file.allocate(0, 10)


def test_the_nth_call_fails_and_no_other(disk):
    file = disk.create("/d/a")
    disk.fail_at(2, errno.EIO)
    file.write_at(0, (b"0",), 1)
    file.read_at(0, 1)
    with pytest.raises(OSError, match="Input/output"):
        file.read_at(0, 1)
    file.read_at(0, 1)


def test_from_a_crash_on_nothing_is_changed_any_more(disk):
    file = disk.create("/d/a")
    disk.crash_at(1)
    file.write_at(0, (b"0",), 1)
    assert file.read_at(0, 1) == b"0"
    for _ in range(2):
        with pytest.raises(disk.Crashed):
            file.write_at(1, (b"1",), 1)
    disk.kill()
    with pytest.raises(AssertionError):
        file.read_at(0, 1)
    assert read_file(disk, "/d/a") == b"0"


def test_after_a_failed_sync_a_second_one_writes_nothing(disk):
    write_atomically(disk, "/d/a", b"old")
    file = disk.open("/d/a", writable=True)
    file.write_at(0, (b"new",), 3)
    disk.fail_at(0, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    file.sync()
    disk.cut_power(KEEP)
    assert read_file(disk, "/d/a") == b"old"


# Space.


def test_space_is_taken_once_for_all_names_and_until_the_last_close():
    disk = MemoryDisk(size_bytes=100)
    make(disk, "/a", bytes(60))
    disk.link("/a", "/b")
    assert disk.free_bytes("/") == 40
    disk.remove("/a")
    assert disk.free_bytes("/") == 40
    file = disk.open("/b")
    disk.remove("/b")
    assert disk.free_bytes("/") == 40
    file.close()
    assert disk.free_bytes("/") == 100


def test_a_write_that_does_not_fit_is_cut():
    disk = MemoryDisk(size_bytes=10)
    file = disk.create("/a")
    with pytest.raises(OSError, match="No space left"):
        file.write_at(0, (bytes(11),), 11)
    assert file.size() == 10
    assert not file.allocate(0, 11)
    file.write_at(0, (b"x" * 10,), 10)
    disk.size_bytes = 5
    assert disk.free_bytes("/") == 0


def test_a_killed_process_has_nothing_open():
    disk = MemoryDisk(size_bytes=100)
    make(disk, "/a", bytes(60))
    file = disk.open("/a")
    disk.remove("/a")
    disk.kill()
    assert disk.free == 100
    file.close()
