"""The script ``tailrace``: runs the command, and ends quietly if Ctrl-C comes while that is loaded.

It is outside of the package `tailrace`, since the import of that takes most of a start. Until the command is loaded,
nothing looks for cyclic garbage: what is imported stays, and the searches would take a sixth of a node's start.
"""

from __future__ import annotations

import gc
import os
import sys

# `tailrace.cli.errors.INTERRUPTED`, which is not loaded yet.
_INTERRUPTED = 130


def main() -> None:
    """Runs the command in ``sys.argv``, and exits."""
    # numpy's library for matrices starts a thread for each processor, which take 50 ms. No command has a matrix.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.disable()
    try:
        from tailrace.cli import main as command

        command(_search_again)
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


def _search_again() -> None:
    """Lets the interpreter look for garbage, and leaves out all that was imported."""
    gc.freeze()
    gc.enable()
