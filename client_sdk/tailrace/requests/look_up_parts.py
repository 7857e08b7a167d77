"""A look-up of many keys in parts: while the node looks some up, the client reads the rows of others. Pure.

    keys ── by hash ──> parts ──> PARTS_UNDER_WAY requests ──> rows, in the order of the keys

A part has keys of neighbouring hashes. They are in few partitions, and several of them in each block of these, so the
node takes half of the time for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeAlias

from tailrace.model.hashing import HASH_BITS, hash_keys
from tailrace.requests.look_up import LookUp

if TYPE_CHECKING:
    from tailrace.errors import TailraceError
    from tailrace.model import Item
    from tailrace.requests.look_up import Found

# Fewer keys are asked for by one GET.
DIVIDED_KEYS_MIN = 2_048
# The keys of a part at most. The node finds them within a slice or two of 2 ms, and the client reads them in as long.
PART_KEYS_MAX = 1_024
# The client reads one, one is under way, and the node looks one up.
PARTS_UNDER_WAY = 3

# Keys are put in the order of the highest bits of their hashes: the node gains nothing by more.
_ORDER_BITS = 6

# Queues a look-up of some keys, and returns it.
Ask: TypeAlias = "Callable[[list[bytes], Found], LookUp]"


class LookUpParts:
    """The parts of one look-up, and the rows of its keys. ``found`` is called once with all rows, or with an error."""

    def __init__(self, keys: list[bytes], found: Found) -> None:
        self._keys = keys
        self._found: Found | None = found
        self._rows: list[Item | None] = [None] * len(keys)
        self._missing = len(keys)
        self._left = _parts_of(keys)

    def begin(self, ask: Ask) -> list[LookUp]:
        """Asks for the first parts. Returns the requests, which then ask for the others, one part after the other."""
        lanes = [_Lane(self, part) for part in islice(self._left, PARTS_UNDER_WAY)]
        return [lane.begin(ask) for lane in lanes]

    def keys_of(self, part: list[int]) -> list[bytes]:
        """Returns the keys of a part."""
        keys = self._keys
        return [keys[number] for number in part]

    def take(self, part: list[int], rows: list[Item | None] | None, error: TailraceError | None) -> list[int] | None:
        """Takes the answer to a part. Returns the part to be asked for next; None if there is none."""
        found, all_rows = self._found, self._rows
        if found is None:  # another part has failed
            return None
        if rows is None:
            self._found = None
            found(None, error)
            return None
        for number, row in zip(part, rows, strict=True):
            all_rows[number] = row
        self._missing -= len(part)
        if not self._missing:
            self._found = None
            found(all_rows, None)
        return next(self._left, None)


class _Lane:
    """One of the requests, and the part that it asks for now."""

    def __init__(self, parts: LookUpParts, part: list[int]) -> None:
        self._parts = parts
        self._part = part
        self._request: LookUp | None = None

    def begin(self, ask: Ask) -> LookUp:
        """Asks for the first part."""
        self._request = ask(self._parts.keys_of(self._part), self._take)
        return self._request

    def _take(self, rows: list[Item | None] | None, error: TailraceError | None) -> None:
        part = self._parts.take(self._part, rows, error)
        if part is not None:
            assert self._request is not None, "an answer comes after its request"
            self._part = part
            self._request.look_up(self._parts.keys_of(part))


def _parts_of(keys: list[bytes]) -> Iterator[list[int]]:
    """Yields the numbers of the keys in parts of about one size, roughly in the order of their hashes."""
    sorted_out: list[list[int]] = [[] for _ in range(1 << _ORDER_BITS)]
    for number, hash_ in enumerate(hash_keys(keys)):
        sorted_out[hash_ >> HASH_BITS - _ORDER_BITS].append(number)
    numbers = list(chain.from_iterable(sorted_out))
    count = max(-(-len(keys) // PART_KEYS_MAX), min(PARTS_UNDER_WAY, 2 * len(keys) // DIVIDED_KEYS_MIN))
    size = -(-len(keys) // count)
    return (numbers[begin : begin + size] for begin in range(0, len(numbers), size))
