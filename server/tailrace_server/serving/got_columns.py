"""The rows of a GOT that is being made, by columns: in the order in which they were found, until it is encoded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import numpy as np

from tailrace.wire.frames import frame_header
from tailrace.wire.messages import GOT_COUNT, GOT_ITEM
from tailrace.wire.opcodes import Opcode

_GOT_OPCODE = int(Opcode.GOT)
# The head of a row, as GOT_ITEM has it.
_HEAD = np.dtype(
    [("found", "<u4"), ("partition", "<u4"), ("seq", "<u8"), ("timestamp", "<u8"), ("branch", "V16")], align=False
)
assert _HEAD.itemsize == GOT_ITEM.size


class GotColumns:
    """The answers to the keys of one GET.

    ``values`` has the value of each key, in their order: None if the key was not looked up yet, b"" if it has no row.
    """

    __slots__ = ("_counts", "_numbers", "_places", "_seqs", "_timestamps", "values")

    def __init__(self, count: int) -> None:
        """Makes room for the rows of ``count`` keys."""
        self.values: list[bytes | None] = [None] * count
        # Of each row that was found, in any order: the number of its key, and fields of its head.
        self._numbers: list[int] = []
        self._seqs: list[int] = []
        self._timestamps: list[int] = []
        # The partition and branch of so many of these rows, one after the other.
        self._places: list[tuple[int, bytes]] = []
        self._counts: list[int] = []

    def add(
        self,
        numbers: Sequence[int],
        partition: int,
        branches: Iterable[tuple[bytes, int]],
        seqs: Sequence[int],
        timestamps: Sequence[int],
    ) -> None:
        """Adds the heads of rows, whose ``values`` were set. ``numbers`` are those of their keys, each of them once.

        ``branches`` has the branch of so many rows, one after the other.
        """
        self._numbers += numbers
        self._seqs += seqs
        self._timestamps += timestamps
        for branch, rows in branches:
            self._places.append((partition, branch))
            self._counts.append(rows)

    def encode(self, count: int, id: int) -> bytes:
        """Returns the GOT of the first ``count`` keys, which were looked up."""
        values = cast("list[bytes]", self.values[:count])
        heads = np.zeros(len(self.values), _HEAD)
        rows = len(self._numbers)
        if rows:
            numbers = np.fromiter(self._numbers, np.intp, rows)
            places = np.array(self._places, [("partition", "<u4"), ("branch", "V16")]).repeat(self._counts)
            for name in ("partition", "branch"):
                heads[name][numbers] = places[name]
            heads["seq"][numbers] = np.fromiter(self._seqs, "<u8", rows)
            heads["timestamp"][numbers] = np.fromiter(self._timestamps, "<u8", rows)
            heads["found"][numbers] = 1
            is_found = heads["found"][:count]
            is_found += np.fromiter(map(len, values), "<u4", count)
        head_bytes = heads[:count].tobytes()
        nbytes = GOT_COUNT.size + len(head_bytes) + sum(map(len, values))
        return b"".join((frame_header(_GOT_OPCODE, nbytes, id), GOT_COUNT.pack(count), head_bytes, *values))
