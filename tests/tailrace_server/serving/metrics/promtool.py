"""Runs promtool, and skips the test by name if there is none."""

from __future__ import annotations

import shutil
import subprocess

import pytest

INSTALL = "apt-get install prometheus"
SECONDS_MAX = 60


def promtool(*arguments, text=None):
    """Runs promtool with ``text`` as its input; it has to succeed, and to say nothing against it."""
    if shutil.which("promtool") is None:
        pytest.skip(f"needs promtool: {INSTALL}")
    command = ["promtool", *map(str, arguments)]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
