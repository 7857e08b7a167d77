"""What a stream waits for, as a value for people and programs. Pure.

The first row that fits decides:

| waits for | the stream                                                             | since                          |
|-----------|------------------------------------------------------------------------|--------------------------------|
| NOTHING   | has ended                                                              | its end                        |
| NODE      | has no node that said hello and may serve it                           | the loss of the last one       |
| FEED      | has a node that has not told the feed's partitions                     | the node's hello               |
| STREAMS   | has partitions that no node serves                                     | the loss of the first one      |
| PROGRAM   | has events that the program has not taken                              | the oldest of them came        |
| MUTATIONS | has nothing to do                                                      | the last partition was served  |
"""

from __future__ import annotations

import collections
import enum
from typing import NamedTuple

from tailrace.consuming.partition import ConsumerState, PartitionStatus
from tailrace.errors import TailraceError
from tailrace.model.position import Positions

_UNSERVED = (ConsumerState.WAITING.value, ConsumerState.REQUESTED.value)


class WaitsFor(enum.Enum):
    """What a stream waits for."""

    NOTHING = "nothing"
    NODE = "a node"
    FEED = "the feed"
    STREAMS = "streams"
    PROGRAM = "the program"
    MUTATIONS = "mutations"


class StreamStatus(NamedTuple):
    """The state of a stream at one moment. All times are monotonic seconds.

    Attributes:
        waits_for: What the stream waits for.
        reason: The same for people, with the cause.
        since: Since when it waits for that.
        asks: The addresses of the nodes that it asks: of the one that serves it, or of those that it tries in turn, the
            present one first.
        node: The address of the node that is connected; None if none is.
        last_error: How the last connection or try has ended; None if none has. It stays when another node is found.
        last_error_at: When that was; None without an error.
        partitions: The state of each partition, by id. Empty before a node has told the feed's partitions.
        positions: The positions that cover every event before the one in hand; None before the stream has any.
    """

    waits_for: WaitsFor
    reason: str
    since: float
    asks: tuple[str, ...]
    node: str | None
    last_error: TailraceError | None
    last_error_at: float | None
    partitions: tuple[PartitionStatus, ...]
    positions: Positions | None

    @property
    def states(self) -> dict[str, tuple[int, ...]]:
        """The ids of the partitions in each state, by its name, such as "open" or "waiting"."""
        found: collections.defaultdict[str, list[int]] = collections.defaultdict(list)
        for partition in self.partitions:
            found[partition.state].append(partition.partition)
        return {state: tuple(ids) for state, ids in found.items()}


class SessionStatus(NamedTuple):
    """The state of a session: the stage of its connection, the events for the program, and the times of both.

    ``is_open``: the node has said hello. ``is_linked``: it has told the feed's partitions. ``failure`` is the last
    error of a connection with its time.
    """

    is_open: bool
    is_linked: bool
    since: float
    came_at: float | None
    failure: tuple[TailraceError, float] | None
    partitions: tuple[PartitionStatus, ...]
    positions: Positions | None


def stream_status(
    session: SessionStatus, address: str, others: tuple[str, ...], end: tuple[TailraceError, float] | None
) -> StreamStatus:
    """Returns the status of a stream.

    Args:
        session: The state of its session.
        address: The node that is connected or tried.
        others: The other nodes of the URL.
        end: The error that has ended the stream, with its time; None while it goes on.
    """
    waits_for, since, reason = _decide(session, address, end)
    error, error_at = session.failure or (None, None)
    return StreamStatus(
        waits_for,
        reason,
        since,
        (address,) if session.is_open else (address, *others),
        address if session.is_open else None,
        error,
        error_at,
        session.partitions,
        session.positions,
    )


def _decide(
    session: SessionStatus, address: str, end: tuple[TailraceError, float] | None
) -> tuple[WaitsFor, float, str]:
    """Returns the first row of the table that fits, with its time and its reason."""
    if end is not None:
        return WaitsFor.NOTHING, end[1], str(end[0])
    if not session.is_open:
        why = "no node was asked before" if session.failure is None else str(session.failure[0])
        return WaitsFor.NODE, session.since, why
    if not session.is_linked:
        return WaitsFor.FEED, session.since, f"{address} has not told the partitions of the feed"
    unserved = [partition for partition in session.partitions if partition.state in _UNSERVED]
    if unserved:
        first = min(unserved, key=lambda partition: partition.since)
        count = f"{len(unserved)} of {len(session.partitions)} partitions have no stream"
        return WaitsFor.STREAMS, first.since, f"{count}; partition {first.partition}: {first.reason}"
    if session.came_at is not None:
        return WaitsFor.PROGRAM, session.came_at, "events have come that the program has not taken"
    since = max((partition.since for partition in session.partitions), default=session.since)
    return WaitsFor.MUTATIONS, since, f"{address} serves every partition"
