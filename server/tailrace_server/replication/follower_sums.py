"""Counts over all partitions of a group what status tells: how many mutations each replica lacks, and the newest term.

    sums = FollowerSums(leadership)
    await sums.count_in_turns()      or sums.count_now(), which a node with few partitions can afford

The replicas are those of the beginning. One that comes meanwhile is told of by the next count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tailrace_server.replication.in_turns import InTurns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tailrace_server.partition.partition import Partition
    from tailrace_server.replication.leadership import Leadership
    from tailrace_server.replication.replicas import Peer


class Lacks(NamedTuple):
    """What a replica lacks.

    - ``missing``: the number of mutations at the group's level that it has not acknowledged on the newest branches.
    - ``lag``: the number of mutations in memory that it has not acknowledged.
    """

    missing: int = 0
    lag: int = 0


class FollowerSums:
    """What each replica lacks.

    - ``peers``: the replicas that are counted.
    - ``newest_term``: the highest term of the newest branches.
    """

    def __init__(self, leadership: Leadership) -> None:
        self.newest_term = 0
        self.peers = list(leadership.replicas.peers.values())
        self._lacks = {peer: Lacks() for peer in self.peers}
        self._group, self._level = leadership.group, leadership.safest_level

    def of(self, peer: Peer) -> Lacks:
        """Returns what a replica lacks."""
        return self._lacks[peer]

    def count_now(self) -> FollowerSums:
        """Counts all partitions at once."""
        self._add(list(self._group))
        return self

    async def count_in_turns(self) -> FollowerSums:
        """Counts all partitions, a few in each turn of the loop."""
        turns = InTurns()
        for partition in self._group:
            await turns.look()
            self._add([partition])
        return self

    def _add(self, partitions: Sequence[Partition]) -> None:
        self.newest_term = max([self.newest_term, *(partition.log.term for partition in partitions)])
        for peer, before in self._lacks.items():
            missing = before.missing + peer.missing(partitions, self._level)
            self._lacks[peer] = Lacks(missing, before.lag + sum(map(peer.lag, partitions)))
