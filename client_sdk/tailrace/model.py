"""The nouns that users, the wire and the server share. Plain immutable values; nothing here does I/O."""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

BRANCH_BYTES = 16
FEED_ID_BYTES = 16


class Level(enum.IntEnum):
    """How safe a write is when it is acknowledged, and how safe it has to be before a stream shows it."""

    MEMORY = 0
    DISK = 1
    QUORUM = 2

    @classmethod
    def parse(cls, text: str) -> Level:
        """``"memory"``, ``"disk"`` or ``"quorum"``; ValueError otherwise."""
        try:
            return cls[text.upper()]
        except KeyError:
            raise ValueError(f"level {text!r} is none of 'memory', 'disk', 'quorum'") from None


class EndReason(enum.Enum):
    """Why a stream of a partition ended. The value is its name on the wire."""

    END_REACHED = "end_reached"
    CLOSED = "closed"
    NOT_MY_PARTITION = "not_my_partition"
    WRONG_STATE = "wrong_state"
    HISTORY_CHANGED = "history_changed"
    ROLLED_BACK = "rolled_back"
    BEHIND = "behind"
    PURGED = "purged"
    TRIMMED = "trimmed"
    DRAINING = "draining"
    TOO_SLOW = "too_slow"
    FORBIDDEN = "forbidden"
    FEED_DROPPED = "feed_dropped"
    ERROR = "error"


class Put(NamedTuple):
    """A change: ``key`` now has ``value``."""

    key: bytes
    value: bytes


class Delete(NamedTuple):
    """A change: ``key`` is gone."""

    key: bytes


class Mutation(NamedTuple):
    """A change as a stream delivers it; ``value`` is None where ``deleted``.

    Timestamps are microseconds since 1970 UTC, here and everywhere.
    """

    key: bytes
    value: bytes | None
    seq: int
    timestamp: int
    deleted: bool


class Version(NamedTuple):
    """Names one mutation for ever: a partition, a branch (16 bytes) of its history, and a sequence number."""

    partition: int
    branch: bytes
    seq: int


class VersionRange(NamedTuple):
    """The versions that one block of changes got: ``first_seq`` to ``last_seq``, both included."""

    partition: int
    branch: bytes
    first_seq: int
    last_seq: int


class Item(NamedTuple):
    """The present value of a key."""

    key: bytes
    value: bytes
    version: Version
    timestamp: int


class PartitionInfo(NamedTuple):
    """A partition of a feed: owns the key hashes from ``hash_first`` to ``hash_last``, both included."""

    id: int
    hash_first: int
    hash_last: int
    state: str
    term: int
    leader: str
    replicas: tuple[str, ...]
    high_seq: int
    durable_seq: int


class FeedInfo(NamedTuple):
    """A feed, as ``client.feeds()`` lists it. ``feed_id`` (16 bytes) is random, new at each creation."""

    name: str
    feed_id: bytes
    partitions: int
    keyspace: str
    retention: str
    history_age_s: float | None
    history_bytes: int | None
    tombstone_age_s: float
    replication: str


class Resolved(NamedTuple):
    """What a client has to know of a feed to write to it."""

    feed_id: bytes
    partitions: int


class NodeStatus(NamedTuple):
    """A node, as it describes itself. ``details`` is the whole of it, as ``/api/status`` gives it."""

    software: str
    node_id: bytes
    cluster_id: bytes
    healthy: bool
    uptime_s: float
    details: dict[str, Any]
