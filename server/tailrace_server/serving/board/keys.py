"""Looks up the versions of a key that a partition still has, newest first, in a thread.

tree: the blocks whose hashes may be the key's     segments: by their key tables, a read or two for each
"""

from __future__ import annotations

from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tailrace.block.found import FoundRow, row_of_key
from tailrace.model.hashing import key_hash
from tailrace.model.json_rows import bytes_field
from tailrace_server.partition.chain import LostSegment
from tailrace_server.segment import SegmentDamaged

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tailrace.block import Block
    from tailrace_server.feeds.feed import Feed
    from tailrace_server.partition.partition import Partition
    from tailrace_server.segment import Segment
    from tailrace_server.serving.access import Access
    from tailrace_server.serving.services import Services

VERSIONS_MAX = 1_000
VERSIONS_DEFAULT = 100
# A longer value is told by its size only, and an answer ends behind the value that comes to this.
VALUE_BYTES_MAX = 64 * 1024
ANSWER_BYTES_MAX = 1024 * 1024
# The blocks of the write queue that one look-up opens, and their bytes once decompressed.
BLOCKS_MAX = 2_000
RAW_BYTES_MAX = 64 * 1024 * 1024


class _Found(NamedTuple):
    """The rows of a key, newest first; whether there may be more; and what could not be read."""

    rows: list[FoundRow]
    more: bool
    note: str


async def key_versions(node: Services, access: Access, feed: Feed, key: bytes, versions_max: int) -> dict[str, Any]:
    """Returns the versions of ``key`` that the default level of the feed shows. Forbidden."""
    access.require_keys(feed.info.feed_id, [key])
    partition = feed.partition_of(key)
    level = feed.read_level(node.leaderships.of_partition(partition).safest_level)
    found = await _look_up(node, partition, key, partition.visible_seq(level), versions_max)
    newest = found.rows[0] if found.rows else None
    return {
        **bytes_field("key", key),
        "partition": partition.id,
        "level": level.name.lower(),
        "found": newest is not None and newest.value is not None,
        "deleted": newest is not None and newest.value is None,
        "versions": [_version(row, row is newest) for row in found.rows],
        "more": found.more,
        "is_history": feed.info.retention == "history",
        "note": found.note,
    }


def _version(row: FoundRow, is_newest: bool) -> dict[str, Any]:
    value = row.value
    shown = {"value": None} if value is None or len(value) > VALUE_BYTES_MAX else bytes_field("value", value)
    return {
        "seq": row.seq,
        "time_us": row.timestamp,
        "deleted": value is None,
        **shown,
        "value_bytes": 0 if value is None else len(value),
        "is_newest": is_newest,
    }


async def _look_up(node: Services, partition: Partition, key: bytes, visible: int, versions_max: int) -> _Found:
    blocks, segments = list(partition.tree.newest_first()), partition.chain.segments[::-1]
    flushed_seq, pins = partition.flushed_seq, node.storage.pins
    for segment in segments:
        pins.pin(segment)
    try:
        search = partial(_search, blocks, segments, key, flushed_seq, visible, versions_max)
        return await node.host.workers.in_thread(search)
    finally:
        for segment in segments:
            pins.unpin(segment)


def _search(
    blocks: Sequence[Block], segments: Sequence[Segment], key: bytes, flushed_seq: int, visible: int, versions_max: int
) -> _Found:
    hash_ = key_hash(key)
    found: list[FoundRow] = []
    nbytes, notes = 0, list[str]()
    for row in chain(_in_tree(blocks, key, hash_, flushed_seq, notes), _in_segments(segments, key, hash_, notes)):
        if row.seq > visible:
            continue
        if len(found) == versions_max or nbytes >= ANSWER_BYTES_MAX:
            return _Found(found, True, " ".join(notes))
        found.append(row)
        nbytes += min(len(row.value or b""), VALUE_BYTES_MAX)
    return _Found(found, False, " ".join(notes))


def _in_tree(blocks: Sequence[Block], key: bytes, hash_: int, flushed_seq: int, notes: list[str]) -> Iterator[FoundRow]:
    """Yields the rows of the key above ``flushed_seq``, newest first."""
    opened = raw_bytes = 0
    for block in blocks:
        header = block.header
        if not header.least_hash <= hash_ <= header.greatest_hash:
            continue
        if opened == BLOCKS_MAX or raw_bytes >= RAW_BYTES_MAX:
            notes.append("Older rows that are not in segments yet were not looked through.")
            return
        opened, raw_bytes = opened + 1, raw_bytes + header.raw_bytes
        columns = block.open_columns()
        hashes = np.frombuffer(columns.hash_buffer, dtype="<u8")
        for number in np.flatnonzero(hashes == np.uint64(hash_))[::-1].tolist():
            row = row_of_key(columns.header, columns.raw, number, key)
            if row is not None and row.seq > flushed_seq:
                yield row


def _in_segments(segments: Sequence[Segment], key: bytes, hash_: int, notes: list[str]) -> Iterator[FoundRow]:
    """Yields the rows of the key in segments, newest first."""
    for segment in segments:
        identity = segment.identity
        if isinstance(segment, LostSegment):
            notes.append(f"The segment of seqs {identity.after_seq + 1} to {identity.last_seq} cannot be read.")
            continue
        try:
            yield from segment.versions(key, hash_)
        except SegmentDamaged as error:
            notes.append(f"The segment of seqs {identity.after_seq + 1} to {identity.last_seq} is damaged: {error}.")
