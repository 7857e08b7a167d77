"""A fork is, and ends, as a process of a new interpreter is."""

import signal
import subprocess
import tempfile
import threading
from pathlib import Path

import pytest

from .forks import COMMAND, PROGRAM, Fork

pytestmark = pytest.mark.slow

SHOW = """
import os, random, sys, trio
print(os.getcwd(), os.environ.get("OF_THE_TEST"), sys.stdout.line_buffering, flush=True)
print(random.random(), trio._core._run._r.random(), flush=True)
print(sorted(os.listdir("/proc/self/fd"), key=int), flush=True)
"""


def fork_that(code, stderr=2):
    return Fork(PROGRAM, [f'{{"planted": {_quoted(code)}}}', "--version"], Path("/"), stderr)


def end_of(fork):
    """What it has written until its end; without the end of its stdin, which ends it."""
    out = fork.stdout.read().decode()
    fork.wait()
    fork.close()
    return out


def _quoted(code):
    return '"' + code.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def test_it_has_the_folder_and_the_environment_of_its_request(monkeypatch):
    monkeypatch.setenv("OF_THE_TEST", "yes")
    first, numbers, *_ = end_of(fork_that(SHOW)).splitlines()
    assert first == "/ yes False"
    monkeypatch.delenv("OF_THE_TEST")
    first, others, *_ = end_of(fork_that(SHOW)).splitlines()
    assert first == "/ None False"
    assert not {*numbers.split()} & {*others.split()}  # no two forks draw the same random numbers


def test_it_has_no_descriptors_of_the_server_and_of_other_forks(tmp_path):
    with (tmp_path / "log").open("ab") as log:
        waiting = fork_that("import time\ntime.sleep(1000)", log)
        found = end_of(fork_that(SHOW, log)).splitlines()[2]
    waiting.kill()
    assert waiting.wait() == -signal.SIGKILL
    waiting.close()
    assert found == str(list("0123"))  # 3: that of the folder


@pytest.mark.parametrize(
    ("code", "expected"),
    [("", 0), ("raise SystemExit(7)", 7), ("import os\nos._exit(9)", 9), ("import os\nos.abort()", -signal.SIGABRT)],
)
def test_its_exit_code_is_told(code, expected):
    fork = fork_that(code)
    end_of(fork)
    assert fork.wait() == fork.poll() == fork.returncode == expected


def test_its_error_is_on_stderr():
    with tempfile.TemporaryFile() as errors:
        fork = fork_that("raise ValueError('wrong')", errors)
        end_of(fork)
        errors.seek(0)
        assert errors.read().decode().endswith("ValueError: wrong\n")
    assert fork.wait() == 1


def test_it_can_be_waited_for_and_gets_signals():
    fork = fork_that("import sys, time\nprint('ready', flush=True)\ntime.sleep(1000)")
    assert fork.stdout.readline() == b"ready\n"
    assert fork.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        fork.wait(0.001)
    fork.send_signal(signal.SIGTERM)
    assert fork.wait() == -signal.SIGTERM
    fork.kill()  # has no effect on a process that has ended
    assert fork.poll() == -signal.SIGTERM
    fork.close()


def test_it_gets_signals_while_another_thread_waits_for_it():
    fork = fork_that("import sys, time\nprint('ready', flush=True)\ntime.sleep(1000)")
    assert fork.stdout.readline() == b"ready\n"
    waiting = threading.Thread(target=fork.wait)
    waiting.start()
    while not fork._reading.locked():
        pass
    assert fork.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        fork.wait(0.001)
    fork.kill()
    assert fork.wait() == -signal.SIGKILL
    waiting.join()
    fork.close()


def test_it_runs_the_command(tmp_path):
    with tempfile.TemporaryFile() as errors:
        assert Fork(COMMAND, ["--version"], tmp_path, errors).finish().startswith(b"tailrace ")
        failing = Fork(COMMAND, ["verify", "nothing"], tmp_path, errors)
        failing.finish()
        errors.seek(0)
        assert failing.wait() == 1
        assert errors.read().startswith(b"tailrace: ")
