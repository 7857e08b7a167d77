"""Keeps what look-ups by key have read and verified, so that the next one need not.

Parts of segments, and compressed blocks of write queues. A block of a segment has up to a MiB, all of which has to be
read and verified for one row of it. A compressed block has to be decompressed for one row. Neither ever changes, so
kept parts stay right; the least recently used leaves first.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, TypeAlias

# A part of a segment: the path of its file, and the offset. Or a compressed block of a write queue.
Place: TypeAlias = Hashable


class ReadCache:
    """Blocks and pages of key tables by their place in a file, raw bodies by their block. For the loop's thread."""

    def __init__(self, bytes_max: int) -> None:
        self.nbytes = 0
        self.hits = self.misses = 0
        self._bytes_max = bytes_max
        self._parts: dict[Place, tuple[Any, int]] = {}  # the least recently used first

    def get(self, place: Place) -> Any:
        """Returns the part; None if it is not kept."""
        part = self._parts.pop(place, None)
        if part is None:
            self.misses += 1
            return None
        self.hits += 1
        self._parts[place] = part
        return part[0]

    def put(self, place: Place, part: Any, nbytes: int) -> None:
        """Keeps a verified part, which holds ``nbytes`` of memory, and drops others for it."""
        if nbytes > self._bytes_max:
            return
        self._drop(place)
        self._parts[place] = part, nbytes
        self.nbytes += nbytes
        while self.nbytes > self._bytes_max:
            self._drop(next(iter(self._parts)))

    def _drop(self, place: Place) -> None:
        _, nbytes = self._parts.pop(place, (None, 0))
        self.nbytes -= nbytes
