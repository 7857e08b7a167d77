"""The table of docs/protocol/rollback.md, row by row, and that every input has one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace.consuming.resume import ResumeAction, ResumeDecision, ResumeState, bounds, decide, floor_without_ring
from tailrace.consuming.ring import Ring
from tailrace.model.failover import SNAPSHOT_LAST_UNKNOWN, FailoverLog, resume_point
from tailrace.model.position import Position
from tailrace.wire.stream_messages import RollBack, StreamOk

U, V = b"u" * 16, b"v" * 16
LOG_U = FailoverLog([(U, 1, 0)])
LOG_V = FailoverLog([(V, 2, 100), (U, 1, 0)])


def record(seq, first=None, last=None, *, log=LOG_U, top=0, floor=0):
    return ResumeState(Position.at(log, seq, first, last), top, floor)


def ok(seq, log=LOG_U, high_seq=200):
    return StreamOk(0, seq, log, high_seq)


def back(seq):
    return RollBack(0, seq, LOG_V, "forked")


@pytest.mark.parametrize(
    ("stored", "answer", "decision"),
    [
        (record(120), back(0), ResumeDecision(ResumeAction.CLEAR, 0)),
        (record(120), back(100), ResumeDecision(ResumeAction.REFETCH, 100)),
        (record(120, floor=100), back(100), ResumeDecision(ResumeAction.REFETCH, 100)),
        (record(120, floor=101), back(100), ResumeDecision(ResumeAction.UNCOVERED, 100)),
        (record(0), ok(0), ResumeDecision(ResumeAction.STREAM, 0)),
        (record(0, 0, 9), ok(0), ResumeDecision(ResumeAction.CLEAR, 0)),
        (record(0, 0, SNAPSHOT_LAST_UNKNOWN), ok(0), ResumeDecision(ResumeAction.CLEAR, 0)),
        (record(0, top=3), ok(0), ResumeDecision(ResumeAction.CLEAR, 0)),
        (record(90, 90, SNAPSHOT_LAST_UNKNOWN), ok(90), ResumeDecision(ResumeAction.REFETCH, 90)),
        (record(90, 90, SNAPSHOT_LAST_UNKNOWN, floor=95), ok(90), ResumeDecision(ResumeAction.UNCOVERED, 90)),
        (record(120), ok(120), ResumeDecision(ResumeAction.STREAM, 120)),
        (record(90, 80, 100), ok(90, LOG_V), ResumeDecision(ResumeAction.STREAM, 90)),
        (record(90, 90, 100, top=100), ok(90, LOG_V), ResumeDecision(ResumeAction.STREAM, 90)),
        (record(90, 90, 101, top=101), ok(90, LOG_V), ResumeDecision(ResumeAction.REFETCH, 90)),
        (record(90, 90, 90, top=101), ok(90, LOG_V), ResumeDecision(ResumeAction.REFETCH, 90)),
        (record(90, 90, 150, top=150), ok(90, LOG_U, high_seq=149), ResumeDecision(ResumeAction.REFETCH, 90)),
        (record(90, 90, 150, floor=150), ok(90, LOG_U, high_seq=149), ResumeDecision(ResumeAction.UNCOVERED, 90)),
    ],
)
def test_what_is_done_with_an_answer(stored, answer, decision):
    assert decide(stored, answer) == decision


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        (record(90), (90, 90, 90)),
        (record(90, 80, 100), (90, 80, 100)),
        (record(90, 90, 100), (90, 90, 90)),  # nothing of the snapshot was applied
        (record(90, 90, 100, top=95), (90, 90, 100)),
        (record(90, 90, 100, top=105), (90, 90, 105)),
        (record(90, 90, 100, floor=100), (90, 90, 100)),  # without a ring nobody knows what was
        (record(90, 90, SNAPSHOT_LAST_UNKNOWN, top=105), (90, 90, 90)),
        (record(90, 80, 95, top=99), (90, 80, 99)),
    ],
)
def test_what_is_asked_with(stored, asked):
    assert bounds(stored) == asked


def test_without_a_ring_it_knows_nothing_up_to_the_end_of_its_snapshot():
    position = Position.at(LOG_U, 90, 80, 100)
    ring = Ring(10, 1 << 20, floor_without_ring(position))
    assert decide(ResumeState.of(position, ring), back(80)).action is ResumeAction.UNCOVERED
    between = Position.at(LOG_U, 90)
    assert (
        decide(ResumeState.of(between, Ring(10, 1 << 20, floor_without_ring(between))), ok(90)).action
        is ResumeAction.STREAM
    )


SEQS = st.integers(0, 12)


@given(SEQS, SEQS, SEQS, SEQS, SEQS, SEQS, SEQS, st.booleans())
def test_it_streams_only_where_all_that_it_may_have_is_the_nodes(seq, back_by, ahead, top, floor, base, high, unknown):
    first, last = max(seq - back_by, 0), SNAPSHOT_LAST_UNKNOWN if unknown else seq + ahead
    server = FailoverLog([(V, 2, base), (U, 1, 0)]) if base else FailoverLog([(U, 1, 0)])
    high = max(high, base)
    stored = record(seq, first, last, top=top, floor=floor)
    asked = bounds(stored)
    resume = resume_point(LOG_U, *asked, None, server, high, 0)
    answer = ok(seq, server, high) if resume.seq == seq else RollBack(0, resume.seq, server, resume.why.value)
    decision = decide(stored, answer)
    shared = min(base or high, high)
    if decision.action is ResumeAction.STREAM:
        assert seq == 0 or (not unknown and (max(asked[2], top) <= shared or (first == seq and top <= seq <= shared)))
    else:
        assert decision.seq <= seq
        assert decision.seq == 0 or decision.seq <= shared
        assert decision.action is not ResumeAction.REFETCH or decision.seq >= floor
