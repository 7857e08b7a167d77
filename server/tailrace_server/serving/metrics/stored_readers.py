"""Gives the metrics of consumers with a name and of groups: how far they are behind, and who owns their partitions.

The node that leads ``_feeds`` tells it, so that a set has each series once. It also tells those that nothing reads now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tailrace_server.replication.role import Role
from tailrace_server.segment import SegmentDamaged
from tailrace_server.serving.metrics.catalogue import OTHER
from tailrace_server.serving.metrics.lags import Lag

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from tailrace.wire.consumer_messages import ConsumerId
    from tailrace_server.feeds.feed import Feed
    from tailrace_server.serving.metrics.first_rows import FirstRows
    from tailrace_server.serving.metrics.samples import BoundedNames, Samples
    from tailrace_server.serving.services import Services


class Stored(NamedTuple):
    """The numbers of one consumer or group, or of all that share a series."""

    lag: Lag
    generation: int
    members: int
    unowned: int

    def joined(self, other: Stored) -> Stored:
        """Returns the numbers of both."""
        self.lag.join(other.lag)
        generation = max(self.generation, other.generation)
        return Stored(self.lag, generation, self.members + other.members, self.unowned + other.unowned)


class StoredSums:
    """The sums of one scrape. Only its own methods change its fields."""

    def __init__(self, node: Services, names: BoundedNames, feeds: BoundedNames, rows: FirstRows) -> None:
        self._node = node
        self._names = names
        self._feeds = feeds
        self._rows = rows
        self._series: dict[tuple[str, str, str], Stored] = {}  # by the kind, the name and the feed

    def steps(self) -> Iterator[None]:
        """Reads a partition of a consumer in each step."""
        found: dict[tuple[str, str, str], Stored] = {}
        for consumer in self._known():
            feed = self._node.feeds.find(consumer.feed_id)
            if feed is not None:  # else it was dropped
                key = consumer.kind, consumer.name, feed.info.name
                found[key] = yield from self._read(consumer, feed)
        self._names.keep(map("\n".join, found))
        for (kind, name, feed_name), stored in found.items():
            is_kept = self._names.label(f"{kind}\n{name}\n{feed_name}") != OTHER
            labels = (kind, name, feed_name) if is_kept else (kind, OTHER, self._feeds.label(feed_name))
            before = self._series.get(labels)
            self._series[labels] = stored if before is None else before.joined(stored)

    def _known(self) -> list[ConsumerId]:
        if self._node.leaderships.system.role is not Role.LEADER:
            return []
        try:
            return list(self._node.feeds.consumers())
        except SegmentDamaged:  # which others tell
            return []

    def _read(self, consumer: ConsumerId, feed: Feed) -> Generator[None, None, Stored]:
        lag, generation = Lag(), 0
        for number, owned in list(self._node.feeds.consumers().of(consumer).items()):
            if number >= len(feed.partitions):
                continue
            partition, generation = feed.partitions[number], max(generation, owned.generation)
            seq = 0 if owned.position is None else owned.position.seq
            if seq < partition.high_seq:
                lag.add(mutations=partition.high_seq - seq)
                lag.lacks(self._rows, partition, seq)
            yield
        members, unowned = self._node.consumers.readers(consumer)
        return Stored(lag, generation, members, unowned)

    @property
    def lags(self) -> Iterator[Lag]:
        """The lags that have a series."""
        return (stored.lag for stored in self._series.values())

    def add_to(self, samples: Samples) -> None:
        """Adds the sums."""
        now_us = self._node.clock.wall_us()
        for labels, stored in self._series.items():
            samples.add("tailrace_stored_lag_seconds", stored.lag.seconds(now_us), *labels)
            samples.add("tailrace_stored_lag_mutations", stored.lag.mutations, *labels)
            samples.add("tailrace_stored_generation", stored.generation, *labels)
            samples.add("tailrace_stored_members", stored.members, *labels)
            samples.add("tailrace_stored_unowned_partitions", stored.unowned, *labels)
