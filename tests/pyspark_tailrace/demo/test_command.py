"""``tailrace demo``, whole: a real repository, server, Spark and index. About half a minute for each run.

``make long`` runs it to its end once, and interrupts it twice. How differences and failures are told is tested without
Spark in test_comparison.py, test_failure.py and test_job.py, and by whole runs in ``make soak``.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from types import SimpleNamespace

import pytest

from pyspark_tailrace.demo.changes import TreeEntry
from pyspark_tailrace.demo.command import _require_equal, choose_history
from pyspark_tailrace.demo.comparison import compare
from pyspark_tailrace.demo.history import GitHistory
from pyspark_tailrace.demo.plan import CHANGES_MIN
from pyspark_tailrace.demo.standard_library import StandardLibrary
from tailrace.cli.errors import CommandFailed

pytestmark = pytest.mark.slow

CLI = "from tailrace.cli import main; main()"
RUN_TIMEOUT_S = 900

LIES = """
from pyspark_tailrace.demo.changes import TreeEntry
from pyspark_tailrace.demo.history import GitHistory
true_tree = GitHistory.expected
def expected(self):
    tree = true_tree(self)
    tree[b"hot.txt"] = TreeEntry("100755", tree[b"hot.txt"].blob)
    tree[b"never.txt"] = TreeEntry("100644", "00" * 20)
    del tree[b"cold.txt"]
    return tree
GitHistory.expected = expected
"""

NO_FEED = """
import pyspark_tailrace.demo.job as job
write_changes = job.write_changes
job.write_changes = lambda changes, **settings: write_changes(changes, **settings | {"feed": "nowhere"})
"""


@pytest.fixture
def history_of_changes(repository):
    """60 commits: a path that every one of them changes, in very different sizes, and paths that come and go."""
    repository.write("cold.txt", b"written once")
    repository.write(b"caf\xe9", b"not UTF-8")
    repository.write("README.md", b"the barriers of this repository, barriers")
    for number in range(60):
        repository.write("hot.txt", b"line of version %d\n" % number * (number * 7919 % 400))
        if number % 10 == 3:
            repository.write("coming.txt", b"here %d" % number, mode=0o755 if number % 20 == 3 else 0o644)
        if number % 10 == 8:
            (repository.path / "coming.txt").unlink()
        repository.write(f"folder/{number % 7}.py", b"number = %d" % number)
        repository.commit()
    return repository.path


def run_demo(*arguments, prelude=""):
    command = [sys.executable, "-c", prelude + CLI, "demo", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)


def figure(output, name):
    """The text after ``name`` at the beginning of a line."""
    found = re.search(rf"^  {re.escape(name)}  +(.*)$", output, re.MULTILINE)
    assert found is not None, output
    return found[1]


@pytest.mark.long
def test_index_is_equal_after_the_leader_was_killed(history_of_changes, tmp_path):
    data = tmp_path / "data"
    done = run_demo("--repo", history_of_changes, "--data", data)
    output = done.stdout
    assert (done.returncode, done.stderr) == (0, ""), output

    assert re.search(r"^The history of .*, 60 commits up to", output, re.MULTILINE)
    total = int(re.search(r"It has (\d+) changes of paths", output)[1])
    kill = re.search(
        r"killed for good \(SIGKILL\) with (\d+) of (\d+) mutations on the other disks .*\n"
        r"while Spark was writing micro-batch \d+: (\d+) of its (\d+) mutations were there, (\d+) were not",
        output,
    )
    written, of, before, batch, after = map(int, kill.groups())
    assert of == total
    assert total / 3 <= written < total
    assert (before > 0, after > 0, before + after) == (True, True, batch)

    expected = subprocess.run(
        ["git", "-C", history_of_changes, "ls-tree", "-r", "-z", "HEAD"], capture_output=True, check=True
    ).stdout.count(b"\0")
    for name in ("paths in the tree", "paths in the index", "equal, mode and blob"):
        assert figure(output, name) == str(expected)
    assert figure(output, "different") == "0"
    assert figure(output, "mutations") == f"{total}, 6 of them deletions"
    assert figure(output, "written at the kill") == str(written)
    assert int(figure(output, "micro-batches").partition(";")[0]) >= 4
    for name in ("in: all acknowledged", "out: in the index"):
        assert re.match(r"after \d+\.\d s: \d+ mutations/s, \d+\.\d MB/s", figure(output, name))
    assert re.match(r"[\d.]+ m?s, ", figure(output, "barrier"))
    assert "Full-text query 'barriers': 1 paths" in output

    query = re.search(r'query the index: +\S.*"(SELECT .*)"', output)[1]
    with closing(sqlite3.connect(data / "index.db")) as index:
        assert [path for path, _ in index.execute(query)] == ["README.md"]
    assert re.search(r"^127.0.0.1:\d+ leads since then: the servers have chosen it by themselves", output, re.MULTILINE)
    assert f"serve --data {data / 'server-1'} --listen 127.0.0.1:" in output


@pytest.mark.soak
def test_differences_are_listed_and_the_exit_code_is_1(history_of_changes, tmp_path):
    done = run_demo("--repo", history_of_changes, "--data", tmp_path / "data", prelude=LIES)
    assert done.returncode == 1
    assert figure(done.stdout + done.stderr, "different") == "3"
    assert re.search(
        r"cold.txt: expected nothing, the index has 100644 [0-9a-f]{40}\n"
        r"    hot.txt: expected 100755 ([0-9a-f]{40}), the index has 100644 \1\n"
        r"    never.txt: expected 100644 0{40}, the index has nothing\n",
        done.stdout,
    )
    assert done.stderr == "tailrace: the index differs from git's tree in 3 paths\n"


@pytest.mark.soak
def test_query_that_fails_is_told_with_its_reason(history_of_changes, tmp_path):
    done = run_demo("--repo", history_of_changes, "--data", tmp_path / "data", prelude=NO_FEED)
    assert done.returncode == 1
    assert re.fullmatch(
        r"tailrace: Spark has failed: tailrace\.errors\.UnknownFeed: there is no feed 'nowhere'.*; "
        rf"the logs are in {re.escape(str(tmp_path))}/data\n",
        done.stderr,
    )


def processes_of_session(session):
    """The commands of the processes that were started in a session, with those that made one of their own."""
    listed = subprocess.run(["ps", "-eo", "sid=,args="], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if line.split(maxsplit=1)[0] == str(session)]


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_run_leaves_nothing_behind(history_of_changes, tmp_path, number):
    environ = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", CLI, "demo", "--repo", str(history_of_changes)]
    process = subprocess.Popen(
        command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    with process:
        [checkpoint] = wait_for(lambda: list(tmp_path.glob("tailrace-demo-*/checkpoint/offsets/0")))
        folder = checkpoint.parents[2]
        os.kill(process.pid, number)
        _, complaints = process.communicate(timeout=RUN_TIMEOUT_S)
    assert (process.returncode, complaints) == (130, "tailrace: stopped; nothing is left running\n")
    assert not folder.exists()
    # Spark's workers notice that Java has gone, and go too.
    assert wait_for(lambda: not processes_of_session(process.pid))
    assert str(folder) not in subprocess.run(["ps", "-eo", "args="], capture_output=True, text=True).stdout


def wait_for(look):
    """What ``look()`` gives, once that is true."""
    deadline = time.monotonic() + RUN_TIMEOUT_S
    while not (found := look()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return found


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--repo", "nowhere"], 2, "--repo: nowhere is not a folder; give the path of a git repository"),
        (["--data", "."], 1, "is not empty, and not from an earlier run: give a new folder"),
    ],
)
def test_wrong_use_is_one_line(arguments, code, said, history_of_changes):
    command = [sys.executable, "-c", CLI, "demo", *arguments]
    done = subprocess.run(command, cwd=history_of_changes, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1)
    assert said in done.stderr


def test_missing_java_is_told_with_what_to_install(history_of_changes, tmp_path):
    prelude = """
