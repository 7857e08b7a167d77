"""Finds the partitions of a followed feed that fall far behind while they are streamed.

    blocks, the leader's seqs ──> lag_rule.py ──> the leader's partition map ──> catch_up_rule.py ──> chosen

The puller takes the chosen ones between two events: it gives up their streams and copies their segments. The map is
asked for once in LOOK_SECONDS at most for all partitions of the feed, on the connection of the streams.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from tailrace.block import Block
from tailrace.errors import ProtocolError, TailraceError
from tailrace.link.address import Address
from tailrace.model import EndReason
from tailrace.trio.replica import ReplicaStream
from tailrace_server.feeds.feed import Feed
from tailrace_server.partition.partition import Partition
from tailrace_server.replication.catch_up_rule import CatchUpCase, LeaderPartition, choose
from tailrace_server.replication.far_partitions import FarPartitions
from tailrace_server.replication.lag_rule import Lag, LagAnswer

if TYPE_CHECKING:
    from tailrace_server.replication.local_node import LocalNode

LeadersMap: TypeAlias = "Callable[[], Awaitable[list[Any]]]"

log = logging.getLogger("tailrace.server")

# The seconds between two looks at the leader's partition map. A map of 1,000 partitions has about 300 KB.
LOOK_SECONDS = 5.0

_ANSWERS = {
    CatchUpCase.FAR_BEHIND: LagAnswer.SEGMENTS,
    CatchUpCase.SMALL_SHARE: LagAnswer.STREAM,
    CatchUpCase.BEGINS_AT_0: LagAnswer.STREAM,  # its stream is open, and goes on above the rows that are gone
}
# A stream that is asked for again after one of these begins at 0.
_GONE = (EndReason.PURGED, EndReason.TRIMMED)


class LaggingPartitions:
    """The lags of the partitions of one pull. Does nothing if nothing is ever copied."""

    def __init__(
        self, node: LocalNode, feed: Feed, address: Address, far: FarPartitions, leaders_map: LeadersMap, *, is_on: bool
    ) -> None:
        """``feed`` is pulled from ``address``, whose partition map ``leaders_map`` returns.

        ``far`` copies the segments of the chosen partitions.
        """
        bytes_min = node.config.replication.catch_up_bytes_min
        self.chosen: list[Partition] = []  # the streams of these are to be given up
        self._node = node
        self._feed = feed
        self._address = address
        self._far = far
        self._leaders_map = leaders_map
        self._is_on = is_on and far.may_copy and bytes_min is not None
        self._bytes_min = bytes_min or 0
        self._lags: dict[Partition, Lag] = {}
        self._due: set[Partition] = set()
        self._looked_at: float | None = None  # when (monotonic) the last look began

    def received(self, partition: Partition, block: Block) -> None:
        """Notes a block of the partition's stream."""
        if not self._is_on:
            return
        lag = self._lags.get(partition)
        if lag is None:
            lag = self._lags[partition] = Lag(self._bytes_min)
        if lag.received(block.header.last_seq, block.nbytes):
            self._note_due(partition)

    def told(self, partition: Partition, leader_seq: int) -> None:
        """Notes the leader's durable seq."""
        lag = self._lags.get(partition)
        if lag is not None and lag.told(leader_seq):
            self._note_due(partition)

    def _note_due(self, partition: Partition) -> None:
        """Looks at the leader's map if it is time."""
        self._due.add(partition)
        now = self._node.clock.monotonic()
        if self._looked_at is None or now >= self._looked_at + LOOK_SECONDS:
            self._looked_at = now
            self._far.start_soon(self._look)

    def forget(self, partition: Partition) -> None:
        """Forgets that the partition is due or chosen, and its rows: its stream has ended, or begins anew."""
        if partition in self._lags:
            self._lags[partition].restarted()
        self._due.discard(partition)
        if partition in self.chosen:
            self.chosen.remove(partition)

    def give_up(self, stream: ReplicaStream, forget: Callable[[Partition], None]) -> None:
        """Gives up the streams of the chosen partitions, and copies their segments. ``forget`` is told of each."""
        chosen, self.chosen = self.chosen, []
        for partition in chosen:
            if stream.withdraw(partition.id):
                forget(partition)
                self._far.begin(partition)

    def failed(self, partition: Partition, reason: EndReason, resume: Callable[[], None]) -> None:
        """Calls ``resume`` for a partition whose stream has failed, or copies its segments if that costs less."""
        if self._is_on and reason in _GONE:
            self._far.start_soon(self._copy_or_resume, partition, resume)
        else:
            resume()

    async def _copy_or_resume(self, partition: Partition, resume: Callable[[], None]) -> None:
        try:
            leader = LeaderPartition.from_json((await self._map())[partition.id])
            is_far = self._case(partition, partition.high_seq, leader).by_segments
        except (TailraceError, OSError) as error:
            log.info("the partition map of %s is not known: %s", self._address, error)
            is_far = False
        if is_far:
            self._far.begin(partition)
        else:
            resume()

    async def _look(self) -> None:
        """Chooses among the partitions that are due, by the leader's partition map."""
        try:
            told = await self._map()
            for partition in list(self._due):
                self._due.discard(partition)
                lag, leader = self._lags[partition], LeaderPartition.from_json(told[partition.id])
                case = self._case(partition, max(lag.received_seq, partition.high_seq), leader)
                answer = _ANSWERS.get(case, LagAnswer.NEAR)
                lag.answered(answer)
                if answer is LagAnswer.SEGMENTS:
                    self.chosen.append(partition)
        except (TailraceError, OSError) as error:
            log.info("the partition map of %s is not known: %s", self._address, error)

    def _case(self, partition: Partition, seq: int, leader: LeaderPartition) -> CatchUpCase:
        return choose(seq, partition.log, leader, self._bytes_min, self._far.state)

    async def _map(self) -> list[Any]:
        told = await self._leaders_map()
        if len(told) != len(self._feed.partitions):
            raise ProtocolError(f"the partition map has {len(told)} partitions, not {len(self._feed.partitions)}")
        return told
