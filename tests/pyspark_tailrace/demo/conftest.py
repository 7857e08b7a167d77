"""Small real git repositories."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

# A fixed identity and time, and none of the settings of whoever runs the tests.
IDENTITY = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "c",
    "GIT_COMMITTER_EMAIL": "c@example.org",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
}


class Repository:
    """A repository that is changed by writing files and committing all of them."""

    def __init__(self, path):
        self.path = path
        self.seconds = 1_700_000_000
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments, stdin=None):
        date = f"{self.seconds} +0100"
        env = os.environ | IDENTITY | {"GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
        command = ["git", "-C", self.path, *arguments]
        return subprocess.run(command, env=env, input=stdin, capture_output=True, check=True).stdout.strip().decode()

    def write(self, name, content, mode=0o644):
        path = Path(os.fsdecode(os.fsencode(self.path) + b"/" + os.fsencode(name)))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode)
        return path

    def commit(self):
        """Commits everything, even nothing; returns the commit's id."""
        self.seconds += 60
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "change")
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    folder.mkdir()
    return Repository(folder)
