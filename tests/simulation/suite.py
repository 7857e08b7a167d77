"""The seeds that the tests run. The quick ones are among them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SEEDS = range(210)
QUICK = range(4)
ROLLBACKS = 210
# So many run the others, at the same time.
PROCESSES = 2


def run_the_others(seeds: Sequence[int], **environ: str) -> None:
    """Runs them in processes of their own, since seeds share nothing. AssertionError where one breaks a promise.

    Coverage has seen what they do, and would take longest.
    """
    each = -(-len(seeds) // PROCESSES)
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.simulation"],
            cwd=Path(__file__).parents[2],
            env={**os.environ, **environ, "FIRST": str(part[0]), "SEEDS": str(len(part))},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for part in (seeds[first : first + each] for first in range(0, len(seeds), each))
    ]
    told = [process.communicate()[0] for process in processes]
    print(*told, sep="\n")
    assert [process.returncode for process in processes] == [0] * PROCESSES
