"""Rows gathered into blocks, by partition. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from tailrace.block import KEY_BYTES_MAX, VALUE_BYTES_MAX, Block, encode_block
from tailrace.errors import TooLarge
from tailrace.hashing import hash_keys, key_hash, partition_of_hash
from tailrace.model import Delete, Put


def check_key(key: bytes) -> None:
    """Raises TypeError, ValueError or TooLarge for what cannot be a key."""
    if not isinstance(key, bytes):
        hint = "; use .encode()" if isinstance(key, str) else ""
        raise TypeError(f"a key is bytes, not {type(key).__name__}{hint}")
    if not key:
        raise ValueError("a key is empty; it needs at least one byte")
    if len(key) > KEY_BYTES_MAX:
        raise TooLarge(f"a key has {len(key)} bytes, at most {KEY_BYTES_MAX} are permitted")


def check_value(value: bytes) -> None:
    """Raises TypeError or TooLarge for what cannot be a value."""
    if not isinstance(value, bytes):
        hint = "; use .encode()" if isinstance(value, str) else "; delete() is for deletions" if value is None else ""
        raise TypeError(f"a value is bytes, not {type(value).__name__}{hint}")
    if len(value) > VALUE_BYTES_MAX:
        raise TooLarge(f"a value has {len(value)} bytes, at most {VALUE_BYTES_MAX} are permitted")


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


class Ready(NamedTuple):
    """Rows for one block of ``partition``."""

    partition: int
    keys: list[bytes]
    values: list[bytes | None]
    hashes: list[int]

    def encode(self) -> Block:
        """The block, without a producer's number yet."""
        return encode_block(self.keys, self.values, partition=self.partition, hashes=self.hashes)


class _Rows:
    __slots__ = ("hashes", "keys", "nbytes", "values")

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.values: list[bytes | None] = []
        self.hashes: list[int] = []
        self.nbytes = 0


class Batches:
    """The batch of each partition; one is ready at ``bytes_max`` bytes of keys and values, or ``rows_max`` rows."""

    def __init__(self, partitions: int, bytes_max: int, rows_max: int) -> None:
        self._partitions = partitions
        self._bytes_max = bytes_max
        self._rows_max = rows_max
        self._rows: dict[int, _Rows] = {}

    def add(self, key: bytes, value: bytes | None) -> Ready | None:
        """Adds a row; the batch that is ready with it. Raises TypeError, ValueError or TooLarge; nothing is added."""
        check_key(key)
        if value is not None:
            check_value(value)
        hash_ = key_hash(key)
        return self._append(partition_of_hash(hash_, self._partitions), key, value, hash_)

    def add_all(self, changes: Sequence[Put | Delete]) -> list[Ready]:
        """Adds many rows; the batches that are ready with them. Nothing is added where one of them is bad."""
        keys, values = _columns(changes)
        hashes = hash_keys(keys)
        ready: list[Ready] = []
        if self._partitions == 1:
            if keys:
                self._extend(0, keys, values, hashes, ready)
            return ready
        split: dict[int, _Rows] = {}
        for key, value, hash_ in zip(keys, values, hashes, strict=True):
            partition = partition_of_hash(hash_, self._partitions)
            rows = split.get(partition)
            if rows is None:
                rows = split[partition] = _Rows()
            rows.keys.append(key)
            rows.values.append(value)
            rows.hashes.append(hash_)
        for partition, rows in split.items():
            self._extend(partition, rows.keys, rows.values, rows.hashes, ready)
        return ready

    def _extend(
        self,
        partition: int,
        keys: Sequence[bytes],
        values: Sequence[bytes | None],
        hashes: list[int],
        ready: list[Ready],
    ) -> None:
        """Adds checked rows of one partition: at once where they fit into its batch, else one by one."""
        rows = self._rows.get(partition)
        if rows is None:
            rows = self._rows[partition] = _Rows()
        nbytes = sum(map(len, keys)) + sum(map(len, filter(None, values)))
        if rows.nbytes + nbytes <= self._bytes_max and len(rows.keys) + len(keys) <= self._rows_max:
            rows.keys += keys
            rows.values += values
            rows.hashes += hashes
            rows.nbytes += nbytes
            if self._is_full(rows):
                ready.append(self._take(partition))
            return
        for key, value, hash_ in zip(keys, values, hashes, strict=True):
            batch = self._append(partition, key, value, hash_)
            if batch is not None:
                ready.append(batch)

    def _append(self, partition: int, key: bytes, value: bytes | None, hash_: int) -> Ready | None:
        rows = self._rows.get(partition)
        if rows is None:
            rows = self._rows[partition] = _Rows()
        rows.keys.append(key)
        rows.values.append(value)
        rows.hashes.append(hash_)
        rows.nbytes += len(key) + (len(value) if value is not None else 0)
        return self._take(partition) if self._is_full(rows) else None

    def _is_full(self, rows: _Rows) -> bool:
        return rows.nbytes >= self._bytes_max or len(rows.keys) >= self._rows_max

    def take_all(self) -> list[Ready]:
        """All batches, whatever their size."""
        return [self._take(partition) for partition in list(self._rows)]

    def _take(self, partition: int) -> Ready:
        rows = self._rows.pop(partition)
        return Ready(partition, rows.keys, rows.values, rows.hashes)
