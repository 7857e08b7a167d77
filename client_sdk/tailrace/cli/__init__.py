"""The command ``tailrace``. This module imports no command-line library, so it can report a missing one.

The entry points of the group "tailrace.commands" name the commands: functions with typer's annotations, or a
``typer.Typer``. Only the called command is imported. ``errors`` has the errors of commands, ``options`` their common
options, and ``output`` prints bytes and tables.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import NoReturn

from tailrace.cli.errors import INTERRUPTED

# The libraries that the command line needs beyond the SDK's own; the extra `cli` installs them.
LIBRARIES = ("typer", "rich")


def main(loaded: Callable[[], None] | None = None) -> NoReturn:
    """Runs the command in ``sys.argv`` and exits: with 0, with 1 if it failed, with 2 if its arguments are wrong.

    Ctrl-C while modules are imported ends it quietly, with 130.

    Args:
        loaded: Called once the modules of the command are imported, before it runs. Words of a command line that the
            shell completes run no command, and do not call it.
    """
    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        print(f"tailrace: the command line needs {' and '.join(missing)}: pip install 'tailrace[cli]'", file=sys.stderr)
        sys.exit(1)
    try:
        from tailrace.cli.commands import run

        code = run(sys.argv[1:], loaded)
    except KeyboardInterrupt:  # while modules are imported
        code = INTERRUPTED
    sys.exit(code)
