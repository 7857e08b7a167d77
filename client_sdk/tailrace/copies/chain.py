"""The segments of a copied partition, opened: rows in seq order, all of them or the newest of each key.

    segment      (0, 900]            (900, 1200]     (1200, 1250]
    rows         a b c d e f         b g c           a h           in the order of their seqs
    superseded   a b c               -               -             if only the newest row of each key is wanted

Rows are read in batches of about 1 MiB of whole blocks, and chosen by whole columns. All files are opened before the
first row is read, so a fetch that replaces them meanwhile does no harm.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import xxhash

from tailrace.block.arrays import Bools, ColumnArrays, arrays_of, encode_arrays, take
from tailrace.consuming.events import Mutations
from tailrace.copies.copy_file import CopyFile
from tailrace.errors import BadBlock
from tailrace.segment.footer import Footer
from tailrace.segment.format import FILE_SUM_OFFSET, TRAILER_BYTES, file_sum_in
from tailrace.segment.newest import superseded_rows
from tailrace.segment.open_segment import OpenSegment
from tailrace.segment.rows import RowBatch, SegmentRows

if TYPE_CHECKING:
    from tailrace.block import Block
    from tailrace.block.found import FoundRow
    from tailrace.copies.layout import PartitionCopy, SegmentCopy

_SUM_BYTES = 16
_END_BYTES = TRAILER_BYTES - FILE_SUM_OFFSET  # the file's checksum, and the bytes behind it
_READ_BYTES = 1 << 20


class SeqRange(NamedTuple):
    """The seqs from ``first`` to ``last``, both included."""

    first: int
    last: int


class CopiedChain:
    """The open segments of one partition, oldest first; for one thread at a time. Use it as a context manager."""

    def __init__(self, directory: str, feed_id: bytes, copy: PartitionCopy, command: str) -> None:
        """Opens the segments in ``directory``, and compares them with ``copy``. Raises BadCopy, OSError.

        ``command`` is the command that fetches the copy again.
        """
        self._copy = copy
        self._files = ExitStack()
        try:
            self._segments = [self._open(directory, feed_id, segment, command) for segment in copy.segments]
        except BaseException:
            self._files.close()
            raise

    def __enter__(self) -> CopiedChain:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def mutations(self, first_seq: int, last_seq: int, *, latest: bool) -> Iterator[Mutations]:
        """Yields the mutations from ``first_seq`` to ``last_seq`` in seq order, a block at a time. BadCopy.

        ``latest``: only those that are the newest of their key in the copy.
        """
        seqs = SeqRange(max(1, first_seq), last_seq)
        for batch, kept in self._batches(seqs, latest=latest):
            row = 0
            for block in batch.blocks:
                found = self._mutations_of(batch, block, seqs, None if kept is None else kept[row : row + block.rows])
                row += block.rows
                if found is not None:
                    yield found

    def arrays(self, first_seq: int, last_seq: int, *, latest: bool) -> Iterator[ColumnArrays]:
        """Yields the same mutations as columns, about 1 MiB at a time, up to 8 MiB if they are compressed. BadCopy."""
        seqs = SeqRange(max(1, first_seq), last_seq)
        for batch, kept in self._batches(seqs, latest=latest):
            arrays = batch.arrays()
            kept = _inside(arrays, seqs, kept)
            if kept is not None:
                arrays = take(arrays, np.flatnonzero(kept))
            if arrays.rows:
                yield arrays

    def find(self, key: bytes, hash_: int) -> FoundRow | None:
        """Returns the newest row of ``key``, whose hash is ``hash_``; None if there is no row of it. BadCopy."""
        for segment in reversed(self._segments):
            found = segment.find(key, hash_)
            if found is not None:
                return found
        return None

    def verify(self) -> int:
        """Reads all files whole, and compares each with its checksum. Returns the bytes that it read. BadCopy."""
        for segment, told in zip(self._segments, self._copy.segments, strict=True):
            _check_sum(segment, told)
        return sum(segment.nbytes for segment in self._segments)

    def _open(self, directory: str, feed_id: bytes, told: SegmentCopy, command: str) -> OpenSegment[CopyFile]:
        """Opens a segment, and compares it with the checkpoint: a file of another segment must not be read."""
        file = self._files.enter_context(closing(CopyFile(os.path.join(directory, told.file_name), command)))
        if file.nbytes != told.nbytes:
            raise file.damaged(0, f"the file has {file.nbytes} bytes, CHECKPOINT.json says {told.nbytes}")
        footer = Footer.read(file)
        identity = footer.identity
        found = (identity.feed_id, identity.partition, identity.segment_id, identity.after_seq + 1, identity.last_seq)
        if found != (feed_id, self._copy.partition, told.id, told.first_seq, told.last_seq):
            raise file.damaged(
                0,
                f"it is segment {identity.segment_id.hex()} of partition {identity.partition} of the feed with the id "
                f"{identity.feed_id.hex()}, seqs {identity.after_seq + 1} to {identity.last_seq}: another one than "
                "CHECKPOINT.json says",
            )
        end = file_sum_in(file.read(file.nbytes - _END_BYTES, _END_BYTES)).to_bytes(_SUM_BYTES, "big")
        if end != told.checksum:
            raise file.damaged(0, f"its checksum is {end.hex()}, CHECKPOINT.json says {told.checksum.hex()}")
        return OpenSegment(file, footer)

    def _batches(self, seqs: SeqRange, *, latest: bool) -> Iterator[tuple[RowBatch, Bools | None]]:
        """Yields batches with rows of ``seqs``, each with a mask of the rows to keep; None: all of them."""
        segments = [segment for segment in self._segments if segment.last_row_seq >= seqs.first]
        if not segments or seqs.first > seqs.last:
            return
        rows = SegmentRows(segments, first_block=segments[0].block_after(seqs.first - 1))
        gone = superseded_rows(rows) if latest else None
        for batch in rows.batches():
            if batch.blocks[0].header.first_seq > seqs.last:
                return
            yield batch, None if gone is None else ~gone[batch.row : batch.row + batch.rows]

    def _mutations_of(self, batch: RowBatch, block: Block, seqs: SeqRange, kept: Bools | None) -> Mutations | None:
        """Returns the rows of a block that are in ``seqs`` and ``kept``; None without such rows."""
        header = block.header
        try:
            if seqs.first > header.first_seq or header.last_seq > seqs.last or not (kept is None or kept.all()):
                arrays = arrays_of(block)
                mask = _inside(arrays, seqs, kept)
                arrays = arrays if mask is None else take(arrays, np.flatnonzero(mask))
                if not arrays.rows:
                    return None
                block = encode_arrays(arrays, header.partition, compress=False)
            return Mutations(block, branch=self._copy.log.branch_at(block.header.last_seq) if self._copy.log else b"")
        except BadBlock as error:
            raise batch.segment.damaged(batch.offset, f"{block}: {error}") from None


def _inside(arrays: ColumnArrays, seqs: SeqRange, kept: Bools | None) -> Bools | None:
    """Returns the mask ``kept`` without rows outside of ``seqs``; None if all rows stay."""
    if int(arrays.seqs[0]) < seqs.first or int(arrays.seqs[-1]) > seqs.last:
        inside: Bools = (arrays.seqs >= np.uint64(seqs.first)) & (arrays.seqs <= np.uint64(seqs.last))
        kept = inside if kept is None else inside & kept
    return None if kept is None or kept.all() else kept


def _check_sum(segment: OpenSegment[CopyFile], told: SegmentCopy) -> None:
    """Raises BadCopy unless the bytes of a segment's file have the checksum of its trailer."""
    found, offset, end = xxhash.xxh3_128(), 0, segment.nbytes - _END_BYTES
    while offset < end:
        data = segment.read(offset, min(_READ_BYTES, end - offset))
        found.update(data)
        offset += len(data)
    if found.digest() != told.checksum:
        raise segment.damaged(0, f"its bytes have the checksum {found.hexdigest()}, not {told.checksum.hex()}")
