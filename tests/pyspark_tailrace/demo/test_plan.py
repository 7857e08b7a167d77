"""How many files and micro-batches a history becomes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspark_tailrace.demo.jsonlines import FILE_ROWS_MAX
from pyspark_tailrace.demo.plan import CHANGES_MIN, FILES_MIN, plan_files


@given(st.integers(CHANGES_MIN, 10_000_000))
def test_files_are_many_enough_for_several_micro_batches_and_never_too_long(changes):
    plan = plan_files(changes)
    files = -(-changes // plan.file_rows_max)
    assert files >= FILES_MIN / 2
    assert 1 <= plan.file_rows_max <= FILE_ROWS_MAX
    assert files / plan.files_per_batch >= 4


def test_shortest_history_leaves_room_between_the_ends_of_files():
    assert plan_files(CHANGES_MIN).file_rows_max >= 2