import pyspark_tailrace.java as java
java.candidates = lambda environ: iter([java.Candidate("JAVA_HOME", None, "is not set")])
"""
    done = run_demo("--repo", history_of_changes, "--data", tmp_path / "data", prelude=prelude)
    assert done.returncode == 1
    assert "Spark needs Java 17 or newer; none is here." in done.stderr
    assert "pip install 'tailrace[spark-local]'" in done.stderr


def test_an_index_that_differs_is_a_failure():
    found = SimpleNamespace(comparison=compare({b"a": TreeEntry("100644", "00")}, {}))
    with pytest.raises(CommandFailed, match="the index differs from git's tree in 1 paths"):
        _require_equal(found)


def test_history_is_chosen_where_it_is_long_enough(history_of_changes, capsys):
    history, total = choose_history(history_of_changes)
    assert isinstance(history, GitHistory)
    assert total == sum(1 for _ in history.changes()) >= CHANGES_MIN
    assert capsys.readouterr().out == f"The history of {history_of_changes}, 60 commits up to {history.commit[:12]}.\n"


def test_short_history_gives_way_to_the_standard_library(repository, capsys):
    repository.write("a", b"1")
    repository.commit()
    history, total = choose_history(repository.path)
    assert isinstance(history, StandardLibrary)
    assert total == sum(1 for _ in history.changes())
    said = capsys.readouterr().out
    assert "1 commits up to" in said
    assert "it has 1 changes, too few to kill a leader in the middle of them" in said
