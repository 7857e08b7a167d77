"""Rows gathered into blocks, by partition. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import add, itemgetter
from types import MappingProxyType
from typing import NamedTuple, cast

from tailrace.block import KEY_BYTES_MAX, VALUE_BYTES_MAX, Block, encode_block
from tailrace.block.header import TTL_S_MAX
from tailrace.errors import TooLarge
from tailrace.model import Delete, Put
from tailrace.model.arguments import count
from tailrace.model.hashing import hash_keys, key_hash, partition_of_hash
from tailrace.requests.plain_rows import ROW_BYTES, PlainRows

# The bytes of a ttl in a row, in a block that has some.
TTL_BYTES = 4
BLOCK_BYTES = 160


def check_key(key: bytes) -> None:
    """Raises TypeError, ValueError or TooLarge if ``key`` cannot be a key."""
    if not isinstance(key, bytes):
        hint = "; use .encode()" if isinstance(key, str) else ""
        raise TypeError(f"a key is bytes, not {type(key).__name__}{hint}")
    if not key:
        raise ValueError("a key is empty; it needs at least one byte")
    if len(key) > KEY_BYTES_MAX:
        raise TooLarge(f"a key has {len(key)} bytes, at most {KEY_BYTES_MAX} are permitted")


def check_value(value: bytes) -> None:
    """Raises TypeError or TooLarge if ``value`` cannot be a value."""
    if not isinstance(value, bytes):
        hint = "; use .encode()" if isinstance(value, str) else "; delete() is for deletions" if value is None else ""
        raise TypeError(f"a value is bytes, not {type(value).__name__}{hint}")
    if len(value) > VALUE_BYTES_MAX:
        raise TooLarge(f"a value has {len(value)} bytes, at most {VALUE_BYTES_MAX} are permitted")


def _check_row(key: bytes, value: bytes | None) -> int:
    """Returns the bytes of key and value. Raises TypeError, ValueError or TooLarge for a bad row."""
    check_key(key)
    if value is None:
        return len(key)
    check_value(value)
    return len(key) + len(value)


def _columns(changes: Sequence[Put | Delete]) -> tuple[Sequence[bytes], Sequence[bytes | None]]:
    """Keys and values of changes, checked by whole columns. Raises as ``check_key`` and ``check_value``."""
    kinds = set(map(type, changes))
    if not kinds <= {Put, Delete}:
        wrong = next(change for change in changes if type(change) not in (Put, Delete))
        raise TypeError(f"a change is a Put or a Delete, not {wrong!r}")
    values: Sequence[bytes | None]
    present: Sequence[bytes]
    keys = [change[0] for change in changes]
    if kinds == {Put}:
        values = present = [put.value for put in cast(Sequence[Put], changes)]
    else:
        values = [change[1] if type(change) is Put else None for change in changes]
        present = [change.value for change in changes if type(change) is Put]
    if set(map(type, keys)) - {bytes} or not all(keys) or len(max(keys, key=len, default=b"")) > KEY_BYTES_MAX:
        for key in keys:
            check_key(key)
    if set(map(type, present)) - {bytes} or len(max(present, key=len, default=b"")) > VALUE_BYTES_MAX:
        for value in present:
            check_value(value)
    return keys, values


# Of rows without ttls: all of them share it.
NO_TTLS: Mapping[int, int] = MappingProxyType({})


class PartitionRows(NamedTuple):
    """Rows of one partition, in columns."""

    partition: int
    keys: list[bytes]
    values: list[bytes | None]
    hashes: list[int]
    ttls: Mapping[int, int] = NO_TTLS  # in seconds, by the number of the row

    @property
    def is_whole(self) -> bool:
        """The columns have rows, and equally many. Otherwise an interrupt (Ctrl-C) has come between them."""
        return 0 < len(self.keys) == len(self.values) == len(self.hashes)

    def encode(self) -> Block:
        """Makes a block of all rows, without a producer's number yet. Raises TooLarge."""
        ttls = [self.ttls.get(row, 0) for row in range(len(self.keys))] if self.ttls else None
        return encode_block(self.keys, self.values, partition=self.partition, hashes=self.hashes, ttls=ttls)


def split(changes: Sequence[Put | Delete], partitions: int) -> list[PartitionRows]:
    """Checks changes and gives each partition's share of them, in order. Raises TypeError, ValueError or TooLarge."""
    keys, values = _columns(changes)
    hashes, ttls = hash_keys(keys), _ttls(changes)
    if partitions == 1:
        return [PartitionRows(0, list(keys), list(values), hashes, ttls)] if keys else []
    shares: dict[int, PartitionRows] = {}
    for key, value, hash_ in zip(keys, values, hashes, strict=True):
        partition = partition_of_hash(hash_, partitions)
        share = shares.get(partition)
        if share is None:
            share = shares[partition] = PartitionRows(partition, [], [], [])
        share.keys.append(key)
        share.values.append(value)
        share.hashes.append(hash_)
    if ttls:
        shares = _with_ttls(shares, hashes, ttls, partitions)
    return list(shares.values())


