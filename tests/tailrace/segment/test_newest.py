"""The newest row of each key in several segments, whatever the hashes of the keys are."""

from __future__ import annotations

import itertools
import tempfile
from contextlib import ExitStack
from unittest import mock

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.segments import block_of, identity_of
from tests.tiers import examples

from tailrace.segment.newest import superseded_rows
from tailrace.segment.rows import SegmentRows
from tailrace_server.host.disk import RealDisk
from tailrace_server.segment import Segment, SegmentWriter

KEYS = st.sampled_from([b"a", b"b", b"c", b"aa", b"ab", b"abc", b"k" * 200])
# Keys of different lengths and equal ones collide; hashes at both ends of their range are in different passes.
HASHES = st.sampled_from([lambda key: 7, lambda key: len(key) << 55, lambda key: key[0] % 2 * (2**64 - 1)])


def hashes_by(hash_of):
    def hashes(arrays):
        offsets, data = arrays.key_offsets.tolist(), arrays.key_data.tobytes()
        return np.array([hash_of(data[a:b]) for a, b in itertools.pairwise(offsets)], np.uint64)

    return hashes


@settings(deadline=None, max_examples=examples(60))
@given(st.lists(st.lists(KEYS, min_size=1, max_size=8), min_size=1, max_size=4), HASHES, st.integers(1, 9))
def test_rows_of_equal_hashes_are_told_apart_by_their_keys(segments, hash_of, hashes_max):
    disk, seq, opened = RealDisk(), 0, []
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        for number, keys in enumerate(segments):
            rows = [(key, b"v", seq + place, 1) for place, key in enumerate(keys, 1)]
            path = f"{directory}/{number}.seg"
            writer = SegmentWriter(disk, path, identity_of(seq + len(rows), after_seq=seq))
            for row in rows:
                writer.add(block_of([row]))
            writer.finish()
            seq += len(rows)
            opened.append(Segment.open(disk, path))
            stack.callback(opened[-1].close)
        keys = [key for part in segments for key in part]
        last = {key: row for row, key in enumerate(keys)}
        with (
            mock.patch("tailrace.segment.newest.HASHES_MAX", hashes_max),
            mock.patch("tailrace.segment.newest.hashes_of_keys", hashes_by(hash_of)),
            mock.patch("tailrace.segment.rows.READ_BYTES", 500),
        ):
            gone = superseded_rows(SegmentRows(opened))
    assert gone.tolist() == [last[key] != row for row, key in enumerate(keys)]


def test_no_rows():
    assert superseded_rows(SegmentRows([])).tolist() == []
