"""The errors of commands: each ends the command with one line on stderr and an exit code."""

from __future__ import annotations

from tailrace.errors import TailraceError, Unreachable

FAILED = 1
WRONG_USAGE = 2
# After Ctrl-C, as in shells.
INTERRUPTED = 130


# The advice if a node does not answer: before the request was sent, and after it.
_UNREACHABLE = (
    "nothing was changed; --url, --node or TAILRACE_URL name the nodes to ask",
    "the request may have been executed: check before you repeat it",
)


class CommandFailed(Exception):
    """Ends the command with one line on stderr; without one if the message is empty."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class WrongUsage(CommandFailed):
    """An argument of the command is wrong."""

    def __init__(self, message: str) -> None:
        super().__init__(message, WRONG_USAGE)


def alone(error: BaseException) -> BaseException:
    """Returns the first cause in a group of exceptions; any other exception as it is."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def explain(error: BaseException) -> str | None:
    """Returns the line for an error of a command; None for a bug, which gets a traceback."""
    if isinstance(error, Unreachable):
        return f"{error}; {_UNREACHABLE[error.outcome == 'unknown']}"
    if isinstance(error, CommandFailed | TailraceError):
        return "; ".join([str(error), *getattr(error, "__notes__", [])])
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    return None
