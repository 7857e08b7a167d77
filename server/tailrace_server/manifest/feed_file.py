"""FEED, the file that makes a directory a feed. Pure.

It repeats the journal's record of the creation, so that this record need not be kept for ever.
"""

from __future__ import annotations

from typing import NamedTuple

from tailrace.block.header import PARTITION_MAX
from tailrace.model import FeedInfo
from tailrace_server.directory.sealed import seal
from tailrace_server.manifest import fields
from tailrace_server.manifest.fields import read_sealed, write_members

FORMAT = "tailrace feed"
VERSION = 1

NAME_LENGTH_MAX = 100


class FeedFile(NamedTuple):
    """A feed, and the first branch (16 bytes) of all its partitions.

    The file does not have the feed's own level and ttl, and ``decode`` returns none: its row of ``_feeds`` has them.
    """

    info: FeedInfo
    branch: bytes

    def encode(self) -> bytes:
        """Returns the content of the file."""
        members = {**write_members(_INFO, self.info), "branch": self.branch.hex()}
        return seal(FORMAT, VERSION, members)

    @classmethod
    def decode(cls, data: bytes, path: str) -> FeedFile:
        """Parses the content of ``encode``. Raises ManifestDamaged, with ``path`` and the fault, for other bytes."""
        values = read_sealed(data, path, FORMAT, VERSION, {**_INFO, "branch": fields.ID})
        branch = values.pop("branch")
        return cls(FeedInfo(**values), branch)


_INFO = {
    "name": fields.text(NAME_LENGTH_MAX),
    "feed_id": fields.ID,
    "partitions": fields.integer(1, PARTITION_MAX),
    "keyspace": fields.one_of("hash"),
    "retention": fields.one_of("compact", "history"),
    "history_age_s": fields.optional(fields.NUMBER),
    "history_bytes": fields.optional(fields.NUMBER),
    "tombstone_age_s": fields.NUMBER,
    "replication": fields.one_of("stream", "segment"),
}

assert (*_INFO, "level", "ttl_s") == FeedInfo._fields
