from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pyspark_tailrace.reading.admission import even_shares, next_turn, whole_snapshots

AVAILABLE = st.dictionaries(st.integers(0, 20), st.integers(0, 1000), min_size=1)


@given(AVAILABLE, st.integers(1, 5000))
def test_even_shares(available, rows):
    shares = even_shares(available, rows)
    assert shares.keys() == available.keys()
    assert all(0 <= shares[id] <= available[id] for id in available)
    assert sum(shares.values()) == min(rows, sum(available.values()))
    cut = [shares[id] for id in available if shares[id] < available[id]]
    # Who has not got all of his has as much as anybody, but for a row.
    assert all(share >= max(shares.values()) - 1 for share in cut)


@given(AVAILABLE, st.integers(1, 5000), st.integers(0, 25), st.data())
def test_whole_snapshots(available, rows, turn, data):
    snapshots = {id: data.draw(st.integers(1, max(count, 1))) for id, count in available.items()}
    taken = whole_snapshots(available, rows, snapshots.__getitem__, turn)
    assert taken.keys() == available.keys()
    assert all(taken[id] in (0, snapshots[id], available[id]) for id in taken)
    if any(available.values()):
        assert any(taken.values())
    if sum(taken.values()) > rows:
        assert len([id for id in taken if taken[id]]) == 1, "only the first may be larger than the batch"


@given(st.dictionaries(st.integers(0, 9), st.integers(1, 50), min_size=2), st.integers(0, 12))
def test_everybody_has_a_turn(available, turn):
    """With room for one only, each is served once before any is served again."""
    served = []
    for _ in available:
        taken = whole_snapshots(available, 1, available.__getitem__, turn)
        served += [id for id in taken if taken[id]]
        turn = next_turn(taken, turn)
    assert sorted(served) == sorted(available)


def test_turn_stays_where_nothing_was_taken():
    assert next_turn({0: 0, 3: 0}, 3) == 3
