"""The branches of a new term: a leader begins one in each partition of its group before it leads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tailrace_server.partition.branching import FIRST_TERM, begin_branch
from tailrace_server.partition.partition import Partition

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

    def begin(self) -> None:
        """Begins a branch in each partition that has none of the term. Raises NoSpace, NotDurable.

        Call it again right before the node leads. Another group may have told of feeds meanwhile, and an earlier leader
        may have written to their first branches.
        """
        node, now = self._node, self._node.clock.monotonic()
        for partition in self._group:
            if partition not in self._ready and not (partition.log and self._term == FIRST_TERM):
                begin_branch(partition, node.host.randomness.token(16), node.storage.journal, self._term, now=now)
                self._ready.add(partition)
