"""Runs of pytest over tests of a user."""

import pytest
from tests.tailrace.testing.pytest_runs import PytestRun


@pytest.fixture
def run_pytest(tmp_path):
    """A function that begins a `PytestRun` with files and arguments."""
    runs = []

    def run(files, *arguments, **environ):
        runs.append(PytestRun(tmp_path, files, *arguments, **environ))
        return runs[-1]

    yield run
    for begun in runs:
        begun.end()
