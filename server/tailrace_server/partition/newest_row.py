"""Looks up keys: the newest row of a key is in the tree, or in the newest segment that has the key."""

from __future__ import annotations

from tailrace.errors import UnknownFeed
from tailrace.model.hashing import key_hash
from tailrace.segment.file import Kept
from tailrace_server.blocks import FoundRow
from tailrace_server.partition.partition import Partition
from tailrace_server.segment import Read, SegmentFile
from tailrace_server.tree.open_blocks import OpenBlocks


def newest_row(
    partition: Partition,
    key: bytes,
    opened: OpenBlocks | None = None,
    read: Read = SegmentFile.read,
    kept: Kept | None = None,
    hash_: int | None = None,
) -> FoundRow | None:
    """Returns the newest row of ``key``, at any level. ``Partition.index_keys`` has to have returned True before.

    ``kept`` has and keeps parts of segments, which are then not read. ``hash_`` is that of the key, if it is known.

    Raises UnknownFeed, SegmentDamaged, and NotCached if ``read`` would have to wait for the disk.
    """
    if partition.is_dropped:  # during a look-up of many keys
        raise UnknownFeed(f"feed {partition.feed_id.hex()} was dropped")
    found = partition.keys.find(partition.tree, key, opened, hash_, kept)
    if found is not None or not partition.chain.segments:
        return found
    return partition.chain.find(key, key_hash(key) if hash_ is None else hash_, read, kept)
