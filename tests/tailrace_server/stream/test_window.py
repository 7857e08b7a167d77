"""The window of a connection, against the sums of what was sent and granted."""

from __future__ import annotations

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.stream.window import Window

PARTITION = SimpleNamespace(feed_id=b"feed")
CONSUMERS, REPLICAS = (
    SimpleNamespace(partition=PARTITION, notes_unhandled=notes_unhandled) for notes_unhandled in (True, False)
)


def block(nbytes):
    return SimpleNamespace(nbytes=nbytes, header=SimpleNamespace(first_seq=1, timestamp=0, rows=1))


def mutations(window):
    return sum(mark.mutations for mark in window.unhandled.marks())


def test_a_block_may_go_beyond_the_window():
    window = Window(100)
    assert not window.is_full
    window.sent(CONSUMERS, block(99), 99)
    assert not window.is_full
    window.sent(CONSUMERS, block(50), 50)
    assert window.is_full
    assert (window.free_bytes, window.outstanding_bytes) == (-49, 149)
    window.credited(49)
    assert window.is_full
    window.credited(1)
    assert not window.is_full


def test_blocks_without_bytes_left_fill_it():
    window = Window(100)
    window.sent(REPLICAS, block(100), 100)
    assert window.is_full
    assert Window(0).is_full


def test_what_was_sent_stays_sent_when_the_size_changes():
    window = Window(100)
    window.sent(REPLICAS, block(60), 60)
    window.resize(50)
    assert (window.is_full, window.outstanding_bytes) == (True, 60)
    window.resize(100)
    assert (window.free_bytes, window.outstanding_bytes) == (40, 60)


def test_only_streams_of_consumers_note_what_is_unhandled():
    window = Window(100)
    window.sent(REPLICAS, block(10), 10)
    window.sent_few(3, 10)
    assert mutations(window) == 0
    window.sent(CONSUMERS, block(10), 10)
    assert mutations(window) == 1
    window.credited(10)
    assert mutations(window) == 0


steps = st.one_of(
    st.tuples(st.just("sent"), st.integers(1, 300)),
    st.tuples(st.just("few"), st.integers(1, 300)),
    st.tuples(st.just("credited"), st.integers(0, 500)),
    st.tuples(st.just("resize"), st.integers(0, 1000)),
)


@given(st.integers(0, 1000), st.lists(steps, max_size=50))
def test_it_counts_as_a_model_does(nbytes, steps):
    window = Window(nbytes)
    outstanding = credited = blocks = sent = 0
    for kind, number in steps:
        if kind == "resize":
            nbytes = number
            window.resize(number)
        elif kind == "credited":
            credited += number
            outstanding = max(outstanding - number, 0)
            window.credited(number)
        else:
            blocks, sent, outstanding = blocks + (2 if kind == "few" else 1), sent + number, outstanding + number
            if kind == "few":
                window.sent_few(2, number)
            else:
                window.sent(CONSUMERS, block(number), number)
        assert (window.nbytes, window.outstanding_bytes) == (nbytes, outstanding)
        assert window.is_full == (outstanding >= nbytes)
        assert (window.credited_bytes, window.sent_blocks, window.sent_bytes) == (credited, blocks, sent)
