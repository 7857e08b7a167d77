"""The systemd unit: systemd accepts it, and finds little that a node could do to the machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UNIT = Path(__file__).parents[2] / "deploy" / "systemd" / "tailrace.service"
# systemd's own measure of exposure, from 0 to 10, in tenths: a unit without any setting has 9.6.
EXPOSURE_MAX = 20

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing: sudo apt install systemd"
    ),
]


def analyze(*arguments):
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True)


def with_program(path, text):
    """Writes the unit with a program that exists on this machine."""
    assert "ExecStart=/opt/tailrace/bin/tailrace serve" in text
    path.write_text(text.replace("/opt/tailrace/bin/tailrace", sys.executable))
    return path


def test_systemd_accepts_the_unit(tmp_path):
    done = analyze("verify", str(with_program(tmp_path / UNIT.name, UNIT.read_text())))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_a_wrong_setting_is_found(tmp_path):
    wrong = UNIT.read_text().replace("ProtectHome=yes", "ProtectHomes=yes")
    done = analyze("verify", str(with_program(tmp_path / UNIT.name, wrong)))
    assert "ProtectHomes" in done.stderr


def test_the_unit_is_hardened(tmp_path):
    options = "--offline=true", f"--threshold={EXPOSURE_MAX}"
    done = analyze("security", *options, str(UNIT))
    if "unrecognized option" in done.stderr:
        pytest.skip("systemd-analyze is too old to measure a file: systemd 250 or newer")
    assert done.returncode == 0, done.stdout
    open_unit = tmp_path / UNIT.name
    open_unit.write_text("[Service]\nExecStart=/bin/true\n")
    assert analyze("security", *options, str(open_unit)).returncode != 0
