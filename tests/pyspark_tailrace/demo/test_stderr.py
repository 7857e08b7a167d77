"""stderr into a file, of this process and of those that it starts."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

CODE = """
import os, subprocess, sys
from pathlib import Path
from pyspark_tailrace.demo.stderr import stderr_to
print("before", file=sys.stderr)
try:
    with stderr_to(Path("log")):
        print("within", file=sys.stderr)
        subprocess.run(["sh", "-c", "echo child >&2"])
        raise KeyError
except KeyError:
    print("after", file=sys.stderr)
"""


def test_stderr_goes_to_the_file_and_comes_back(tmp_path):
    done = subprocess.run([sys.executable, "-c", CODE], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == "before\nafter\n"
    assert (tmp_path / "log").read_text() == "within\nchild\n"
