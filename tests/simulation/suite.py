"""The seeds that the tests run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from .plan import ANY_SET, ANY_WAY


class Suite(NamedTuple):
    """The seeds of one kind of worlds, and how many of them a test runs; `make soak` runs the others."""

    nodes: int
    seeds: range
    quick: int
    copies: bool = False
    way: str = ""
    groups: bool = False


ONE_NODE = Suite(1, range(210), 6)
SETS = Suite(ANY_SET, range(200), 3)
COPIES = Suite(1, range(150), 6, copies=True)
COPIES_OF_SETS = Suite(ANY_SET, range(100), 3, copies=True)
SEGMENTS = Suite(ANY_SET, range(150), 4, way=ANY_WAY)
GROUPS = Suite(ANY_SET, range(60), 2, groups=True)
# A seed of one node in which a rollback meets another one.
ROLLBACKS = 0
# The processes that run the seeds of `make soak`.
PROCESSES = 2


def run_the_others(suite):
    """Runs the seeds of ``suite`` that are not quick, in processes of their own, since seeds share nothing.

    They are not worth measuring the coverage of: the quick ones reach the same lines.

    Raises:
        AssertionError: A seed breaks a promise.
    """
    seeds = suite.seeds[suite.quick :]
    each = -(-len(seeds) // PROCESSES)
    options = {"SETS": "1"} if suite.nodes == ANY_SET else {"NODES": str(suite.nodes)}
    options["COPIES"] = "1" if suite.copies else ""
    options["SEGMENTS"] = suite.way
    options["GROUP"] = "1" if suite.groups else ""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.simulation"],
            cwd=Path(__file__).parents[2],
            env={**os.environ, **options, "FIRST": str(part[0]), "SEEDS": str(len(part))},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for part in (seeds[first : first + each] for first in range(0, len(seeds), each))
    ]
    outputs = [process.communicate()[0] for process in processes]
    print(*outputs, sep="\n")
    assert [process.returncode for process in processes] == [0] * PROCESSES
