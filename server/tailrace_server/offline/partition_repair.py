"""Makes a partition with damaged or missing files consistent.

    MANIFEST good, a segment bad     its readable rows go to a new segment with the same seqs, in its place
    MANIFEST bad or missing          the existing segments form a chain (chains.py), with all readable rows in the gaps

1. A new segment covers the same seqs. The purge seq covers the lost rows, like rows that a compaction has dropped, and
   the segment is ``deduplicated``: no consumer gets a position inside of it.
2. A partition that has lost rows, or its failover log, gets a new branch, which begins at the flushed seq. No consumer
   shares a branch with it, so every consumer rolls back to 0 and reads the present rows. The purge seq alone would not
   do, because a consumer above it would keep the lost rows.
3. All losses are in the index before the manifest changes. Replaced files are moved afterwards.

Ids of segments and branches are derived from the repair's token, so a repair that continues recognises its own files.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import xxhash

from tailrace.block import Block
from tailrace.model import FeedInfo
from tailrace.model.failover import FailoverEntry, FailoverLog
from tailrace.model.hashing import partition_range
from tailrace.segment.identity import INCLUDED_IDS_MAX
from tailrace_server.directory.identity import BadDirectory, load
from tailrace_server.directory.lost import Lost
from tailrace_server.manifest import Manifest, ManifestStore, SegmentEntry, entry_of, invariants
from tailrace_server.manifest.producers import NO_PRODUCERS
from tailrace_server.manifest.store import MANIFEST_NAME
from tailrace_server.offline.chains import Gap, Piece, choose_chain
from tailrace_server.offline.data_directory import size_of
from tailrace_server.offline.dry_replay import PartitionStart, Place
from tailrace_server.offline.findings import PartitionFindings, SegmentFindings
from tailrace_server.offline.report import feed_text
from tailrace_server.offline.salvage import BadStretch, LostRange, Salvage, read_segment
from tailrace_server.segment import NO_BASE, SegmentIdentity, SegmentWriter

if TYPE_CHECKING:
    from tailrace_server.host.disk import Disk

# Returns the blocks of a partition in the journal that have any of the seqs from first to last, both included.
JournalBlocks = Callable[[Place, int, int], Iterable[Block]]

# A producer that comes back is told that its last blocks are unknown, and is not taken for a new one.
_FORGOTTEN_PRODUCERS = {**NO_PRODUCERS, "evicted_age_s": 0.0}


class _ChainPart(NamedTuple):
    """A part of the new chain: an existing segment (``entry``), or a new one with the rows of ``sources``."""

    identity: SegmentIdentity
    entry: SegmentEntry | None
    sources: tuple[SegmentFindings, ...]
    rows: int | None  # the number of rows before the damage, if known
    why: str


class JournalState(NamedTuple):
    """The state of a partition by the journal: its highest term, its latest failover log, its count of rollbacks."""

    term: int
    log: FailoverLog
    rollbacks: int


class _RepairedSegment(NamedTuple):
    """A segment of the new chain, and its lost rows."""

    entry: SegmentEntry
    lost: list[tuple[str, LostRange]]


class PartitionRepair:
    """Repairs partitions, one after the other. Adds its actions to ``actions``; ``is_dry``: without doing them."""

    def __init__(
        self,
        disk: Disk,
        data: str,
        lost: Lost,
        token: bytes,
        journal_blocks: JournalBlocks,
        actions: list[str],
        *,
        is_dry: bool,
    ) -> None:
        self._disk = disk
        self._data = data
        self._store = ManifestStore(disk, data)
        self._lost = lost
        self._token = token
        self._journal_blocks = journal_blocks
        self._actions = actions
        self._is_dry = is_dry

    def id_of(self, place: Place, *parts: bytes | int) -> bytes:
        """Returns an id of 16 bytes, the same for the same parts in the same repair."""
        texts = [part.hex() if isinstance(part, bytes) else str(part) for part in (self._token, *place, *parts)]
        return xxhash.xxh3_128_digest("/".join(texts).encode())

    def start_of(self, place: Place, manifest: Manifest) -> PartitionStart:
        """Returns the state of a partition that is good, or was repaired."""
        renamed = len(manifest.log) == 1 and manifest.log.branch == self.id_of(place, b"branch")
        return PartitionStart(manifest.flushed_seq, manifest.log, renamed, manifest.rollbacks)

    def repair(self, found: PartitionFindings, info: FeedInfo, told: JournalState) -> PartitionStart:
        """Makes a partition consistent, and returns its state. ``told``: its state by the journal."""
        place = found.feed_id, found.number
        # With a lower count a start would do the rollbacks again, also below rows that were written since.
        manifest = found.manifest or self._empty(found, info)._replace(rollbacks=told.rollbacks)
        parts = (
            self._parts_of_manifest(found)
            if found.manifest is not None
            else list(self._parts_of_files(found, info, told.log))
        )
        made = [self._make(place, part) for part in parts]
        lost = [one for new in made for one in new.lost]
        entries = tuple(new.entry for new in made)
        flushed_seq = entries[-1].last_seq if entries else manifest.flushed_seq
        purge_seq = max([manifest.purge_seq, *(one.last_seq for _, one in lost)])
        log = manifest.log
        if (lost or found.manifest is None) and not self.start_of(place, manifest).renamed:
            term = max(told.term, manifest.log.term) + 1
            log = FailoverLog([FailoverEntry(self.id_of(place, b"branch"), term, flushed_seq)])
        manifest = manifest._replace(segments=entries, flushed_seq=flushed_seq, purge_seq=purge_seq, log=log)
        # A batch that has lost rows counts as published. Batches above the flushed seq come from the journal.
        as_of = {sink: last.as_of(flushed_seq) for sink, last in manifest.sinks.items()}
        manifest = manifest._replace(sinks={sink: last for sink, last in as_of.items() if last is not None})
        if found.manifest is None:
            manifest = _with_what_segments_say(manifest, [part.identity for part in parts], info)
        for path, one in lost:
            self._lost.rows(
                *place,
                one.first_seq,
                one.last_seq,
                source=path,
                offset=one.offset,
                rows=one.rows,
                keys=one.keys,
                why=one.why,
            )
        if found.manifest is None:
            self._tell_unknown(found, manifest.trim_seq)
        self._tell(found, info, parts, lost)
        self._install(found, manifest, parts)
        return self.start_of(place, manifest)

    def _tell_unknown(self, found: PartitionFindings, trim_seq: int) -> None:
        """Lists parts of the partition that may have been lost with the manifest."""
        if trim_seq:
            why = "dropped because of their age, or lost with the manifest"
            self._lost.rows(found.feed_id, found.number, 1, trim_seq, source=found.directory, why=why)
        for segment in found.others:
            if segment.identity is None:
                why = "its seqs are unknown; its readable rows are kept if no other segment has them"
                self._lost.unknown(segment.path, 0, segment.nbytes, why)

    def _tell(
        self,
        found: PartitionFindings,
        info: FeedInfo,
        parts: Sequence[_ChainPart],
        lost: Sequence[tuple[str, LostRange]],
    ) -> None:
        name = f"partition {found.number} of {feed_text(found.feed_id, info.name)}"
        if found.manifest is None:
            self._actions.append(f"{name}: a new manifest of {len(parts)} segments; all consumers roll back to 0")
        fresh = sum(part.entry is None for part in parts)
        if fresh:
            seqs = ", ".join(f"{one.first_seq} to {one.last_seq}" for _, one in lost[:5])
            more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
            what = f"seqs {seqs}{more} are lost; all consumers roll back to 0" if lost else "nothing is lost"
            self._actions.append(f"{name}: {fresh} new segments with all readable rows; {what}")

    def _install(self, found: PartitionFindings, manifest: Manifest, parts: Sequence[_ChainPart]) -> None:
        path = os.path.join(found.directory, MANIFEST_NAME)
        if not self._is_dry:
            invariants.check(manifest)
        if self._disk.exists(path):
            self._lost.copy(path)
        if not self._is_dry:
            self._lost.sync()
            self._store.write(manifest)
        kept = {self._store.segment_path(found.feed_id, found.number, entry.id) for entry in manifest.segments}
        for segment in (*found.segments, *found.others):
            replaced = found.manifest is None or segment.entry is not None
            if replaced and not segment.is_missing and segment.path not in kept:
                self._lost.take(segment.path)

    # The parts of the new chain

    def _parts_of_manifest(self, found: PartitionFindings) -> list[_ChainPart]:
        assert found.manifest is not None
        followers = [*(segment.entry for segment in found.segments[1:]), None]
        files = {_own_id(found, file): file for file in (*found.segments, *found.others)}
        parts = []
        for segment, follower in zip(found.segments, followers, strict=True):
            entry = segment.entry
            assert entry is not None
            if segment.is_good:
                assert segment.identity is not None
                parts.append(_ChainPart(segment.identity, entry, (), None, ""))
                continue
            base_of_next = follower.base_id if follower is not None else entry.id
            identity = self._identity_of_entry(found, entry, base_of_next, found.manifest.purge_seq)
            # A file without a readable identity may be this segment. A file of another segment has other rows.
            is_nameless = not segment.is_missing and segment.identity is None
            source = segment if is_nameless else files.get(entry.id)
            sources = () if source is None else (source,)
            why = "the segment ends before"
            if source is None:
                why = "the segment is missing" if segment.is_missing else "its file has another segment"
            parts.append(_ChainPart(identity, None, sources, entry.rows, why))
        return parts

    def _identity_of_entry(
        self, found: PartitionFindings, entry: SegmentEntry, base_of_next: bytes, purge_seq: int
    ) -> SegmentIdentity:
        """Returns the identity of a segment in the place of ``entry``, on which the next segment is still based."""
        included = dict.fromkeys((entry.id, base_of_next, *entry.included_ids))
        return SegmentIdentity(
            feed_id=found.feed_id,
            partition=found.number,
            branch=entry.branch,
            segment_id=self.id_of((found.feed_id, found.number), b"segment", entry.id),
            base_id=entry.base_id,
            included_ids=tuple(included)[:INCLUDED_IDS_MAX],
            is_major=entry.is_major,
            deduplicated=entry.deduplicated,
            after_seq=entry.after_seq,
            last_seq=entry.last_seq,
            purge_seq=min(purge_seq, entry.last_seq),
        )

    def _parts_of_files(self, found: PartitionFindings, info: FeedInfo, log: FailoverLog) -> Iterator[_ChainPart]:
        """Yields a chain of the existing segments. Segments without a readable identity fill the gaps.

        Those with rows above the end of their branch in ``log`` were rolled back, and are left out.
        """
        nameless = tuple(segment for segment in found.others if segment.identity is None)
        place = found.feed_id, found.number
        named = {
            identity.segment_id: segment
            for segment in found.others
            if (identity := segment.identity) is not None and (identity.feed_id, identity.partition) == place
            if not log.has_ended_below(identity.branch, identity.last_seq)
        }
        of_this = [segment.identity for segment in named.values() if segment.identity is not None]
        good = [identity for identity in of_this if named[identity.segment_id].is_good]
        # The beginning of a history may have been trimmed, unless a file without an identity may have been it.
        first = min((identity.after_seq for identity in of_this), default=0)
        begin = first if info.retention == "history" and not nameless else 0
        pieces = choose_chain(good, begin)
        if not _is_whole(pieces, of_this):
            pieces = choose_chain(of_this, begin)
        end = pieces[-1].last_seq if pieces else 0
        top = max((self._last_seq_in(segment, found.number) for segment in nameless), default=0)
        if top > end:
            pieces.append(Gap(end, top))
        before = NO_BASE
        followers = [*pieces, None][1:]
        for piece, follower in zip(pieces, followers, strict=True):
            part = self._part_of(found, piece, follower, before, named, nameless)
            before = part.identity.segment_id
            yield part

    def _last_seq_in(self, segment: SegmentFindings, partition: int) -> int:
        items = read_segment(self._disk, segment.path, partition)
        return max((item.header.last_seq for item in items if isinstance(item, Block)), default=0)

    def _part_of(
        self,
        found: PartitionFindings,
        piece: Piece,
        follower: Piece | None,
        before: bytes,
        named: dict[bytes, SegmentFindings],
        nameless: tuple[SegmentFindings, ...],
    ) -> _ChainPart:
        base_of_next = follower.base_id if isinstance(follower, SegmentIdentity) else b""
        if isinstance(piece, Gap):
            included = (base_of_next,) if base_of_next and base_of_next not in (before, NO_BASE) else ()
            return _ChainPart(
                self._identity_of_gap(found, piece, before, included), None, nameless, None, "no segment has them"
            )
        segment = named[piece.segment_id]
        if segment.is_good:
            return _ChainPart(piece, entry_of(piece, segment.nbytes), (), None, "")
        entry = entry_of(piece, segment.nbytes)
        identity = self._identity_of_entry(found, entry, base_of_next or entry.id, piece.purge_seq)
        return _ChainPart(identity, None, (segment,), piece.rows, "the segment ends before")

    def _identity_of_gap(
        self, found: PartitionFindings, gap: Gap, base_id: bytes, included: tuple[bytes, ...]
    ) -> SegmentIdentity:
        place = found.feed_id, found.number
        return SegmentIdentity(
            feed_id=found.feed_id,
            partition=found.number,
            branch=self.id_of(place, b"branch"),
            segment_id=self.id_of(place, b"gap", gap.after_seq, gap.last_seq),
            base_id=base_id,
            included_ids=included,
            is_major=False,
            deduplicated=True,
            after_seq=gap.after_seq,
            last_seq=gap.last_seq,
            purge_seq=0,
        )

    # New segments

    def _make(self, place: Place, part: _ChainPart) -> _RepairedSegment:
        """Returns the segment of a part, written anew if needed. Its identity needs the losses, so they come first."""
        if part.entry is not None:
            return _RepairedSegment(part.entry, [])
        lost = self._pour(place, part, lambda _: None)
        identity = part.identity
        if lost:
            top = max(one.last_seq for one in lost)
            identity = identity._replace(deduplicated=True, purge_seq=max(identity.purge_seq, top))
        path = part.sources[0].path if len(part.sources) == 1 else ""
        told = [(path, one) for one in lost]
        if self._is_dry:
            return _RepairedSegment(entry_of(identity, 0), told)
        target = self._store.segment_path(*place, identity.segment_id)
        if self._disk.exists(target):  # left when this repair was interrupted
            self._disk.remove(target)
        writer = SegmentWriter(self._disk, target, identity)
        try:
            self._pour(place, part, writer.add)
            identity = writer.finish()
        finally:
            writer.abandon()
        return _RepairedSegment(entry_of(identity, size_of(self._disk, target)), told)

    def _pour(self, place: Place, part: _ChainPart, sink: Callable[[Block], None]) -> list[LostRange]:
        identity = part.identity
        journal_blocks = functools.partial(self._journal_blocks, place)
        salvage = Salvage(identity.after_seq, identity.last_seq, sink, journal_blocks)
        for source in part.sources:
            item: Block | BadStretch
            for item in read_segment(self._disk, source.path, place[1]):
                salvage.add(item)
        salvage.finish(part.why, part.rows)
        return salvage.lost

    def _empty(self, found: PartitionFindings, info: FeedInfo) -> Manifest:
        """Returns a manifest for a partition that has lost its own, without the fields from segments."""
        hash_first, hash_last = partition_range(found.number, info.partitions)
        placement_id = bytes(16)
        with contextlib.suppress(BadDirectory, OSError):  # a dry run does not replace a lost NODE
            placement_id = load(self._disk, self._data).placement_id
        return Manifest(
            feed_id=found.feed_id,
            partition=found.number,
            hash_first=hash_first,
            hash_last=hash_last,
            state="leader",
            segments=(),
            flushed_seq=0,
            purge_seq=0,
            trim_seq=0,
            log=FailoverLog(),
            placement_id=placement_id,
            last_timestamp=0,
            producers=_FORGOTTEN_PRODUCERS,
            sinks={},
        )


def _own_id(found: PartitionFindings, file: SegmentFindings) -> bytes | None:
    """Returns the id of a file's segment; None if it is of another partition, or has no readable identity."""
    identity = file.identity
    if identity is None or (identity.feed_id, identity.partition) != (found.feed_id, found.number):
        return None
    return identity.segment_id


def _is_whole(pieces: Sequence[Piece], identities: Sequence[SegmentIdentity]) -> bool:
    """Returns whether a chain of good segments has no gap, so that it needs no damaged ones."""
    top = max((identity.last_seq for identity in identities), default=0)
    return bool(pieces) and pieces[-1].last_seq == top and not any(isinstance(piece, Gap) for piece in pieces)


def _with_what_segments_say(manifest: Manifest, identities: Sequence[SegmentIdentity], info: FeedInfo) -> Manifest:
    return manifest._replace(
        purge_seq=max([manifest.purge_seq, *(identity.purge_seq for identity in identities)]),
        trim_seq=identities[0].after_seq if identities and info.retention == "history" else 0,
        last_timestamp=max((entry.newest_timestamp for entry in manifest.segments), default=0),
    )
