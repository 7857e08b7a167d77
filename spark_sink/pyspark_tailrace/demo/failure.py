"""Why the demonstration ends without having shown what it is for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import TailraceError

if TYPE_CHECKING:
    from pathlib import Path

LOG_CHARACTERS = 1_500  # of a log's end in a message: about a screen, and the reason comes last


class DemoFailed(TailraceError):
    """The demonstration cannot go on. The message says what failed, with its own words, and where to look."""


def last_words(log: Path) -> str:
    """What to add to a message about a process that has ended: the end of its log, if it has said anything."""
    text = log.read_text(errors="replace").strip() if log.exists() else ""
    lines = text[-LOG_CHARACTERS:].splitlines()
    if len(text) > LOG_CHARACTERS:
        lines = lines[1:]  # only a part of it is left
    return "; its last words:" + "".join(f"\n  {line}" for line in lines) if lines else ""
