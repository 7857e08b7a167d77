"""The writer dies, or its disk fails, at any of its calls: there is nothing under the segment's name, or all of it."""

from __future__ import annotations

import errno
import os
import random

import pytest

from tailrace_server.segment import Segment, SegmentWriter, writer

PATH = "/feed/made.seg"


@pytest.fixture
def blocks(block_of, monkeypatch):
    monkeypatch.setattr(writer, "WRITE_BYTES", 300)  # several writes
    return [block_of([(b"%d" % seq, b"v" * 150, seq, seq)]) for seq in range(1, 6)]


@pytest.fixture
def write(identity_of, blocks):
    def run(disk):
        made = SegmentWriter(disk, PATH, identity_of(5))
        for block in blocks:
            made.add(block)
        made.finish()

    return run


@pytest.fixture
def new_disk(memory_disk):
    def make():
        disk = memory_disk()
        disk.make_directory("/feed")
        return disk

    return make


def is_whole(disk, blocks):
    segment = Segment.open(disk, PATH)
    assert segment.verify() == []
    assert segment.read_blocks(0, 1 << 20)[0] == blocks
    segment.close()
    return True


def crashed(disk, number, write):
    """Writes until the disk stops at its n-th change."""
    disk.crash_at(number)
    disk.torn_bytes = 100
    with pytest.raises(disk.Crashed):
        write(disk)
    return disk


@pytest.fixture
def changes(new_disk, write):
    """How often writing a segment changes something."""
    disk = new_disk()
    before = disk.changes
    write(disk)
    assert disk.changes - before > 6
    return disk.changes - before


def test_the_process_dies_at_every_call(new_disk, write, blocks, changes):
    found = set()
    for number in range(changes):
        disk = crashed(new_disk(), number, write)
        disk.kill()
        found.add(disk.exists(PATH) and is_whole(disk, blocks))
    assert found == {False, True}


def test_power_fails_at_every_call(new_disk, write, blocks, changes):
    found = set()
    for number in range(changes):
        stopped = crashed(new_disk(), number, write)
        for names in stopped.survivals():
            for seed in range(5):
                disk = stopped.fork()
                disk.cut_power(random.Random(seed), names)
                found.add(disk.exists(PATH) and is_whole(disk, blocks))
    assert found == {False, True}


def test_power_fails_after_the_end(new_disk, write, blocks):
    for seed in range(20):
        disk = new_disk()
        write(disk)
        disk.cut_power(random.Random(seed))
        assert is_whole(disk, blocks)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_an_error_at_every_call(new_disk, write, blocks, error):
    disk = new_disk()
    before = disk.calls
    write(disk)
    for number in range(disk.calls - before):
        failing = new_disk()
        failing.fail_at(number, error)
        with pytest.raises(Exception, match=os.strerror(error)):
            write(failing)
        assert failing.names("/feed") == []
        write(failing)
        assert is_whole(failing, blocks)
