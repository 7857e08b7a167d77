"""Keeps the memory of a column's strings in the process, for those of the next block.

    block ──> strings, in arenas ──> the program drops them ──> the arenas stay, each by a string of ``_kept``
                     ^                                                        │
                     └────────────────────── the next block <─────────────────┘

CPython takes memory for small objects from the system an arena at a time. It gives an arena back when the last object
in it is freed. A program that handles one block after the other frees all strings of a block, and would get each page
for the next one anew: the faults of these pages took 0.4 of a consumer's time.
"""

from __future__ import annotations

import collections

ARENA_BYTES = 1024 * 1024  # of CPython 3.10 and later
# CPython takes larger objects from the C library, which keeps their memory itself.
SMALL_BYTES_MAX = 512
# What a byte string takes beside its bytes, rounded up.
STRING_BYTES = 48
# At most so many arenas stay because of this.
ARENAS_MAX = 32

_kept: collections.deque[object] = collections.deque(maxlen=ARENAS_MAX)


def keep_arenas(strings: list[bytes | None], nbytes: int) -> None:
    """Keeps short ones of the strings, about two in each arena that these take; those of earlier columns go.

    Any thread may call it.

    Args:
        strings: A column, as it was decoded.
        nbytes: The bytes of all its strings.
    """
    string_bytes = nbytes // len(strings) + STRING_BYTES
    if string_bytes <= SMALL_BYTES_MAX:
        some = strings[:: ARENA_BYTES // 2 // string_bytes]
        # A column of short strings may have a few long ones, which are in no arena, and would stay for long.
        _kept.extend([string for string in some if string and len(string) + STRING_BYTES <= SMALL_BYTES_MAX])
