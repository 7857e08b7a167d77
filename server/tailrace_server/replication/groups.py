"""Groups of partitions: those that share members, a term and a leader.

A node has one group today, number 0, with all partitions of all feeds. Which group a partition belongs to follows from
the feed's id and the partition's number alone, so a node can tell it for a feed that it does not have yet.

One group has the partition of ``_feeds``, which lists the feeds. A member of it hears of feeds from its leader. A
member of another group hears of them from the other groups of its node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from tailrace.link.address import Address
from tailrace_server.config import Config
from tailrace_server.feeds.catalog import Catalog
from tailrace_server.feeds.feed import SYSTEM_FEED_ID, Feed
from tailrace_server.partition.partition import Partition
from tailrace_server.replication.membership import FILE_NAME

# Returns the number of the group of a partition, from the feed's id and the partition's number. Pure.
GroupOf: TypeAlias = Callable[[bytes, int], int]

ONLY_GROUP = 0


def only_group(feed_id: bytes, partition: int) -> int:
    """Returns 0: all partitions are one group."""
    return ONLY_GROUP


class GroupSettings(NamedTuple):
    """The settings of one group on one node.

    - ``number``: of the group, from 0.
    - ``members``: the addresses of all members of the group's set at the start, in their order; empty outside of a
      set.
    - ``own``: the address of this node among them. Messages that name no group are about the group whose address they
      came to.
    - ``source``: the address of the node that a plain replica follows; None in a set, and of a node that is alone.
    - ``membership_name``: the name of the group's file of promises in the data directory.
    """

    number: int
    members: tuple[Address, ...]
    own: Address
    source: Address | None
    membership_name: str


class Grouping(NamedTuple):
    """All groups of a node, and the function that tells the group of a partition."""

    groups: Sequence[GroupSettings]
    group_of: GroupOf


def one_group(config: Config) -> Grouping:
    """Returns the grouping of a node with one group: its members are those of ``config``."""
    members = tuple(Address(*member) for member in config.members)
    settings = GroupSettings(ONLY_GROUP, members, config.named, config.replica_of, FILE_NAME)
    return Grouping((settings,), only_group)


class Group:
    """The partitions of one group, as far as this node has them."""

    def __init__(self, number: int, feeds: Catalog, group_of: GroupOf = only_group) -> None:
        """``feeds`` are all feeds of the node."""
        self.number = number
        self.feeds = feeds
        self._group_of = group_of
        self.lists_feeds = self.includes(SYSTEM_FEED_ID, 0)  # whether the partition of ``_feeds`` belongs to the group

    def includes(self, feed_id: bytes, partition: int) -> bool:
        """Returns whether a partition belongs to the group. The node need not have the feed."""
        return self._group_of(feed_id, partition) == self.number

    def has(self, partition: Partition) -> bool:
        """Returns whether ``partition`` belongs to the group."""
        return self._group_of(partition.feed_id, partition.id) == self.number

    def __iter__(self) -> Iterator[Partition]:
        """Iterates over the partitions in the order of `Catalog.partitions`."""
        return (partition for partition in self.feeds.partitions() if self.has(partition))

    def unsorted(self) -> Iterable[Partition]:
        """Returns the partitions in no order, which takes less time for thousands of feeds."""
        partitions = (partition for feed in self.feeds.feeds() for partition in feed.partitions)
        return partitions if self._group_of is only_group else filter(self.has, partitions)

    def of_feed(self, feed: Feed) -> list[Partition]:
        """Returns the partitions of ``feed`` that belong to the group."""
        return [partition for partition in feed.partitions if self.has(partition)]
