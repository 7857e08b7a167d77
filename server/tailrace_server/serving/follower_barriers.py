"""Barriers of one connection to a follower, which has to ask the leader how far the partitions have come.

    BARRIER ──> [ the group that waits ] ──> asked for: one question a connection ──> the needs of its streams are known

A cookie is covered by a question that was sent after its arrival, so the cookies that arrive while one is under way
share the next. They return in order: only the first of a group has to be held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tailrace.errors import TailraceError
from tailrace_server.stream.barriers import Barrier

if TYPE_CHECKING:
    from tailrace_server.partition.partition import Partition
    from tailrace_server.serving.services import OpenConnection


class FollowerBarriers:
    """Asks for one connection how far the leader has come."""

    def __init__(self, connection: OpenConnection) -> None:
        self._connection = connection
        self._waiting: Barrier | None = None  # the first that no question covers yet
        self._under_way = False

    def add(self, cookie: bytes) -> None:
        """Adds a cookie, which returns once all rows that the leader has accepted by now were delivered."""
        rounds, waiting = self._connection.rounds, self._waiting
        if waiting is not None and waiting.lost_partition is not None:
            waiting = None
        if not rounds.slots or waiting is not None:
            rounds.barriers.add_behind(cookie, waiting)
            return
        self._waiting = rounds.barriers.add_elsewhere(cookie)
        if not self._under_way:
            self._begin()

    def _begin(self) -> None:
        barrier, self._waiting = self._waiting, None
        if barrier is None or barrier.lost_partition is not None:
            return
        connection = self._connection
        connection.rounds.barriers.asked(barrier)
        partitions = list(dict.fromkeys(slot.stream.partition for slot in connection.rounds.slots.values()))
        self._under_way = True
        connection.nursery.start_soon(self._inquire, barrier, partitions)

    async def _inquire(self, barrier: Barrier, partitions: list[Partition]) -> None:
        connection = self._connection
        node, rounds = connection.node, connection.rounds
        try:
            accepted = await node.leaderships.leaders_seqs(partitions)
        except (TailraceError, OSError):
            rounds.barriers.lose_all()
        else:
            rounds.barriers.settle(barrier, accepted)
        self._under_way = False
        self._begin()
        connection.has_news()
        node.connections.turn_ended()
