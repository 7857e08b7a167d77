"""Batches have bounds, keep the order, and are the same each time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailrace import Delete, Put
from tailrace.cli.rowfiles import batches as module
from tailrace.cli.rowfiles.batches import batches

CHANGES = st.lists(
    st.one_of(
        st.builds(Put, st.binary(min_size=1, max_size=4), st.binary(max_size=40)),
        st.builds(Delete, st.binary(min_size=1, max_size=4)),
    )
)


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch):
    monkeypatch.setattr(module, "ROWS_MAX", 3)
    monkeypatch.setattr(module, "BYTES_MAX", 50)


@given(CHANGES)
def test_batches_hold_all_changes_in_order(changes):
    found = list(batches(iter(changes)))
    assert [change for batch in found for change in batch.changes] == changes
    assert [batch.number for batch in found] == list(range(len(found)))
    assert [batch.first_row for batch in found] == [
        1 + sum(len(b.changes) for b in found[:n]) for n in range(len(found))
    ]
    for batch in found:
        assert 1 <= len(batch.changes) <= 3
        assert batch.nbytes <= 50 or len(batch.changes) == 1
    assert list(batches(iter(changes))) == found


@given(CHANGES, st.data())
def test_the_first_batches_do_not_depend_on_what_follows(changes, data):
    """An import that reads a pipe again finds the batches that it has published."""
    cut = data.draw(st.integers(0, len(changes)))
    part = list(batches(iter(changes[:cut])))
    assert list(batches(iter(changes)))[: max(len(part) - 1, 0)] == part[:-1]
