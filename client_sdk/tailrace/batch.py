"""Rows gathered into blocks, by partition. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tailrace.block import KEY_BYTES_MAX, VALUE_BYTES_MAX, Block, encode_block
from tailrace.errors import TooLarge
from tailrace.hashing import key_hash, partition_of_hash
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
        size = len(key)
        if value is not None:
            check_value(value)
            size += len(value)
        hash_ = key_hash(key)
        partition = partition_of_hash(hash_, self._partitions)
        rows = self._rows.get(partition)
        if rows is None:
            rows = self._rows[partition] = _Rows()
        rows.keys.append(key)
        rows.values.append(value)
        rows.hashes.append(hash_)
        rows.nbytes += size
        if rows.nbytes >= self._bytes_max or len(rows.keys) >= self._rows_max:
            return self._take(partition)
        return None

    def add_all(self, changes: Sequence[Put | Delete]) -> list[Ready]:
        """Adds many rows; the batches that are ready with them. Nothing is added where one of them is bad."""
        for change in changes:
            check_key(change[0])
            if len(change) == 2:
                check_value(change[1])
            elif not isinstance(change, Delete):
                raise TypeError(f"a change is a Put or a Delete, not {change!r}")
        ready = []
        for change in changes:
            batch = self.add(change[0], change[1] if len(change) == 2 else None)
            if batch is not None:
                ready.append(batch)
        return ready

    def take_all(self) -> list[Ready]:
        """All batches, whatever their size."""
        return [self._take(partition) for partition in list(self._rows)]

    def _take(self, partition: int) -> Ready:
        rows = self._rows.pop(partition)
        return Ready(partition, rows.keys, rows.values, rows.hashes)
