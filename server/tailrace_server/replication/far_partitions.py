"""Copies the segments of partitions that are far behind, beside the stream of the others.

catch_up_rule.py chooses these partitions, and catching_up.py copies the segments of one.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import trio

from tailrace.errors import TailraceError
from tailrace.link.address import Address
from tailrace_server.feeds.feed import Feed
from tailrace_server.partition.partition import Partition
from tailrace_server.replication.catch_up_rule import LeaderPartition, choose
from tailrace_server.replication.catching_up import CatchUp

if TYPE_CHECKING:
    from tailrace.wire.messages import HelloOk
    from tailrace_server.replication.local_node import LocalNode

log = logging.getLogger("tailrace.server")


class FarPartitions:
    """The partitions of one pull whose segments are copied before their stream begins."""

    def __init__(
        self,
        node: LocalNode,
        feed: Feed,
        address: Address,
        state: str,
        roll_back: Callable[[Partition, int], Awaitable[int]],
        is_stopped: Callable[[], bool],
        is_pushed: bool,
    ) -> None:
        """``feed`` is pulled from ``address``, whose role has to be ``state``. If it ``is_pushed``, nothing is copied.

        The others are those of `CatchUp`.
        """
        self._node = node
        self._feed = feed
        self._address = address
        self._state = state
        self._roll_back = roll_back
        self._is_stopped = is_stopped
        self._is_pushed = is_pushed
        self._failure: Exception | None = None
        self._partitions: list[Partition] = []

    def choose(self, partitions: Sequence[Partition], told: Sequence[Any]) -> frozenset[int]:
        """Returns the numbers of the ``partitions`` that are far behind. ``told`` is the other node's partition map."""
        if self._feed is self._node.feeds.system or self._is_pushed:
            return frozenset()
        bytes_min = self._node.config.replication.catch_up_bytes_min
        for partition in partitions:
            leader = LeaderPartition.from_json(told[partition.id])
            case = choose(partition.high_seq, partition.log, leader, bytes_min, self._state)
            if case.by_segments and partition not in self._partitions:
                self._partitions.append(partition)
        return frozenset(partition.id for partition in self._partitions)

    async def catch_up_beside(
        self, peer: HelloOk, stream: Callable[[], Awaitable[None]], release: Callable[[Partition], None]
    ) -> None:
        """Runs ``stream`` while the partitions copy segments; the copies end with it.

        ``release`` is called with each partition whose segments are here, or could not be copied.

        Raises the errors of ``stream``, and NoSpace or OSError if the manifest of a partition may be of another chain
        and cannot be written: no row may come then.
        """
        # Errors are raised outside of the nursery, which would wrap them in a group.
        async with trio.open_nursery() as nursery:
            for partition in self._partitions:
                nursery.start_soon(self._catch_up, partition, peer, release, nursery.cancel_scope)
            try:
                await stream()
            except Exception as error:
                self._failure = error
            nursery.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure

    async def _catch_up(
        self, partition: Partition, peer: HelloOk, release: Callable[[Partition], None], all: trio.CancelScope
    ) -> None:
        at = self._address, peer.role, peer.term
        try:
            await CatchUp(self._node, partition, *at, self._roll_back, self._is_stopped).run()
        except (TailraceError, OSError) as error:
            log.warning(
                "partition %s of feed %s is streamed from %s, without segments first: %s",
                *(partition.id, self._feed.info.name, self._address, error),
            )
        try:
            await self._node.storage.installer.settle(partition)
        except (TailraceError, OSError) as error:
            self._failure = error
            all.cancel()
            return
        if not self._is_stopped():
            release(partition)
