"""The progress bars: something on a terminal, nothing elsewhere."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

CODE = """
from pyspark_tailrace.demo.progress import ProgressBars
with ProgressBars() as bars:
    bars.begin(10)
    bars.show(10, 5, 1)
"""


def test_nothing_is_written_without_a_terminal():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_stages_are_shown_on_a_terminal(terminal):
    ours, its_end = terminal
    environ = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    subprocess.run([sys.executable, "-c", CODE], stderr=its_end, env=environ, check=True)
    shown = os.read(ours, 65_536).decode()
    assert all(stage in shown for stage in ("in files", "written", "in the index", "10/10", " 5/10", " 1/10"))
