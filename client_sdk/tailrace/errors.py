"""Everything that Tailrace raises on purpose.

    TailraceError
    ├── Retryable               the same call may succeed later; every call retries these for ``retry_for`` seconds
    │   ├── Unreachable         no node could be reached, or the connection broke and did not come back
    │   ├── NotLeader           the node that was asked does not lead the partition
    │   ├── Overloaded          the node is at its bound of memory or of requests
    │   ├── NotDurable          the level asked for cannot be reached now
    │   └── NoSpace             the node's disk is full
    ├── OutcomeUnknown          a write may or may not have happened, and no node can tell
    ├── WritesLost              acknowledged writes were lost together with the level that they had asked for
    ├── VersionLost             the version named belongs to a history that has been dropped
    ├── NotOwner                another program reads under this name, or another member owns the partition
    ├── VersionConflict         the condition of a write does not hold
    ├── UnknownFeed, FeedExists
    ├── UnknownStage            the node has lost a stage of a batch, or a part of it
    ├── BatchBehind             a batch has a number that its sink has used already, or is older than its last one
    │   └── BatchChanged        a batch comes again with other rows than were published
    ├── BadPosition             a position is damaged or belongs to another feed
    ├── BadBlock                a block breaks its format
    ├── BadCopy                 a file of a fetched copy is missing, damaged, or of another feed or version
    │   └── IncompleteCopy      a fetch of the copy was interrupted, or is under way
    ├── BadSegment              a segment's file, or a part of it, is not the one that was asked for
    ├── UnknownCheckpoint       the node keeps the files of this checkpoint no longer
    ├── TooLarge                a key, a value, a block or a frame is over its bound
    ├── Forbidden
    ├── WrongProcess            a client is used in a process that was forked from its own
    ├── ProtocolError           the other side broke the protocol
    ├── DataGone                the requested mutations were trimmed or purged
    └── StreamEnded             a stream is over; ``reason`` says why

Bad arguments are ``TypeError`` and ``ValueError``, as everywhere in Python.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.model import EndReason, Version, VersionRange


class TailraceError(Exception):
    """The base of every error of Tailrace."""


class Retryable(TailraceError):
    """The same call may succeed later. The client has already retried it for ``retry_for`` seconds."""


class Unreachable(Retryable):
    """No node could be reached in time.

    Attributes:
        outcome: "not sent" if the request had no effect; "unknown" if it may have had one.
    """

    def __init__(self, message: str, *, outcome: str = "not sent") -> None:
        super().__init__(message)
        self.outcome = outcome


class NotLeader(Retryable):
    """The node does not lead this partition.

    Attributes:
        leader: The address of the leader as the node knows it; None if it knows none.
    """

    def __init__(self, message: str, *, leader: str | None = None) -> None:
        super().__init__(message)
        self.leader = leader


class Overloaded(Retryable):
    """The node has reached a bound (memory, requests or connections), and accepts no more for now."""


class NotDurable(Retryable):
    """The level cannot be reached: the node is in no set, or its journal has failed."""


class NoSpace(Retryable):
    """The disk of the node is full. Nothing was written."""


class OutcomeUnknown(TailraceError):
    """A write may or may not have happened, and the node could not recognise a retry of it."""


class WritesLost(TailraceError):
    """Acknowledged writes were lost, because their level did not survive the failure.

    Attributes:
        ranges: The versions that were acknowledged and no longer exist.
    """

    def __init__(self, message: str, *, ranges: Sequence[VersionRange] = ()) -> None:
        super().__init__(message)
        self.ranges = tuple(ranges)


class VersionLost(TailraceError):
    """The version belongs to a branch of history that ended below it. It will never exist again."""


class BadValue(TailraceError):
    """The serializer of a feed's handle cannot read a row. The position of a stream stays before its event.

    Attributes:
        partition: The partition of the row.
        seq: The seq of the row.
        key: The key of the row, as bytes.
    """

    def __init__(self, message: str, *, partition: int = 0, seq: int = 0, key: bytes = b"") -> None:
        super().__init__(message)
        self.partition = partition
        self.seq = seq
        self.key = key


class VersionConflict(TailraceError):
    """The condition of a write does not hold. Nothing was written.

    Attributes:
        current: The current version of the key; None if the key does not exist.
    """

    def __init__(self, message: str, *, current: Version | None = None) -> None:
        super().__init__(message)
        self.current = current


class NotOwner(TailraceError):
    """Positions were not stored: another program reads under this name, or another member owns the partitions.

    Attributes:
        partitions: The partitions that are not owned any more.
    """

    def __init__(self, message: str, *, partitions: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.partitions = tuple(partitions)


class UnknownFeed(TailraceError):
    """The node has no feed of this name or id."""


class FeedExists(TailraceError):
    """A feed of this name exists with other settings."""


class UnknownStage(TailraceError):
    """The node has lost a stage or a part of it. Nothing of the batch was published: stage it again.

    A stage is lost if its node restarts before the seal, if another node becomes the leader, or when it is a day old.
    """


class BatchBehind(TailraceError):
    """The sink has used the number of the batch already. Nothing of it was published.

    The number was used by another origin, or a later batch of the same origin was published.

    Attributes:
        first_batch: The first number that the sink has not used.
    """

    def __init__(self, message: str, *, first_batch: int = 0) -> None:
        super().__init__(message)
        self.first_batch = first_batch


class BatchChanged(BatchBehind):
    """A batch that was published, wholly or in part, comes again with other rows: nothing of these was published.

    A checkpoint was restored from an older copy, or copied, and its next rows got a number that was used. Or the rows
    of the batch are not the same each time that they are computed.
    """


class BadPosition(TailraceError):
    """A position is damaged, has an unknown version, or belongs to another feed."""


class BadBlock(TailraceError):
    """A block breaks its format: its checksum, bounds or structure are wrong, or a key belongs to another partition."""


class BadCopy(TailraceError):
    """A file of a fetched copy is missing, damaged, or of another feed or version. The message says what to do.

    Attributes:
        path: The path of the file.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class IncompleteCopy(BadCopy):
    """A fetch of the copy was interrupted, or is under way. Run it again, and then open the copy again."""


