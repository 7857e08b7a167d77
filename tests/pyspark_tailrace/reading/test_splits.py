from __future__ import annotations

import itertools
import pickle

from hypothesis import given
from hypothesis import strategies as st
from pyspark.cloudpickle import dumps

from pyspark_tailrace.reading.splits import TOGETHER_ROWS, SeqRange, Split, cut
from tailrace.model.failover import FailoverEntry, FailoverLog
from tailrace.model.position import Position

LOG = FailoverLog([FailoverEntry(b"v" * 16, 2, 1000), FailoverEntry(b"u" * 16, 1, 0)])


def part(partition, start, stop):
    end = Position.at(LOG, stop)
    return SeqRange(partition, Position.at(LOG, start) if start else Position.at(FailoverLog(), 0), stop, end)


@st.composite
def ranges(draw):
    found = []
    for partition in draw(st.sets(st.integers(0, 30), max_size=12)):
        start = draw(st.integers(0, 50_000))
        found.append(part(partition, start, start + draw(st.integers(1, 30_000))))
    return found


@given(ranges(), st.none() | st.integers(1, 60))
def test_pieces_are_the_ranges(wanted, min_partitions):
    tasks = cut(wanted, min_partitions, exact=True)
    pieces = sorted(piece for task in tasks for piece in task)
    for whole in wanted:
        own = [piece for piece in pieces if piece.partition == whole.partition]
        assert own[0].start == whole.start
        assert own[-1].stop_seq == whole.stop_seq
        assert all(a.stop_seq == b.start.seq for a, b in itertools.pairwise(own))
        assert all(piece.rows > 0 and piece.end == whole.end for piece in own)
    rows = sum(whole.rows for whole in wanted)
    assert len(tasks) >= min(min_partitions or 1, rows)


@given(ranges(), st.none() | st.integers(1, 60), st.booleans())
def test_tasks(wanted, min_partitions, exact):
    tasks = cut(wanted, min_partitions, exact=exact)
    for task in tasks:
        assert len({piece.partition for piece in task}) == len(task), "a stream has one place in each partition"
        assert len(task) == 1 or sum(piece.rows for piece in task) <= TOGETHER_ROWS
    if not exact:
        assert sorted(piece for task in tasks for piece in task) == sorted(wanted)


def test_small_ones_are_read_together():
    assert len(cut([part(id, 0, 100) for id in range(100)], None, exact=True)) == 1
    assert len(cut([part(id, 0, 100) for id in range(100)], 10, exact=True)) == 10
    assert cut([], 5, exact=True) == []


def test_splits_travel():
    split = Split(b"c" * 16, b"f" * 16, [part(0, 0, 10), part(1, 5, 1005)], is_history=True)
    copy = pickle.loads(dumps(split))
    assert (copy.parts, copy.starts, copy.is_history) == (split.parts, split.starts, True)
    assert dict(copy.starts) == {1: Position.at(LOG, 5)}
    assert "1: (5, 1005]" in repr(copy)
