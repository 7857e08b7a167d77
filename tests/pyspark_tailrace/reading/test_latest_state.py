from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tailrace.reading import latest_state
from pyspark_tailrace.reading.latest_state import LatestState

BATCHES = st.lists(
    st.lists(st.tuples(st.integers(0, 12), st.none() | st.integers(0, 100)), min_size=1, max_size=20), max_size=15
)


def batch_of(rows):
    return pa.RecordBatch.from_pydict(
        {
            "key": pa.array([b"%d" % key for key, _ in rows], pa.binary()),
            "value": pa.array([None if value is None else b"%d" % value for _, value in rows], pa.binary()),
            "deleted": pa.array([value is None for _, value in rows]),
        }
    )


@pytest.mark.parametrize("dead_rows_max", [0, 10, 100_000])
@given(BATCHES)
def test_newest_of_each_key(dead_rows_max, batches):
    held = latest_state.DEAD_ROWS_MAX
    latest_state.DEAD_ROWS_MAX = dead_rows_max
    try:
        state, wanted = LatestState(), {}
        for rows in batches:
            state.add(batch_of(rows))
            for key, value in rows:
                wanted.pop(key, None)
                wanted[key] = value
        found = [row for batch in state.rows() for row in batch.to_pylist()]
    finally:
        latest_state.DEAD_ROWS_MAX = held
    assert [(row["key"], row["value"]) for row in found] == [
        (b"%d" % key, b"%d" % value) for key, value in wanted.items() if value is not None
    ]


def test_memory_is_bounded_by_the_keys(monkeypatch):
    monkeypatch.setattr(latest_state, "DEAD_ROWS_MAX", 1000)
    state = LatestState()
    for number in range(100):
        state.add(batch_of([(key, number) for key in range(500)]))
        assert state._held <= 2 * 500 + 1000
    assert sum(batch.num_rows for batch in state.rows()) == 500


def test_cleared():
    state = LatestState()
    state.add(batch_of([(1, 1)]))
    state.clear()
    state.add(batch_of([(2, 2)]))
    assert [row["key"] for batch in state.rows() for row in batch.to_pylist()] == [b"2"]
    assert list(state.rows()) == []
