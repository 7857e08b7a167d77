from __future__ import annotations

import json

import pytest

from pyspark_tailrace.reading.offsets import (
    NOTHING,
    PartitionState,
    Resumption,
    agree,
    from_offset,
    resume_at,
    rolled_back,
    to_offset,
)
from tailrace import BadPosition, EndReason, Positions
from tailrace.model.failover import FailoverEntry, FailoverLog
from tailrace.model.position import Position

U = FailoverEntry(b"u" * 16, 1, 0)
LOG_U = FailoverLog([U])
LOG_VU = FailoverLog([FailoverEntry(b"v" * 16, 2, 100), U])
LOG_W = FailoverLog([FailoverEntry(b"w" * 16, 3, 0)])


def test_offsets_are_positions():
    positions = Positions(b"c" * 16, b"f" * 16, {0: Position.at(LOG_U, 5), 3: Position.at(LOG_VU, 105)})
    offset = to_offset(positions)
    assert from_offset(json.loads(json.dumps(offset))) == positions
    backwards = Positions(b"c" * 16, b"f" * 16, {3: Position.at(LOG_VU, 105), 0: Position.at(LOG_U, 5)})
    assert to_offset(backwards) == offset, "Spark compares the text"


@pytest.mark.parametrize("offset", [{}, {"seqs": {"0": 5}}, {"positions": 5}, {"positions": "trp1.damaged"}])
def test_no_offset(offset):
    with pytest.raises(BadPosition):
        from_offset(offset)


@pytest.mark.parametrize(
    ("position", "node", "wanted"),
    [
        (NOTHING, PartitionState(LOG_U, 10, 10), Resumption(NOTHING)),
        (Position.at(LOG_U, 10), PartitionState(LOG_U, 10, 10), Resumption(Position.at(LOG_U, 10))),
        # It stands at the fork: nothing is lost, and the position keeps its own log.
        (Position.at(LOG_U, 100), PartitionState(LOG_VU, 120, 120), Resumption(Position.at(LOG_U, 100))),
        (Position.at(LOG_U, 101), PartitionState(LOG_VU, 120, 120), Resumption(Position.at(LOG_VU, 100), lost=True)),
        # The same branch, and the node has not got so far any more: its copy is older than it says.
        (Position.at(LOG_U, 10), PartitionState(LOG_U, 8, 8), Resumption(Position.at(LOG_U, 8), lost=True)),
        (Position.at(LOG_U, 10), PartitionState(LOG_W, 20, 20), Resumption(NOTHING, lost=True)),
        (Position.at(LOG_VU, 110), PartitionState(LOG_U, 120, 120), Resumption(Position.at(LOG_VU, 110), waits=True)),
        # Inside a run, which the node has lost the end of: to its start.
        (
            Position.at(LOG_U, 90, 40, 120),
            PartitionState(LOG_VU, 130, 130),
            Resumption(Position.at(LOG_VU, 40), lost=True),
        ),
    ],
)
def test_where_a_query_resumes(position, node, wanted):
    assert resume_at(position, node) == wanted


def test_the_same_mutation_in_both_histories():
    assert agree(Position.at(LOG_U, 100), LOG_VU, 100)
    assert not agree(Position.at(LOG_U, 101), LOG_VU, 101)
    assert agree(Position.at(LOG_VU, 150), LOG_VU, 150)
    assert not agree(Position.at(LOG_U, 1), LOG_W, 1)
    assert not agree(Position.at(LOG_U, 1), FailoverLog(), 1)
    assert agree(NOTHING, FailoverLog(), 0)


def test_error_of_a_rollback():
    error = rolled_back(3, Position.at(LOG_U, 150), 100)
    assert error.reason is EndReason.ROLLED_BACK
    assert "partition 3" in str(error)
    assert "up to seq 150 of branch 75757575" in str(error)
