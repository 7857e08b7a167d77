"""``tailrace bench`` against a real node."""

from __future__ import annotations

import json

import pytest

from tailrace.cli.bench import _latencies

pytestmark = pytest.mark.slow


def test_it_measures_and_leaves_nothing_behind(call, tmp_path):
    done = call("bench", "--rows", "1000", "--value-bytes", "10", "--directory", str(tmp_path), "--json")
    assert done.code == 0, done.err
    figures = [json.loads(line) for line in done.out.splitlines()]
    assert [(figure["what"], figure["unit"]) for figure in figures] == [
        ("fsync of 4 KiB, median", "ms"),
        ("fsync of 4 KiB, 99 %", "ms"),
        ("put, one after the other, median", "ms"),
        ("put, one after the other, 99 %", "ms"),
        ("writing by a writer", "rows/s"),
        ("writing by a writer", "MiB/s of keys and values"),
        ("reading from the beginning", "rows/s"),
    ]
    assert all(figure["value"] > 0 for figure in figures)
    assert not list(tmp_path.iterdir())
    assert b"bench-" not in call("feed", "list").out


def test_for_people(call):
    done = call("bench", "--rows", "1000", "--value-bytes", "0")
    assert done.code == 0
    assert b"rows/s" in done.out
    assert b"fsync" not in done.out


def test_a_directory_that_is_not_there(call, tmp_path):
    assert call("bench", "--directory", str(tmp_path / "none")).code == 1


def test_percentiles():
    assert [figure.value for figure in _latencies("x", [n / 1_000 for n in range(100)])] == [50.0, 99.0]
