"""Tailrace: a changefeed service. This is the client: write to feeds, follow them, keep indexes equal to them.

    async with tailrace.connect("tailrace://127.0.0.1:4700") as client:
        orders = await client.create_feed("orders")
        await orders.put(b"k", b"v")
        async with orders.consume() as stream:
            async for event in stream: ...

``tailrace.asyncio`` has the same names for asyncio, and ``tailrace.blocking`` for programs without async.

Where to begin reading: ``trio.client`` and ``trio.feed`` are what users call; ``link``, ``requests`` and ``consuming``
hold the protocol's state, without any I/O; ``model``, ``wire`` and ``block`` are values and bytes.
"""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tailrace._version import __version__
from tailrace.consuming.events import (
    Assigned,
    CaughtUp,
    Event,
    Mutations,
    Revoked,
    Rollback,
    RoundComplete,
    SnapshotEnd,
    SnapshotStart,
)
from tailrace.consuming.partition import PartitionStatus
from tailrace.errors import (
    BadBlock,
    BadCopy,
    BadPosition,
    BadSegment,
    BadValue,
    BatchBehind,
    BatchChanged,
    DataGone,
    FeedExists,
    Forbidden,
    IncompleteCopy,
    NoSpace,
    NotDurable,
    NotLeader,
    NotOwner,
    OutcomeUnknown,
    Overloaded,
    ProtocolError,
    Retryable,
    StreamEnded,
    TailraceError,
    TooLarge,
    UnknownCheckpoint,
    UnknownFeed,
    UnknownStage,
    Unreachable,
    VersionConflict,
    VersionLost,
    WritesLost,
    WrongProcess,
)
from tailrace.model import (
    CatchUpMode,
    Delete,
    EndReason,
    FeedInfo,
    Item,
    LevelName,
    Mutation,
    NodeState,
    NodeStatus,
    OnDataGone,
    OnRollback,
    PartitionInfo,
    PartitionRole,
    Put,
    ReplicationMode,
    Retention,
    SealLevel,
    StreamState,
    TokenInfo,
    TokenRole,
    Version,
    VersionRange,
)
from tailrace.model.position import Position, Positions
from tailrace.requests.staging import Published, SealedStage
from tailrace.trio.client import Client, connect
from tailrace.trio.feed import Feed
from tailrace.trio.stage import Stage
from tailrace.trio.stream import Stream
from tailrace.trio.writer import Writer

if TYPE_CHECKING:
    from tailrace import asyncio as asyncio
    from tailrace import blocking, indexes
    from tailrace.consuming.explain import Explanation, Outcome
    from tailrace.consuming.stream_status import StreamStatus, WaitsFor
    from tailrace.copies.fetch import Fetched, FetchedPartition
    from tailrace.copies.layout import PartitionCopy, SegmentCopy
    from tailrace.copies.reader import SegmentReader
    from tailrace.indexes.checkpoint import Checkpoint
    from tailrace.serializers import (
        AvroSerializer,
        BytesSerializer,
        JSONSerializer,
        MsgPackSerializer,
        Serializer,
    )
    from tailrace.trio.follower import Follower

__all__ = [
    "Assigned",
    "AvroSerializer",
    "BadBlock",
    "BadCopy",
    "BadPosition",
    "BadSegment",
    "BadValue",
    "BatchBehind",
    "BatchChanged",
    "BytesSerializer",
    "CatchUpMode",
    "CaughtUp",
    "Checkpoint",
    "Client",
    "DataGone",
    "Delete",
    "EndReason",
    "Event",
    "Explanation",
    "Feed",
    "FeedExists",
    "FeedInfo",
    "Fetched",
    "FetchedPartition",
    "Follower",
    "Forbidden",
    "IncompleteCopy",
    "Item",
    "JSONSerializer",
    "LevelName",
    "MsgPackSerializer",
    "Mutation",
    "Mutations",
    "NoSpace",
    "NodeState",
    "NodeStatus",
    "NotDurable",
    "NotLeader",
    "NotOwner",
    "OnDataGone",
    "OnRollback",
    "Outcome",
    "OutcomeUnknown",
    "Overloaded",
    "PartitionCopy",
    "PartitionInfo",
    "PartitionRole",
    "PartitionStatus",
    "Position",
    "Positions",
    "ProtocolError",
    "Published",
    "Put",
    "ReplicationMode",
    "Retention",
    "Retryable",
    "Revoked",
    "Rollback",
    "RoundComplete",
    "SealLevel",
    "SealedStage",
    "SegmentCopy",
    "SegmentReader",
    "Serializer",
    "SnapshotEnd",
    "SnapshotStart",
    "Stage",
    "Stream",
    "StreamEnded",
    "StreamState",
    "StreamStatus",
    "TailraceError",
    "TokenInfo",
    "TokenRole",
    "TooLarge",
    "UnknownCheckpoint",
    "UnknownFeed",
    "UnknownStage",
    "Unreachable",
    "Version",
    "VersionConflict",
    "VersionLost",
    "VersionRange",
    "WaitsFor",
    "Writer",
    "WritesLost",
    "WrongProcess",
    "__version__",
    "blocking",
    "connect",
    "indexes",
]

# A program that sets up no logging gets none of ours; not even warnings on stderr.
logging.getLogger("tailrace").addHandler(logging.NullHandler())

# What most programs do not need, by name: the module that has it.
_LATER = {
    "Checkpoint": "tailrace.indexes.checkpoint",
    "Explanation": "tailrace.consuming.explain",
    "Fetched": "tailrace.copies.fetch",
    "FetchedPartition": "tailrace.copies.fetch",
    "Follower": "tailrace.trio.follower",
    "Outcome": "tailrace.consuming.explain",
    "PartitionCopy": "tailrace.copies.layout",
    "SegmentCopy": "tailrace.copies.layout",
    "SegmentReader": "tailrace.copies.reader",
    "StreamStatus": "tailrace.consuming.stream_status",
    "AvroSerializer": "tailrace.serializers",
    "BytesSerializer": "tailrace.serializers",
    "JSONSerializer": "tailrace.serializers",
    "MsgPackSerializer": "tailrace.serializers",
    "Serializer": "tailrace.serializers",
    "WaitsFor": "tailrace.consuming.stream_status",
}

# Packages that most programs do not need. ``__all__`` has no ``asyncio``, which would hide Python's own.
_PACKAGES = ("asyncio", "blocking", "indexes")

if not TYPE_CHECKING:  # a type checker would take each name for one of this package

    def __getattr__(name: str) -> Any:
        """Loads a name of `_LATER` or `_PACKAGES` when it is first used."""
        if name in _PACKAGES:
            return import_module(f"tailrace.{name}")
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        globals()[name] = found = getattr(import_module(_LATER[name]), name)
        return found

    def __dir__() -> list[str]:
        """Names those too that are not loaded yet."""
        return sorted({*globals(), *__all__, *_PACKAGES})
