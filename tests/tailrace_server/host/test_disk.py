"""Both disks, the real one and the one of the tests, do what the protocol says."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import threading

import pytest

from tailrace.errors import NoSpace
from tailrace_server.host.disk import RealDisk, RealFile, is_no_space, raise_if_no_space, read_file, write_atomically


@pytest.fixture(params=["real", "memory"])
def disk_and_directory(request, tmp_path, memory_disk):
    if request.param == "real":
        return RealDisk(), str(tmp_path)
    disk = memory_disk()
    disk.make_directory("/data")
    return disk, "/data"


def test_what_is_in_memory_is_read_without_waiting(disk_and_directory):
    disk, directory = disk_and_directory
    file = disk.create(directory + "/a")
    file.write_at(0, (b"abcdef",), 6)
    assert file.read_cached(1, 3) == b"bcd"
    assert file.read_cached(4, 100) == b"ef", "as read_at where the file ends"
    assert file.read_cached(100, 5) == b""
    file.close()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (BlockingIOError(errno.EAGAIN, "not there"), None),
        (OSError(errno.EOPNOTSUPP, "not on this file system"), b"bcd"),
        (2, None),  # the rest is not there
    ],
)
def test_what_the_disk_would_have_to_be_waited_for_is_not_read(tmp_path, monkeypatch, answer, expected):
    file = RealDisk().create(str(tmp_path / "a"))
    file.write_at(0, (b"abcdef",), 6)

    def preadv(descriptor, buffers, offset, flags):
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(os, "preadv", preadv)
    assert file.read_cached(1, 3) == expected
    file.close()


def test_a_disk_that_cannot_read_says_so_also_without_waiting(tmp_path, monkeypatch):
    file = RealDisk().create(str(tmp_path / "a"))

    def preadv(descriptor, buffers, offset, flags):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "preadv", preadv)
    with pytest.raises(OSError, match="broken"):
        file.read_cached(0, 3)
    file.close()


def test_writes_at_an_offset_and_reads_back(disk_and_directory):
    disk, directory = disk_and_directory
    file = disk.create(directory + "/a")
    file.write_at(0, (b"abc", memoryview(b"def"), b""), 6)
    file.write_at(4, (b"XY",), 2)
    assert file.read_at(1, 100) == b"bcdXY"
    assert file.read_at(100, 5) == b""
    file.write_at(8, (b"!",), 1)
    assert file.read_at(0, 9) == b"abcdXY\0\0!"
    file.truncate(2)
    file.sync()
    assert file.size() == 2
    file.close()
    file.close()
    assert read_file(disk, directory + "/a") == b"ab"


def test_a_write_that_is_begun_changes_nothing_that_is_read(disk_and_directory):
    disk, directory = disk_and_directory
    file = disk.create(directory + "/a")
    for offset in range(0, 20_000, 500):
        file.write_at(offset, (b"%500d" % offset,), 500)
        file.begin_sync(offset, 500)
    file.begin_sync(0, 20_000)
    file.sync()
    assert file.read_at(0, 30_000) == b"".join(b"%500d" % offset for offset in range(0, 20_000, 500))
    file.close()


def test_allocated_space_is_zeros_and_keeps_what_is_there(disk_and_directory):
    disk, directory = disk_and_directory
    file = disk.create(directory + "/a")
    file.write_at(0, (b"abc",), 3)
    assert file.allocate(0, 10)
    assert file.read_at(0, 100) == b"abc" + bytes(7)
    file.close()


def test_creating_empties_what_is_there(disk_and_directory):
    disk, directory = disk_and_directory
    write_atomically(disk, directory + "/a", b"abc")
    file = disk.create(directory + "/a")
    assert file.size() == 0
    file.close()


def test_names_rename_and_remove(disk_and_directory):
    disk, directory = disk_and_directory
    for name in ("b", "a", "c"):
        disk.create(f"{directory}/{name}").close()
    assert disk.names(directory) == ["a", "b", "c"]
    file = disk.open(directory + "/a")
    identity = file.identity()
    file.close()
    disk.rename(directory + "/a", directory + "/b")
    disk.sync_directory(directory)
    assert disk.names(directory) == ["b", "c"]
    file = disk.open(directory + "/b")
    assert file.identity() == identity
    file.close()
    disk.remove(directory + "/b")
    assert not disk.exists(directory + "/b")
    with pytest.raises(FileNotFoundError):
        disk.open(directory + "/b")
    with pytest.raises(FileNotFoundError):
        disk.remove(directory + "/b")
    with pytest.raises(FileNotFoundError):
        disk.names(directory + "/missing")


def test_makes_directories_with_their_parents(disk_and_directory):
    disk, directory = disk_and_directory
    disk.make_directory(directory + "/x/y")
    disk.make_directory(directory + "/x/y")
    assert disk.exists(directory + "/x")
    assert disk.names(directory + "/x/y") == []


def test_a_directory_that_is_there_is_made_durable_too(tmp_path, monkeypatch):
    """A process may have made it, and been killed before its name was durable."""
    synced = []
    monkeypatch.setattr(RealDisk, "sync_directory", lambda self, path: synced.append(path))
    (tmp_path / "x").mkdir()
    RealDisk().make_directory(str(tmp_path / "x"))
    assert synced == [str(tmp_path)]
    synced.clear()
    RealDisk().make_directory(str(tmp_path / "x" / "y" / "z"))
    assert synced == [str(tmp_path), str(tmp_path / "x"), str(tmp_path / "x" / "y")]


def test_makes_directories_together(disk_and_directory):
    disk, directory = disk_and_directory
    paths = [f"{directory}/x/a", f"{directory}/x/b", f"{directory}/y/c"]
    disk.make_directory(paths[1])
    disk.make_directories(paths)
    assert (disk.names(f"{directory}/x"), disk.names(f"{directory}/y")) == (["a", "b"], ["c"])


def test_directories_of_one_parent_are_made_durable_together(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(RealDisk, "sync_directory", lambda self, path: synced.append(path))
    (tmp_path / "x" / "a").mkdir(parents=True)  # perhaps by a process that was killed
    RealDisk().make_directories([str(tmp_path / "x" / name) for name in "abc"])
    assert sorted(os.listdir(tmp_path / "x")) == ["a", "b", "c"]
    assert synced == [str(tmp_path), str(tmp_path / "x")]
    (tmp_path / "x" / "file").write_text("")
    with pytest.raises(FileExistsError):
        RealDisk().make_directories([str(tmp_path / "x" / "file")])


def test_the_parent_of_a_directory_that_is_there_may_be_another_user_s(tmp_path, monkeypatch):
    def refuse(self, path):
        raise PermissionError(errno.EACCES, "not yours", path)

    monkeypatch.setattr(RealDisk, "sync_directory", refuse)
    RealDisk().make_directory(str(tmp_path))


def test_a_directory_that_another_thread_makes_meanwhile_is_fine(tmp_path, monkeypatch):
    """Two partitions of a new node are flushed at once, and neither has the directory of all feeds."""
    mkdir, synced = os.mkdir, []

    def slow_mkdir(path):
        monkeypatch.setattr(os, "mkdir", mkdir)
        RealDisk().make_directory(path)
        synced.clear()
        mkdir(path)

    monkeypatch.setattr(os, "mkdir", slow_mkdir)
    monkeypatch.setattr(RealDisk, "sync_directory", lambda self, path: synced.append(path))
    RealDisk().make_directory(str(tmp_path / "x" / "y"))
    assert (tmp_path / "x" / "y").is_dir()
    assert synced == [str(tmp_path), str(tmp_path / "x")], "nobody returns before it is durable"
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        RealDisk().make_directory(str(tmp_path / "file"))


def test_replaces_a_file_whole(disk_and_directory):
    disk, directory = disk_and_directory
    write_atomically(disk, directory + "/a", b"first")
    write_atomically(disk, directory + "/a", b"2nd")
    assert read_file(disk, directory + "/a") == b"2nd"
    assert disk.names(directory) == ["a"]


def test_directories_are_among_the_names(disk_and_directory):
    disk, directory = disk_and_directory
    disk.make_directory(directory + "/x/y")
    disk.create(directory + "/x/a").close()
    assert disk.names(directory) == ["x"]
    assert disk.names(directory + "/x") == ["a", "y"]
    with pytest.raises(NotADirectoryError):
        disk.names(directory + "/x/a")
    with pytest.raises(FileNotFoundError):
        disk.create(directory + "/z/a")
    with pytest.raises(IsADirectoryError):
        disk.create(directory + "/x")


def test_a_link_is_a_second_name_of_one_file(disk_and_directory):
    disk, directory = disk_and_directory
    a, b = directory + "/a", directory + "/b"
    write_atomically(disk, a, b"first")
    disk.link(a, b)
    with contextlib.closing(disk.open(a)) as one, contextlib.closing(disk.open(b)) as two:
        assert one.identity() == two.identity()
    with pytest.raises(FileExistsError):
        disk.link(a, b)
    with pytest.raises(FileNotFoundError):
        disk.link(directory + "/missing", directory + "/c")
    disk.rename(a, b)  # the system leaves both names of one file alone
    assert disk.names(directory) == ["a", "b"]
    write_atomically(disk, a, b"second")
    assert read_file(disk, b) == b"first"
    disk.remove(a)
    assert read_file(disk, b) == b"first"


def test_only_an_empty_directory_is_removed(disk_and_directory):
    disk, directory = disk_and_directory
    disk.make_directory(directory + "/x/y")
    with pytest.raises(OSError, match="not empty") as caught:
        disk.remove_directory(directory + "/x")
    assert caught.value.errno == errno.ENOTEMPTY
    disk.remove_directory(directory + "/x/y")
    disk.remove_directory(directory + "/x")
    assert disk.names(directory) == []
    with pytest.raises(FileNotFoundError):
        disk.remove_directory(directory + "/x")
    disk.create(directory + "/a").close()
    with pytest.raises(NotADirectoryError):
        disk.remove_directory(directory + "/a")


def test_free_space_is_told(disk_and_directory):
    disk, directory = disk_and_directory
    assert disk.free_bytes(directory) > 0


def test_what_is_not_there_cannot_be_renamed_or_synced(disk_and_directory):
    disk, directory = disk_and_directory
    with pytest.raises(FileNotFoundError):
        disk.rename(directory + "/missing", directory + "/a")
    with pytest.raises(FileNotFoundError):
        disk.sync_directory(directory + "/missing")


def test_a_file_that_could_not_be_replaced_leaves_no_temporary(memory_disk):
    disk = memory_disk(size_bytes=150)
    write_atomically(disk, "/a", bytes(100))
    with pytest.raises(OSError, match="No space left"):
        write_atomically(disk, "/a", bytes(101))
    assert disk.names("/") == ["a"]
    assert read_file(disk, "/a") == bytes(100)


def test_a_lock_is_exclusive_until_it_is_closed(disk_and_directory):
    disk, directory = disk_and_directory
    lock = disk.lock(directory + "/LOCK")
    with pytest.raises(BlockingIOError):
        disk.lock(directory + "/LOCK")
    assert int(read_file(disk, directory + "/LOCK"))
    lock.close()
    lock.close()
    disk.lock(directory + "/LOCK").close()


def test_machine_id_and_path_stay_the_same(disk_and_directory):
    disk, directory = disk_and_directory
    assert disk.machine_id() == disk.machine_id() != ""
    assert disk.real_path(directory + "/.") == disk.real_path(directory)


@pytest.mark.slow
def test_a_lock_is_left_to_the_parent_by_a_forked_child(tmp_path):
    """In a process of its own, so that nothing forks the test runner. The child lives on while the parent unlocks."""
    program = f"""
