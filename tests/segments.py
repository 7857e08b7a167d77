"""Segments for tests: a disk with one file, an identity, and pages so small that few rows need several."""

from __future__ import annotations

import contextlib
import errno
import os
from unittest import mock

from tailrace.block import Stamps, encode_block
from tailrace.model.hashing import hash_keys
from tailrace.segment.identity import NO_BASE, SegmentIdentity


class OneFile:
    """A disk with one file, ``data``, that may be changed at any time; ``bad`` are offsets that can't be read."""

    def __init__(self, data):
        self.data = bytearray(data)
        self.bad = set()
        self.reads = 0
        self.cached = True

    def open(self, path, *, writable=False):
        return self

    def size(self):
        return len(self.data)

    def read_at(self, offset, nbytes):
        self.reads += 1
        if any(offset <= place < offset + nbytes for place in self.bad):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return bytes(self.data[offset : offset + nbytes])

    def read_cached(self, offset, nbytes):
        return self.read_at(offset, nbytes) if self.cached else None

    def close(self):
        pass


@contextlib.contextmanager
def small_pages():
    """Pages of 4 entries, 64 bytes."""
    with (
        mock.patch("tailrace.segment.page.PAGE_ENTRIES", 4),
        mock.patch("tailrace.segment.page.PAGE_BYTES", 64),
    ):
        yield


def identity_of(last_seq, **members):
    """Returns the identity of a minor segment of partition 3."""
    usual = SegmentIdentity(
        feed_id=bytes(range(0xF0, 0x100)),
        partition=3,
        branch=bytes(range(0xB0, 0xC0)),
        segment_id=bytes(range(0x10, 0x20)),
        base_id=NO_BASE,
        included_ids=(),
        is_major=False,
        deduplicated=False,
        after_seq=0,
        last_seq=last_seq,
        purge_seq=0,
    )
    return usual._replace(**members)


def block_of(rows, *, hash_of=None, compress=True, partition=3):
    """Returns a block of rows (key, value or None, seq, timestamp)."""
    keys, values, seqs, timestamps = zip(*rows, strict=True)
    hashes = hash_keys(keys) if hash_of is None else [hash_of(key) for key in keys]
    stamps = Stamps(seqs, timestamps)
    return encode_block(keys, values, partition=partition, hashes=hashes, compress=compress, stamps=stamps)
