from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tailrace.block import encode_block
from tailrace.consuming import latest_items
from tailrace.consuming.events import Mutations
from tailrace.consuming.latest_items import EVENT_ROWS_MIN, LatestItems
from tailrace.model import Item, Version

BRANCHES = (b"a" * 16, b"b" * 16)
KEYS = st.sampled_from([b"k%d" % number for number in range(8)])
ROWS = st.lists(st.tuples(KEYS, st.none() | st.sampled_from([b"", b"1", b"22"])), min_size=1, max_size=20)


def event_of(rows, first_seq, branch=BRANCHES[0]):
    block = encode_block([key for key, _ in rows], [value for _, value in rows], partition=3)
    return Mutations(block.stamped(first_seq=first_seq, timestamp=1_000 + first_seq), branch=branch)


def items_by_hand(events):
    found = {}
    for event in events:
        for row in event:
            found.pop(row.key, None)
            if row.value is not None:
                found[row.key] = Item(row.key, row.value, Version(3, event.branch, row.seq), row.timestamp)
    return list(found.values())


@given(
    st.lists(st.tuples(ROWS, st.sampled_from(BRANCHES)), max_size=8),
    st.sampled_from([0, 5, 100]),
    st.sampled_from([1, 4, 64]),
)
def test_they_are_the_newest_rows_by_their_seqs(batches, superseded_max, event_rows_min):
    latest, events, seq = LatestItems(superseded_max), [], 1
    latest_items.EVENT_ROWS_MIN = event_rows_min
    try:
        for rows, branch in batches:
            events.append(event_of(rows, seq, branch))
            seq += len(rows)
            latest.note(events[-1])
        assert list(latest.take()) == items_by_hand(events)
        assert list(latest.take()) == []
    finally:
        latest_items.EVENT_ROWS_MIN = EVENT_ROWS_MIN


def test_cleared_rows_do_not_come():
    latest = LatestItems()
    latest.note(event_of([(b"a", b"1")], 1))
    latest.clear()
    latest.note(event_of([(b"b", b"2")], 1))
    assert [item.key for item in latest.take()] == [b"b"]


def test_items_of_one_take_do_not_change_with_the_next_rows():
    latest = LatestItems()
    latest.note(event_of([(b"a", b"1"), (b"b", b"1")], 1))
    items = latest.take()
    latest.note(event_of([(b"a", b"2")], 1))
    assert [item.value for item in items] == [b"1", b"1"]
    assert [item.value for item in latest.take()] == [b"2"]


def test_superseded_rows_are_not_kept():
    """Otherwise a history of many mutations of few keys would be in memory as a whole."""
    latest = LatestItems(superseded_max=1_000)
    rows = [(b"%d" % number, b"x" * 100) for number in range(100)]
    for number in range(200):
        latest.note(event_of(rows, 1 + 100 * number))
        assert latest.held_rows <= 1_200
    assert [item.version.seq for item in latest.take()] == list(range(19_901, 20_001))
