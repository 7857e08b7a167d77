"""The error of a demonstration that cannot go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from pathlib import Path

LOG_CHARACTERS = 1_500  # of a log's end in a message: about a screen, as the reason comes last


class DemoFailed(TailraceError):
    """The demonstration cannot go on. The message tells the failed part, its own error, and the log to read."""


def last_words(log: Path) -> str:
    """Returns the end of the log of a process that has ended, as an addition to a message; empty without a log."""
    text = log.read_text(errors="replace").strip() if log.exists() else ""
    lines = text[-LOG_CHARACTERS:].splitlines()
    if len(text) > LOG_CHARACTERS:
        lines = lines[1:]  # only a part of it is left
    return "; the end of its log:" + "".join(f"\n  {line}" for line in lines) if lines else ""
