"""Copies on disk for tests, as a fetch writes them: segments by the server's writer, and the layout."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import NamedTuple

from tests.segments import block_of, identity_of

from tailrace.copies.layout import (
    CHECKPOINT_NAME,
    FEED_NAME,
    FeedCopy,
    PartitionCopy,
    SegmentCopy,
    encode_checkpoint,
)
from tailrace.model import FeedInfo
from tailrace.model.failover import FailoverLog
from tailrace.segment.format import file_sum_in
from tailrace_server.host.disk import RealDisk
from tailrace_server.segment import SegmentWriter

FEED_ID = bytes(range(0xF0, 0x100))
CLUSTER_ID = b"c" * 16
LOG = FailoverLog([(b"v" * 16, 2, 9), (b"u" * 16, 1, 0)])


class Row(NamedTuple):
    """A row of a segment; a value of None deletes."""

    key: bytes
    value: bytes | None
    seq: int
    timestamp: int


class Run(NamedTuple):
    """The rows of a segment in its blocks, and its bounds: (after_seq, last_seq]."""

    after_seq: int
    last_seq: int
    blocks: list[list[Row]]


def feed_of(retention="compact", partitions=4):
    return FeedInfo("orders", FEED_ID, partitions, "hash", retention, None, None, 259_200, "stream")


def write_feed(directory, info, fetched):
    os.makedirs(directory, exist_ok=True)
    Path(directory, FEED_NAME).write_bytes(FeedCopy(CLUSTER_ID, info, tuple(sorted(fetched))).encode())


def write_segment(directory, partition, run, number, *, compress=True, hash_of=None):
    """Writes the segment of a run; its entry in the chain."""
    segment_id = bytes([partition, number]) * 8
    path = os.path.join(directory, f"{segment_id.hex()}.seg")
    identity = identity_of(run.last_seq, after_seq=run.after_seq, partition=partition, segment_id=segment_id)
    writer = SegmentWriter(RealDisk(), path, identity)
    for rows in run.blocks:
        writer.add(block_of(rows, compress=compress, partition=partition, hash_of=hash_of))
    writer.finish()
    return entry_of(path, run)


def entry_of(path, run):
    """The entry of the file at ``path`` in a chain."""
    data = Path(path).read_bytes()
    checksum = file_sum_in(data[-24:]).to_bytes(16, "big")
    return SegmentCopy(bytes.fromhex(Path(path).stem), len(data), checksum, run.after_seq + 1, run.last_seq)


def write_checkpoint(directory, partition, segments, *, seq=None, purge_seq=0, log=LOG):
    seq = (segments[-1].last_seq if segments else 0) if seq is None else seq
    copy = PartitionCopy(partition, seq, purge_seq, log, tuple(segments))
    Path(directory, CHECKPOINT_NAME).write_bytes(encode_checkpoint(FEED_ID, copy))
    return copy


def write_partition(directory, partition, runs, **options):
    """Writes the directory of a partition whose chain has these runs."""
    inside = os.path.join(directory, str(partition))
    os.makedirs(inside, exist_ok=True)
    segments = [write_segment(inside, partition, run, number, **options) for number, run in enumerate(runs)]
    return write_checkpoint(inside, partition, segments)


def write_copy(directory, chains, info=None, **options):
    """Writes a copy with the runs of each partition. Returns the directory."""
    write_feed(directory, info or feed_of(), chains)
    for partition, runs in chains.items():
        write_partition(directory, partition, runs, **options)
    return str(directory)


def run_of(rows, after_seq=None, block_rows=2):
    """A run of rows that follow each other, ``block_rows`` in a block."""
    after_seq = rows[0].seq - 1 if after_seq is None else after_seq
    starts = range(0, len(rows), block_rows)
    return Run(after_seq, rows[-1].seq, [rows[start : start + block_rows] for start in starts])


def rows_of(run):
    return list(itertools.chain.from_iterable(run.blocks))


def newest(rows):
    """The rows that are the newest of their key, in seq order."""
    latest = {row.key: row.seq for row in rows}
    return [row for row in rows if latest[row.key] == row.seq]
