"""The partitions whose streams a node has not answered yet, for a look that costs nothing for each of the others."""

from __future__ import annotations

from tailrace.consuming.partition import ConsumedPartition, ConsumerState

NOT_AGREED = (ConsumerState.WAITING, ConsumerState.REQUESTED)


class Unanswered(dict[int, ConsumedPartition]):
    """The partitions in WAITING or REQUESTED, by id; and some others, until a look finds them.

    A stream without async looks before each event. A feed may have 4,096 partitions.
    """

    def any(self) -> bool:
        """Tells whether a partition is in WAITING or REQUESTED. Those that are not, and that it meets, leave."""
        while self:
            id, partition = self.popitem()
            if partition.state in NOT_AGREED:
                self[id] = partition
                return True
        return False

    def first(self) -> ConsumedPartition | None:
        """Returns the first partition in WAITING or REQUESTED, by a look at all."""
        return next((self[id] for id in sorted(self) if self[id].state in NOT_AGREED), None)
