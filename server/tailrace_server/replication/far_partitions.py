"""Copies the segments of partitions that are far behind, beside the stream of the others.

catch_up_rule.py chooses these partitions, catching_up.py copies the segments of one, and ahead_stream.py brings the
rows behind them meanwhile. A partition that has such rows since an earlier pull is held back, too, until they are
applied or dropped.

A partition that this node cannot read is copied anew by the same way. Its rows stay until the leader's segments are
here, so what this node has acknowledged is never missing. If it cannot be copied now, it is tried again later.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tailrace.consuming.events import Event, ReplicaEvent
from tailrace.errors import TailraceError
from tailrace.link.address import Address
from tailrace.wire.replica_messages import Replica
from tailrace_server.feeds.feed import Feed
from tailrace_server.partition.partition import Partition
from tailrace_server.replication.ahead_stream import AheadStream, apply_ahead
from tailrace_server.replication.catch_up_rule import CatchUpCase, LeaderPartition, choose
from tailrace_server.replication.catching_up import CatchUp
from tailrace_server.replication.unreadable import unreadable_segments

if TYPE_CHECKING:
    from tailrace.wire.messages import HelloOk
    from tailrace_server.replication.local_node import LocalNode

log = logging.getLogger("tailrace.server")

# The seconds from the first try to copy an unreadable partition to the next one, each time twice as long up to the
# second number: the leader's own copy may be damaged, and a try may fetch all its other segments.
ANEW_SECONDS = 10.0
ANEW_SECONDS_MAX = 640.0


class FarPartitions:
    """The partitions of one pull whose segments are copied before their stream begins."""

    def __init__(
        self,
        node: LocalNode,
        feed: Feed,
        address: Address,
        state: str,
        replica: Replica | None,
        roll_back: Callable[[Partition, int], Awaitable[int]],
        apply: Callable[[Event | ReplicaEvent], Awaitable[None]],
        is_stopped: Callable[[], bool],
        release: Callable[[Partition], None],
        start: Callable[[Callable[[], Awaitable[None]]], None],
        peer: Callable[[], HelloOk],
        *,
        follows: bool,
    ) -> None:
        """``feed`` is pulled from ``address``, whose role has to be ``state``. ``follows``: not for a promotion.

        ``replica`` streams rows ahead of segments; None: no rows come ahead, and those that have are left alone.
        ``apply`` applies an event as if it came by the stream. ``release`` is called with each partition whose segments
        are here, or could not be copied. ``start`` runs a task until the pull ends; its error ends the connection.
        ``peer`` returns the other node's HELLO_OK. The others are those of `CatchUp`.
        """
        self._node = node
        self._feed = feed
        self._address = address
        self.state = state
        self._replica = replica
        self._roll_back = roll_back
        self._apply = apply
        self._is_stopped = is_stopped
        # A leader pushes the segments of a feed in mode segment.
        self.may_copy = feed is not node.feeds.system and not (follows and feed.by_segments)
        self._release = release
        self._start = start
        self._peer = peer
        self._partitions: dict[Partition, tuple[CatchUpCase, LeaderPartition | None]] = {}
        self._held: set[int] = set()  # the partitions that are not streamed yet
        self._begun: set[Partition] = set()  # those whose segments are being copied
        self._tries: dict[Partition, tuple[int, float]] = {}  # to copy an unreadable one: how many, until when none

    def holds(self, partition: int) -> bool:
        """Returns whether the partition is not streamed yet: its rows are applied by another task than the stream's."""
        return partition in self._held

    def choose(self, partitions: Sequence[Partition], told: Sequence[Any]) -> frozenset[int]:
        """Returns the numbers of the ``partitions`` that are not streamed at once.

        ``told`` is the other node's partition map.
        """
        ahead, bytes_min = self._node.storage.ahead, self._node.config.replication.catch_up_bytes_min
        for partition in partitions:
            leader = LeaderPartition.from_json(told[partition.id])
            case = choose(partition.high_seq, partition.log, leader, bytes_min, self.state)
            if partition.damage is not None:
                self._partitions.setdefault(partition, (CatchUpCase.DAMAGED, leader if ahead.find(partition) else None))
                continue
            if not self.may_copy:
                case = CatchUpCase.TURNED_OFF
            if case.by_segments or (self._replica is not None and ahead.find(partition) is not None):
                self._partitions.setdefault(partition, (case, leader))
        self._held = {partition.id for partition in self._partitions}
        return frozenset(self._held)

    @property
    def may_hold(self) -> bool:
        """Whether the other node's partition map decides what is streamed at once."""
        ahead = self._node.storage.ahead
        if any(partition.damage is not None for partition in self._feed.partitions):
            return True
        return (self.may_copy and self._node.config.replication.catch_up_bytes_min is not None) or (
            self._replica is not None and any(ahead.find(partition) is not None for partition in self._feed.partitions)
        )

    def begin_chosen(self) -> None:
        """Copies the segments of the partitions that `choose` has named."""
        for partition in list(self._partitions):
            self.begin(partition)

    def begin(self, partition: Partition) -> None:
        """Copies the segments of a partition that has no stream, beside the stream of the others.

        Rows come ahead of them only if the stream of the partition has not begun yet.
        """
        self._begun.add(partition)
        self.start_soon(self._catch_up, partition)

    def is_due_anew(self, partition: Partition) -> bool:
        """Returns whether ``partition``, which this node cannot read, is to be copied now: no try is under way."""
        _, not_before = self._tries.get(partition, (0, 0.0))
        return partition not in self._begun and self._node.clock.monotonic() >= not_before

    def begin_anew(self, partition: Partition) -> None:
        """Copies the segments of a partition that this node cannot read, and that has no stream."""
        self._partitions[partition] = (CatchUpCase.DAMAGED, None)
        self.begin(partition)

    def start_soon(self, task: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Runs a task beside the stream. It is cancelled when the pull ends."""
        self._start(partial(task, *arguments))

    async def _catch_up(self, partition: Partition) -> None:
        """Copies the segments of a partition, and releases its stream.

        Raises NoSpace, NotDurable or OSError if rows that came ahead cannot be written, or if the manifest of the
        partition may be of another chain and cannot be written: no row may come then.
        """
        try:
            await self._copy(partition)
        finally:
            self._begun.discard(partition)
        if self._is_stopped() or partition.damage is not None:  # without all its segments it takes no rows
            return
        self._held.discard(partition.id)
        self._release(partition)

    async def _copy(self, partition: Partition) -> None:
        node, (case, leader) = self._node, self._partitions.pop(partition, (CatchUpCase.FAR_BEHIND, None))
        peer = self._peer()
        at = self._address, peer.role, peer.term
        rows = None
        if self._replica is not None and leader is not None:
            rows = AheadStream(node, self._feed, partition, *at, self._replica, self._is_stopped)
        try:
            if rows is not None and leader is not None:
                await node.storage.ahead.settle(partition, leader.log, leader.high_seq)
            if case.by_segments:
                damaged = self._damaged_segments(partition) if case is CatchUpCase.DAMAGED else frozenset()
                await CatchUp(node, partition, *at, self._roll_back, self._is_stopped, rows, damaged).run()
        except (TailraceError, OSError) as error:
            log.warning(
                "partition %s of feed %s is not copied from the segments of %s: %s",
                *(partition.id, self._feed.info.name, self._address, error),
            )
        await node.storage.installer.settle(partition)
        if rows is not None and leader is not None and partition.damage is None and not self._is_stopped():
            await apply_ahead(node, partition, leader.log, rows.leader_seqs, self._apply, self._is_stopped)

    def _damaged_segments(self, partition: Partition) -> frozenset[bytes]:
        """Returns the ids of the segments that this node cannot read, and says that they are copied anew."""
        tries, _ = self._tries.get(partition, (0, 0.0))
        pause_s = min(ANEW_SECONDS * 2**tries, ANEW_SECONDS_MAX)
        self._tries[partition] = tries + 1, self._node.clock.monotonic() + pause_s
        damaged = unreadable_segments(self._node, partition)
        log.warning(
            "partition %s of feed %s has %s segments that cannot be read here: it is copied anew from %s",
            *(partition.id, self._feed.info.name, len(damaged), self._address),
        )
        return frozenset(damaged)
