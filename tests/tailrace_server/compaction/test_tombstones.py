from __future__ import annotations

import numpy as np

from tailrace_server.compaction.tombstones import expired, purged


def test_which_tombstones_are_old_enough():
    valid = np.array([False, True, False, False, False])
    seqs = np.array([1, 2, 3, 4, 9], np.uint64)
    stamps = np.array([10, 10, 20, 21, 21], np.uint64)
    assert expired(valid, seqs, stamps, 20, 100).tolist() == [0, 2]
    assert expired(valid, seqs, stamps, 21, 4).tolist() == [0, 2, 3]
    assert expired(valid, seqs, stamps, 21, 0).tolist() == []
    assert expired(valid, seqs, stamps, -1, 100).tolist() == []
    assert expired(None, seqs, stamps, 100, 100).tolist() == []


def test_the_highest_tombstone_that_goes_is_the_purge_seq():
    gone = np.array([False, True, False, True])
    assert purged(np.array([0, 1, 2], np.uint32), np.array([5, 6, 7], np.uint64), gone) == 7
    assert gone.tolist() == [True, True, True, True]


def test_a_tombstone_that_is_superseded_leaves_nothing_missing():
    gone = np.array([True, True])
    assert purged(np.array([0, 1], np.uint32), np.array([5, 6], np.uint64), gone) == 0
    assert purged(np.zeros(0, np.uint32), np.zeros(0, np.uint64), gone) == 0
