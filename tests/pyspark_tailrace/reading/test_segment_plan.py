"""The rule of batches by segments, and how ranges are cut: whatever the segments are, each row is in one piece."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pyspark_tailrace.reading.offsets import PartitionState
from pyspark_tailrace.reading.segment_plan import PlanCase, cut_by_segments, fits, flushed_bytes, plan_case
from pyspark_tailrace.reading.splits import SeqRange, Split, within
from tailrace.consuming.catch_up_rules import BYTES_MIN
from tailrace.model.failover import FailoverEntry, FailoverLog
from tailrace.model.position import Position
from tailrace.wire.segment_messages import CheckpointFile, PartitionCheckpoint

OLD = FailoverEntry(b"u" * 16, 1, 0)
LOG = FailoverLog([OLD])
FORKED = FailoverLog([FailoverEntry(b"v" * 16, 2, 500), OLD])
OTHER = FailoverLog([FailoverEntry(b"w" * 16, 3, 400), OLD])


def part_of(start, stop, log=LOG):
    return SeqRange(3, Position.at(log, start), stop, Position.at(log, stop))


def checkpoint_of(sizes, trim_seq=0, log=LOG):
    """A checkpoint with a segment for each (rows, bytes)."""
    files, seq = [], trim_seq
    for number, (rows, nbytes) in enumerate(sizes):
        files.append(CheckpointFile(bytes([number]) * 16, nbytes, bytes(16), seq + 1, seq + rows))
        seq += rows
    return PartitionCheckpoint(b"c" * 16, 60.0, b"f" * 16, 3, seq, 0, trim_seq, log, tuple(files))


SIZES = st.lists(st.tuples(st.integers(1, 5_000), st.integers(200, 10**9)), min_size=1, max_size=8)


@st.composite
def plans(draw):
    told = checkpoint_of(draw(SIZES), draw(st.integers(0, 100)))
    start = draw(st.integers(told.trim_seq, told.seq - 1))
    stop = draw(st.integers(start + 1, told.seq + 1_000))
    return part_of(start, stop), told


@given(plans(), st.integers(10**6, 10**9))
def test_each_row_is_in_one_piece(plan, task_bytes):
    part, told = plan
    assert fits(told, part)
    pieces = cut_by_segments(part, told, task_bytes)
    assert (pieces[0].start, pieces[-1].stop_seq) == (part.start, part.stop_seq)
    assert all(a.stop_seq == b.start.seq for a, b in itertools.pairwise(pieces))
    assert all(piece.rows > 0 and piece.end == part.end and piece.partition == 3 for piece in pieces)


@given(plans(), st.integers(10**6, 10**9))
def test_pieces_have_about_equal_bytes(plan, task_bytes):
    """A piece has a task's bytes, and those of a row at each of its ends at most."""
    part, told = plan
    pieces = cut_by_segments(part, told, task_bytes)

    def bytes_of(seqs):
        overlaps = (
            (file, min(file.last_seq, seqs.stop_seq) - max(file.first_seq - 1, seqs.start.seq))
            for file in told.segments
        )
        return sum(file.nbytes * rows / (file.last_seq - file.first_seq + 1) for file, rows in overlaps if rows > 0)

    row = max(file.nbytes / (file.last_seq - file.first_seq + 1) for file in told.segments)
    assert all(bytes_of(piece) <= task_bytes + 2 * row + len(told.segments) for piece in pieces)
    assert len(pieces) <= bytes_of(part) / task_bytes + 1


@given(plans(), st.integers(10**6, 10**9))
def test_a_task_is_told_of_the_segments_that_it_reads(plan, task_bytes):
    part, told = plan
    for piece in cut_by_segments(part, told, task_bytes):
        split = Split(b"c" * 16, b"f" * 16, [piece], is_history=True, checkpoints={3: told, 4: told})
        (mine,) = split.checkpoints.values()
        assert mine == within(told, piece)
        has = {seq for file in mine.segments for seq in (file.first_seq, file.last_seq)}
        for file in told.segments:
            overlaps = file.first_seq <= piece.stop_seq and piece.start.seq < file.last_seq
            assert overlaps == (file.first_seq in has)


