"""Everything that Tailrace raises on purpose.

    TailraceError
    ├── Retryable               the same call may succeed later; every call retries these for ``retry_for`` seconds
    │   ├── Unreachable         no node could be reached, or the connection broke and did not come back
    │   ├── NotLeader           the node that was asked does not lead the partition
    │   ├── Overloaded          the node is at its bound of memory or of requests
    │   ├── NotDurable          the level asked for cannot be reached now
    │   └── NoSpace             the node's disk is full
    ├── OutcomeUnknown          a write may or may not have happened, and nobody can tell any more
    ├── WritesLost              acknowledged writes were lost together with the level that they had asked for
    ├── VersionLost             the version named belongs to a history that has been dropped
    ├── VersionConflict         the condition of a write does not hold
    ├── UnknownFeed, FeedExists
    ├── UnknownStage            the node does not have what was staged for a batch, or not all of it
    ├── BatchBehind             a batch has a number that its sink has used already, or is older than its last one
    ├── BadPosition             a position is damaged or belongs to another feed
    ├── BadBlock                a block breaks its format
    ├── TooLarge                a key, a value, a block or a frame is over its bound
    ├── Forbidden
    ├── WrongProcess            a blocking client is used in a process that was forked from its own
    ├── ProtocolError           the other side broke the protocol
    ├── DataGone                what was asked for has been trimmed or purged
    └── StreamEnded             a stream is over; ``reason`` says why

Bad arguments are ``TypeError`` and ``ValueError``, as everywhere in Python.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace.model import EndReason, Version, VersionRange


class TailraceError(Exception):
    """Base of every error of Tailrace."""


class Retryable(TailraceError):
    """The same call may succeed later. The SDK has already retried it for ``retry_for`` seconds."""


class Unreachable(Retryable):
    """No node could be reached in time.

    ``outcome`` is ``"not sent"`` where the request surely had no effect, ``"unknown"`` where it may have had one.
    """

    def __init__(self, message: str, *, outcome: str = "not sent") -> None:
        super().__init__(message)
        self.outcome = outcome


class NotLeader(Retryable):
    """The node does not lead this partition; ``leader`` is the address that it believes in, if any."""

    def __init__(self, message: str, *, leader: str | None = None) -> None:
        super().__init__(message)
        self.leader = leader


class Overloaded(Retryable):
    """The node is at a bound (memory, requests, connections) and takes no more for now."""


class NotDurable(Retryable):
    """The level that was asked for cannot be reached: no quorum is configured, or the journal has failed."""


class NoSpace(Retryable):
    """The node's disk is full; the write was not taken."""


class OutcomeUnknown(TailraceError):
    """A write may or may not have happened, and a resend could not be recognised."""


class WritesLost(TailraceError):
    """Acknowledged writes are gone, together with the level that they had asked for.

    ``ranges`` are the versions that were acknowledged and no longer exist.
    """

    def __init__(self, message: str, *, ranges: Sequence[VersionRange] = ()) -> None:
        super().__init__(message)
        self.ranges = tuple(ranges)


class VersionLost(TailraceError):
    """The version named belongs to a branch of history that ended below it."""


class VersionConflict(TailraceError):
    """The condition of a write does not hold; ``current`` is the key's version, None where there is none."""

    def __init__(self, message: str, *, current: Version | None = None) -> None:
        super().__init__(message)
        self.current = current


class UnknownFeed(TailraceError):
    """The node has no feed of this name or id."""


class FeedExists(TailraceError):
    """A feed of this name exists, and it is not what was asked for."""


class UnknownStage(TailraceError):
    """The node does not have a stage, or not all of it: nothing of the batch was published, stage it anew.

    A stage is lost where its node was restarted before it was sealed, where another node leads now, and with its age.
    """


class BatchBehind(TailraceError):
    """A batch has a number that its sink has used already: nothing of it was published.

    The number was used under another origin, or it is below the last one of the same origin.

    ``first_batch`` is the first number that the sink has not used.
    """

    def __init__(self, message: str, *, first_batch: int = 0) -> None:
        super().__init__(message)
        self.first_batch = first_batch


class BadPosition(TailraceError):
    """A position is damaged, of an unknown version, or belongs to another feed."""


class BadBlock(TailraceError):
    """A block breaks its format: checksum, bounds, structure, or keys outside of its partition."""


class TooLarge(TailraceError):
    """A key, a value, a batch or a frame is over its bound."""


class Forbidden(TailraceError):
    """The token does not permit this."""


class WrongProcess(TailraceError):
    """A blocking client is used in a process that was forked from its own. Connect again in the new process."""


class ProtocolError(TailraceError):
    """The other side broke the wire protocol; the connection is of no further use."""


class DataGone(TailraceError):
    """Some of what was asked for has been trimmed, or purged; from ``first_seq`` on all is kept."""

    def __init__(self, message: str, *, first_seq: int = 0) -> None:
        super().__init__(message)
        self.first_seq = first_seq


class StreamEnded(TailraceError):
    """The stream is over. ``reason`` is a member of ``tailrace.EndReason``."""

    def __init__(self, message: str, *, reason: EndReason) -> None:
        super().__init__(message)
        self.reason = reason