def _ttls(changes: Sequence[Put | Delete]) -> Mapping[int, int]:
    """Returns the ttls of changes, by the number of the change, checked. Raises TypeError or ValueError."""
    lasts = list(map(itemgetter(-1), changes))  # the last field of a Put is its ttl; that of a Delete is its key
    if lasts.count(None) == len(lasts):
        return NO_TTLS
    puts = ((row, change) for row, change in enumerate(changes) if type(change) is Put)
    return {row: count("ttl", put.ttl, 1, TTL_S_MAX) for row, put in puts if put.ttl is not None}


def _with_ttls(
    shares: dict[int, PartitionRows], hashes: Sequence[int], ttls: Mapping[int, int], partitions: int
) -> dict[int, PartitionRows]:
    """Returns the shares with the ttls, which are numbered as the changes are."""
    divided: dict[int, dict[int, int]] = {partition: {} for partition in shares}
    rows = dict.fromkeys(shares, 0)
    for number, hash_ in enumerate(hashes):
        partition = partition_of_hash(hash_, partitions)
        if number in ttls:
            divided[partition][rows[partition]] = ttls[number]
        rows[partition] += 1
    return {partition: share._replace(ttls=divided[partition]) for partition, share in shares.items()}


class PartitionShare:
    """Rows of one partition that are added to a batch part by part; those before ``taken`` have been."""

    __slots__ = ("_ends", "nbytes", "rows", "taken")

    def __init__(self, rows: PartitionRows) -> None:
        self.rows = rows
        self.taken = 0
        self.nbytes = sum(map(len, rows.keys)) + sum(map(len, filter(None, rows.values)))
        self._ends: list[int] = []  # bytes before each row, and of all; made when the rows have to be divided

    @property
    def is_taken(self) -> bool:
        """Every row has been taken."""
        return self.taken == len(self.rows.keys)

    def nbytes_of(self, begin: int, end: int) -> int:
        """Returns the bytes of keys and values of rows ``begin`` to ``end``, the last one excluded."""
        if not self._ends:
            values = (0 if value is None else len(value) for value in self.rows.values)
            self._ends += accumulate(map(add, map(len, self.rows.keys), values), initial=0)
        return self._ends[end] - self._ends[begin]

    def end_of(self, nbytes: int, rows: int, cost: int) -> int:
        """Returns the end of the part that begins at ``taken``.

        Its last row is the first one with which the part has ``nbytes`` bytes, or ``rows`` rows, or costs ``cost``
        bytes, which counts ROW_BYTES for each row as well.
        """
        begin = self.taken
        last = min(begin + rows, len(self.rows.keys))
        of_last = self.nbytes_of(begin, last)
        if of_last < nbytes and of_last + (last - begin) * ROW_BYTES < cost:
            return last
        ends = self._ends
        candidates = range(begin + 1, last)
        first_full = bisect_left(candidates, nbytes, key=lambda end: ends[end] - ends[begin])
        costs = bisect_left(candidates, cost, key=lambda end: ends[end] - ends[begin] + (end - begin) * ROW_BYTES)
        return begin + 1 + min(first_full, costs)


class _Batch:
    """Rows of a partition. If it is the only one, rows that were added one by one have no hashes yet."""

    __slots__ = ("hashes", "keys", "nbytes", "ttl_bytes", "ttls", "values")

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.values: list[bytes | None] = []
        self.hashes: list[int] = []
        self.nbytes = 0  # of keys and values
        self.ttls: dict[int, int] = {}  # by the number of the row
        self.ttl_bytes = 0  # of the column of ttls

    def find_hashes(self) -> None:
        """Adds the hashes of the rows that have none."""
        if len(self.hashes) < len(self.keys):
            self.hashes += hash_keys(self.keys[len(self.hashes) :] if self.hashes else self.keys)


