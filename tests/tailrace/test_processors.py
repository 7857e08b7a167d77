"""The processors that the control groups of a process allow."""

from __future__ import annotations

import math
import os

import pytest

from tailrace import processors
from tailrace.processors import has_spare_processor, quota


@pytest.fixture
def groups(tmp_path):
    """Writes the files of the groups, and the file that names those of the process. Returns the quota."""

    def make(own, **files):
        root = tmp_path / "cgroup"
        for name, text in files.items():
            file = root / name.replace("__", "/")
            file = file.with_name(file.name.replace("cpu_", "cpu."))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        (tmp_path / "own").write_text(own)
        return quota(tmp_path / "own", root)

    return make


def test_a_group_without_a_bound(groups):
    assert groups("0::/a/b\n", a__b__cpu_max="max 100000\n", a__cpu_max="max 100000\n") == math.inf
    assert groups("0::/\n") == math.inf


def test_the_least_bound_of_all_groups_around_a_process(groups):
    assert groups("0::/a/b\n", a__b__cpu_max="400000 100000\n", a__cpu_max="150000 100000\n") == 1.5


def test_a_container_that_sees_the_path_of_its_host(groups):
    assert groups("0::/docker/7\n", cpu_max="50000 100000\n") == 0.5


def test_groups_of_the_first_version(groups):
    of = "4:memory:/a\n1:cpu,cpuacct:/b\n0::/\n"
    files = {"cpu,cpuacct__b__cpu_cfs_quota_us": "300000\n", "cpu,cpuacct__b__cpu_cfs_period_us": "100000\n"}
    assert groups(of, **files) == 3
    files["cpu,cpuacct__b__cpu_cfs_quota_us"] = "-1\n"
    assert groups(of, **files) == math.inf


@pytest.mark.parametrize("text", ["", "x", "1 2 3"])
def test_a_file_that_tells_nothing_bounds_nothing(groups, text):
    assert groups("0::/\n", cpu_max=text) == math.inf


def test_a_system_without_groups(tmp_path):
    assert quota(tmp_path / "none", tmp_path) == math.inf


@pytest.mark.parametrize(
    ("count", "allowed", "is_spare"),
    [(2, math.inf, True), (2, 2, True), (2, 1.9, False), (1, math.inf, False), (None, 4, False)],
)
def test_a_processor_to_spare(monkeypatch, count, allowed, is_spare):
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    monkeypatch.setattr(processors, "quota", lambda *_: allowed)
    assert has_spare_processor.__wrapped__() is is_spare


def test_this_system_can_be_asked():
    assert has_spare_processor() in (True, False)
