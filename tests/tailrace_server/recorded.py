"""A journal of which only the records matter, and feeds to be made in it."""

from __future__ import annotations

from tailrace_server.feeds.feed import info_of_request
from tailrace_server.journal import RecordKind


class RecordJournal:
    """Keeps records as they would be recovered."""

    def __init__(self):
        self.records = []

    def append(self, kind, feed_id, partition, payload):
        self.records.append((kind, feed_id, partition, payload, None))
        return len(self.records)

    def append_block(self, feed_id, partition, branch, block, snapshot=(0, 0)):
        self.records.append((RecordKind.BLOCK, feed_id, partition, b"", block))
        return len(self.records)

    @staticmethod
    def file_of(place):
        """Ten records a file."""
        return place // 10 + 1


def info_of(name, feed_id=b"f" * 16, partitions=2):
    return info_of_request({"name": name, "feed_id": feed_id.hex(), "partitions": partitions}, 100)
