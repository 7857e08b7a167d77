"""Keeps what look-ups by key have read and verified, so that the next one need not.

Parts of segments, and compressed blocks of write queues. A block of a segment has up to a MiB, all of which has to be
read and verified for one row of it. A compressed block has to be decompressed for one row. Neither ever changes, so
kept parts stay right.

Of two parts that are drawn, the one that was used less recently leaves. The least recently used part of all would be
the wrong one if look-ups of many keys go through more parts than there is room for, again and again in one order: it is
needed next, and no part would be found. With one of two, three quarters are found if nine tenths have room.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, TypeAlias

# A part of a segment: the path of its file, and the offset. Or a compressed block of a write queue.
Place: TypeAlias = Hashable

# Numbers that look drawn, the same in each run: x -> (factor * x + summand) modulo 2**32.
_FACTOR, _SUMMAND, _MASK = 1_664_525, 1_013_904_223, (1 << 32) - 1


class _Kept:
    """A part, its bytes, its number among all parts, and when it was used."""

    __slots__ = ("nbytes", "number", "part", "used")

    def __init__(self, part: Any, nbytes: int, number: int, used: int) -> None:
        self.part = part
        self.nbytes = nbytes
        self.number = number
        self.used = used


class ReadCache:
    """Blocks and pages of key tables by their place in a file, raw bodies by their block. For the loop's thread."""

    def __init__(self, bytes_max: int) -> None:
        self.nbytes = 0
        self.hits = self.misses = 0
        self._bytes_max = bytes_max
        self._kept: dict[Place, _Kept] = {}
        self._places: list[Place] = []  # of all parts, by their numbers
        self._uses = 0  # how often a part was put or found
        self._drawn = 0

    def get(self, place: Place) -> Any:
        """Returns the part; None if it is not kept."""
        kept = self._kept.get(place)
        if kept is None:
            self.misses += 1
            return None
        self.hits += 1
        self._uses = kept.used = self._uses + 1
        return kept.part

    def put(self, place: Place, part: Any, nbytes: int) -> None:
        """Keeps a verified part, which holds ``nbytes`` of memory, and drops others for it."""
        if nbytes > self._bytes_max:
            return
        if place in self._kept:
            self._drop(self._kept[place])
        while self.nbytes + nbytes > self._bytes_max:
            self._drop(min(self._draw(), self._draw(), key=_used))
        self._uses += 1
        self._kept[place] = _Kept(part, nbytes, len(self._places), self._uses)
        self._places.append(place)
        self.nbytes += nbytes

    def _draw(self) -> _Kept:
        self._drawn = self._drawn * _FACTOR + _SUMMAND & _MASK
        return self._kept[self._places[self._drawn * len(self._places) >> 32]]

    def _drop(self, kept: _Kept) -> None:
        del self._kept[self._places[kept.number]]
        last = self._places.pop()
        if kept.number < len(self._places):  # the last one takes its number
            self._places[kept.number] = last
            self._kept[last].number = kept.number
        self.nbytes -= kept.nbytes


def _used(kept: _Kept) -> int:
    return kept.used
