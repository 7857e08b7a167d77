"""The connection that the feeds of a replica share, as the streams of one feed see it."""

from __future__ import annotations

from typing import Protocol, TypeVar

_Streams = TypeVar("_Streams", contravariant=True)


class ReplicaConnection(Protocol[_Streams]):
    """The connection that the feeds share. ``_Streams`` are those of one feed (`replica.ReplicaStreams`)."""

    def new_id(self, streams: _Streams) -> int:
        """Returns the id of a request whose answer goes to ``streams``."""
        ...

    def forget(self, id: int) -> None:
        """Drops further frames of this id."""
        ...

    def is_due(self, streams: _Streams, at: float | None) -> None:
        """Notes that ``streams`` has frames to send at ``at``, in monotonic seconds; None: now."""
        ...

    def send(self, frame: bytes) -> None:
        """Queues a frame."""
        ...

    def consumed(self, nbytes: int) -> None:
        """Notes the bytes of blocks that were handled."""
        ...

    @property
    def retries(self) -> int:
        """How many requests wait for their time."""
        ...

    @property
    def credits_streams(self) -> bool:
        """Whether the node knows a CREDIT of a stream."""
        ...

    @property
    def stream_credit_bytes(self) -> int:
        """The consumed bytes of a feed from which on they are credited when none of its blocks waits."""
        ...
