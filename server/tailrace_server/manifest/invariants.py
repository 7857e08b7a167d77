"""The invariants of every manifest. Pure.

A chain of three segments. The second was compacted from two while the third was being flushed:

    id      a                b                 c
    run     (0, 120]         (120, 400]        (400, 401]
    base    zeros            a                 y
    included                 x, y

1. Each segment begins at the end of the one before it, and the last one ends at the flushed seq.
2. Each segment's base is the one before it, or one that was compacted into that. The first segment has no base if the
   chain begins at 0; if older segments were trimmed, its base may be one of those.
3. Rows that the chain lacks at its beginning were trimmed.
4. Timestamps never fall along the chain, and none is above the last one that was given.
5. A segment's branch is that of its last seq in the failover log, as far back as the log goes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tailrace.segment.identity import NO_BASE
from tailrace_server.manifest.manifest import Manifest, SegmentEntry
from tailrace_server.state.last_batches import SINKS_MAX

# Compaction keeps a chain at tens of segments; a feed that keeps all its history has one for some 10 GiB. At half a
# kilobyte each, a manifest stays small enough to be written again at each flush.
SEGMENTS_MAX = 10_000
# More than any set has replicas.
PLACEMENTS_MAX = 64


def problems(manifest: Manifest) -> list[str]:
    """Returns a sentence about each invariant that does not hold."""
    return [*_numbers(manifest), *_chain(manifest), *_identities(manifest.segments), *_order(manifest)]


def check(manifest: Manifest) -> None:
    """Raises AssertionError, which names every invariant that does not hold."""
    found = problems(manifest)
    assert not found, f"partition {manifest.feed_id.hex()}/{manifest.partition}: {'; '.join(found)}"


def _numbers(manifest: Manifest) -> Iterator[str]:
    if manifest.hash_first > manifest.hash_last:
        yield f"its hashes begin at {manifest.hash_first:016x} and end at {manifest.hash_last:016x}"
    for name, seq in (("purge", manifest.purge_seq), ("trim", manifest.trim_seq)):
        if seq > manifest.flushed_seq:
            yield f"its {name} seq, {seq}, is above its flushed seq, {manifest.flushed_seq}"
    for sink, last in manifest.sinks.items():
        if last.seq > manifest.flushed_seq:
            yield f"its sink {sink!r} has published up to seq {last.seq}, above its flushed seq, {manifest.flushed_seq}"
    if not manifest.log and manifest.flushed_seq:
        yield "its failover log is empty"
    for name, count, bound in (
        ("segments", len(manifest.segments), SEGMENTS_MAX),
        ("sinks", len(manifest.sinks), SINKS_MAX),
    ):
        if count > bound:
            yield f"it has {count} {name}, and at most {bound} can be had"


def _chain(manifest: Manifest) -> Iterator[str]:
    end = None
    for entry in manifest.segments:
        if entry.after_seq >= entry.last_seq:
            yield f"{_name(entry)} is empty"
        if end is not None and entry.after_seq != end:
            yield f"{_name(entry)} does not begin at the end of the one before it, {end}"
        end = entry.last_seq
    begin = manifest.segments[0].after_seq if manifest.segments else manifest.flushed_seq
    if begin > manifest.trim_seq:
        yield f"its segments begin above seq {begin}, and only those up to {manifest.trim_seq} were trimmed"
    if end is not None and end != manifest.flushed_seq:
        yield f"its segments end at {end}, and its flushed seq is {manifest.flushed_seq}"


def _identities(segments: tuple[SegmentEntry, ...]) -> Iterator[str]:
    if segments and segments[0].after_seq == 0 and segments[0].base_id != NO_BASE:
        yield f"{_name(segments[0])} is the first one, and is based on {segments[0].base_id.hex()}"
    for older, newer in itertools.pairwise(segments):
        if newer.base_id != older.id and newer.base_id not in older.included_ids:
            yield f"{_name(newer)} is based on {newer.base_id.hex()}, and stands behind {older.id.hex()}"
    named = set()
    for entry in segments:
        for id_ in (entry.id, *entry.included_ids):
            if id_ in named or id_ == NO_BASE:
                yield f"{_name(entry)} has an id that is no id, or that is there twice: {id_.hex()}"
            named.add(id_)
        if len(set(entry.placements)) != len(entry.placements):
            yield f"{_name(entry)} names a placement twice"


def _order(manifest: Manifest) -> Iterator[str]:
    oldest_base = manifest.log[-1].base if manifest.log else 0
    newest = 0
    for entry in manifest.segments:
        if not entry.tombstones <= entry.rows <= entry.last_seq - entry.after_seq:
            yield f"{_name(entry)} has {entry.rows} rows, {entry.tombstones} of them tombstones"
        if manifest.log and entry.last_seq > oldest_base and manifest.log.branch_at(entry.last_seq) != entry.branch:
            yield f"{_name(entry)} is of branch {entry.branch.hex()}, which is not the failover log's for its last seq"
        if entry.rows == 0:
            continue
        if not newest <= entry.oldest_timestamp <= entry.newest_timestamp <= manifest.last_timestamp:
            yield (
                f"{_name(entry)} has timestamps {entry.oldest_timestamp} to {entry.newest_timestamp}, out of order: "
                f"{newest} is before them, {manifest.last_timestamp} is the last one"
            )
        newest = entry.newest_timestamp


def _name(entry: SegmentEntry) -> str:
    return f"segment {entry.id.hex()}, ({entry.after_seq}, {entry.last_seq}],"
