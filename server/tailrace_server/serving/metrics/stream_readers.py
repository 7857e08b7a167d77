"""Sums over the connections and streams of a node, a connection or some streams in a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tailrace_server.serving.metrics.samples import Samples
    from tailrace_server.serving.services import Services


class StreamSums:
    """The sums of one scrape. Only its own methods change its fields."""

    def __init__(self, node: Services) -> None:
        self._node = node
        self._clients = self._nodes = self._slow = self._backlog = self._uncredited = self._barriers = 0
        self._of_consumers = self._of_replicas = 0
        self._sent_blocks = self._sent_bytes = 0

    def steps(self) -> Iterator[None]:
        """Reads a connection in each step."""
        now, slow_after_s = self._node.clock.monotonic(), self._node.config.limits.slow_after_s
        # In the turn in which the open connections are listed: one that ends later counts by its own numbers.
        traffic = self._node.traffic
        self._sent_blocks, self._sent_bytes = traffic.ended_sent_blocks, traffic.ended_sent_bytes
        for connection in self._node.connections:
            rounds = connection.rounds
            if connection.is_of_node:
                self._nodes += 1
            else:
                self._clients += 1
            self._slow += connection.stuck_seconds(now) >= slow_after_s
            self._backlog += connection.transport.backlog_bytes
            self._uncredited += rounds.outstanding_bytes
            self._barriers += len(rounds.barriers)
            self._sent_blocks += rounds.sent_blocks
            self._sent_bytes += rounds.sent_bytes
            if connection.replica is None:
                self._of_consumers += len(rounds.slots)
            else:
                self._of_replicas += len(rounds.slots)
            yield

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
