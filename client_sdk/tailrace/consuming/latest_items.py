"""Gathers the latest state of a partition, and makes its items one by one as they are asked for. Pure.

    events ──note──> the number of each key's newest row ──take──> items, one event's rows after the other's

No item exists before its turn: thousands that wait cost the collector of garbage more time than to make them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, compress, repeat
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from tailrace.model import Item, Version

if TYPE_CHECKING:
    from tailrace.consuming.events import Mutations

# Superseded rows go when they are more than the others, and more than this.
SUPERSEDED_MAX = 1 << 18
# The rows of a smaller event are gathered: an object for each would take more memory than the rows.
EVENT_ROWS_MIN = 64


class _Columns(NamedTuple):
    """Rows of one branch."""

    partition: int
    branch: bytes
    keys: list[bytes]
    values: list[bytes | None]
    seqs: list[int]
    timestamps: list[int]

    def __len__(self) -> int:
        return len(self.keys)

    def picked(self, rows: Sequence[int]) -> _Columns:
        """Returns the rows that have a 1 in ``rows``."""
        keys, values = list(compress(self.keys, rows)), list(compress(self.values, rows))
        seqs, timestamps = list(compress(self.seqs, rows)), list(compress(self.timestamps, rows))
        return _Columns(self.partition, self.branch, keys, values, seqs, timestamps)


_Parts: TypeAlias = "deque[Mutations | _Columns]"


class LatestItems:
    """The newest rows of one partition as items, in the order of their seqs."""

    def __init__(self, superseded_max: int = SUPERSEDED_MAX) -> None:
        self._superseded_max = superseded_max
        self.clear()

    def clear(self) -> None:
        """Forgets all rows."""
        self._parts: _Parts = deque()
        self._newest: dict[bytes, int] = {}  # of each key that exists, the number of its row in all parts
        self._rows = 0

    def note(self, event: Mutations) -> None:
        """Adds rows, whose seqs are above those of all before them."""
        keys, first = event.keys(), self._rows
        self._rows += len(keys)
        self._newest.update(zip(keys, range(first, self._rows), strict=True))
        deleted = event.deleted()
        if True in deleted:
            for number, key in compress(enumerate(keys, first), deleted):
                if self._newest.get(key) == number:  # not set again in the same event
                    del self._newest[key]
        if len(keys) < EVENT_ROWS_MIN:
            self._gather(_columns_of(event))
        else:
            self._parts.append(event)
        if self._rows - len(self._newest) > max(len(self._newest), self._superseded_max):
            self._drop_superseded()

    @property
    def held_rows(self) -> int:
        """The rows in memory, superseded ones too."""
        return self._rows

    def take(self) -> Iterator[Item]:
        """Returns the items, and forgets them."""
        found = self._take_rows()
        return chain.from_iterable(map(_items_of, found))

    def _take_rows(self) -> Iterator[_Columns]:
        parts, newest, rows = self._parts, self._newest, self._rows
        self.clear()
        return _picked(parts, newest, rows)

    def _drop_superseded(self) -> None:
        for rows in self._take_rows():
            self._newest.update(zip(rows.keys, range(self._rows, self._rows + len(rows)), strict=True))
            self._rows += len(rows)
            self._gather(rows)

    def _gather(self, rows: _Columns) -> None:
        """Adds rows to the last part, if that is of the same branch and has its own lists."""
        last = self._parts[-1] if self._parts else None
        if not isinstance(last, _Columns) or last.branch != rows.branch:
            self._parts.append(rows)
            return
        last.keys.extend(rows.keys)
        last.values.extend(rows.values)
        last.seqs.extend(rows.seqs)
        last.timestamps.extend(rows.timestamps)


def _columns_of(event: Mutations) -> _Columns:
    columns = list(event.keys()), list(event.values()), list(event.seqs()), list(event.timestamps())
    return _Columns(event.partition, event.branch, *columns)


def _picked(parts: _Parts, newest: dict[bytes, int], rows: int) -> Iterator[_Columns]:
    """Yields the rows that are the newest ones of their keys, part by part, and forgets each part."""
    is_newest: Sequence[int] | None = None
    if len(newest) < rows:
        is_newest = bytearray(rows)
        for number in newest.values():
            is_newest[number] = 1
        newest.clear()
    first = 0
    while parts:
        part = parts.popleft()
        found = part if isinstance(part, _Columns) else _columns_of(part)
        stop = first + len(found)
        if is_newest is not None:
            found = found.picked(is_newest[first:stop])
        first = stop
        if len(found):
            yield found


def _items_of(rows: _Columns) -> Iterator[Item]:
    """Makes the items of rows. The constructors of NamedTuples would take twice as long."""
    numbers = zip(repeat(rows.partition), repeat(rows.branch), rows.seqs)
    versions = map(tuple.__new__, repeat(Version), numbers)
    return map(tuple.__new__, repeat(Item), zip(rows.keys, rows.values, versions, rows.timestamps, strict=True))
