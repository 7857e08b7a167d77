"""Runs a compaction: reads neighbouring segments and writes one.

    1. scan    reads every batch: the hash of each row's key, the length of the key, and tombstones that are old enough
    2. decide  finds superseded rows (tailrace/segment/superseded.py), and tombstones that may go (tombstones.py); reads
               the keys of repeated hashes again
    3. write   reads every batch again, and writes the remaining rows in blocks of an even size

A feed that keeps its history needs only the last step. The result depends only on the task, so the same task gives the
same bytes. All blocks are verified in each step, and the inputs never change.
"""

from __future__ import annotations

import contextlib
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tailrace.block.arrays import Bools
from tailrace.segment.identity import INCLUDED_IDS_MAX, ROWS_MAX
from tailrace.segment.rows import SegmentRows, hashes_of_keys
from tailrace.segment.superseded import superseded as superseded_rows
from tailrace_server.blocks import BlockBuilder, ColumnArrays, take
from tailrace_server.compaction import tombstones
from tailrace_server.compaction.errors import BadTask
from tailrace_server.compaction.foreign import ForeignRows
from tailrace_server.compaction.task import INPUTS_MAX, CompactionResult, CompactionTask
from tailrace_server.host.disk import TEMPORARY
from tailrace_server.segment import Segment, SegmentIdentity, SegmentWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tailrace_server.compaction.driver import Steps
    from tailrace_server.host.disk import Disk


class _Decision(NamedTuple):
    """The rows to drop: ``gone`` is a mask, None if all rows stay. ``purge_seq`` is 0 if no tombstone is dropped."""

    gone: Bools | None
    superseded: int
    purged: int
    purge_seq: int


_ALL_STAY = _Decision(None, 0, 0, 0)


def compact(task: CompactionTask, disk: Disk, on_bytes: Callable[[int], None] = lambda _: None) -> CompactionResult:
    """Runs ``task`` at once. As ``compact_in_steps``."""
    steps = compact_in_steps(task, disk, on_bytes)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: CompactionResult = end.value
            return result


def compact_in_steps(
    task: CompactionTask, disk: Disk, on_bytes: Callable[[int], None] = lambda _: None
) -> Steps[CompactionResult]:
    """Runs ``task`` in steps of about a MiB.

    Calls ``on_bytes`` with the number of bytes after each read and each write. Each step yields whether the next one is
    long: it works on all rows together.

    The inputs never change, and a failure leaves at most a file that ends in ``.new``. Raises SegmentDamaged with the
    file and the offset of a bad block, BadTask if the segments do not match the task, and NoSpace or OSError if the
    result cannot be written.
    """
    task.check()
    with contextlib.ExitStack() as stack:
        segments = [stack.enter_context(contextlib.closing(Segment.open(disk, path))) for path in task.inputs]
        check_inputs(task, [segment.identity for segment in segments])
        rows = SegmentRows(segments, on_bytes)
        foreign = ForeignRows(task.hash_first, task.hash_last)
        decision = _ALL_STAY if task.history else (yield from _decide(task, rows, foreign))
        identity = identity_of(task, [segment.identity for segment in segments], decision)
        identity, nbytes = yield from _write(task, disk, rows, identity, decision.gone, foreign, on_bytes)
        return CompactionResult(
            identity=identity,
            nbytes=nbytes,
            rows=rows.count,
            superseded=decision.superseded,
            purged=decision.purged,
            foreign_rows=foreign.rows,
            foreign_kept=foreign.kept,
            foreign=foreign.found,
        )


def compact_or_discard(task: CompactionTask, disk: Disk) -> CompactionResult:
    """Runs ``task`` as ``compact``, and removes its files if it fails."""
    try:
        return compact(task, disk)
    except BaseException:
        with contextlib.suppress(OSError):  # the next start removes files that no manifest names
            discard(task, disk)
        raise


def discard(task: CompactionTask, disk: Disk) -> None:
    """Removes the output of a compaction without a result, complete or not.

    Only for a task whose process has ended, and whose output no manifest names. Raises OSError.
    """
    for path in (task.output + TEMPORARY, task.output):
        with contextlib.suppress(FileNotFoundError):
            disk.remove_large(path)


def check_inputs(task: CompactionTask, identities: Sequence[SegmentIdentity]) -> None:
    """Raises BadTask unless the segments are neighbours in one partition's chain, and ``task`` may purge as it says."""
    for older, newer in pairwise(identities):
        if (older.feed_id, older.partition) != (newer.feed_id, newer.partition):
            raise BadTask(f"{_name(older)} and {_name(newer)} are of different partitions")
        if older.last_seq != newer.after_seq:
            raise BadTask(
                f"{_name(newer)} begins after seq {newer.after_seq}, but {_name(older)} ends at {older.last_seq}: only "
                f"neighbours can be compacted"
            )
    if task.purge_before_us is not None and identities[0].after_seq:
        raise BadTask(
            f"{_name(identities[0])} begins after seq {identities[0].after_seq}, so it is not the oldest: its "
            f"tombstones must stay"
        )
    rows = sum(identity.rows for identity in identities)
    if rows > ROWS_MAX:
        raise BadTask(f"the segments have {rows} rows in all, and one has at most {ROWS_MAX}: compact fewer at once")


