"""The plans of a feed's handle with serializers, which take and give typed keys and values. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tailrace.codec import Codec
from tailrace.model import Delete, Item, Put, Version, VersionRange
from tailrace.requests.feed_core import FeedCore
from tailrace.requests.outbox import Outbox

if TYPE_CHECKING:
    from tailrace.requests.batch import PartitionShare
    from tailrace.requests.client_core import ClientCore
    from tailrace.requests.plan import Plan
    from tailrace.serializers import Serializer


class TypedFeedCore(FeedCore):
    """A feed whose keys and values are typed. The calls for blocks, Arrow and indexes keep bytes."""

    codec: Codec

    def __init__(
        self, client: ClientCore, name: str, serializer: Serializer | None, key_serializer: Serializer | None
    ) -> None:
        """Raises TypeError if one is no `Serializer`."""
        super().__init__(client, name)
        self.codec = Codec(name, serializer, key_serializer)
        self.outbox_kind = partial(TypedOutbox, self.codec)
        self._plain = FeedCore(client, name)

    def plain(self) -> FeedCore:
        return self._plain

    def put(
        self,
        key: Any,
        value: Any,
        level: str | None,
        if_version: Version | None,
        if_absent: bool,
        ttl: int | None = None,
    ) -> Plan[Version]:
        key, value = self.codec.key_bytes(key), self.codec.value_bytes(value)
        return super().put(key, value, level, if_version, if_absent, ttl)

    def delete(self, key: Any, level: str | None, if_version: Version | None) -> Plan[Version]:
        return super().delete(self.codec.key_bytes(key), level, if_version)

    def delete_if_present(self, key: Any, level: str | None) -> Plan[Version | None]:
        return super().delete_if_present(self.codec.key_bytes(key), level)

    def write(self, changes: Sequence[Put | Delete], level: str | None) -> Plan[dict[int, VersionRange]]:
        return super().write(self.codec.changes(changes), level)

    def get(self, key: Any, level: str, at_least: Version | None) -> Plan[Item | None]:
        item = yield from self._plain.get(self.codec.key_bytes(key), level, at_least)
        return None if item is None else self.codec.item(item)

    def get_many(self, keys: Iterable[Any], level: str) -> Plan[list[Item | None]]:
        asked = [self.codec.key_bytes(key) for key in keys]
        return self.codec.items((yield from self._plain.get_many(asked, level)))


class TypedOutbox(Outbox):
    """An outbox that takes typed rows."""

    _takes_plain_rows = False

    def __init__(self, codec: Codec, *args: Any, **bounds: Any) -> None:
        super().__init__(*args, **bounds)
        self._codec = codec

    def add(self, key: Any, value: Any, ttl: int | None = None) -> None:
        """Adds a row as the base class; value None is a deletion."""
        key = self._codec.key_bytes(key)
        super().add(key, None if value is None else self._codec.value_bytes(value), ttl)

    def shares(self, changes: Sequence[Put | Delete]) -> list[PartitionShare]:
        return super().shares(self._codec.changes(changes))


def feed_core(
    client: ClientCore, name: str, serializer: Serializer | None, key_serializer: Serializer | None
) -> FeedCore:
    """Returns the core of a feed's handle. Raises TypeError if one is no `Serializer`."""
    if serializer is None and key_serializer is None:
        return FeedCore(client, name)
    return TypedFeedCore(client, name, serializer, key_serializer)
