"""What a file of a journal is found to be. Pure.

A journal is read in full before anything is changed. Each file then is exactly one of these cases (``decide``); `end`
is where its last whole record ends, `synced` up to where it is known to have been durable:

    case          which       what is found                                              what is done
    ------------- ----------- ---------------------------------------------------------- -----------------------
    MISSING       not newest  there is no file of this number between two others         stop
    BAD_HEADER    any         no header, a damaged one, of another version or number     stop
    NEWER         any         a valid record of a kind that is not known here            stop
    SHORT         not newest  the file ends before its successor says                    stop
    DAMAGED       not newest  a bad record before the end that its successor says        stop
    LEFTOVER      not newest  whole, and something behind that end                       cut there
    WHOLE         not newest  whole                                                      -
    LOST          newest      a bad record at or an end below `synced`                   stop
    TORN          newest      a bad record at `end`, which nobody knew to be durable     cut at `end`
    ALLOCATED     newest      only zeros from `end` on                                   cut at `end`
    ENDS          newest      whole                                                      -

`synced` is what the file's header and its records say, and any valid record beyond a bad one, at whatever place: a page
that was never written is a torn tail, however many good ones the disk wrote behind it; one that was durable is damage.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from tailrace_server.journal.format import FILE_HEADER_BYTES


class FileCase(enum.Enum):
    """What a file of the journal is found to be; the table above."""

    MISSING = "missing"
    BAD_HEADER = "bad header"
    NEWER = "newer"
    SHORT = "short"
    DAMAGED = "damaged"
    LEFTOVER = "leftover"
    WHOLE = "whole"
    LOST = "lost"
    TORN = "torn"
    ALLOCATED = "allocated"
    ENDS = "ends"


STOPS = frozenset(
    {FileCase.MISSING, FileCase.BAD_HEADER, FileCase.NEWER, FileCase.SHORT, FileCase.DAMAGED, FileCase.LOST}
)


class FileFacts(NamedTuple):
    """What reading a file told.

    ``end`` is where the last good record ends (0 without a header); ``bad`` says why what follows is no record, ""
    where nothing should. ``newer``: what follows is one, of an unknown kind. ``tail_bytes`` lie between ``end`` and the
    last byte that is not zero. ``synced`` is the greatest offset that anything before ``end`` says was durable,
    ``witness`` the greatest that a valid record behind it says. ``records`` are how many there are before ``end``, and
    ``surplus_ns`` theirs (replay_cost.py).
    """

    size: int
    end: int = 0
    bad: str = ""
    newer: bool = False
    tail_bytes: int = 0
    synced: int = FILE_HEADER_BYTES
    witness: int = 0
    rolled_back: bool = False
    records: int = 0
    surplus_ns: int = 0


def decide(facts: FileFacts | None, successor_says: int | None) -> FileCase:
    """The case of a file by the table above. ``facts``: None if it is missing; ``successor_says``: None if newest."""
    if facts is None:
        return FileCase.MISSING
    if facts.end == 0:
        return FileCase.BAD_HEADER
    if facts.newer:
        return FileCase.NEWER
    if successor_says is None:
        return _decide_newest(facts)
    if facts.size < successor_says:
        return FileCase.SHORT
    if facts.end < successor_says:
        return FileCase.DAMAGED
    return FileCase.LEFTOVER if facts.size > successor_says else FileCase.WHOLE


def _decide_newest(facts: FileFacts) -> FileCase:
    if facts.end < max(facts.synced, facts.witness):
        return FileCase.LOST
    if facts.size == facts.end:
        return FileCase.ENDS
    return FileCase.TORN if facts.tail_bytes else FileCase.ALLOCATED