def identity_of(
    task: CompactionTask, identities: Sequence[SegmentIdentity], decision: _Decision = _ALL_STAY
) -> SegmentIdentity:
    """Returns the identity of the result, without its counts.

    The result replaces its inputs, so its base is that of the oldest. The base of the next segment, which is not
    rewritten, is the newest input, or after several compactions an input of that. It comes first, so that it is never
    left out, however often the segments before it are compacted.
    """
    oldest, newest = identities[0], identities[-1]
    others = identities[-2::-1]
    known = (newest.segment_id, *newest.included_ids)
    included = [task.next_base_id] if task.next_base_id in known else []
    included += [newest.segment_id, *newest.included_ids[: INCLUDED_IDS_MAX - INPUTS_MAX - len(included)]]
    included += [identity.segment_id for identity in others]
    included += [id_ for identity in others for id_ in identity.included_ids]
    return SegmentIdentity(
        feed_id=newest.feed_id,
        partition=newest.partition,
        branch=newest.branch,
        segment_id=task.segment_id,
        base_id=oldest.base_id,
        included_ids=tuple(dict.fromkeys(included))[:INCLUDED_IDS_MAX],
        is_major=task.is_major,
        deduplicated=decision.gone is not None or any(identity.deduplicated for identity in identities),
        after_seq=oldest.after_seq,
        last_seq=newest.last_seq,
        purge_seq=max(decision.purge_seq, *(identity.purge_seq for identity in identities)),
    )


def _decide(task: CompactionTask, rows: SegmentRows, foreign: ForeignRows) -> Steps[_Decision]:
    """Runs steps 1 and 2."""
    hashes = np.empty(rows.count, np.uint64)
    key_lengths = np.empty(rows.count, np.uint16)
    expired_rows, expired_seqs = [np.zeros(0, np.uint32)], [np.zeros(0, np.uint64)]
    for batch in rows.batches():
        arrays = batch.arrays()
        found = hashes_of_keys(arrays)
        foreign.note(batch, arrays, found)
        hashes[batch.row : batch.row + arrays.rows] = found
        key_lengths[batch.row : batch.row + arrays.rows] = np.diff(arrays.key_offsets)
        if task.purge_before_us is not None:
            old = tombstones.expired(
                arrays.valid, arrays.seqs, arrays.timestamps, task.purge_before_us, task.stable_seq
            )
            expired_rows.append((old + batch.row).astype(np.uint32))
            expired_seqs.append(arrays.seqs[old])
        yield False
    yield True
    gone = superseded_rows(hashes, key_lengths, rows.keys_of)
    superseded = int(np.count_nonzero(gone))
    purge_seq = tombstones.purged(np.concatenate(expired_rows), np.concatenate(expired_seqs), gone)
    missing = int(np.count_nonzero(gone))
    yield False
    return _Decision(gone if missing else None, superseded, missing - superseded, purge_seq)


def _write(
    task: CompactionTask,
    disk: Disk,
    rows: SegmentRows,
    identity: SegmentIdentity,
    gone: Bools | None,
    foreign: ForeignRows,
    on_bytes: Callable[[int], None],
) -> Steps[tuple[SegmentIdentity, int]]:
    """Runs step 3. Returns the identity with its counts, and the bytes of the file."""
    nbytes = 0

    def count(written: int) -> None:
        nonlocal nbytes
        nbytes += written
        on_bytes(written)

    writer = SegmentWriter(disk, task.output, identity, on_bytes=count)
    try:
        cuts = task.cuts
        builder = BlockBuilder(identity.partition, task.block_bytes, compress=task.compress, on_block=writer.add)
        for batch in rows.batches():
            arrays = batch.arrays()
            if task.history:
                hashes = hashes_of_keys(arrays)
                foreign.note(batch, arrays, hashes)
                arrays = foreign.corrected(arrays, hashes)
            elif foreign.rows > foreign.kept:
                arrays = foreign.corrected(arrays, hashes_of_keys(arrays))
            if gone is not None:
                arrays = take(arrays, np.flatnonzero(~gone[batch.row : batch.row + arrays.rows]))
            cuts = _add(builder, arrays, cuts)
            yield False
        yield True
        builder.finish()
        return writer.finish(), nbytes
    except BaseException:
        writer.abandon()
        raise


def _add(builder: BlockBuilder, arrays: ColumnArrays, cuts: tuple[int, ...]) -> tuple[int, ...]:
    """Adds rows to ``builder``, and ends its block at each cut. Returns the remaining cuts."""
    while cuts and arrays.rows:
        stop = int(np.searchsorted(arrays.seqs, np.uint64(cuts[0]), side="right"))
        if stop:
            builder.add(take(arrays, slice(0, stop)))
        if stop == arrays.rows:
            return cuts
        builder.finish()
        cuts, arrays = cuts[1:], take(arrays, slice(stop, None))
    builder.add(arrays)
    return cuts


def _name(identity: SegmentIdentity) -> str:
    return f"segment {identity.segment_id.hex()}"
