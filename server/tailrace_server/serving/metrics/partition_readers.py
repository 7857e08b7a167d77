"""Sums over the partitions of a node, a partition in a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tailrace_server.feeds.feed import SYSTEM_FEED_ID
from tailrace_server.replication.role import Role
from tailrace_server.serving.metrics.lags import Lag
from tailrace_server.state.last_batches import PublishedAt, newer

if TYPE_CHECKING:
    from tailrace_server.feeds.feed import Feed
    from tailrace_server.partition.partition import Partition
    from tailrace_server.serving.metrics.first_rows import FirstRows
    from tailrace_server.serving.metrics.samples import BoundedNames, Samples
    from tailrace_server.serving.services import Services


class _FeedSums:
    """The sums of a feed, or of several that share a name."""

    __slots__ = ("durable", "memory", "mutations", "partitions", "segment_bytes", "segments", "sinks")

    def __init__(self) -> None:
        self.partitions = self.mutations = self.durable = self.memory = self.segments = self.segment_bytes = 0
        self.sinks: dict[str, PublishedAt] = {}  # the last batch of each sink

    def add(self, partition: Partition) -> None:
        self.partitions += 1
        self.mutations += partition.high_seq
        self.durable += partition.durable_seq
        self.memory += partition.tree.memory_bytes
        self.segments += len(partition.chain.segments)
        self.segment_bytes += partition.chain.nbytes
        if len(partition.sinks):
            for sink, published in partition.sinks.published():
                self.sinks[sink] = newer(published, self.sinks.get(sink))


class PartitionSums:
    """The sums of one scrape. Only its own methods change its fields."""

    def __init__(
        self, node: Services, feeds: BoundedNames, sinks: BoundedNames, rows: FirstRows, detailed: str
    ) -> None:
        """``detailed``: the name of the feed whose partitions get series of their own; "" for none."""
        self._node = node
        self._feeds = feeds
        self._sinks = sinks
        self._rows = rows
        self._detailed = detailed
        self._sums: dict[str, _FeedSums] = {}
        self._term = 0
        self._blocks = self._segments = self._segment_bytes = 0
        self._quorum_lag = self._leader_lag = self._unreadable = 0
        self._replicas: dict[str, Lag] = {}  # by address: a replaced disk and its successor share one

    def steps(self, samples: Samples) -> Iterator[None]:
        """Reads a partition in each step. Feeds may come and go between two steps."""
        node = self._node
        self._feeds.keep(feed.info.name for feed in node.feeds if feed.info.feed_id != SYSTEM_FEED_ID)
        for feed in list(node.feeds):
            is_system = feed.info.feed_id == SYSTEM_FEED_ID
            sums = _FeedSums() if is_system else self._sums_of(self._feeds.label(feed.info.name))
            for partition in feed.partitions:
                sums.add(partition)
                self._add(partition)
                if feed.info.name == self._detailed:
                    _read_partition(feed, partition, samples)
                yield

    def _sums_of(self, label: str) -> _FeedSums:
        sums = self._sums.get(label)
        if sums is None:
            sums = self._sums[label] = _FeedSums()
        return sums

    def _add(self, partition: Partition) -> None:
        leadership = self._node.leaderships.of_partition(partition)
        self._term = max(self._term, leadership.term, partition.log.term)
        self._blocks += partition.tree.block_count
        self._segments += len(partition.chain.segments)
        self._segment_bytes += partition.chain.nbytes
        self._unreadable += partition.damage is not None
        if leadership.role is Role.LEADER:
            if leadership.in_set and not partition.pushes.by_segments:
                self._quorum_lag += max(0, partition.high_seq - partition.quorum_seq)
            for peer in leadership.replicas.peers.values():
                lag = peer.lag(partition)
                if lag:
                    self._add_lag(peer.address, partition, partition.high_seq - lag)
        else:
            self._leader_lag += max(0, partition.leader_durable_seq - partition.durable_seq)

    def _add_lag(self, address: str, partition: Partition, seq: int) -> None:
        lag = self._replicas.setdefault(address, Lag())
        in_segments = sum(segment.nbytes for segment in partition.chain.after(seq))
        lag.add(mutations=partition.high_seq - seq, nbytes=in_segments + partition.tree.nbytes_after(seq))
        lag.lacks(self._rows, partition, seq)

    @property
    def lags(self) -> Iterable[Lag]:
        """The lags of replicas that are behind."""
        return self._replicas.values()

    def add_to(self, samples: Samples) -> None:
        """Adds what was summed."""
        samples.add("tailrace_term", self._term)
        samples.add("tailrace_write_queue_blocks", self._blocks)
        samples.add("tailrace_segments", self._segments)
        samples.add("tailrace_segment_bytes", self._segment_bytes)
        samples.add("tailrace_quorum_lag_mutations", self._quorum_lag)
        samples.add("tailrace_leader_lag_mutations", self._leader_lag)
        samples.add("tailrace_unreadable_partitions", self._unreadable)
        self._sinks.keep(sink for sums in self._sums.values() for sink in sums.sinks)
        for label, sums in self._sums.items():
            samples.add("tailrace_feed_partitions", sums.partitions, label)
            samples.add("tailrace_feed_mutations", sums.mutations, label)
            samples.add("tailrace_feed_durable_mutations", sums.durable, label)
            samples.add("tailrace_feed_memory_bytes", sums.memory, label)
            samples.add("tailrace_feed_segments", sums.segments, label)
            samples.add("tailrace_feed_segment_bytes", sums.segment_bytes, label)
            batches: dict[str, int] = {}
            times_us: dict[str, int] = {}
            for sink, (batch, time_us) in sums.sinks.items():
                sink_label = self._sinks.label(sink)
                batches[sink_label] = max(batch, batches.get(sink_label, 0))
                times_us[sink_label] = max(time_us, times_us.get(sink_label, 0))
            for sink_label, batch in batches.items():
                samples.add("tailrace_sink_last_batch", batch, label, sink_label)
                if times_us[sink_label]:
                    seconds = times_us[sink_label] / 1e6
                    samples.add("tailrace_sink_last_batch_timestamp_seconds", seconds, label, sink_label)
        self._add_replicas(samples)

    def _add_replicas(self, samples: Samples) -> None:
        """Adds the peers of each leadership; those with one address share a series, as a replaced disk does."""
        connected: dict[str, bool] = {}
        now_us = self._node.clock.wall_us()
        for leadership in self._node.leaderships:
            for peer in leadership.replicas.peers.values():
                connected[peer.address] = connected.get(peer.address, False) or peer.is_connected
        for address, is_connected in connected.items():
            samples.add("tailrace_replica_connected", is_connected, address)
            lag = self._replicas.get(address, Lag())
            samples.add("tailrace_replica_lag_seconds", lag.seconds(now_us), address)
            samples.add("tailrace_replica_lag_mutations", lag.mutations, address)
            samples.add("tailrace_replica_lag_bytes", lag.nbytes, address)


def _read_partition(feed: Feed, partition: Partition, samples: Samples) -> None:
    labels = feed.info.name, str(partition.id)
    samples.add("tailrace_partition_high_seq", partition.high_seq, *labels)
    samples.add("tailrace_partition_durable_seq", partition.durable_seq, *labels)
    samples.add("tailrace_partition_quorum_seq", partition.quorum_seq, *labels)
    samples.add("tailrace_partition_flushed_seq", partition.flushed_seq, *labels)
    samples.add("tailrace_partition_memory_bytes", partition.tree.memory_bytes, *labels)
    samples.add("tailrace_partition_segments", len(partition.chain.segments), *labels)
    samples.add("tailrace_partition_segment_bytes", partition.chain.nbytes, *labels)
