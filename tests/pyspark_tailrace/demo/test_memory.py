"""Memory by role, from a /proc that is made for the test, and from the real one."""

from __future__ import annotations

import os
import sys

import pytest

from pyspark_tailrace.demo.memory import (
    GIT,
    HERE,
    OTHERS,
    SERVER,
    SPARK,
    WORKERS,
    MemoryMeter,
    Process,
    parse_kib,
    parse_stat,
    read_memory_bytes,
    read_processes,
    roles,
)


def make_process(proc, process, parent, name, kib, *, file="smaps_rollup", field="Pss:"):
    folder = proc / str(process)
    folder.mkdir()
    (folder / "stat").write_text(f"{process} ({name}) S {parent} 1 1 0 -1\n")
    (folder / file).write_text(f"Name: {name}\n{field}   {kib} kB\nPss_Anon: 1 kB\n")


def test_each_descendant_has_a_role():
    processes = [
        Process(1, 0, "init"),
        Process(10, 1, "python"),
        Process(11, 10, "python"),  # the server
        Process(12, 11, "python"),
        Process(13, 10, "python"),  # another one
        Process(20, 10, "java"),
        Process(21, 20, "python"),
        Process(22, 21, "python"),
        Process(30, 10, "git"),
        Process(31, 30, "git-remote"),
        Process(40, 10, "sh"),
        Process(50, 1, "java"),  # another's
    ]
    assert roles(processes, 10, [11, 13]) == {
        10: HERE,
        11: SERVER,
        12: SERVER,
        13: SERVER,
        20: SPARK,
        21: WORKERS,
        22: WORKERS,
        30: GIT,
        31: GIT,
        40: OTHERS,
    }


def test_peaks_are_of_each_role_and_of_one_moment(tmp_path):
    meter = MemoryMeter(tmp_path)
    here = os.getpid()
    make_process(tmp_path, here, 1, "python", 100)
    make_process(tmp_path, 8_000_001, here, "java", 500)
    (tmp_path / "self").mkdir()
    meter.sample()
    (tmp_path / "8000001" / "smaps_rollup").write_text("Pss: 200 kB\n")
    make_process(tmp_path, 8_000_002, here, "python", 50)
    meter.sample([8_000_002])
    assert meter.peaks == {HERE: 100 * 1024, SPARK: 500 * 1024, SERVER: 50 * 1024}
    assert meter.peak_total == 600 * 1024


def test_resident_memory_counts_where_the_share_is_not_known(tmp_path):
    make_process(tmp_path, 7, 1, "x", 30, file="status", field="VmRSS:")
    assert read_memory_bytes(tmp_path, 7) == 30 * 1024


def test_process_that_has_ended_counts_nothing(tmp_path):
    (tmp_path / "7").mkdir()
    assert read_processes(tmp_path) == []
    assert read_memory_bytes(tmp_path, 7) == 0


def test_system_without_proc_has_no_figures(tmp_path):
    meter = MemoryMeter(tmp_path / "proc")
    meter.sample()
    assert (meter.peaks, meter.peak_total) == ({}, 0)


def test_name_may_look_like_the_rest_of_the_line():
    assert parse_stat("5 (a) S 9 (b) R 3 0") == Process(5, 3, "a) S 9 (b")
    assert parse_kib("Name: x", "Pss:") is None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_this_process_has_memory():
    meter = MemoryMeter()
    meter.sample()
    assert meter.peaks[HERE] > 1 << 20
