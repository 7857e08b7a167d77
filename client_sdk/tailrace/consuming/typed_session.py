"""The session of a consumer whose feed has serializers: it gives typed rows. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any

from tailrace.consuming.events import Event, Mutations, Rollback
from tailrace.consuming.named_session import NamedSession
from tailrace.consuming.session import ConsumerSession

if TYPE_CHECKING:
    from tailrace.codec import Codec
    from tailrace.consuming.events import ReplicaEvent
    from tailrace.errors import DataGone
    from tailrace.model import Mutation


class TypedMutations(Mutations):
    """`tailrace.Mutations` with typed keys and values. ``block`` and ``to_arrow()`` have bytes.

    Attributes:
        raw: The same mutations as bytes, for a row that the serializer cannot read.
    """

    __slots__ = ("_codec", "raw")

    def __init__(self, raw: Mutations, codec: Codec) -> None:
        for name in Mutations.__slots__:
            setattr(self, name, getattr(raw, name))
        self.raw = raw
        self._codec = codec

    def __iter__(self) -> Iterator[Mutation]:
        mutation, partition = self._codec.mutation, self.partition
        return map(mutation, self.raw, repeat(partition))

    def one_by_one(self) -> Iterator[Mutation]:
        mutation, partition = self._codec.mutation, self.partition
        return map(mutation, self.raw.one_by_one(), repeat(partition))

    def keys(self) -> list[Any]:
        key, partition = self._codec.key, self.partition
        return [key(one, partition, seq) for one, seq in zip(self.raw.keys(), self.raw.seqs(), strict=True)]

    def values(self) -> list[Any]:
        value, partition, raw = self._codec.value, self.partition, self.raw
        rows = zip(raw.values(), raw.keys(), raw.seqs(), strict=True)
        return [None if one is None else value(one, key, partition, seq) for one, key, seq in rows]

    def _rows(self, first_row: int, stop_row: int | None) -> Mutations:
        return TypedMutations(self.raw._rows(first_row, stop_row), self._codec)


class TypedSession(ConsumerSession):
    """A session that gives typed rows. Its queue and its rings hold bytes."""

    def next_event(self) -> Event | ReplicaEvent | DataGone | None:
        event: Event | ReplicaEvent | DataGone | None = self._typed(super().next_event())
        return event

    def take_together(self, rows_max: int) -> list[Event]:
        return [self._typed(event) for event in super().take_together(rows_max)]

    def _typed(self, event: Any) -> Any:
        codec = self._subscription.codec
        assert codec is not None, "the feed has serializers"
        if isinstance(event, Mutations):
            return TypedMutations(event, codec)
        if isinstance(event, Rollback) and event.keys is not None:
            return event._replace(keys=codec.known_keys(event.keys))
        return event


class TypedNamedSession(TypedSession, NamedSession):
    """The session of a consumer with a name or in a group, that gives typed rows."""
