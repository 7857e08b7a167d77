"""Cuts a share that is too large for one record into parts by key hash.

    hashes    0 ........ through | part 1 | part 2 | ... | last part: up to the greatest hash
              already published   each has at most ``bytes_max``, and all rows of its keys

A part is identified by the hash up to which the partition then has the batch. So a later try, with the same rows in
other blocks and another order of blocks, goes on above that hash. Its parts may end at other hashes.

`CutShare.advance` and `CutShare.part` are for a thread, one at a time; each call takes a bounded time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from tailrace.block import FLAG_COMPRESSED, Block
from tailrace.errors import TooLarge
from tailrace.model.hashing import HASH_MAX
from tailrace_server.blocks import join_blocks, take
from tailrace_server.host.disk import File
from tailrace_server.publishing.joining import joined
from tailrace_server.publishing.spreading import (
    BUCKETS_A_PART,
    BUCKETS_MAX,
    Bucket,
    Spread,
    encode_rows,
    rows_between,
    steps,
)
from tailrace_server.publishing.stage_file import StagedBlock

# Bytes of a stage in one step: a disk reads and a processor sorts them within some 100 ms.
READ_BYTES = 4 * 1024 * 1024
# Bytes of a row in a block beside key and value.
_ROW_BYTES = 16

# A stage, and its blocks of one partition.
Share = tuple[bytes, list[StagedBlock]]
ReadBlocks = Callable[[bytes, Sequence[StagedBlock]], list[Block]]


class BatchPart(NamedTuple):
    """Blocks without seqs. With them the partition has all rows of the batch with a key hash up to ``through``."""

    blocks: list[Block]
    through: int


class _Planned(NamedTuple):
    """A planned part: whole buckets, or the rows of one bucket from ``first_hash`` to ``through``."""

    buckets: list[Bucket]
    first_hash: int
    through: int


class CutShare:
    """The rows of ``share`` above ``after_hash`` (-1: all of them), in parts of at most ``bytes_max`` bytes.

    ``read`` returns blocks of a stage; ``file`` is an empty scratch file, which ``close`` closes.
    """

    def __init__(
        self,
        share: Sequence[Share],
        read: ReadBlocks,
        file: File,
        partition: int,
        *,
        hashes: tuple[int, int],
        after_hash: int,
        bytes_max: int,
    ) -> None:
        self._partition = partition
        self._bytes_max = bytes_max
        self._file = file
        self.after_hash = after_hash
        nbytes = sum(entry.nbytes for _, entries in share for entry in entries)
        count = min(max(BUCKETS_A_PART * (nbytes // bytes_max + 1), 2), BUCKETS_MAX)
        first_hash = max(hashes[0], after_hash + 1)
        self._spread = Spread(file, partition, min(first_hash, hashes[1]), hashes[1], count)
        self._is_all_here = first_hash > hashes[1]
        self._planned: list[_Planned] | None = None
        self._work = self._sort_and_plan(share, read)

    def advance(self) -> bool:
        """Sorts some of the rows; True once all are sorted, and ``part`` may be called.

        Raises UnknownStage, NoSpace, TooLarge: close it then.
        """
        next(self._work, None)
        return self.is_sorted

    @property
    def is_sorted(self) -> bool:
        """Whether all rows are sorted, and all parts are planned."""
        return self._planned is not None

    def rest(self) -> None:
        """Writes the rows that are in memory, before a pause. Raises NoSpace, UnknownStage."""
        self._spread.write()

    def part(self) -> BatchPart:
        """Returns the next part; the last one may be empty. Raises UnknownStage if the scratch file is damaged.

        Raises TooLarge if the rows of one key do not fit.
        """
        assert self._planned is not None
        if not self._planned:
            return BatchPart([], HASH_MAX)
        planned = self._planned[0]
        through = HASH_MAX if len(self._planned) == 1 else planned.through
        return BatchPart(joined(self._blocks(planned)), through)

    def taken(self, part: BatchPart) -> None:
        """Notes that the partition has ``part``, which the method ``part`` returned."""
        assert self._planned is not None
        del self._planned[:1]
        self.after_hash = part.through

    def close(self) -> None:
        """Closes the scratch file. It may be called twice."""
        self._work.close()
        self._file.close()

    def _sort_and_plan(self, share: Sequence[Share], read: ReadBlocks) -> Generator[None]:
        for stage, entries in [] if self._is_all_here else share:
            for some in _some_at_a_time(entries):
                self._spread.add(read(stage, some))
                yield
        self._spread.write()
        planned: list[_Planned] = []
        group: list[Bucket] = []
        for bucket in self._spread.buckets:
            if group and sum(other.nbytes for other in (*group, bucket)) > self._bytes_max:
                planned.append(_whole(group))
                group = []
            if bucket.nbytes > self._bytes_max:
                yield from self._plan_within(bucket, planned)
            elif bucket.nbytes:
                group.append(bucket)
        if group:
            planned.append(_whole(group))
        self._planned = planned

    def _plan_within(self, bucket: Bucket, planned: list[_Planned]) -> Iterator[None]:
        """Adds the parts of a bucket that is too large for one part, because of keys with many rows, to ``planned``.

        Raises TooLarge if the rows of one key do not fit.
        """
        hashes = np.zeros(0, "<u8")
        sizes = np.zeros(0, "<i8")
        for group in steps(self._spread.read(bucket)):
            arrays = join_blocks(group)
            rows = np.diff(arrays.key_offsets).astype("<i8") + np.diff(arrays.value_offsets) + _ROW_BYTES
            hashes, places = np.unique(np.concatenate((hashes, arrays.hashes)), return_inverse=True)
            sizes = np.bincount(places, np.concatenate((sizes, rows))).astype("<i8")
            yield
        first_hash, total, last = bucket.first_hash, 0, bucket.first_hash
        for hash, size in zip(hashes.tolist(), sizes.tolist(), strict=True):
            if total and total + size > self._bytes_max:
                planned.append(_Planned([bucket], first_hash, last))
                first_hash, total = last + 1, 0
            total, last = total + size, hash
            if size > self._bytes_max:  # uncompressed: it may fit all the same
                yield from self._check_key(bucket, hash)
        planned.append(_Planned([bucket], first_hash, bucket.last_hash))

    def _check_key(self, bucket: Bucket, hash: int) -> Iterator[None]:
        nbytes = 0
        for block in self._rows(bucket, hash, hash):
            nbytes += block.nbytes
            if nbytes > self._bytes_max:
                key = block.open_columns().key_at(0)
                raise TooLarge(
                    f"partition {self._partition} would get more than {self._bytes_max} bytes of changes of one key, "
                    f"{key[:60]!r}, by one batch, and the changes of a key are not divided: keep the last change of "
                    "each key in a batch, or make batches smaller"
                )
            yield

    def _blocks(self, planned: _Planned) -> Iterator[Block]:
        for bucket in planned.buckets:
            if (bucket.first_hash, bucket.last_hash) == (planned.first_hash, planned.through) or planned.buckets[1:]:
                yield from self._spread.read(bucket)
            else:
                yield from self._rows(bucket, planned.first_hash, planned.through)

    def _rows(self, bucket: Bucket, first_hash: int, last_hash: int) -> Iterator[Block]:
        """Yields the rows of ``bucket`` with key hashes from ``first_hash`` to ``last_hash``, in order."""
        for group in steps(self._spread.read(bucket)):
            arrays = join_blocks(group)
            rows = rows_between(arrays, first_hash, last_hash)
            if len(rows):
                compress = any(block.header.flags & FLAG_COMPRESSED for block in group)
                yield from encode_rows([take(arrays, rows)], self._partition, compress=compress)


def _whole(buckets: list[Bucket]) -> _Planned:
    return _Planned(buckets, buckets[0].first_hash, buckets[-1].last_hash)


def _some_at_a_time(entries: Iterable[StagedBlock]) -> Iterator[list[StagedBlock]]:
    """Yields ``entries`` in groups of at most ``READ_BYTES``, or of one entry."""
    group: list[StagedBlock] = []
    nbytes = 0
    for entry in entries:
        if group and nbytes + entry.nbytes > READ_BYTES:
            yield group
            group, nbytes = [], 0
        group.append(entry)
        nbytes += entry.nbytes
    if group:
        yield group
