"""How a command ends when it cannot do what it was asked to: one line on stderr, and an exit code."""

from __future__ import annotations

from tailrace.errors import TailraceError, Unreachable

FAILED = 1
WRONG_USAGE = 2
# By Ctrl-C, as shells count it.
INTERRUPTED = 130


# What to do if no node was reached: before the request was sent, and after it.
_UNREACHABLE = (
    "nothing was done; the nodes to ask come from --url, --node or TAILRACE_URL",
    "it may have been done all the same: look before you do it again",
)


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
        return f"{error}; {_UNREACHABLE[error.outcome == 'unknown']}"
    if isinstance(error, CommandFailed | TailraceError):
        return "; ".join([str(error), *getattr(error, "__notes__", [])])
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename else ""
        return f"{where}{error.strerror or error}"
    return None
