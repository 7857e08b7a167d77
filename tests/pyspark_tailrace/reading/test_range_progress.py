"""Scenario 25 as a model: whatever is folded between two looks, a range that raises nothing has its state whole."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tailrace.reading.partition_reader import RangeProgress
from pyspark_tailrace.reading.splits import SeqRange
from tailrace import DataGone, Mutations, StreamEnded
from tailrace.block import Stamps, encode_block
from tailrace.model.failover import FailoverEntry, FailoverLog
from tailrace.model.position import Position

LOG = FailoverLog([FailoverEntry(b"u" * 16, 1, 0)])


def part_of(start, end):
    return SeqRange(0, Position.at(LOG, start) if start else Position.at(FailoverLog(), 0), end, Position.at(LOG, end))


def block_of(keys, seqs):
    stamps = None if list(seqs) == list(range(seqs[0], seqs[-1] + 1)) else Stamps(seqs, [1] * len(seqs))
    block = encode_block([keys[seq - 1] for seq in seqs], [b"v"] * len(seqs), partition=0, stamps=stamps)
    return block.stamped(seqs[0], 1) if stamps is None else block


def read(keys, part, runs, *, strict=True):
    """The seqs that a task gives, of a node that has folded each of ``runs`` (after, last]."""
    progress, given = RangeProgress(part, is_history=False, strict=strict), []
    for after, last in runs:
        if progress.done or last <= part.start.seq:
            continue
        progress.snapshot_started(last)
        newest = {keys[seq - 1]: seq for seq in range(after + 1, last + 1)}
        seqs = [seq for seq in sorted(newest.values()) if seq > part.start.seq]
        if seqs:
            event = Mutations(block_of(keys, seqs))
            first, stop = progress.take(event)
            given += event.seqs()[first:stop]
        progress.snapshot_ended(last)
    assert progress.done
    return given


KEYS = st.lists(st.sampled_from([b"a", b"b", b"c"]), min_size=2, max_size=14)


def runs_of(data, high, ends):
    """Runs up to ``high``; those of ``ends`` were the node's last seqs once, the later ones of which still end one."""
    bounds = sorted({0, high, *data.draw(st.sets(st.integers(1, high), max_size=4))})
    return list(itertools.pairwise(bounds))


@given(KEYS, st.data())
def test_hazard_25_state_at_the_end_of_each_range_or_an_error(keys, data):
    ends = sorted(data.draw(st.sets(st.integers(1, len(keys)), min_size=1, max_size=3)))
    state = {}
    for start, end in zip([0, *ends], ends, strict=False):
        high = data.draw(st.integers(end, len(keys)))
        runs = runs_of(data, high, ends)
        try:
            given = read(keys, part_of(start, end), runs)
        except DataGone:
            assert any(after < end < last for after, last in runs), "only a run that crosses the end can lack something"
            return
        assert given == sorted(set(given))
        assert all(start < seq <= end for seq in given)
        state |= {keys[seq - 1]: seq for seq in given}
        assert state == {keys[seq - 1]: seq for seq in range(1, end + 1)}


@given(KEYS, st.data())
def test_without_the_error_what_is_left_comes(keys, data):
    end = data.draw(st.integers(1, len(keys)))
    runs = runs_of(data, len(keys), [end])
    given = read(keys, part_of(0, end), runs, strict=False)
    kept = {seq for after, last in runs for seq in {keys[s - 1]: s for s in range(after + 1, last + 1)}.values()}
    assert given == sorted(seq for seq in kept if seq <= end)


def test_snapshot_that_is_announced_again():
    """Its rows were there while it was in memory; then it went on from a segment, which reaches further."""
    keys = [b"a", b"b", b"c", b"d", b"c"]
    progress = RangeProgress(part_of(0, 4), is_history=False, strict=True)
    progress.snapshot_started(4)
    progress.take(Mutations(block_of(keys, [1, 2])))
    progress.snapshot_started(5)
    with pytest.raises(DataGone, match="seq 3 has been superseded by a mutation above seq 4"):
        progress.take(Mutations(block_of(keys, [4, 5])))


def test_gap_in_a_history():
    progress = RangeProgress(part_of(0, 4), is_history=True, strict=True)
    progress.snapshot_started(4)
    with pytest.raises(DataGone, match="seq 1 has been trimmed") as caught:
        progress.take(Mutations(block_of([b"k"] * 4, [3, 4])))
    assert caught.value.first_seq == 1


def test_another_mutation_at_the_end():
    progress = RangeProgress(part_of(0, 4), is_history=True, strict=True)
    progress.check_end(LOG)
    with pytest.raises(StreamEnded, match="seq 4 was lost"):
        progress.check_end(FailoverLog([FailoverEntry(b"v" * 16, 2, 3), LOG[0]]))
    progress.check_end(FailoverLog([FailoverEntry(b"v" * 16, 2, 4), LOG[0]]))
