"""Sums over the connections and streams of a node, and the lag of each consumer; a stream in a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tailrace_server.serving.metrics.catalogue import OTHER, UNNAMED
from tailrace_server.serving.metrics.lags import Lag

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tailrace_server.partition.partition import Partition
    from tailrace_server.serving.metrics.first_rows import FirstRows
    from tailrace_server.serving.metrics.samples import BoundedNames, Samples
    from tailrace_server.serving.services import Services
    from tailrace_server.stream.partition_stream import PartitionStream

# Clients that the node itself makes for tails over WebSocket are named with the address of their peer.
_WEBSOCKET = "websocket"


class StreamSums:
    """The sums of one scrape. Only its own methods change its fields."""

    def __init__(self, node: Services, consumers: BoundedNames, feeds: BoundedNames, rows: FirstRows) -> None:
        self._node = node
        self._consumers = consumers
        self._feeds = feeds
        self._rows = rows
        self._clients = self._nodes = self._slow = self._backlog = self._uncredited = self._barriers = 0
        self._of_consumers = self._of_replicas = 0
        self._sent_blocks = self._sent_bytes = 0
        self._lags: dict[tuple[str, bytes], Lag] = {}  # by the name of the consumer, and the feed's id
        self._series: dict[tuple[str, str], Lag] = {}  # by their labels, once all were read

    def steps(self) -> Iterator[None]:
        """Reads a connection or a stream in each step."""
        now, slow_after_s = self._node.clock.monotonic(), self._node.config.limits.slow_after_s
        # In the turn in which the open connections are listed: one that ends later counts by its own numbers.
        traffic = self._node.traffic
        self._sent_blocks, self._sent_bytes = traffic.ended_sent_blocks, traffic.ended_sent_bytes
        for connection in self._node.connections:
            rounds, window = connection.rounds, connection.rounds.window
            if connection.is_of_node:
                self._nodes += 1
            else:
                self._clients += 1
            self._slow += connection.stuck_seconds(now) >= slow_after_s
            self._backlog += connection.transport.backlog_bytes
            self._uncredited += window.outstanding_bytes
            self._barriers += len(rounds.barriers)
            self._sent_blocks += window.sent_blocks
            self._sent_bytes += window.sent_bytes
            if connection.replica is None:
                self._of_consumers += len(rounds.slots)
                yield from self._consumer(connection)
            else:
                self._of_replicas += len(rounds.slots)
            yield
        yield from self._stopped()
        self._join()

    def _consumer(self, connection: Any) -> Iterator[None]:
        """Adds what the consumer at the other end lacks: what it was not sent, and what it has not handled."""
        rounds, name, progress = connection.rounds, _name_of(connection.name), connection.progress
        if progress is not None:
            yield from self._told(self._lag(name, progress.feed_id), progress.seqs)
        for slot in list(rounds.slots.values()):
            self._not_sent(self._lag(name, slot.stream.partition.feed_id), slot.stream)
            yield
        for mark in list(rounds.window.unhandled.marks()):
            lag = self._lags.get((name, mark.partition.feed_id))
            if lag is not None:  # else its streams have ended
                lag.add(mutations=mark.mutations)
                lag.lacks(self._rows, mark.partition, mark.after_seq)
                yield

    def _stopped(self) -> Iterator[None]:
        """Adds what the consumers lack that are gone."""
        for (name, feed_id), partition, seq in self._node.stopped.lags(self._node, set(self._lags)):
            yield from self._told(self._lag(name, feed_id), {partition: seq})

    def _told(self, lag: Lag, seqs: Mapping[Partition, int]) -> Iterator[None]:
        """Adds what a consumer lacks that has handled each partition up to its seq."""
        for partition, seq in seqs.items():
            if seq < partition.high_seq:
                lag.add(mutations=partition.high_seq - seq)
                lag.lacks(self._rows, partition, seq)
            yield

    def _not_sent(self, lag: Lag, stream: PartitionStream) -> None:
        lag.add(streams=1)
        partition = stream.partition
        last_seq = partition.high_seq if stream.end_seq is None else min(stream.end_seq, partition.high_seq)
        if stream.sent_seq < last_seq:
            lag.add(mutations=last_seq - stream.sent_seq)
            lag.lacks(self._rows, partition, stream.sent_seq)

    def _lag(self, name: str, feed_id: bytes) -> Lag:
        lag = self._lags.get((name, feed_id))
        if lag is None:
            lag = self._lags[name, feed_id] = Lag()
        return lag

    def _join(self) -> None:
        """Joins the lags that share a series."""
        named: dict[tuple[str, str], Lag] = {}
        for (name, feed_id), lag in self._lags.items():
            feed = self._node.feeds.find(feed_id)
            if feed is not None:
                named[name, feed.info.name] = lag
        self._consumers.keep(map("\n".join, named))
        for (name, feed_name), lag in named.items():
            is_kept = self._consumers.label(f"{name}\n{feed_name}") != OTHER
            labels = (name, feed_name) if is_kept else (OTHER, self._feeds.label(feed_name))
            series = self._series.get(labels)
            if series is None:
                self._series[labels] = lag
            else:
                series.join(lag)

    @property
    def lags(self) -> Iterator[Lag]:
        """The lags that have a series."""
        return iter(self._series.values())

    def add_to(self, samples: Samples) -> None:
        """Adds what was summed."""
        samples.add("tailrace_connections", self._clients, "client")
        samples.add("tailrace_connections", self._nodes, "node")
        samples.add("tailrace_slow_connections", self._slow)
        samples.add("tailrace_backlog_bytes", self._backlog)
        samples.add("tailrace_uncredited_bytes", self._uncredited)
        samples.add("tailrace_waiting_barriers", self._barriers)
        samples.add("tailrace_streams", self._of_consumers, "consumer")
        samples.add("tailrace_streams", self._of_replicas, "replica")
        samples.add("tailrace_sent_blocks_total", self._sent_blocks)
        samples.add("tailrace_sent_bytes_total", self._sent_bytes)
        now_us = self._node.clock.wall_us()
        for labels, lag in self._series.items():
            samples.add("tailrace_consumer_lag_seconds", lag.seconds(now_us), *labels)
            samples.add("tailrace_consumer_lag_mutations", lag.mutations, *labels)
            samples.add("tailrace_consumer_streams", lag.streams, *labels)


def _name_of(name: str) -> str:
    """Returns the name that the series of a connection have."""
    if name.startswith(f"{_WEBSOCKET} "):
        return _WEBSOCKET
    return name or UNNAMED
