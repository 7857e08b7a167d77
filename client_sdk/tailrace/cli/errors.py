"""How a command ends when it cannot do what it was asked to: one line on stderr, and an exit code."""

from __future__ import annotations

from tailrace.errors import TailraceError, Unreachable

FAILED = 1
WRONG_USAGE = 2
# By Ctrl-C, as shells count it.
INTERRUPTED = 130


class CommandFailed(Exception):
    """Ends the command with one line on stderr; no line where the message is empty."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class WrongUsage(CommandFailed):
    """The command was called with something that it cannot take."""

    def __init__(self, message: str) -> None:
        super().__init__(message, WRONG_USAGE)


def alone(error: BaseException) -> BaseException:
    """The first cause in a group of exceptions; anything else as it is."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def explain(error: BaseException) -> str | None:
    """The line for what may go wrong while a command runs; None for a bug, which deserves its traceback."""
    if isinstance(error, Unreachable):
        return f"{error}; is a node running there? (--url, --node, TAILRACE_URL)"
    if isinstance(error, CommandFailed | TailraceError):
        return "; ".join([str(error), *getattr(error, "__notes__", [])])
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    return None
