"""The partitions that a node is known to be unable to read: for promotions, their forecast, and status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
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
            paths = (segment.path for segment in partition.chain.segments)
            why = next((node.storage.damages[path] for path in paths if path in node.storage.damages), None)
            if partition.damage is not None:
                why = str(partition.damage)
            if why is not None:
                found.append(Unreadable(feed.info.name, partition.id, why))
    return found


def told(unreadable: Sequence[Unreadable]) -> str:
    """Returns the sentence on a node's own unreadable partitions; "" without any."""
    if not unreadable:
        return ""
    return f"{listed([str(found) for found in unreadable])} cannot be read here ({unreadable[0].why})"


def listed(texts: Sequence[str], separator: str = ", ") -> str:
    """Returns the first three of ``texts``, and the number of the others."""
    more = f" and {len(texts) - _NAMED_MAX} more" if len(texts) > _NAMED_MAX else ""
    return separator.join(texts[:_NAMED_MAX]) + more
