"""How a node copies the partitions of a feed from another one: a stream with what only nodes say to each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import trio

from tailrace.consuming.events import Event, ReplicaEvent
from tailrace.consuming.stream_core import StreamCore
from tailrace.consuming.subscription import Subscription
from tailrace.errors import StreamEnded, TailraceError, Unreachable
from tailrace.link.address import Address
from tailrace.link.finder import Finder
from tailrace.model import EndReason, Level
from tailrace.model.position import Position, Positions
from tailrace.trio.host import Host
from tailrace.trio.stream import Stream
from tailrace.wire.messages import Hello, HelloOk
from tailrace.wire.push_messages import SegmentAnswer
from tailrace.wire.replica_messages import Replica

if TYPE_CHECKING:
    from typing import NoReturn


class ReplicaStream(Stream):
    """A stream for a node; made by `replica_stream`. It gives the events of a Stream, and those of `ReplicaEvent`.

    The stream has one connection to one node, and tries nothing again. If the connection breaks, or the node does not
    lead and should, entering or the next event raises Unreachable, StreamEnded, NotLeader or the node's error. Make
    another stream then, from the replica's positions. An error of one partition, such as a damaged segment, is a
    `StreamFailed`: the other partitions continue, and `resume` asks for that one again.

    After a Rollback, go back to its ``seq`` or a lower one that the store can restore. Tell it by `settle` before you
    ask for the next event; the partition is then asked for again. The Rollback's keys are of no use to a replica.
    """

    async def __anext__(self) -> Event | ReplicaEvent:  # type: ignore[override]
        """Returns the next event; the one before it counts as handled. Raises the error that ended the stream."""
        return await self._next()

    @property
    def peer(self) -> HelloOk:
        """The node's HELLO_OK. AssertionError before the stream was entered."""
        assert self._session.peer is not None, "the stream was entered"
        return self._session.peer

    def acknowledge(self, partition: int, branch: bytes, seq: int) -> None:
        """Says that the replica holds ``partition``, fsynced, up to ``seq``, the end of a run of ``branch`` (16 bytes).

        Sends at once and never waits. Sends nothing if the partition's stream is not open.
        """
        self._session.acknowledge(partition, branch, seq)
        self._send()

    def answer_segment(self, partition: int, answer: SegmentAnswer) -> None:
        """Answers an offer or a part of a segment of ``partition``. Sent at once; never waits."""
        self._session.answer_segment(partition, answer)
        self._send()

    def resume(self, partition: int, position: Position) -> None:
        """Asks for a partition again after a `StreamFailed`, from ``position``, after a pause."""
        self._session.resume(partition, position)

    def withdraw(self, partition: int) -> bool:
        """Closes the stream of a partition until `release`. Returns False, and does nothing, if it is not open.

        Events of the closed stream may still come. The first event behind them is an Agreed, Rollback or StreamFailed
        that follows `release`.
        """
        is_closed = self._session.withdraw(partition)
        self._send()
        return is_closed

    def release(self, partition: int, position: Position) -> None:
        """Asks for a partition that ``hold`` has named, or that was withdrawn, from ``position``.

        Sent at once; never waits.
        """
        self._session.release(partition, position)
        self._send()

    def confirm(self, number: int) -> None:
        """Answers a LeaderCheck: the node is still followed. Sent at once; never waits."""
        self._session.confirm(number)
        self._send()

    def _lost(self, error: Exception, deadline: float | None) -> NoReturn:
        self._drop_transport()
        if isinstance(error, OSError):
            error = Unreachable(f"the connection broke: {error}")
        final = self._session.failure or error
        self._core.end(final if isinstance(final, TailraceError) else StreamEnded(str(final), reason=EndReason.ERROR))
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
    hold: Callable[[Sequence[Any]], frozenset[int]] | None = None,
) -> ReplicaStream:
    """Returns a stream of ``feed``, at level memory, for the node that ``replica`` names; an async context manager.

    Args:
        address: The node to copy from.
        feed: The feed's name. Its id must be that of ``positions``, else entering raises UnknownFeed. The caller
            compares the cluster's id (`ReplicaStream.peer`).
        positions: For each partition a position between two published batches: `Position.at` the replica's log and
            seq, with the leader's purge seq until the replica has passed it. Partitions that are left out begin at 0.
        replica: The node that follows.
        host: Clock, network and randomness; those of the machine by default.
        state: The role that the node must have, "leader" or "follower".
        partitions: The partitions to copy; all by default.
        until: The last seq of each partition; no end by default.
        window_bytes: The bytes that may be sent and not yet handled.
        timeout_s: The seconds that entering may take, with every partition accepted or refused.
        hold: Chooses from the ``partitions`` of the node's partition map the ones that are not asked for before
            `ReplicaStream.release`.
    """
    subscription = Subscription(
        feed,
        positions,
        until,
        None if partitions is None else frozenset(partitions),
        Level.MEMORY,
        state=state,
        replica=replica,
        hold=hold,
    )
    host = Host() if host is None else host
    core = StreamCore(
        Finder((address,), state, trio.current_time),
        Hello(name=f"replica {replica.address or replica.placement_id.hex()}", window_bytes=window_bytes),
        subscription,
        trio.current_time,
        host.random.random,
        connect_timeout_s=timeout_s,
        retry_for_s=timeout_s,
    )
    return ReplicaStream(core, host)