@pytest.mark.parametrize(
    ("told", "part", "expected"),
    [
        (checkpoint_of([(1_000, 9)]), part_of(0, 2_000), True),
        (checkpoint_of([(1_000, 9)]), part_of(999, 2_000), True),
        (checkpoint_of([(1_000, 9)]), part_of(1_000, 2_000), False),
        (checkpoint_of([(900, 9)], trim_seq=100), part_of(100, 2_000), True),
        (checkpoint_of([(900, 9)], trim_seq=100), part_of(99, 2_000), False),
        (checkpoint_of([(1_000, 9)], log=FORKED), part_of(0, 500), True),
        (checkpoint_of([(1_000, 9)], log=FORKED), part_of(0, 501), False),
        (checkpoint_of([(500, 9)], log=FORKED), part_of(0, 900), True),
        (checkpoint_of([(1_000, 9)], log=OTHER), part_of(0, 450, FORKED), False),
    ],
    ids=["all", "one row", "none", "trimmed", "trimmed since", "before the fork", "a lost row", "below it", "others"],
)
def test_a_checkpoint_that_a_range_may_be_planned_by(told, part, expected):
    assert fits(told, part) is expected


LARGE = PartitionState(LOG, 2_000, 2_000, flushed_seq=1_000, trim_seq=0, segment_bytes=10 * BYTES_MIN)


@pytest.mark.parametrize(
    ("catch_up", "part", "node", "is_filtered", "case"),
    [
        ("stream", part_of(0, 2_000), LARGE, False, PlanCase.TURNED_OFF),
        ("segments", part_of(1_000, 2_000), LARGE, False, PlanCase.NOTHING_FLUSHED),
        ("auto", part_of(0, 2_000), PartitionState(LOG, 2_000, 2_000), False, PlanCase.NOTHING_FLUSHED),
        ("auto", part_of(0, 50), LARGE._replace(trim_seq=50), False, PlanCase.NOTHING_FLUSHED),
        ("segments", part_of(999, 2_000), LARGE, True, PlanCase.ASKED_FOR),
        ("auto", part_of(0, 2_000), LARGE, True, PlanCase.FILTERED),
        ("auto", part_of(0, 99), LARGE, False, PlanCase.FEW_BYTES),
        ("auto", part_of(901, 2_000), LARGE, False, PlanCase.FEW_BYTES),
        ("auto", part_of(0, 100), LARGE, False, PlanCase.LARGE),
    ],
)
def test_each_case(catch_up, part, node, is_filtered, case):
    assert plan_case(catch_up, part, node, is_filtered=is_filtered) is case


def test_segments_are_planned_in_two_cases_only():
    assert {case for case in PlanCase if case.by_segments} == {PlanCase.ASKED_FOR, PlanCase.LARGE}


@given(st.data())
def test_parts_of_a_range_have_its_bytes(data):
    trim = data.draw(st.integers(0, 100))
    node = LARGE._replace(trim_seq=trim, flushed_seq=data.draw(st.integers(trim + 1, 2_000)))
    start, stop = sorted(data.draw(st.lists(st.integers(0, 2_000), min_size=2, max_size=2, unique=True)))
    assume(stop - start > 1)
    middle = data.draw(st.integers(start + 1, stop - 1))
    first, second, both = (
        flushed_bytes(part_of(*seqs), node) for seqs in ((start, middle), (middle, stop), (start, stop))
    )
    assert both <= first + second <= both + 1
    assert flushed_bytes(part_of(0, 2_000), node) == node.segment_bytes


def test_a_few_large_rows_are_one_task_each():
    told = checkpoint_of([(3, 10**12), (2, 10**12)])
    assert [piece.stop_seq for piece in cut_by_segments(part_of(0, 5), told, 1)] == [1, 2, 3, 4, 5]
