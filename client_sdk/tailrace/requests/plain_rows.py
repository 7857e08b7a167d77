"""Plain rows, which a writer adds to the batch of its only partition in few steps. Pure."""

from __future__ import annotations

from tailrace.block import KEY_BYTES_MAX

# The bytes that a row adds to a block beside key and value, and a bound of the other bytes of a block: header, first
# offsets, bits of deletions (an eighth of a byte a row) and padding. docs/formats/block.md has the exact sizes.
ROW_BYTES = 17


class PlainRows:
    """Columns to which puts of plain bytes may be added within a budget, without a look at any other bound.

    A row takes its key, its value and ROW_BYTES of the budget. The batch counts the rows from time to time (`count`).
    """

    __slots__ = ("_counted_left", "_counted_rows", "_keys", "_left", "_values")

    def __init__(self, keys: list[bytes], values: list[bytes | None], budget: int) -> None:
        """``budget``: in bytes, at most VALUE_BYTES_MAX, so that no longer value fits."""
        self._keys = keys
        self._values = values
        self._left = self._counted_left = budget
        self._counted_rows = len(keys)

    def add(self, key: bytes, value: bytes) -> bool:
        """Adds a row if it is plain and the budget has room for it. Returns whether it was added."""
        if type(key) is type(value) is bytes and 0 < len(key) <= KEY_BYTES_MAX:
            left = self._left - len(key) - len(value) - ROW_BYTES
            if left >= 0:
                self._left = left
                self._keys.append(key)
                self._values.append(value)
                return True
        return False

    def count(self) -> tuple[int, int]:
        """Returns the rows that were added since the last count, and the budget that they took."""
        rows, left = len(self._keys), self._left
        found = rows - self._counted_rows, self._counted_left - left
        self._counted_rows, self._counted_left = rows, left
        return found
