from __future__ import annotations

import pytest

from tailrace_server.host.disk import RealDisk
from tailrace_server.journal import DirectoryInUse, lock_directory


def test_hazard_7_a_directory_is_one_processs(memory_disk):
    disk = memory_disk()
    disk.make_directory("/data")
    lock = lock_directory(disk, "/data")
    with pytest.raises(DirectoryInUse, match="/data is in use by process 4711"):
        lock_directory(disk, "/data")
    lock.close()
    assert disk.exists("/data/LOCK")
    lock_directory(disk, "/data").close()


def test_the_message_does_without_the_process(memory_disk):
    disk = memory_disk()
    disk.make_directory("/data")
    lock_directory(disk, "/data")
    disk.remove("/data/LOCK")
    with pytest.raises(DirectoryInUse, match="in use by another process"):
        lock_directory(disk, "/data")


def test_on_a_real_disk(tmp_path):
    lock = lock_directory(RealDisk(), str(tmp_path))
    with pytest.raises(DirectoryInUse):
        lock_directory(RealDisk(), str(tmp_path))
    lock.close()
