"""Segments in a directory, made of rows, and what a compaction of them must come to by a plain reading of the rules."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tailrace.block import Stamps, encode_block
from tailrace.model.hashing import HASH_MAX, hash_keys
from tailrace_server.compaction.task import CompactionTask
from tailrace_server.segment import NO_BASE, Segment, SegmentIdentity, SegmentWriter

FEED = bytes(range(16))
BRANCH = b"branch of tests."


class Row(NamedTuple):
    """A mutation. ``hash_`` is what the producer says, None: the right one."""

    seq: int
    key: bytes
    value: bytes | None
    timestamp: int = 1_000
    hash_: int | None = None


def segment_id(number):
    return b"%016d" % number


class Chain:
    """Neighbouring segments on a disk, the first one after seq ``after_seq``."""

    def __init__(self, disk, directory="/feed/0", after_seq=0):
        self.disk = disk
        self.directory = directory
        self.last_seq = after_seq
        self.paths = []
        self.rows = []
        disk.make_directory(directory)

    def add(self, rows, *, last_seq=None, block_rows=3, producer_id=0, **changes):
        """One more segment with these rows, in blocks of ``block_rows``."""
        number = len(self.paths) + 1
        path = f"{self.directory}/{number}.seg"
        identity = SegmentIdentity(
            feed_id=FEED,
            partition=0,
            branch=BRANCH,
            segment_id=segment_id(number),
            base_id=segment_id(number - 1) if number > 1 else NO_BASE,
            included_ids=(),
            is_major=False,
            deduplicated=False,
            after_seq=self.last_seq,
            last_seq=last_seq or (rows[-1].seq if rows else self.last_seq + 1),
            purge_seq=0,
        )._replace(**changes)
        writer = SegmentWriter(self.disk, path, identity)
        for begin in range(0, len(rows), block_rows):
            writer.add(block_of(rows[begin : begin + block_rows], producer_id))
        identity = writer.finish()
        self.paths.append(path)
        self.rows += rows
        self.last_seq = identity.last_seq
        return identity

    def task(self, first=0, last=None, **changes):
        """The compaction of the segments from ``first`` to ``last``, both included; of all where nothing is said."""
        return CompactionTask(
            inputs=tuple(self.paths[first : None if last is None else last + 1]),
            output=f"{self.directory}/out.seg",
            segment_id=segment_id(99),
            hash_first=0,
            hash_last=HASH_MAX,
            is_major=first == 0,
            history=False,
            purge_before_us=None,
            stable_seq=self.last_seq,
        )._replace(**changes)

    def contents(self):
        """All files, as bytes."""
        return {path: bytes(self.disk.content(path)) for path in self.paths}


def block_of(rows, producer_id=0):
    """A block as a producer makes it where its numbers allow that, else as merging does."""
    keys, values = [row.key for row in rows], [row.value for row in rows]
    hashes = [right if row.hash_ is None else row.hash_ for row, right in zip(rows, hash_keys(keys), strict=True)]
    stamps = Stamps([row.seq for row in rows], [row.timestamp for row in rows])
    number = int(producer_id != 0)
    return encode_block(
        keys, values, partition=0, producer_id=producer_id, producer_seq=number, hashes=hashes, stamps=stamps
    )


def rows_in(disk, path):
    """The rows of a segment, with their hashes as they stand there; the segment is well in every way."""
    segment = Segment.open(disk, path)
    assert segment.verify() == []
    rows, number = [], 0
    while number < segment.blocks:
        blocks, number = segment.read_blocks(number, 1 << 20)
        for block in blocks:
            columns = block.columns()
            names = (columns.seqs(), columns.keys(), columns.values(), columns.timestamps(), columns.hashes())
            rows += [Row(*row) for row in zip(*names, strict=True)]
    segment.close()
    return rows


def surviving(rows, *, before_us=None, stable_seq=0):
    """The rows that a compaction keeps, and its purge seq."""
    newest = {row.key: row for row in rows}
    kept, purge_seq = [], 0
    for row in sorted(newest.values()):
        old = before_us is not None and row.timestamp <= before_us and row.seq <= stable_seq
        if row.value is None and old:
            purge_seq = row.seq
        else:
            kept.append(row)
    return kept, purge_seq


@pytest.fixture(scope="session")
def row():
    return Row


@pytest.fixture(scope="session")
def chain_of():
    """The class, so that property tests make a new chain for each example."""
    return Chain


@pytest.fixture(scope="session")
def read_rows():
    return rows_in


@pytest.fixture(scope="session")
def model():
    return surviving
