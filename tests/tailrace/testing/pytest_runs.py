"""Runs of pytest in a process of their own, in a folder with the tests of a user."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

# Far more seconds than a run takes on a busy machine.
RUN_S = 300.0


class PytestRun:
    """A run in a folder; ``files``: the text of each file by its name.

    Tests write the ids of processes that have to end with them, one a line, to the file that PIDS names.
    """

    def __init__(self, folder, files, *arguments, **environ):
        self._pids = Path(folder) / "pids"
        self._pids.touch()
        for name, text in {"pytest.ini": "[pytest]\nmarkers = trio\n", **files}.items():
            (Path(folder) / name).write_text(textwrap.dedent(text))
        # Hypothesis takes a second to load, and none of these tests uses it.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pytest", "-p", "no:hypothesispytest", "-v", *arguments],
            cwd=folder,
            env={**os.environ, "PIDS": str(self._pids), **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self.out = ""

    def wait(self):
        """Waits for the end, and returns the exit code."""
        self.out += self.process.communicate(timeout=RUN_S)[0]
        return self.process.returncode

    def read_until(self, text):
        """Reads the output until a line has this text."""
        for line in self.process.stdout:
            self.out += line
            if text in line:
                return
        raise AssertionError(f"it has ended without {text!r}:\n{self.out}")

    def signal(self, number):
        os.kill(self.process.pid, number)

    def passed(self):
        """Requires that all tests have passed, and returns their number."""
        assert self.wait() == 0, self.out
        return int(re.search(r"(\d+) passed", self.out)[1])

    def failed_classes(self):
        """Returns the names of the classes with a test that failed."""
        return set(re.findall(r"^FAILED \w+\.py::(\w+)::", self.out, re.MULTILINE))

    def require_no_process(self):
        """Waits until the processes have ended that the tests have named: a killed run ends them by its pipes alone."""
        pids = [int(line) for line in self._pids.read_text().split()]
        assert pids, "no test has named a process"
        deadline = time.monotonic() + RUN_S
        while found := [pid for pid in pids if is_running(pid)]:
            assert time.monotonic() < deadline, f"{found} still run"
            time.sleep(0.01)

    def end(self):
        """Ends the run, whatever has become of the test."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()


def is_running(pid):
    """Whether the process runs: one that nobody waits for is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
