"""``tailrace completion``: prints the script by which a shell completes commands and options."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from typing import Annotated

import typer

PROGRAM = "tailrace"
# The shell sets this name when it asks for completions.
VARIABLE = "_TAILRACE_COMPLETE"
# The names in which shells pass the words before the cursor.
_WORDS = ("COMP_WORDS", "_TYPER_COMPLETE_ARGS")


class ShellName(enum.StrEnum):
    """The shells that have a script."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[ShellName, typer.Argument(metavar="bash|zsh|fish", help="The shell.", show_default=False)],
) -> None:
    """Print the script that completes commands and options in a shell.

    \b
    For this session of bash, for all of them, and for zsh and fish:
      eval "$(tailrace completion bash)"
      tailrace completion bash >> ~/.bashrc
      tailrace completion zsh > "${fpath[1]}/_tailrace"
      tailrace completion fish > ~/.config/fish/completions/tailrace.fish
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # it is there since 0.12

    print(get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=shell))


def words_to_complete(environ: Mapping[str, str] = os.environ) -> list[str] | None:
    """Returns the words behind the program's name, if a shell asks for completions; otherwise None."""
    if not environ.get(VARIABLE):
        return None
    return next((environ[name].split()[1:] for name in _WORDS if name in environ), [])
