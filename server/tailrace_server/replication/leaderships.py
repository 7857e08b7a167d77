"""The leaderships of a node: one for each of its groups of partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from tailrace.errors import TailraceError
from tailrace_server.feeds.catalog import Catalog
from tailrace_server.feeds.feed import SYSTEM_FEED_ID
from tailrace_server.host.answers import Answer, Cancel
from tailrace_server.partition.partition import Partition
from tailrace_server.replication.groups import GroupOf, only_group
from tailrace_server.replication.leadership import Leadership
from tailrace_server.replication.role import Role


class Leaderships:
    """Finds the leadership of a partition. Iterating gives all leaderships of the node."""

    def __init__(self, leaderships: Iterable[Leadership], feeds: Catalog, group_of: GroupOf = only_group) -> None:
        """Registers one leadership for each group of the node; there is at least one."""
        self._all = tuple(leaderships)
        self._by_group = {leadership.group.number: leadership for leadership in self._all}
        self._feeds = feeds
        self._group_of = group_of
        self._only = self._all[0] if len(self._all) == 1 else None
        assert len(self._by_group) == len(self._all), "each group has one leadership"
        self.system = self.of(SYSTEM_FEED_ID, 0)  # of the group that the feed ``_feeds`` belongs to: it lists the feeds

    def __iter__(self) -> Iterator[Leadership]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @property
    def unnamed(self) -> Leadership:
        """The leadership that is meant if no group is named: that of ``_feeds``, which every node of a set has.

        ``replication`` of STATUS is about it, and so are the messages without a field for a group, on connections to
        the node's own listener: HELLO_OK, MEMBER, PROMISE, PROMOTE, HANDOVER, TAKE_OVER, ACCEPTED_SEQS and
        MEMBER_CHANGE. Their handlers ask the connection (`Connection.unnamed`), and nothing else.
        """
        return self.system

    def of_group(self, number: int) -> Leadership:
        """Returns the leadership of a group of this node."""
        return self._by_group[number]

    def of(self, feed_id: bytes, partition: int) -> Leadership:
        """Returns the leadership of a partition. The node need not have the feed."""
        return self._only or self._by_group[self._group_of(feed_id, partition)]

    def of_partition(self, partition: Partition) -> Leadership:
        """Returns the leadership of ``partition``."""
        return self._by_group[self._group_of(partition.feed_id, partition.id)]

    def of_partitions(self, partitions: Iterable[Partition]) -> Sequence[Leadership]:
        """Returns the leaderships of ``partitions``, each once; of no partition, that of ``_feeds``."""
        if len(self._all) == 1:
            return self._all
        return tuple(dict.fromkeys(map(self.of_partition, partitions))) or (self.system,)

    def of_feed(self, feed_id: bytes) -> Sequence[Leadership]:
        """Returns the leaderships of the feed's partitions; of partition 0 if the node does not have the feed."""
        feed = self._feeds.find(feed_id)
        return (self.of(feed_id, 0),) if feed is None else self.of_partitions(feed.partitions)

    # All groups

    def changes(self) -> dict[int, int]:
        """Returns `Leadership.changes` of each group, by its number."""
        return {leadership.group.number: leadership.changes for leadership in self._all}

    def adopt(self, partition: Partition) -> None:
        """Gives a partition of a feed that was just created the role of its group."""
        self.of_partition(partition).adopt(partition)

    async def leaders_seqs(self, partitions: Sequence[Partition]) -> Callable[[bytes, int], int]:
        """Returns how far the leader of each of these partitions has come: a function of feed id and partition.

        Each leader has made sure that it still leads. Raises NotLeader if one of the groups has no leader that this
        node knows, and whatever a leader answers. Groups of other partitions are not asked.
        """
        leaderships = self.of_partitions(partitions)
        feed_ids: dict[Leadership, set[bytes]] = {leadership: set() for leadership in leaderships}
        for partition in partitions:
            feed_ids[self.of_partition(partition)].add(partition.feed_id)
        seqs = {of.group.number: await of.leaders_seqs(sorted(ids)) for of, ids in feed_ids.items()}
        return lambda feed_id, partition: seqs[self._group_of(feed_id, partition)](feed_id, partition)


class Terms:
    """The terms of some leaderships at one moment, for work that waits between its steps."""

    def __init__(self, leaderships: Sequence[Leadership]) -> None:
        self._terms = [(leadership, leadership.term) for leadership in leaderships]

    def require(self) -> None:
        """Raises NotLeader as `Leadership.require_term`, for each leadership."""
        for leadership, term in self._terms:
            leadership.require_term(term)

    def require_writable(self) -> None:
        """Raises NotLeader or Overloaded as `Leadership.require_writable`, and NotLeader as ``require``."""
        for leadership, term in self._terms:
            leadership.require_writable()
            leadership.require_term(term)

    @property
    def in_set(self) -> bool:
        """Whether a write needs a majority of other nodes."""
        return any(leadership.in_set for leadership, _ in self._terms)


def lead_all(leaderships: Iterable[Leadership]) -> bool:
    """Returns whether this node leads all these groups."""
    return all(leadership.role is Role.LEADER for leadership in leaderships)


def confirm_all(leaderships: Sequence[Leadership], callback: Answer) -> Cancel | None:
    """Calls ``callback`` as `Leadership.confirm` does, once each of the leaderships is confirmed, or one has failed."""
    if len(leaderships) == 1:
        return leaderships[0].confirm(callback)
    left, is_over = len(leaderships), False
    cancels: list[Cancel] = []

    def confirmed(error: TailraceError | None) -> None:
        nonlocal left, is_over
        left -= 1
        if not is_over and (error is not None or not left):
            is_over = True
            callback(error)

    def cancel() -> None:
        nonlocal is_over
        is_over = True
        for cancel_one in cancels:
            cancel_one()

    for leadership in leaderships:
        ends = leadership.confirm(confirmed)
        if ends is not None:
            cancels.append(ends)
    return None if is_over else cancel
