"""The bytes of a manifest. Pure."""

from __future__ import annotations

from typing import Any

from tailrace.model.failover import SEQ_MAX
from tailrace.segment.identity import INCLUDED_IDS_MAX
from tailrace_server.directory.sealed import seal
from tailrace_server.manifest import fields
from tailrace_server.manifest.errors import ManifestDamaged
from tailrace_server.manifest.fields import Kind, read_list, read_members, read_sealed, write_members
from tailrace_server.manifest.invariants import PLACEMENTS_MAX, SEGMENTS_MAX, check, problems
from tailrace_server.manifest.manifest import Manifest, SegmentEntry
from tailrace_server.manifest.producers import read_producers
from tailrace_server.state import last_batches

FORMAT = "tailrace manifest"
VERSION = 1


def encode(manifest: Manifest) -> bytes:
    """Returns the content of the file. AssertionError if it would hold something that ``decode`` refuses."""
    check(manifest)
    members = write_members(_MANIFEST, manifest)
    return seal(FORMAT, VERSION, {name: value for name, value in members.items() if _ADDED.get(name) != value})


def decode(data: bytes, path: str) -> Manifest:
    """Parses the content of ``encode``. Raises ManifestDamaged, with ``path`` and the fault, for other bytes."""
    manifest = Manifest(**read_sealed(data, path, FORMAT, VERSION, _MANIFEST, _ADDED))
    found = problems(manifest)
    if found:
        raise ManifestDamaged(path, "; ".join(found[:5]))
    return manifest


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
    "made_seq": fields.SEQ,
}
# The values of members that are left out, as in manifests of earlier versions.
_ADDED = {"rollbacks": 0, "made_seq": SEQ_MAX}

assert tuple(_SEGMENT) == SegmentEntry._fields
assert tuple(_MANIFEST) == Manifest._fields
