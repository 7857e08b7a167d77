"""UPTIME keeps what the node vouches for from one start to the next, and a bad one vouches for nothing."""

import logging

import pytest
from tests.fake_host import WALL_US, FakeClock

from tailrace_server.directory.uptime_file import load_uptime, store_uptime, tick_uptime
from tailrace_server.state.uptime import JUMP_US_MAX, NodeRun


@pytest.fixture
def disk(memory_disk):
    disk = memory_disk()
    disk.make_directory("/data")
    return disk


def test_the_runs_come_back_at_the_next_start(disk):
    clock = FakeClock()
    uptime = load_uptime(disk, "/data", clock)
    clock.advance(100)
    tick_uptime(uptime, clock)
    store_uptime(uptime, disk, "/data")
    clock.advance(50)
    later = load_uptime(disk, "/data", clock)
    clock.advance(10)
    tick_uptime(later, clock)
    assert later.runs == [NodeRun(WALL_US, 100_000_000), NodeRun(WALL_US + 150_000_000, 10_000_000)]
    assert later.cutoff(60_000_000) == WALL_US + 50_000_000


def test_a_file_that_is_damaged_vouches_for_nothing(disk, caplog):
    clock = FakeClock()
    uptime = load_uptime(disk, "/data", clock)
    clock.advance(100)
    tick_uptime(uptime, clock)
    store_uptime(uptime, disk, "/data")
    disk.flip("/data/UPTIME", 8 * 40)
    assert len(load_uptime(disk, "/data", clock).runs) == 1
    assert "ages count from now on only" in caplog.text


def test_a_jump_is_told_once(disk, caplog):
    caplog.set_level(logging.ERROR)
    clock = FakeClock()
    uptime = load_uptime(disk, "/data", clock)
    clock.jump((JUMP_US_MAX + 1) / 1e6)
    tick_uptime(uptime, clock)
    tick_uptime(uptime, clock)
    assert caplog.text.count("has jumped") == 1
    assert uptime.cutoff(0) is None
