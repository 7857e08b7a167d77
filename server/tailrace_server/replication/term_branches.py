"""The branches of a new term: a leader begins one in each partition of its group before it leads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tailrace_server.partition.branching import FIRST_TERM, begin_branch
from tailrace_server.partition.partition import Partition
from tailrace_server.replication.in_turns import InTurns

if TYPE_CHECKING:
    from tailrace_server.replication.groups import Group
    from tailrace_server.replication.local_node import LocalNode


class TermBranches:
    """The partitions of one group that may be written to in a term."""

    def __init__(self, node: LocalNode, group: Group, term: int, kept: Iterable[Partition] = ()) -> None:
        """``kept``: the partitions that go on with the branches of the term before."""
        self._node = node
        self._group = group
        self._term = term
        self._ready = set(kept)
        self._additions = -1  # `Catalog.additions` when all partitions were looked at

    async def begin(self, require_term: Callable[[], None]) -> None:
        """Begins a branch in each partition that has none of the term, a few in a turn.

        ``require_term`` raises NotLeader if the node may not lead in the term any more, which is asked in each turn:
        another node that was promised a later term knows how far this one has come. Raises NoSpace, NotDurable, too.
        """
        additions = self._group.feeds.additions
        turns = InTurns()
        for partition in list(self._group.unsorted()):
            await turns.look()
            require_term()
            self._begin(partition)
        self._additions = additions

    def begin_rest(self) -> None:
        """Begins a branch in each partition that was added during ``begin``, or since. Raises NoSpace, NotDurable.

        Call it right before the node leads. Another group may have told of feeds meanwhile, and an earlier leader may
        have written to their first branches.
        """
        if self._group.feeds.additions != self._additions:
            for partition in self._group.unsorted():
                self._begin(partition)

    def _begin(self, partition: Partition) -> None:
        if partition.is_dropped or partition in self._ready or (partition.log and self._term == FIRST_TERM):
            return
        node = self._node
        token, now = node.host.randomness.token(16), node.clock.monotonic()
        begin_branch(partition, token, node.storage.journal, self._term, now=now)
        self._ready.add(partition)
