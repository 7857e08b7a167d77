"""A partition's manifest: which segments it consists of, and everything that it knows beside its rows. Pure.

segments   (0, 120] ── (120, 400] ── (400, 401]     flushed seq 401; the rest is in the journal
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from tailrace.model.failover import FailoverLog
from tailrace_server.segment.identity import SegmentIdentity
from tailrace_server.state.last_batches import LastBatch


class SegmentEntry(NamedTuple):
    """A segment, as its identity says: the run (``after_seq``, ``last_seq``], with the branch of its last seq.

    ``base_id`` is the segment before it in the chain when it was made (zeros: none), ``included_ids`` were folded into
    it. ``nbytes`` is the file's size. ``placements`` are the data directories that have acknowledged a copy.
    """

    id: bytes
    base_id: bytes
    included_ids: tuple[bytes, ...]
    is_major: bool
    deduplicated: bool
    after_seq: int
    last_seq: int
    branch: bytes
    nbytes: int
    rows: int
    tombstones: int
    oldest_timestamp: int
    newest_timestamp: int
    placements: tuple[bytes, ...] = ()


# What an entry says as its segment's identity does.
_REPEATED = tuple(name for name in SegmentEntry._fields if name in SegmentIdentity._fields)


class Manifest(NamedTuple):
    """All that a partition needs for its start beside the journal.

    ``hash_first`` to ``hash_last`` are its key hashes, both included. ``segments`` are the chain, oldest first, which
    ends at ``flushed_seq``. Rows at or below ``purge_seq`` may be missing though nothing newer of their key is there,
    rows at or below ``trim_seq`` were dropped by age. ``log`` has the partition's term as well. ``last_timestamp`` is
    the last stamp that was given, in microseconds since 1970. ``producers`` is what ``producers_to_json`` made,
    ``sinks`` the last batch of each sink as of ``flushed_seq``. ``rollbacks`` is how often the partition had been
    rolled back: records of the journal that tell of a later time are not in it.
    """

    feed_id: bytes
    partition: int
    hash_first: int
    hash_last: int
    state: str
    segments: tuple[SegmentEntry, ...]
    flushed_seq: int
    purge_seq: int
    trim_seq: int
    log: FailoverLog
    placement_id: bytes
    last_timestamp: int
    producers: dict[str, Any]
    sinks: dict[str, LastBatch]
    rollbacks: int = 0

    def identity_of(self, entry: SegmentEntry) -> SegmentIdentity:
        """As much of a segment's identity as its entry here tells: all that ``entry_of`` takes from one."""
        repeated = {name: getattr(entry, name) for name in _REPEATED}
        return SegmentIdentity(self.feed_id, self.partition, segment_id=entry.id, purge_seq=0, **repeated)


def entry_of(identity: SegmentIdentity, nbytes: int, placements: Iterable[bytes] = ()) -> SegmentEntry:
    """The entry of a segment whose file has ``nbytes`` bytes."""
    repeated = {name: getattr(identity, name) for name in _REPEATED}
    return SegmentEntry(id=identity.segment_id, nbytes=nbytes, placements=tuple(placements), **repeated)