class Batches:
    """The rows of each partition that wait for a block of their own.

    A batch is full at ``bytes_max`` bytes of keys and values, or at ``rows_max`` rows. ``nbytes`` is at least the size
    of the blocks that all rows would make now; plain rows are in it once `count` was called.
    """

    def __init__(self, partitions: int, bytes_max: int, rows_max: int) -> None:
        self._partitions = partitions
        self._bytes_max = bytes_max
        self._rows_max = rows_max
        self._batches: dict[int, _Batch] = {}
        self._plain: PlainRows | None = None  # of the only partition's batch
        self.nbytes = 0

    def add(self, key: bytes, value: bytes | None, ttl: int | None = None) -> int | None:
        """Adds a row. Returns its partition if the batch is full now, else None.

        Raises TypeError, ValueError or TooLarge for a bad row; nothing is added then.
        """
        # Most rows are puts of plain bytes: a call for each check would take longer than the check.
        if type(key) is type(value) is bytes and 0 < len(key) <= KEY_BYTES_MAX and len(value) <= VALUE_BYTES_MAX:
            nbytes = len(key) + len(value)
        else:
            nbytes = _check_row(key, value)
        if ttl is not None:
            ttl = count("ttl", ttl, 1, TTL_S_MAX)
        if self._partitions == 1:
            self._end_plain()
            partition = 0  # the hashes are found for all rows together
            batch = self._batches.get(0) or self._begin(0)
        else:
            hash_ = key_hash(key)
            partition = partition_of_hash(hash_, self._partitions)
            batch = self._batches.get(partition) or self._begin(partition)
            batch.hashes.append(hash_)
        batch.keys.append(key)
        batch.values.append(value)
        batch.nbytes += nbytes
        self.nbytes += nbytes + ROW_BYTES
        if ttl is not None:
            batch.ttls[len(batch.keys) - 1] = ttl
        if batch.ttls:
            self._count_ttls(batch)
        return partition if batch.nbytes >= self._bytes_max or len(batch.keys) >= self._rows_max else None

    def plain(self, nbytes_max: int) -> PlainRows | None:
        """Lets plain rows be added to the only batch, while it is not full and ``nbytes`` is at most ``nbytes_max``.

        Returns None if there is no such batch, or no room. A later call of any method but `count` ends this.
        """
        batch = self._batches.get(0)
        if self._partitions > 1 or batch is None or batch.ttls:
            return None
        self._end_plain()
        rows_left = self._rows_max - 1 - len(batch.keys)
        budget = min(
            self._bytes_max - 1 - batch.nbytes,
            nbytes_max - self.nbytes,
            rows_left * (ROW_BYTES + 1),  # the shortest row has a key of one byte
            VALUE_BYTES_MAX,
        )
        self._plain = PlainRows(batch.keys, batch.values, budget) if budget > 0 else None
        return self._plain

    def count(self) -> None:
        """Counts the plain rows that were added."""
        if self._plain is not None:
            rows, nbytes = self._plain.count()
            self._batches[0].nbytes += nbytes - rows * ROW_BYTES
            self.nbytes += nbytes

    def _end_plain(self) -> None:
        """Counts the plain rows, before a row that is none of them."""
        self.count()
        self._plain = None

    def extend(self, share: PartitionShare, nbytes_max: int) -> bool:
        """Adds rows of ``share`` until the batch is full or ``nbytes`` has reached ``nbytes_max``, but one at least.

        Returns whether the batch is full now.
        """
        self._end_plain()
        rows = share.rows
        batch = self._batches.get(rows.partition) or self._begin(rows.partition)
        batch.find_hashes()
        rows_added, nbytes = len(rows.keys), share.nbytes
        rows_left = self._rows_max - len(batch.keys)
        bytes_left, room = self._bytes_max - batch.nbytes, nbytes_max - self.nbytes
        if (
            not share.taken
            and rows_added <= rows_left
            and nbytes < bytes_left
            and nbytes + rows_added * ROW_BYTES < room
        ):
            share.taken = rows_added
            batch.keys += rows.keys
            batch.values += rows.values
            batch.hashes += rows.hashes
            begin = 0
        else:
            begin = share.taken
            end = share.taken = share.end_of(bytes_left, max(rows_left, 1), room)
            batch.keys += rows.keys[begin:end]
            batch.values += rows.values[begin:end]
            batch.hashes += rows.hashes[begin:end]
            rows_added, nbytes = end - begin, share.nbytes_of(begin, end)
        batch.nbytes += nbytes
        self.nbytes += nbytes + rows_added * ROW_BYTES
        if rows.ttls or batch.ttls:
            first = len(batch.keys) - rows_added - begin
            batch.ttls.update((first + row, ttl) for row, ttl in rows.ttls.items() if 0 <= row - begin < rows_added)
            self._count_ttls(batch)
        return batch.nbytes >= self._bytes_max or len(batch.keys) >= self._rows_max

    def _count_ttls(self, batch: _Batch) -> None:
        """Adds the column of ttls, which all rows of a batch have if one has a ttl."""
        before, batch.ttl_bytes = batch.ttl_bytes, TTL_BYTES * len(batch.keys) if batch.ttls else 0
        self.nbytes += batch.ttl_bytes - before

    def _begin(self, partition: int) -> _Batch:
        batch = self._batches[partition] = _Batch()
        self.nbytes += BLOCK_BYTES
        return batch

    @property
    def partitions(self) -> list[int]:
        """The partitions that have rows here."""
        return list(self._batches)

    @property
    def largest(self) -> int:
        """The partition with the most bytes. There has to be one with rows."""
        return max(self._batches, key=lambda partition: self._batches[partition].nbytes)

    def take(self, partition: int) -> PartitionRows:
        """Removes and returns the rows of a partition that has some."""
        self._end_plain()
        batch = self._batches.pop(partition)
        batch.find_hashes()
        self.nbytes -= batch.nbytes + len(batch.keys) * ROW_BYTES + BLOCK_BYTES + batch.ttl_bytes
        return PartitionRows(partition, batch.keys, batch.values, batch.hashes, batch.ttls)
