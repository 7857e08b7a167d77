"""Shares the work of pytest's assert statements among the processes of a run. See tests/README.md.

pytest rewrites the asserts of each file that it collects, and keeps the result. Each process collects all files, in the
same order. In a new checkout each of them would rewrite all files: twenty seconds of processor time. So each process
first rewrites a share of its own, and finds most of the others' then.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from _pytest.assertion import rewrite
from tests.tiers import is_collected

if TYPE_CHECKING:
    from pathlib import Path


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Rewrites this process's share of the files, if the run is of all files."""
    config = session.config
    worker = getattr(config, "workerinput", None)
    if worker is None or sys.dont_write_bytecode or config.args != config.getini("testpaths"):
        return
    tier = config.getoption("--tier")
    files = [path for path in sorted((config.rootpath / "tests").rglob("test_*.py")) if is_collected(path, tier)]
    for path in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        rewrite_file(path, config)


def rewrite_file(path: Path, config: pytest.Config) -> None:
    """Keeps the rewritten file where pytest looks for it, unless there is one: pytest sees if that is old."""
    folder = rewrite.get_cache_dir(path)
    kept = folder / f"{path.stem}{rewrite.PYC_TAIL}"
    if kept.exists() or not rewrite.try_makedirs(folder):
        return
    source, code = rewrite._rewrite_test(path, config)
    rewrite._write_pyc(config.stash[rewrite.assertstate_key], code, source, kept)
