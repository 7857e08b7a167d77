"""The named consumers that were connected a while ago: how far they had come, so that their lag goes on growing.

    connection ends ──note──> kept ──scrape: connected again, its feed dropped, or too old──> forgotten

A consumer's position is its own, and it may go on at another node. So only the streams of partitions that this node
leads count, and only for a while.
"""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, NamedTuple

from tailrace_server.replication.leaderships import lead_all

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from tailrace_server.partition.partition import Partition
    from tailrace_server.replication.local_node import LocalNode
    from tailrace_server.stream.rounds import Rounds
    from tailrace_server.stream.told_progress import ToldProgress

# The consumers that are kept, each a name and a feed: as many as have series of their own.
STOPPED_MAX = 200
# Their partitions, about 150 bytes each. The consumer that stopped first is forgotten first.
PARTITIONS_MAX = 16_384
# Names that clients do not choose: those of commands, of pages, and of queries of Spark that have none.
_MADE = ("tailrace ", "websocket ", "console ")
_OF_SPARK = frozenset(("spark source", "spark task", "spark sink"))


class Stopped(NamedTuple):
    """When a consumer went, in monotonic seconds, and the seq of each partition up to which it had handled it."""

    at: float
    seqs: dict[Partition, int]


class StoppedConsumers:
    """See the module. Only its own methods change its fields."""

    def __init__(self) -> None:
        self._stopped: collections.OrderedDict[tuple[str, bytes], Stopped] = collections.OrderedDict()
        self._partitions = 0  # of all

    def __len__(self) -> int:
        return len(self._stopped)

    def note(self, name: str, rounds: Rounds, progress: ToldProgress | None, node: LocalNode) -> None:
        """Notes the consumers of a connection that ends: one for each feed of its streams, and that of ``progress``."""
        if not name or name.startswith(_MADE) or name in _OF_SPARK or not node.config.limits.stopped_consumer_kept_s:
            return
        seqs: dict[bytes, dict[Partition, int]] = {}
        for slot in rounds.slots.values():
            stream, partition = slot.stream, slot.stream.partition
            # A stream with an end is of a program that was about to end.
            if stream.end_seq is None and lead_all((node.leaderships.of_partition(partition),)):
                seqs.setdefault(partition.feed_id, {})[partition] = stream.sent_seq
        for mark in rounds.window.unhandled.marks():
            of_feed = seqs.get(mark.partition.feed_id, {})
            if mark.partition in of_feed:
                of_feed[mark.partition] = min(of_feed[mark.partition], mark.after_seq)
        if progress is not None:
            led = {
                partition: seq
                for partition, seq in progress.seqs.items()
                if lead_all((node.leaderships.of_partition(partition),))
            }
            seqs[progress.feed_id] = led
        for feed_id, found in seqs.items():
            if found and len(found) <= PARTITIONS_MAX:
                self._keep((name, feed_id), Stopped(node.clock.monotonic(), found))

    def _keep(self, key: tuple[str, bytes], stopped: Stopped) -> None:
        self._forget(key)
        self._stopped[key] = stopped
        self._partitions += len(stopped.seqs)
        while len(self._stopped) > STOPPED_MAX or self._partitions > PARTITIONS_MAX:
            self._forget(next(iter(self._stopped)))

    def _forget(self, key: tuple[str, bytes]) -> None:
        stopped = self._stopped.pop(key, None)
        if stopped is not None:
            self._partitions -= len(stopped.seqs)

    def stopped_at(self, key: tuple[str, bytes]) -> float:
        """Returns when a consumer that `lags` has named went, in monotonic seconds."""
        return self._stopped[key].at

    def lags(
        self, node: LocalNode, connected: Container[tuple[str, bytes]]
    ) -> Iterator[tuple[tuple[str, bytes], Partition, int]]:
        """Yields the name and feed id of each, with its partitions and seqs. Forgets those that are not to be shown.

        ``connected`` has the names and feed ids of the consumers that are connected.
        """
        oldest = node.clock.monotonic() - node.config.limits.stopped_consumer_kept_s
        for key, stopped in list(self._stopped.items()):
            partition = next(iter(stopped.seqs))
            is_led = lead_all((node.leaderships.of_partition(partition),))
            if key in connected or stopped.at < oldest or not is_led or node.feeds.find(key[1]) is None:
                self._forget(key)
                continue
            for partition, seq in stopped.seqs.items():
                yield key, partition, seq
