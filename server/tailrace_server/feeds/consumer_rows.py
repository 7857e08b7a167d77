"""The rows of named consumers and groups in ``_feeds``, so that members, promotions and backups keep them like feeds.

key      ``consumer/``, "n" (a name) or "g" (a group), the feed's id of 16 bytes, the partition (u32, big-endian), and
         the name in UTF-8
value    JSON: generation, owner (a member's id in hex, "" for none), position, committed_us; a deletion: forgotten

A position is null, or [seq, snapshot_first, snapshot_last, purge_seq, failover log].
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from tailrace.model import FEED_ID_BYTES
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position
from tailrace.wire.consumer_messages import ConsumerId

CONSUMER_PREFIX = b"consumer/"
_KINDS = {b"n": "name", b"g": "group"}
_CODES = {kind: code for code, kind in _KINDS.items()}
_PARTITION = struct.Struct(">I")
_NAME_AT = len(CONSUMER_PREFIX) + 1 + FEED_ID_BYTES + _PARTITION.size


class OwnedPartition(NamedTuple):
    """The owner of a partition, its generation, and the position that was committed last.

    ``owner``: the id of a member; b"" if none owns it. ``generation`` grows with each change of the owner.
    """

    generation: int
    owner: bytes
    position: Position | None
    committed_us: int


def row_key(consumer: ConsumerId, partition: int) -> bytes:
    """Returns the key of the row of a partition."""
    code = _CODES[consumer.kind]
    return CONSUMER_PREFIX + code + consumer.feed_id + _PARTITION.pack(partition) + consumer.name.encode()


def row_value(owned: OwnedPartition) -> bytes:
    """Returns the value of the row of a partition."""
    position, told = owned.position, None
    if position is not None:
        _, seq, first, last, purge_seq, log = position
        told = [seq, first, last, purge_seq, log.to_json()]
    value = {
        "generation": owned.generation,
        "owner": owned.owner.hex(),
        "position": told,
        "committed_us": owned.committed_us,
    }
    return json.dumps(value, separators=(",", ":")).encode()


def _owned(value: bytes) -> OwnedPartition:
    told: dict[str, Any] = json.loads(value)
    position = None
    if told["position"] is not None:
        seq, first, last, purge_seq, log = told["position"]
        position = Position.at(FailoverLog.from_json(log), seq, first, last, purge_seq)
    return OwnedPartition(told["generation"], bytes.fromhex(told["owner"]), position, told["committed_us"])


class ConsumerRows:
    """The named consumers and groups by the rows of ``_feeds`` that were read. `feed_rows.FeedRows` owns it."""

    def __init__(self) -> None:
        self._partitions: dict[ConsumerId, dict[int, OwnedPartition]] = {}
        self._count = 0  # Invariant: of the partitions of all

    def __iter__(self) -> Iterator[ConsumerId]:
        return iter(self._partitions)

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def partition_count(self) -> int:
        """The number of partitions of all consumers and groups together."""
        return self._count

    def of(self, consumer: ConsumerId) -> Mapping[int, OwnedPartition]:
        """Returns the partitions of a consumer or a group; none if it is not known."""
        return self._partitions.get(consumer, {})

    def take(self, key: bytes, value: bytes | None) -> None:
        """Takes a row. Those of kinds that this version does not know are left alone."""
        kind = _KINDS.get(key[len(CONSUMER_PREFIX) : len(CONSUMER_PREFIX) + 1])
        if kind is None or len(key) <= _NAME_AT:
            return
        feed_id = key[len(CONSUMER_PREFIX) + 1 : _NAME_AT - _PARTITION.size]
        (partition,) = _PARTITION.unpack_from(key, _NAME_AT - _PARTITION.size)
        consumer = ConsumerId(feed_id, kind, key[_NAME_AT:].decode())
        known = self._partitions.get(consumer, {})
        self._count -= partition in known
        if value is None:
            known.pop(partition, None)
            if not known:
                self._partitions.pop(consumer, None)
            return
        self._partitions.setdefault(consumer, known)[partition] = _owned(value)
        self._count += 1

    def clear(self) -> None:
        """Forgets all rows; they are read again."""
        self._partitions.clear()
        self._count = 0
