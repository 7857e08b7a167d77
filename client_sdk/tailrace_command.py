"""The script ``tailrace``: runs the command, and ends quietly if Ctrl-C comes while that is loaded.

It is outside of the package `tailrace`, since the import of that takes most of a start.
"""

from __future__ import annotations

import sys

# `tailrace.cli.errors.INTERRUPTED`, which is not loaded yet.
_INTERRUPTED = 130


def main() -> None:
    """Runs the command in ``sys.argv``, and exits."""
    try:
        from tailrace.cli import main as command

        command()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)
