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

# More than any explanation has.
_EXPLANATION_CHARS_MAX = 10_000
# zsh runs the whole file as the function when a word is completed for the first time. Without these lines the file only
# defines the function, and the first completion of each session is empty.
_ZSH_FIRST_TIME = """
if [[ ${zsh_eval_context[-1]} == loadautofunc ]]; then
  _tailrace_completion "$@"
fi"""


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

    script = get_completion_script(prog_name=PROGRAM, complete_var=VARIABLE, shell=shell)
    print(script + _ZSH_FIRST_TIME if shell is ShellName.ZSH else script)


def begin_completion() -> None:
    """Registers the answers to the shells. Each answer has a word and its explanation in one line.

    typer lets rich break explanations at the width of the terminal. fish takes each further line for a word.
    """
    from typer.completion import completion_init  # type: ignore[attr-defined]  # it is there since 0.12

    os.environ["COLUMNS"] = str(_EXPLANATION_CHARS_MAX)
    completion_init()


def words_to_complete(environ: Mapping[str, str] = os.environ) -> list[str] | None:
    """Returns the words behind the program's name, if a shell asks for completions; otherwise None."""
    if not environ.get(VARIABLE):
        return None
    return next((environ[name].split()[1:] for name in _WORDS if name in environ), [])
