"""The contexts of sampled writes that a node keeps: which a block gets, and how many there are."""

from tailrace.wire.messages import Trace
from tailrace_server.state.recent_traces import BLOCK_TRACES_MAX, RecentTraces

FEED, BRANCH = b"f" * 16, b"b" * 16


def trace(first, last):
    return Trace(b"t" * 16, first.to_bytes(8, "big"), 1, first, last)


def test_a_block_gets_the_contexts_of_its_rows():
    traces = RecentTraces()
    for first in range(1, 100, 10):
        traces.add(FEED, 3, BRANCH, trace(first, first + 4))
    assert traces.of(FEED, 3, BRANCH, 15, 31) == [trace(11, 15), trace(21, 25), trace(31, 35)]
    assert traces.of(FEED, 3, BRANCH, 16, 20) == []
    assert traces.of(FEED, 3, b"c" * 16, 1, 100) == traces.of(FEED, 2, BRANCH, 1, 100) == []


def test_a_block_gets_a_bounded_number():
    traces = RecentTraces()
    for seq in range(1, 100):
        traces.add(FEED, 0, BRANCH, trace(seq, seq))
    assert len(traces.of(FEED, 0, BRANCH, 1, 99)) == BLOCK_TRACES_MAX


def test_a_write_is_kept_once():
    traces = RecentTraces()
    for _ in range(2):
        traces.add(FEED, 0, BRANCH, trace(1, 2))
    assert len(traces) == 1


def test_the_oldest_contexts_are_dropped():
    traces = RecentTraces(traces_max=5)
    for seq in range(1, 100):
        traces.add(FEED, seq % 3, BRANCH, trace(seq, seq))
    assert len(traces) == 5
    kept = [t.first_seq for partition in range(3) for t in traces.of(FEED, partition, BRANCH, 0, 100)]
    assert sorted(kept) == [95, 96, 97, 98, 99]
    assert len(traces._of) == 3
