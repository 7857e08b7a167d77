"""A partition's manifest: its chain of segments, and its state beside the rows. Pure.

segments   (0, 120] ── (120, 400] ── (400, 401]     flushed seq 401; the rest is in the journal
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from tailrace.model.failover import SEQ_MAX, FailoverLog
from tailrace.segment.identity import SegmentIdentity
from tailrace_server.state.last_batches import LastBatch


class SegmentEntry(NamedTuple):
    """A segment of the chain: the run (``after_seq``, ``last_seq``], and the branch of its last seq.

    ``base_id`` is the segment before it in the chain when it was made (zeros: none); the segment was compacted
    from ``included_ids``. ``nbytes`` is the file's size. ``placements`` are the data directories that have acknowledged
    a copy.
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


# The fields that an entry repeats from its segment's identity.
_REPEATED = tuple(name for name in SegmentEntry._fields if name in SegmentIdentity._fields)


class Manifest(NamedTuple):
    """The state that a partition needs for its start, beside the journal.

    ``hash_first`` to ``hash_last`` are its key hashes, both included. ``segments`` are the chain, oldest first, which
    ends at ``flushed_seq``. Rows at or below ``purge_seq`` may be missing though no newer row of their key is there;
    rows at or below ``trim_seq`` were dropped by age. ``log`` has the partition's term as well. ``last_timestamp`` is
    the last stamp that was given, in microseconds since 1970. ``producers`` comes from ``producers_to_json``, ``sinks``
    has the last batch of each sink as of ``flushed_seq``. ``rollbacks`` counts the partition's rollbacks: the manifest
    knows nothing of journal records with a higher count. ``made_seq`` is for ``_feeds``: the feeds that
    later rows list were perhaps not made here when the manifest was written.
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
    made_seq: int = SEQ_MAX

    def identity_of(self, entry: SegmentEntry) -> SegmentIdentity:
        """Returns a segment's identity as far as its entry has it: all that ``entry_of`` takes from one."""
        repeated = {name: getattr(entry, name) for name in _REPEATED}
        return SegmentIdentity(self.feed_id, self.partition, segment_id=entry.id, purge_seq=0, **repeated)


def entry_of(identity: SegmentIdentity, nbytes: int, placements: Iterable[bytes] = ()) -> SegmentEntry:
    """Returns the entry of a segment whose file has ``nbytes`` bytes."""
    repeated = {name: getattr(identity, name) for name in _REPEATED}
    return SegmentEntry(id=identity.segment_id, nbytes=nbytes, placements=tuple(placements), **repeated)
