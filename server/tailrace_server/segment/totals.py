"""Counts and bounds of a segment's rows: taken when it is written, and again when it is verified."""

from __future__ import annotations

import numpy as np

from tailrace.block import Columns
from tailrace.block.header import TIMESTAMP_MAX
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
        self.earliest_expiry = 0

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
        if columns.ttl_buffer() is not None:
            expiries = [time for time in (self.earliest_expiry, _earliest_expiry(columns)) if time]
            self.earliest_expiry = min(expiries, default=0)

    def fill(self, identity: SegmentIdentity) -> SegmentIdentity:
        """Returns the identity with these counts in place of its own."""
        return identity._replace(
            rows=self.rows,
            tombstones=self.tombstones,
            oldest_timestamp=self.oldest_timestamp,
            newest_timestamp=self.newest_timestamp,
            key_value_bytes=self.key_value_bytes,
            earliest_expiry=self.earliest_expiry,
        )


def _earliest_expiry(columns: Columns) -> int:
    """Returns the least timestamp plus ttl of the rows with a ttl, in microseconds; 0 if there are only expiries."""
    valid, stamps = columns.validity, columns.timestamp_buffer()
    ttls = np.frombuffer(columns.ttl_buffer() or b"", "<u4").astype("<u8")
    if valid is not None:
        ttls[np.unpackbits(np.frombuffer(valid, "u1"), count=columns.rows, bitorder="little") == 0] = 0
    rows = np.flatnonzero(ttls)
    if not len(rows):
        return 0
    began = np.uint64(columns.header.timestamp) if stamps is None else np.frombuffer(stamps, "<u8")[rows]
    return min(int((ttls[rows] * np.uint64(1_000_000) + began).min()), TIMESTAMP_MAX)
