"""The partitions that this node has begun anew, or copied anew.

It begins one anew if its leader does not keep the rows that followed its own:

    here      1 ..... 10                                    stood at 10
    leader                      (trimmed up to 20) 21 ... 30    kept from 21 on

A history is trimmed by age or bytes, and deletions of a compact feed are purged. A follower that was away for longer
takes what there is. Log and status say that the rows in between are not here. It copies one anew if it could not read
its own segments: then no row is missing.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from tailrace_server.feeds.catalog import Catalog
    from tailrace_server.partition.partition import Partition

log = logging.getLogger("tailrace.server")


class Beginning(NamedTuple):
    """A new beginning: the seq at which the partition stood, the first seq that the leader kept, and the reason.

    ``why``: "trimmed" or "purged"; "damaged" of a partition that was copied anew.
    """

    stood_at: int
    kept_from: int
    why: str


class BegunAnew:
    """The last new beginning of each partition since the start of the node."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._left: dict[Partition, int] = {}  # the seqs of partitions whose rows were given up, until there are others
        self._begun: dict[Partition, Beginning] = {}

    def left(self, partition: Partition, seq: int) -> None:
        """Notes that the rows of ``partition``, which stood at ``seq``, are about to go for those of its leader."""
        if seq:
            self._left[partition] = max(seq, self._left.get(partition, 0))

    def grown(self, partition: Partition) -> None:
        """Notes that ``partition`` has another segment. Says so if it begins above the rows that were here.

        Mostly no partition has left its rows, and then this is a look into an empty table.
        """
        stood_at = self._left.get(partition)
        if stood_at is None:
            return
        gone = max(partition.trim_seq, partition.purge_seq)
        if gone > stood_at:
            self._begins(partition, stood_at)
        if gone > stood_at or partition.high_seq >= stood_at:
            del self._left[partition]

    def copied(self, partition: Partition, stood_at: int) -> None:
        """Notes that ``partition``, which stood at ``stood_at``, has its leader's segments for its damaged ones."""
        feed = self._catalog.of_id(partition.feed_id).info
        log.warning(
            "partition %s of feed %s can be read again: it has the segments of its leader up to seq %s",
            *(partition.id, feed.name, partition.high_seq),
        )
        self._begun[partition] = Beginning(stood_at, partition.trim_seq + 1, "damaged")

    def forget(self, partition: Partition) -> None:
        """Drops what is known of ``partition``, of a feed that was dropped."""
        self._left.pop(partition, None)
        self._begun.pop(partition, None)

    def _begins(self, partition: Partition, stood_at: int) -> None:
        feed = self._catalog.of_id(partition.feed_id).info
        if partition.trim_seq > stood_at:
            begun = Beginning(stood_at, partition.trim_seq + 1, "trimmed")
            what = "its leader keeps the rows from seq %s on (history_age_s, history_bytes)"
        else:
            begun = Beginning(stood_at, partition.purge_seq + 1, "purged")
            what = "its leader has purged deletions below seq %s (tombstone_age_s)"
        log.warning(
            f"partition %s of feed %s is begun anew: it stood at seq %s, and {what}",
            *(partition.id, feed.name, stood_at, begun.kept_from),
        )
        self._begun[partition] = begun

    def to_json(self, count_max: int) -> list[dict[str, Any]]:
        """Returns the part of the status, of ``count_max`` partitions at most."""
        return [
            {"feed": self._catalog.of_id(partition.feed_id).info.name, "partition": partition.id, **begun._asdict()}
            for partition, begun in list(self._begun.items())[:count_max]
        ]
