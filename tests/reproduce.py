"""Reproduces a bug that was found from outside: `python -m tests.reproduce 13.1`, for `make reproduce BUG=13.1`.

A commit that mends such a bug has the trailers ``Bug:``, its number, and ``Test:``, the tests that came with it. Each
of those commits is tried twice in a folder of its own: with the product before the commit at least one of its tests has
to fail, and with the product of the commit all have to pass. Without a number it lists the bugs.

A test that hangs, or cannot import what the mend adds, fails too. A commit that changes tests alone mends nothing.
What a commit names otherwise than its tree does is looked up in `tests.renamed_tests`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.renamed_tests import RENAMED

PACKAGES = ("client_sdk", "server", "spark_sink")
ROOT = Path(__file__).parents[1]

# Longer than any test takes. Several of the bugs are hangs.
TEST_SECONDS_MAX = 120.0
# pytest's exit code if it ran the tests and some failed. Any other one but 0 says that it could not run them.
_SOME_FAILED = 1


@dataclass(frozen=True)
class Mend:
    """A commit that mends a bug."""

    commit: str
    subject: str
    bugs: tuple[str, ...]
    tests: tuple[str, ...]


class NotReproduced(Exception):
    """No test fails without the mend, or one fails with it."""


def _git(repository: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", repository, *arguments], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def mends(repository: Path) -> list[Mend]:
    """Returns the commits that mend a bug, oldest first."""
    fields = [
        "%H",
        "%s",
        "%(trailers:key=Bug,valueonly,separator=%x20)",
        "%(trailers:key=Test,valueonly,separator=%x1f)",
    ]
    log = _git(repository, "log", "--reverse", f"--format={'%x00'.join(fields)}")
    found = []
    for line in log.splitlines():
        commit, subject, bugs, tests = line.split("\0")
        if bugs and _git(repository, "show", "--format=", "--name-only", commit, "--", *PACKAGES):
            found.append(Mend(commit, subject, tuple(bugs.split()), tuple(filter(None, tests.split("\x1f")))))
    return found


@contextmanager
def _checkout(repository: Path, commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tailrace-reproduce-") as temporary:
        folder = Path(temporary) / "tailrace"
        _git(repository, "worktree", "add", "--quiet", "--detach", str(folder), commit)
        try:
            yield folder
        finally:
            _git(repository, "worktree", "remove", "--force", str(folder))


def _failures(folder: Path, tests: tuple[str, ...]) -> set[str]:
    """Returns the tests that fail with the product that lies in the folder."""
    path = os.pathsep.join(str(folder / package) for package in PACKAGES)
    failing = set()
    for test in tests:
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", test]
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                # Two trees may differ by a file of the same size and second, which Python would take from its bytecode.
                env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
                stdout=subprocess.PIPE,
                text=True,
                timeout=TEST_SECONDS_MAX,
            )
        except subprocess.TimeoutExpired:
            failing.add(test)
            print(f"{test} has not ended within {TEST_SECONDS_MAX:g} s")
            continue
        if done.returncode not in (0, _SOME_FAILED) and "ImportError" not in done.stdout:
            raise NotReproduced(f"pytest could not run {test}:\n{done.stdout}")
        if done.returncode:
            failing.add(test)
            print(done.stdout)
    return failing


def _names_in(folder: Path, tests: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the tests by their names in the folder, and tells of those that are not there by any name."""
    found = []
    for test in tests:
        name = test if _present(folder, test) else RENAMED.get(test, test)
        if _present(folder, name):
            found.append(name)
        else:
            print(f"not there when the bug was mended: {test}")
    return tuple(found)


def _present(folder: Path, test: str) -> bool:
    path, _, name = test.partition("::")
    file = folder / path
    return file.is_file() and f"def {name.partition('[')[0]}(" in file.read_text() if name else file.exists()


def reproduce(repository: Path, mend: Mend) -> None:
    """Runs a mend's tests with the product before it and with its own.

    Raises:
        NotReproduced: All tests pass without the mend, or one fails with it or cannot be run.
    """
    with _checkout(repository, f"{mend.commit}^") as folder:
        _git(folder, "checkout", mend.commit, "--", "tests")
        tests = _names_in(folder, mend.tests)
        if not tests:
            raise NotReproduced(f"the commit '{mend.subject}' has none of the tests that it names")
        print(f"== before '{mend.subject}'", flush=True)
        before = _failures(folder, tests)
        if not before:
            raise NotReproduced(f"passes before the mend: {', '.join(tests)}")
        _git(folder, "checkout", "--quiet", "--force", "--detach", mend.commit)
        print(f"== with '{mend.subject}'", flush=True)
        failing = _failures(folder, tests)
        if failing:
            raise NotReproduced(f"fails with the mend: {', '.join(sorted(failing))}")
    print(f"fails before, passes with it: {', '.join(sorted(before))}")
    for test in sorted(set(tests) - before):
        print(f"passes before too: {test}")


def main(arguments: list[str], repository: Path = ROOT) -> int:
    """Reproduces the bugs that are named; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.reproduce", description="Reproduce bugs that were mended.")
    parser.add_argument("bugs", nargs="*", metavar="BUG", help="a number of docs/internals/reliability.md: 13.1")
    asked = parser.parse_args(arguments).bugs
    try:
        found = mends(repository)
    except subprocess.CalledProcessError:
        print(f"reproducing a bug needs a clone with its history, and {repository} is none", file=sys.stderr)
        return 1
    if not asked:
        for mend in found:
            print(f"{' '.join(mend.bugs):12}{mend.subject}")
        return 0
    failed = 0
    for bug in asked:
        chosen = [mend for mend in found if bug in mend.bugs]
        if not chosen:
            print(f"no commit in this history mends a bug {bug}; without a number this lists them", file=sys.stderr)
            failed = 1
        for mend in chosen:
            try:
                reproduce(repository, mend)
            except NotReproduced as error:
                print(error, file=sys.stderr)
                failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
