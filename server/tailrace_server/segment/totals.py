"""Counts and bounds of a segment's rows: taken when it is written, and again when it is verified."""

from __future__ import annotations

from tailrace.block import Columns
from tailrace.segment.identity import SegmentIdentity


class RowTotals:
    """Counts and bounds of the rows added so far. No work is done by row."""

    def __init__(self) -> None:
        self.rows = 0
        self.tombstones = 0
        self.oldest_timestamp = 0
        self.newest_timestamp = 0
        self.key_value_bytes = 0
        self.least_hash = 0
        self.greatest_hash = 0

    def add(self, columns: Columns) -> None:
        """Adds the rows of a block."""
        header, stamps, validity = columns.header, columns.timestamp_buffer(), columns.validity
        oldest = header.timestamp if stamps is None else int.from_bytes(stamps[:8], "little")
        if self.rows == 0:
            self.oldest_timestamp, self.least_hash = oldest, header.least_hash
        self.rows += header.rows
        if validity is not None:
            self.tombstones += header.rows - int.from_bytes(validity, "little").bit_count()
        self.oldest_timestamp = min(self.oldest_timestamp, oldest)
        self.newest_timestamp = max(self.newest_timestamp, header.timestamp)
        self.key_value_bytes += len(columns.key_data) + len(columns.value_data)
        self.least_hash = min(self.least_hash, header.least_hash)
        self.greatest_hash = max(self.greatest_hash, header.greatest_hash)

    def fill(self, identity: SegmentIdentity) -> SegmentIdentity:
        """Returns the identity with these counts in place of its own."""
        return identity._replace(
            rows=self.rows,
            tombstones=self.tombstones,
            oldest_timestamp=self.oldest_timestamp,
            newest_timestamp=self.newest_timestamp,
            key_value_bytes=self.key_value_bytes,
        )
