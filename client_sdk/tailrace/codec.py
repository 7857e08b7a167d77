"""Typed keys and values of a feed's handle, by its serializers: in writes, look-ups, items and events. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tailrace.errors import BadValue
from tailrace.model import Delete, Item, Mutation, Put
from tailrace.serializers import Serializer


class Codec:
    """Makes bytes of the keys and values of one feed, and keys and values of bytes.

    It is immutable, and any thread may use it.
    """

    def __init__(self, feed: str, serializer: Serializer | None, key_serializer: Serializer | None) -> None:
        """Takes the name of the feed, for messages. Raises TypeError if one is no `Serializer`."""
        self._feed = feed
        self._values = _required("serializer", serializer)
        self._keys = _required("key_serializer", key_serializer)

    # To bytes

    def key_bytes(self, key: Any) -> bytes:
        """Returns a key as bytes. Raises ValueError of the serializer."""
        return key if self._keys is None else self._keys.dumps(key)

    def value_bytes(self, value: Any) -> bytes:
        """Returns a value as bytes. Raises ValueError of the serializer, and TypeError for None."""
        if value is None:
            raise TypeError("a value is None, which stands for a deletion: use delete, or another value for nothing")
        return value if self._values is None else self._values.dumps(value)

    def changes(self, changes: Iterable[Put | Delete]) -> list[Put | Delete]:
        """Returns changes with bytes."""
        made: list[Put | Delete] = []
        for change in changes:
            key = self.key_bytes(change.key)
            if isinstance(change, Put):
                made.append(change._replace(key=key, value=self.value_bytes(change.value)))
            else:
                made.append(change._replace(key=key))
        return made

    # From bytes

    def key(self, key: bytes, partition: int, seq: int) -> Any:
        """Returns a typed key. Raises BadValue."""
        if self._keys is None:
            return key
        try:
            return self._keys.loads(key)
        except Exception as error:  # a serializer of a program raises the errors of its library
            raise self._bad("key", self._keys, key, partition, seq, error) from error

    def value(self, value: bytes, key: bytes, partition: int, seq: int) -> Any:
        """Returns a typed value. Raises BadValue."""
        if self._values is None:
            return value
        try:
            return self._values.loads(value)
        except Exception as error:  # a serializer of a program raises the errors of its library
            raise self._bad("value", self._values, key, partition, seq, error) from error

    def item(self, item: Item) -> Item:
        """Returns an item with a typed key and value. Raises BadValue."""
        key, value, version, timestamp = item
        place = version.partition, version.seq
        return Item(self.key(key, *place), self.value(value, key, *place), version, timestamp)

    def items(self, items: Iterable[Item | None]) -> list[Item | None]:
        """Returns the answers of a look-up, typed. Raises BadValue."""
        return [None if item is None else self.item(item) for item in items]

    def mutation(self, mutation: Mutation, partition: int) -> Mutation:
        """Returns a mutation with a typed key and value, of the same class. Raises BadValue."""
        key, value, seq, *others = mutation
        typed = None if value is None else self.value(value, key, partition, seq)
        return tuple.__new__(type(mutation), (self.key(key, partition, seq), typed, seq, *others))

    def known_keys(self, keys: Iterable[bytes]) -> tuple[Any, ...]:
        """Returns typed keys. One that the serializer cannot read stays bytes: its row was a BadValue, too."""
        return tuple([self._or_bytes(key) for key in keys])

    def _or_bytes(self, key: bytes) -> Any:
        try:
            return self.key(key, 0, 0)
        except BadValue:
            return key

    def _bad(
        self, what: str, serializer: Serializer, key: bytes, partition: int, seq: int, error: Exception
    ) -> BadValue:
        return BadValue(
            f"the {what} of the row with the key {key[:60]!r} at seq {seq} of partition {partition} of feed "
            f"{self._feed!r} cannot be read as {serializer.name}: {_said(error)}. Write the key again, or read the "
            "feed by a handle without a serializer",
            partition=partition,
            seq=seq,
            key=key,
        )


def _required(what: str, serializer: Serializer | None) -> Serializer | None:
    if serializer is not None and not isinstance(serializer, Serializer):
        raise TypeError(
            f"{what} is {serializer!r}, and has to be a tailrace.Serializer: an object with name, dumps and loads"
        )
    return serializer


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, ValueError) else repr(error)
