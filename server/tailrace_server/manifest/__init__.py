"""The files that describe a data directory's feeds and partitions (docs/formats/manifest.md).

    feeds/<feed id>/FEED                   feed_file.py   the feed, and its first branch
    feeds/<feed id>/<partition>/MANIFEST   manifest.py    the chain of segments, and the rest of its state
    feeds/<feed id>/<partition>/*.seg                     the segments

fields.py      the kinds of values in these files, pure
manifest.py    the manifest, pure
codec.py       its bytes, pure
invariants.py  the invariants of every manifest, pure
producers.py   a partition's producers as JSON, pure
feed_file.py   FEED and its bytes, pure
store.py       the directories: all writing and removing
"""

from __future__ import annotations

from tailrace_server.manifest.errors import ManifestDamaged
from tailrace_server.manifest.feed_file import FeedFile
from tailrace_server.manifest.manifest import Manifest, SegmentEntry, entry_of
from tailrace_server.manifest.producers import producers_from_json, producers_to_json
from tailrace_server.manifest.store import ManifestStore, segment_name

__all__ = [
    "FeedFile",
    "Manifest",
    "ManifestDamaged",
    "ManifestStore",
    "SegmentEntry",
    "entry_of",
    "producers_from_json",
    "producers_to_json",
    "segment_name",
]
