"""The partitions that a node is known to be unable to read: for promotions, their forecast, and status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tailrace_server.partition.chain import LostSegment

if TYPE_CHECKING:
    from tailrace_server.partition.partition import Partition
    from tailrace_server.replication.groups import Group
    from tailrace_server.replication.local_node import LocalNode

# A sentence names this many; the others are counted.
_NAMED_MAX = 3


class Unreadable(NamedTuple):
    """A partition with a damaged segment, and the error."""

    feed: str
    partition: int
    why: str

    def __str__(self) -> str:
        return f"partition {self.partition} of feed {self.feed}"

    def to_json(self) -> dict[str, Any]:
        """Returns one of the ``unreadable`` of a node in status."""
        return self._asdict()


def unreadable_of(node: LocalNode, group: Group) -> list[Unreadable]:
    """Returns the partitions of ``group`` that are known to be damaged, since the start or by a read.

    Without any damage this costs nothing.
    """
    if not node.storage.damages:
        return []
    found = []
    for feed in [node.feeds.system, *node.feeds]:
        for partition in group.of_feed(feed):
            why = next(iter(unreadable_segments(node, partition).values()), None)
            if partition.damage is not None:
                why = str(partition.damage)
            if why is not None:
                found.append(Unreadable(feed.info.name, partition.id, why))
    return found


def unreadable_segments(node: LocalNode, partition: Partition) -> dict[bytes, str]:
    """Returns the errors of the segments of ``partition`` that are known to be damaged, by id, oldest first."""
    damages, damage = node.storage.damages, str(partition.damage)
    return {
        segment.identity.segment_id: damages.get(segment.path, damage)
        for segment in partition.chain.segments
        if segment.path in damages or isinstance(segment, LostSegment)
    }


def told(unreadable: Sequence[Unreadable]) -> str:
    """Returns the sentence on a node's own unreadable partitions; "" without any."""
    if not unreadable:
        return ""
    return f"{listed([str(found) for found in unreadable])} cannot be read here ({unreadable[0].why})"


def listed(texts: Sequence[str], separator: str = ", ") -> str:
    """Returns the first three of ``texts``, and the number of the others."""
    more = f" and {len(texts) - _NAMED_MAX} more" if len(texts) > _NAMED_MAX else ""
    return separator.join(texts[:_NAMED_MAX]) + more
