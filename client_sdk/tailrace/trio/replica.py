"""How a node copies the partitions of a feed from another one: a stream with what only nodes say to each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import trio

from tailrace.consuming.events import Event, ReplicaEvent
from tailrace.consuming.subscription import Subscription
from tailrace.errors import StreamEnded, TailraceError, Unreachable
from tailrace.link.address import Address
from tailrace.link.finder import Finder
from tailrace.model import EndReason, Level
from tailrace.model.position import Position, Positions
from tailrace.trio.host import Host
from tailrace.trio.stream import Stream
from tailrace.wire.messages import Hello, HelloOk
from tailrace.wire.replica_messages import Replica

if TYPE_CHECKING:
    from typing import NoReturn


class ReplicaStream(Stream):
    """A stream for a node; made by `replica_stream`. It gives the events of a Stream, and those of `ReplicaEvent`.

    It has one connection to one node. Where that breaks, or where the node does not lead and should, entering or the
    next event raises Unreachable, StreamEnded, NotLeader, or what else was the reason: nothing is tried again. Make
    another one, from where the replica stands then. What concerns one partition only, as a damaged segment does, is a
    `StreamFailed`: the others go on, and that one is asked for again after `resume`.

    A Rollback's keys are of no use here: go back to its ``seq`` or to a lower one at which the store can stand, and say
    where by `settle`, before the next event is asked for. Then the partition is asked for again.
    """

    async def __anext__(self) -> Event | ReplicaEvent:  # type: ignore[override]
        """The next event; the one before it counts as handled. Raises what has ended the stream."""
        return await self._next()

    @property
    def peer(self) -> HelloOk:
        """What the node has said of itself. AssertionError before the stream was entered."""
        assert self._session.peer is not None, "the stream was entered"
        return self._session.peer

    def acknowledge(self, partition: int, branch: bytes, seq: int) -> None:
        """Says that the replica holds ``partition``, fsynced, up to ``seq``, the end of a run of ``branch`` (16 bytes).

        Sent at once; never waits. Nothing is said where the partition's stream is not open.
        """
        self._session.acknowledge(partition, branch, seq)
        self._send()

    def resume(self, partition: int, position: Position) -> None:
        """Asks for a partition again after a `StreamFailed`, from where the replica stands, once a pause is over."""
        self._session.resume(partition, position)

    def confirm(self, number: int) -> None:
        """Answers a LeaderCheck: the node is still followed. Sent at once; never waits."""
        self._session.confirm(number)
        self._send()

    def _lost(self, error: Exception, deadline: float | None) -> NoReturn:
        self._drop_transport()
        if isinstance(error, OSError):
            error = Unreachable(f"the connection broke: {error}")
        final = self._session.failure or error
        self._end(final if isinstance(final, TailraceError) else StreamEnded(str(final), reason=EndReason.ERROR))
        raise final from None


def replica_stream(
    address: Address,
    feed: str,
    positions: Positions,
    replica: Replica,
    *,
    host: Host | None = None,
    state: str = "leader",
    partitions: Iterable[int] | None = None,
    until: Mapping[int, int] | None = None,
    window_bytes: int = 8 * 1024 * 1024,
    timeout_s: float = 5.0,
) -> ReplicaStream:
    """A stream of ``feed``, at level memory, for the node that ``replica`` names; an async context manager.

    ``positions``: where the replica stands in each partition, between runs: `Position.at` its log and seq, and the
    purge seq that it was told where it has not passed that yet. Those that are left out begin at 0. The feed's id has
    to be that of the feed there, else UnknownFeed; that of the cluster is for the caller to check
    (`ReplicaStream.peer`).
    ``state``: what the node has to be, "leader" or "follower". ``partitions``: all by default. ``until``: where the
    partitions end. ``window_bytes``: what may be under way. ``timeout_s``: how long entering may take, with every
    partition agreed to or refused.
    """
    subscription = Subscription(
        feed,
        positions,
        until,
        None if partitions is None else frozenset(partitions),
        Level.MEMORY,
        state=state,
        replica=replica,
    )
    return ReplicaStream(
        Finder((address,), state, trio.current_time),
        Hello(name=f"replica {replica.address or replica.placement_id.hex()}", window_bytes=window_bytes),
        subscription,
        host=Host() if host is None else host,
        connect_timeout_s=timeout_s,
        retry_for_s=timeout_s,
    )
