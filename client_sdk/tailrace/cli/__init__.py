"""The command ``tailrace``. This module loads no command-line library, so that it can say when there is none.

The commands are found through the entry points of the group "tailrace.commands", each a function with typer's
annotations or a ``typer.Typer``; only the one that is called is imported. ``errors`` is what a command raises on
purpose, ``options`` what commands share, ``output`` how bytes are shown.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import NoReturn

# What the command line imports beyond the SDK's own requirements; the extra `cli` has them.
LIBRARIES = ("typer", "rich")


def main() -> NoReturn:
    """Runs the command in ``sys.argv`` and leaves the process: 0, 1 where it failed, 2 where it was used wrongly."""
    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        print(f"tailrace: the command line needs {' and '.join(missing)}: pip install 'tailrace[cli]'", file=sys.stderr)
        sys.exit(1)
    from tailrace.cli.commands import run

    sys.exit(run(sys.argv[1:]))