import os
from tailrace.errors import NoSpace
from tailrace_server.host.disk import RealDisk
path = {str(tmp_path / "LOCK")!r}
lock = RealDisk().lock(path)
read_end, write_end = os.pipe()
ready, tell_ready = os.pipe()
child = os.fork()
if child == 0:
    os.close(write_end)
    os.write(tell_ready, b"!")
    os.read(read_end, 1)
    os._exit(0)
os.read(ready, 1)
try:
    RealDisk().lock(path)
except BlockingIOError:
    lock.close()
    RealDisk().lock(path).close()
    print("free")
os.write(write_end, b"!")
os.waitpid(child, 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "free\n"


@pytest.mark.slow
def test_a_lock_ends_with_its_process(tmp_path):
    path = str(tmp_path / "LOCK")
    program = f"import os; from tailrace_server.host.disk import RealDisk; l = RealDisk().lock({path!r}); os._exit(1)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 1
    RealDisk().lock(path).close()


def test_a_short_write_is_gone_on_with(tmp_path, monkeypatch):
    file = RealDisk().create(str(tmp_path / "a"))
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, offset: os.pwrite(fd, b"".join(buffers)[:4], offset))
    file.write_at(3, (b"abc", b"defg"), 7)
    assert file.read_at(0, 20) == b"\0\0\0abcdefg"
    file.close()


