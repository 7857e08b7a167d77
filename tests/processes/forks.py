"""Processes of the product as forks of one that has imported it, with the commands and the tests' programs.

`tailrace.testing.forks` explains the forks. The template has what `prepare` loads.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tailrace.testing import forks

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).parents[2]
# What a process can run: a node that is ordered (`program`), or the command `tailrace`.
PROGRAM, COMMAND = "tests.processes.forks:run_program", "tests.processes.forks:run_command"
FORKS = forks.Forks(["tests.processes.forks"], str(ROOT))


class Fork(forks.Fork):
    """A process with its working folder ``cwd``, for `PROGRAM` or `COMMAND`."""

    def __init__(self, what: str, arguments: Sequence[str], cwd: Path, stderr: IO[bytes] | int = 2) -> None:
        sys.audit("subprocess.Popen", sys.executable, arguments, cwd, None)  # for `tiers`
        super().__init__(FORKS, what, arguments, cwd, stderr)


def prepare() -> None:
    """Imports what forks run, also what the product imports late."""
    from tailrace.cli.commands import run

    from . import program  # noqa: F401 - the forks have it

    for command in entry_points(group="tailrace.commands"):
        if command.name != "demo":
            with contextlib.suppress(ImportError):  # an installation may know commands of other commits
                command.load()
    with contextlib.redirect_stderr(io.StringIO()):
        run(["verify"])  # has no argument, and fails when the parser has been loaded


def _seed() -> None:
    """Lets no two forks schedule their tasks alike."""
    import trio

    trio._core._run._r.seed(random.Random(os.urandom(16)).random())


def run_program(arguments: list[str]) -> None:
    """Runs a node with the `Orders` of the first argument."""
    import json

    from . import program

    _seed()
    program.main(program.Orders(**json.loads(arguments[0])), arguments[1:])


def run_command(arguments: list[str]) -> None:
    """Runs the command ``tailrace``."""
    from tailrace import cli

    _seed()
    sys.argv = ["tailrace", *arguments]
    cli.main()