class BadSegment(TailraceError):
    """A segment's file is damaged or of another partition, or the part that was asked for is beyond its end."""


class UnknownCheckpoint(TailraceError):
    """The node keeps the files of this checkpoint no longer: it expired, or the node restarted. Ask for another one."""


class TooLarge(TailraceError):
    """A key, a value, a batch or a frame is above its bound."""


class Forbidden(TailraceError):
    """The node refuses this client."""


class WrongProcess(TailraceError):
    """A client, or a handle of it, was used in a forked process. Connect again, or make another handle, there."""


class ProtocolError(TailraceError):
    """The other side broke the protocol. The connection cannot be used any more."""


class DataGone(TailraceError):
    """Mutations that were asked for have been trimmed or purged.

    Attributes:
        first_seq: The first seq from which everything is kept; 0 if it is not known.
        partition: The partition whose mutations are gone; None if it is not known.
    """

    def __init__(self, message: str, *, first_seq: int = 0, partition: int | None = None) -> None:
        super().__init__(message)
        self.first_seq = first_seq
        self.partition = partition


class StreamEnded(TailraceError):
    """The stream has ended for good.

    Attributes:
        reason: Why it has ended.
    """

    def __init__(self, message: str, *, reason: EndReason) -> None:
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        # By default a copy is made of ``args`` alone, and the reason has no default.
        return partial(type(self), reason=self.reason), self.args, vars(self)


def join_context(error: BaseException, context: BaseException, cancellation: type[BaseException]) -> None:
    """Puts ``context`` at the end of the chain of ``error``'s contexts, in place of the cancellation that it caused."""
    seen = {id(error)}
    while error.__context__ is not None and not isinstance(error.__context__, cancellation):
        error = error.__context__
        if id(error) in seen:
            return
        seen.add(id(error))
    if id(context) not in seen:
        error.__context__ = context
