"""The printed texts."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest

from pyspark_tailrace.demo import report
from pyspark_tailrace.demo.changes import TreeEntry
from pyspark_tailrace.demo.comparison import compare
from pyspark_tailrace.demo.interruption import Interruption
from pyspark_tailrace.demo.job import MicroBatch
from pyspark_tailrace.demo.memory import HERE, SERVER, MemoryMeter
from pyspark_tailrace.demo.search import Hit, Search
from pyspark_tailrace.demo.server import Server
from pyspark_tailrace.demo.servers import Servers
from pyspark_tailrace.demo.standard_library import StandardLibrary
from pyspark_tailrace.demo.workspace import Workspace

pytestmark = pytest.mark.slow

ENTRY = TreeEntry("100644", "aa11")


def text(lines):
    return "\n".join(lines)


def test_source_says_why_it_is_not_the_history():
    lines = list(report.source(StandardLibrary(note="the repository at /x has no commits")))
    assert lines[0] == "The history cannot be used: the repository at /x has no commits. The input is instead:"
    assert lines[1].startswith("The standard library of Python")


@pytest.mark.parametrize(("kept", "expected"), [(True, "which is kept"), (False, "which is removed at the end")])
def test_opening_says_whether_the_folder_stays(kept, expected):
    assert expected in text(report.opening(1_234, Workspace(Path("/tmp/x"), kept=kept)))


def test_kill_says_what_was_in_flight():
    batch = MicroBatch(id=4, changes=100, first_order=401, last_order=500, started=0.0, ended=9.0)
    first, second = (Server(Path("/x"), Path("/x.log"), port) for port in (4701, 4702))
    kill = Interruption(450, batch, first, second, 1.5, 1)
    said = text(report.killed(kill, 1_200))
    assert "127.0.0.1:4701, was killed for good (SIGKILL) with 450 of 1,200 mutations on the other disks (38%)" in said
    assert "micro-batch 4: 50 of its 100 mutations were there, 50 were not" in said
    assert "127.0.0.1:4702 leads since then: the servers have chosen it by themselves, 1.5 s after the kill." in said
    assert "kill number" not in said
    assert "kill number 2" in text(report.killed(kill._replace(kills=2), 1_200))


def test_comparison_without_differences():
    said = text(report.compared(compare({b"a": ENTRY}, {b"a": ENTRY})))
    assert said.splitlines()[-1].split() == ["different", "0"]


def test_comparison_lists_some_differences_and_counts_the_rest():
    found = {b"%02d" % number: ENTRY for number in range(25)}
    lines = list(report.compared(compare({}, found)))
    assert "    00: expected nothing, the index has 100644 aa11" in lines
    assert lines[-1] == "    and 5 more"


def test_memory_by_role_or_a_word_that_there_is_none(tmp_path):
    meter = MemoryMeter(tmp_path)
    assert "not measured" in text(report.memory(meter))
    meter.peaks, meter.peak_total = {HERE: 1 << 20, SERVER: 300 << 20}, 301 << 20
    lines = list(report.memory(meter))
    assert "301 MiB in total" in lines[0]
    assert lines[1].split(maxsplit=2) == ["300", "MiB", SERVER]


def test_query_is_shown_with_what_it_found_on_one_line_each():
    hits = [Hit(b"docs/\x1b", "a [barrier]\n\tof \x07"), Hit(b"b", "[barrier]")]
    lines = list(report.searched(Search("barrier", 12, 0.0021, hits)))
    assert lines[0] == "Full-text query 'barrier': 12 paths in 2.1 ms. The best:"
    assert lines[1].split(maxsplit=1) == ["docs/\\x1b", "a [barrier] of \\x07"]
    assert len(lines) == 3
    assert list(report.searched(None)) == ["There is no full-text query: no text has a word of six letters."]


def test_commands_by_hand_are_those_of_the_kept_folder(tmp_path):
    workspace = Workspace(tmp_path / "with a blank", kept=True)
    servers = Servers(workspace.server_data, workspace.server_logs)
    commands = [server.arguments for server in servers.all]
    lines = list(report.by_hand(workspace, commands, servers.url, Search("barrier", 1, 0.1, [])))
    *serves, tail, query = (shlex.split(line.partition(": ")[2]) for line in lines[1:])
    assert [serve[1:-4] for serve in serves] == commands
    assert {serve[3] for serve in serves} == {str(data) for data in workspace.server_data}
    assert tail[1:] == ["tail", "demo", "--url", servers.url]
    assert str(workspace.index) in query
    assert "MATCH 'barrier'" in query[-1]


def test_without_a_kept_folder_it_says_how_to_keep_it():
    lines = list(
        report.by_hand(Workspace(Path("/tmp/gone"), kept=False), [["serve", "--data", "/tmp/gone/server-1"]], "", None)
    )
    assert "--data DIR" in lines[0]
    assert "/tmp/gone" not in text(lines)


@pytest.mark.parametrize("has_sqlite", [True, False])
def test_index_can_be_queried_with_and_without_the_program(has_sqlite, tmp_path, monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/sqlite3" if has_sqlite else None)
    command = report.sqlite()
    assert (command == ["sqlite3"]) is has_sqlite
    if not has_sqlite:
        statement = "SELECT 'a', 1 UNION SELECT 'b', 2"
        done = subprocess.run([*command, tmp_path / "x.db", statement], capture_output=True, text=True, check=True)
        assert done.stdout == "a 1\nb 2\n"


@pytest.mark.parametrize(
    ("elapsed", "expected"), [(0.000512, "0.512 ms"), (0.9994, "999 ms"), (0.9999, "1.0 s"), (1234.5, "1,234.5 s")]
)
def test_seconds(elapsed, expected):
    assert report.seconds(elapsed) == expected


def test_times_of_micro_batches():
    assert "median" not in report.batch_times([2.0])
    assert report.batch_times([9.0, 1.0, 0.5, 3.0]).endswith("took 9.0 s, the others 1.0 s (median)")


def test_sizes():
    assert (report.megabytes(1_234_567), report.mebibytes(2 << 30)) == ("1.2 MB", "2,048 MiB")
