"""Divides changes into batches, the same ones each time that a file is read. Pure.

An import that goes on after an interruption skips the batches that are in the feed, by their numbers. So the bounds are
part of the import's id (`load.import_id`): change RULE with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from tailrace.model import Delete, Put

RULE = 1
ROWS_MAX = 50_000
BYTES_MAX = 8 * 1024 * 1024


class Batch(NamedTuple):
    """Changes that are published together. ``first_row``: the number of the first one, from 1."""

    number: int
    first_row: int
    changes: list[Put | Delete]
    nbytes: int


def batches(changes: Iterable[Put | Delete]) -> Iterator[Batch]:
    """Yields batches of at most ROWS_MAX changes, and BYTES_MAX bytes of keys and values unless it is one change."""
    number, first_row, nbytes = 0, 1, 0
    gathered: list[Put | Delete] = []
    for change in changes:
        size = len(change.key) + (len(change.value) if isinstance(change, Put) else 0)
        if gathered and (len(gathered) >= ROWS_MAX or nbytes + size > BYTES_MAX):
            yield Batch(number, first_row, gathered, nbytes)
            number, first_row = number + 1, first_row + len(gathered)
            gathered, nbytes = [], 0
        gathered.append(change)
        nbytes += size
    if gathered:
        yield Batch(number, first_row, gathered, nbytes)