def test_a_full_disk_is_told_from_a_bad_one():
    assert is_no_space(OSError(errno.ENOSPC, ""))
    assert is_no_space(OSError(errno.EDQUOT, ""))
    assert not is_no_space(OSError(errno.EIO, ""))
    raise_if_no_space(OSError(errno.EIO, "Input/output error"), "in /data")
    with pytest.raises(NoSpace, match=r"^no space is left in /data \(Disk quota exceeded\); free some$"):
        raise_if_no_space(OSError(errno.EDQUOT, "Disk quota exceeded"), "in /data")


def test_a_file_that_cannot_begin_to_write_is_heard_of_by_sync_only():
    reads, writes = os.pipe()  # the system refuses both
    file = RealFile(writes)
    file.begin_sync(0, 10)
    with pytest.raises(OSError, match="Invalid argument"):
        file.sync()
    file.close()
    os.close(reads)


def test_allocation_that_fails_says_so(tmp_path, monkeypatch):
    def refuse(fd, offset, nbytes):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    file = RealDisk().create(str(tmp_path / "a"))
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    assert not file.allocate(0, 10)
    file.close()


def test_machine_id_without_a_file_is_the_hosts_name(monkeypatch):
    monkeypatch.setattr("tailrace_server.host.disk._MACHINE_ID_FILES", ("/nowhere/machine-id",))
    assert RealDisk().machine_id() == "host " + os.uname().nodename


def test_directories_are_synced_at_the_same_time(tmp_path):
    """Each of the calls waits for another one: one after the other they would never end."""
    others = threading.Barrier(2)

    class Waiting(RealDisk):
        def sync_directory(self, path):
            others.wait(timeout=30)
            super().sync_directory(path)

    paths = [str(tmp_path / str(number)) for number in range(6)]
    for path in paths:
        os.mkdir(path)
    Waiting().sync_directories(paths)
    RealDisk().sync_directories([])


@pytest.mark.parametrize("count", [1, 5])
def test_a_directory_that_cannot_be_synced_is_told(tmp_path, count):
    paths = [str(tmp_path)] * (count - 1) + [str(tmp_path / "absent")]
    with pytest.raises(FileNotFoundError):
        RealDisk().sync_directories(paths)


@pytest.mark.parametrize("writable", [False, True])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_regular_file_is_not_opened(tmp_path, make, writable):
    """A pipe without a writer would be waited for, for ever."""
    path = str(tmp_path / "AHEAD")
    make(path)
    with pytest.raises(OSError, match=r"no regular file.*AHEAD|Is a directory.*AHEAD"):
        RealDisk().open(path, writable=writable)
