"""The identity of a segment: its stretch of a partition, the segments it was made of, and totals of its rows. Pure.

It is JSON (one object, members sorted, no spaces), since it is read once, is small, and people read it.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from tailrace.block.header import PARTITION_MAX, SEQ_MAX, TIMESTAMP_MAX
from tailrace.model import BRANCH_BYTES, FEED_ID_BYTES
from tailrace.segment.errors import SegmentFormatError

SEGMENT_ID_BYTES = 16
NO_BASE = bytes(SEGMENT_ID_BYTES)

# The bound of segments that one compaction reads, so that the identity stays small.
INCLUDED_IDS_MAX = 64

# Row numbers have 32 bits.
ROWS_MAX = 2**32 - 1

# 64 ids of 35 characters, and all else at its longest, are below 4,000.
IDENTITY_BYTES_MAX = 8_192

_BYTES_MAX = 2**63 - 1


class SegmentIdentity(NamedTuple):
    """The identity of a segment. The writer fills in the fields from ``rows`` on.

    The segment holds the run (``after_seq``, ``last_seq``]; ``branch`` (16 bytes) is that of its last seq. ``base_id``
    is the segment before it in the chain (zeros: none), ``included_ids`` are the segments that it was compacted from.
    ``deduplicated``: rows that were superseded within the run may be missing. ``purge_seq`` is the highest seq of a row
    that is missing although no newer row of its key is there; 0 if no row was purged. ``earliest_expiry`` is the least
    timestamp plus ttl of the rows with a ttl, in microseconds; 0 if no row has one. The text leaves out a 0.
    """

    feed_id: bytes
    partition: int
    branch: bytes
    segment_id: bytes
    base_id: bytes
    included_ids: tuple[bytes, ...]
    is_major: bool
    deduplicated: bool
    after_seq: int
    last_seq: int
    purge_seq: int
    rows: int = 0
    tombstones: int = 0
    oldest_timestamp: int = 0
    newest_timestamp: int = 0
    key_value_bytes: int = 0
    earliest_expiry: int = 0

    def encode(self) -> bytes:
        """Returns the JSON text."""
        members = self._asdict() | {
            "feed_id": self.feed_id.hex(),
            "branch": self.branch.hex(),
            "segment_id": self.segment_id.hex(),
            "base_id": self.base_id.hex(),
            "included_ids": [id_.hex() for id_ in self.included_ids],
        }
        if not self.earliest_expiry:
            del members["earliest_expiry"]
        return json.dumps(members, sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, data: bytes) -> SegmentIdentity:
        """Parses the text of ``encode``. Raises SegmentFormatError, with the reason, for other text."""
        try:
            members = json.loads(data)
        except ValueError as error:  # JSONDecodeError, UnicodeDecodeError
            raise SegmentFormatError(f"the identity is no JSON: {error}") from None
        if not isinstance(members, dict) or members.keys() | {"earliest_expiry"} != set(cls._fields):
            raise SegmentFormatError(f"the identity must be an object of exactly the members {', '.join(cls._fields)}")
        for name, nbytes in _IDS.items():
            members[name] = _id_of(members[name], nbytes, name)
        included = members["included_ids"]
        if not isinstance(included, list):
            raise SegmentFormatError("the identity's included_ids must be a list")
        members["included_ids"] = tuple(_id_of(id_, SEGMENT_ID_BYTES, "included_ids") for id_ in included)
        for name in _FLAGS:
            if not isinstance(members[name], bool):
                raise SegmentFormatError(f"the identity's {name} must be true or false")
        identity = cls(**members)
        identity.check()
        return identity

    def check(self) -> None:
        """Raises SegmentFormatError, a ValueError, if a member is out of bounds or contradicts another."""
        for name, nbytes in _IDS.items():
            if len(getattr(self, name)) != nbytes:
                raise SegmentFormatError(f"the identity's {name} must have {nbytes} bytes")
        if len(self.included_ids) > INCLUDED_IDS_MAX:
            raise SegmentFormatError(
                f"{len(self.included_ids)} included segments; at most {INCLUDED_IDS_MAX} are permitted"
            )
        if any(len(id_) != SEGMENT_ID_BYTES for id_ in self.included_ids):
            raise SegmentFormatError(f"an included segment's id must have {SEGMENT_ID_BYTES} bytes")
        for name, greatest in _NUMBERS.items():
            number = getattr(self, name)
            if type(number) is not int or not 0 <= number <= greatest:
                raise SegmentFormatError(
                    f"the identity's {name} is {number!r}, it must be a number from 0 to {greatest}"
                )
        if self.after_seq >= self.last_seq:
            raise SegmentFormatError(f"the run ({self.after_seq}, {self.last_seq}] is empty")
        if self.purge_seq > self.last_seq:
            raise SegmentFormatError(f"the purge seq {self.purge_seq} is above the last seq, {self.last_seq}")
        if self.rows > self.last_seq - self.after_seq:
            raise SegmentFormatError(f"{self.rows} rows do not fit into the run ({self.after_seq}, {self.last_seq}]")
        if self.tombstones > self.rows:
            raise SegmentFormatError(f"{self.tombstones} tombstones among {self.rows} rows")
        if self.oldest_timestamp > self.newest_timestamp:
            raise SegmentFormatError(f"the oldest timestamp, {self.oldest_timestamp}, is above {self.newest_timestamp}")


_IDS = {
    "feed_id": FEED_ID_BYTES,
    "branch": BRANCH_BYTES,
    "segment_id": SEGMENT_ID_BYTES,
    "base_id": SEGMENT_ID_BYTES,
}
_FLAGS = ("is_major", "deduplicated")
_NUMBERS = {
    "partition": PARTITION_MAX,
    "after_seq": SEQ_MAX,
    "last_seq": SEQ_MAX,
    "purge_seq": SEQ_MAX,
    "rows": ROWS_MAX,
    "tombstones": ROWS_MAX,
    "oldest_timestamp": TIMESTAMP_MAX,
    "newest_timestamp": TIMESTAMP_MAX,
    "earliest_expiry": TIMESTAMP_MAX,
    "key_value_bytes": _BYTES_MAX,
}


def _id_of(text: Any, nbytes: int, name: str) -> bytes:
    """Returns the bytes that ``text`` gives in lower-case hexadecimal."""
    if isinstance(text, str) and len(text) == 2 * nbytes and not set(text) - set("0123456789abcdef"):
        return bytes.fromhex(text)
    raise SegmentFormatError(
        f"the identity's {name} must be {2 * nbytes} hexadecimal digits, it is {str(text)[:100]!r}"
    )
