"""Groups of partitions: those that share members, a term and a leader.

A node has one group today, number 0, with all partitions of all feeds. Which group a partition belongs to follows from
the feed's id and the partition's number alone, so a node can tell it for a feed that it does not have yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeAlias

from tailrace_server.feeds.catalog import Catalog
from tailrace_server.feeds.feed import Feed
from tailrace_server.partition.partition import Partition

# Returns the number of the group of a partition, from the feed's id and the partition's number. Pure.
GroupOf: TypeAlias = Callable[[bytes, int], int]

ONLY_GROUP = 0


def only_group(feed_id: bytes, partition: int) -> int:
    """Returns 0: all partitions are one group."""
    return ONLY_GROUP


class Group:
    """The partitions of one group, as far as this node has them."""

    def __init__(self, number: int, feeds: Catalog, group_of: GroupOf = only_group) -> None:
        """``feeds`` are all feeds of the node."""
        self.number = number
        self.feeds = feeds
        self._group_of = group_of

    def has(self, partition: Partition) -> bool:
        """Returns whether ``partition`` belongs to the group."""
        return self._group_of(partition.feed_id, partition.id) == self.number

    def __iter__(self) -> Iterator[Partition]:
        """Iterates over the partitions in the order of `Catalog.partitions`."""
        return (partition for partition in self.feeds.partitions() if self.has(partition))

    def of_feed(self, feed: Feed) -> list[Partition]:
        """Returns the partitions of ``feed`` that belong to the group."""
        return [partition for partition in feed.partitions if self.has(partition)]
