"""A partition's manifest: which segments it consists of, and everything that it knows beside its rows. Pure.

segments   (0, 120] ── (120, 400] ── (400, 401]     flushed seq 401; the rest is in the journal
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from tailrace.failover import FailoverLog
from tailrace_server.manifest import fields
from tailrace_server.manifest.errors import ManifestDamaged
from tailrace_server.manifest.fields import Kind, read_list, read_members, read_sealed, write_members
from tailrace_server.manifest.invariants import PLACEMENTS_MAX, SEGMENTS_MAX, problems
from tailrace_server.manifest.producers import read_producers
from tailrace_server.publishing import last_batches
from tailrace_server.publishing.last_batches import LastBatch
from tailrace_server.sealed import seal
from tailrace_server.segment.identity import INCLUDED_IDS_MAX, SegmentIdentity

FORMAT = "tailrace manifest"
VERSION = 1


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

    def problems(self) -> list[str]:
        """What does not hold of what has to; empty where all is well."""
        return problems(self)

    def check(self) -> None:
        """AssertionError names every invariant that does not hold."""
        found = self.problems()
        assert not found, f"partition {self.feed_id.hex()}/{self.partition}: {'; '.join(found)}"

    def encode(self) -> bytes:
        """The content of the file. AssertionError where it would hold something that ``decode`` refuses."""
        self.check()
        members = write_members(_MANIFEST, self)
        return seal(FORMAT, VERSION, {name: value for name, value in members.items() if _ADDED.get(name) != value})

    @classmethod
    def decode(cls, data: bytes, path: str) -> Manifest:
        """What ``encode`` made. ManifestDamaged, which names ``path`` and says what is wrong, for anything else."""
        manifest = cls(**read_sealed(data, path, FORMAT, VERSION, _MANIFEST, _ADDED))
        found = manifest.problems()
        if found:
            raise ManifestDamaged(path, "; ".join(found[:5]))
        return manifest


def entry_of(identity: SegmentIdentity, nbytes: int, placements: Iterable[bytes] = ()) -> SegmentEntry:
    """The entry of a segment whose file has ``nbytes`` bytes."""
    repeated = {name: getattr(identity, name) for name in _REPEATED}
    return SegmentEntry(id=identity.segment_id, nbytes=nbytes, placements=tuple(placements), **repeated)


def _read_segments(value: Any) -> tuple[SegmentEntry, ...]:
    return tuple(
        SegmentEntry(**read_members(_SEGMENT, item, f"segment {index}"))
        for index, item in enumerate(read_list(value, SEGMENTS_MAX))
    )


_SEGMENT = {
    "id": fields.ID,
    "base_id": fields.ID,
    "included_ids": fields.ids(INCLUDED_IDS_MAX),
    "is_major": fields.FLAG,
    "deduplicated": fields.FLAG,
    "after_seq": fields.SEQ,
    "last_seq": fields.SEQ,
    "branch": fields.ID,
    "nbytes": fields.COUNT,
    "rows": fields.COUNT,
    "tombstones": fields.COUNT,
    "oldest_timestamp": fields.TIMESTAMP,
    "newest_timestamp": fields.TIMESTAMP,
    "placements": fields.ids(PLACEMENTS_MAX),
}
_MANIFEST = {
    "feed_id": fields.ID,
    "partition": fields.PARTITION,
    "hash_first": fields.HASH,
    "hash_last": fields.HASH,
    "state": fields.one_of("leader"),
    "segments": Kind(lambda entries: [write_members(_SEGMENT, entry) for entry in entries], _read_segments),
    "flushed_seq": fields.SEQ,
    "purge_seq": fields.SEQ,
    "trim_seq": fields.SEQ,
    "log": fields.LOG,
    "placement_id": fields.ID,
    "last_timestamp": fields.TIMESTAMP,
    "producers": Kind(lambda value: value, read_producers),
    "sinks": Kind(last_batches.to_json, last_batches.from_json),
    "rollbacks": fields.COUNT,
}
# What a manifest says by leaving it out, as those from before it was known do.
_ADDED = {"rollbacks": 0}

assert tuple(_SEGMENT) == SegmentEntry._fields
assert tuple(_MANIFEST) == Manifest._fields
