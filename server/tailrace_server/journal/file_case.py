"""Decides the case of each file of a journal at a start. Pure.

A journal is read in full before anything is changed. Each file then is exactly one of these cases (``decide``). `end`
is the end of its last whole record; `synced` is the offset up to which it is known to have been durable:

    case          which       found                                                      done
    ------------- ----------- ---------------------------------------------------------- -----------------------
    MISSING       not newest  there is no file of this number between two others         stop
    BAD_HEADER    any         no header, a damaged one, of another version or number     stop
    NEWER         any         a valid record of a kind that is not known here            stop
    SHORT         not newest  the file ends before its successor says                    stop
    DAMAGED       not newest  a bad record before the end that its successor says        stop
    LEFTOVER      not newest  whole, and something behind that end                       cut there
    WHOLE         not newest  whole                                                      -
    LOST          newest      a bad record at or an end below `synced`                   stop
    TORN          newest      a bad record at `end`, not known to have been durable      cut at `end`
    ALLOCATED     newest      only zeros from `end` on                                   cut at `end`
    ENDS          newest      whole                                                      -

`synced` is the maximum over the file's header, its records, and valid records at any place beyond a bad one. So a page
that was never written is a torn tail, even if the disk wrote good pages behind it; a page that was durable is damage.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

from tailrace_server.journal.format import FILE_HEADER_BYTES


class FileCase(enum.Enum):
    """The case of a file of the journal; the table above."""

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
    """The facts found by reading a file.

    ``end`` is the end of the last good record (0 without a header). ``bad`` is why the following bytes are no record;
    "" if none should follow. ``newer``: a record of an unknown kind follows. ``tail_bytes`` lie between ``end`` and the
    last byte that is not zero. ``synced`` is the greatest durable offset that the header or a record before ``end``
    tells, ``witness`` the greatest that a valid record behind ``end`` tells. ``records`` is the count of records before
    ``end``, ``surplus_ns`` the sum of theirs (replay_cost.py).
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
    """Decides the case of a file by the table. ``facts``: None if it is missing; ``successor_says``: None if newest."""
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
