"""The nouns that users, the wire and the server share: plain immutable values. Pure."""

from tailrace.model.failover import BRANCH_BYTES
from tailrace.model.values import (
    FEED_ID_BYTES,
    Delete,
    EndReason,
    FeedInfo,
    Item,
    Level,
    Mutation,
    NodeStatus,
    PartitionInfo,
    Put,
    Resolved,
    TokenInfo,
    Version,
    VersionRange,
)

__all__ = [
    "BRANCH_BYTES",
    "FEED_ID_BYTES",
    "Delete",
    "EndReason",
    "FeedInfo",
    "Item",
    "Level",
    "Mutation",
    "NodeStatus",
    "PartitionInfo",
    "Put",
    "Resolved",
    "TokenInfo",
    "Version",
    "VersionRange",
]
