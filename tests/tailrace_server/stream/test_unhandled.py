"""The marks of what was sent and not credited, against a list of all blocks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.stream.unhandled import MARKS_MAX, SPAN_US, UnhandledBlocks

PARTITIONS = [SimpleNamespace(feed_id=b"a"), SimpleNamespace(feed_id=b"a"), SimpleNamespace(feed_id=b"b")]


class Sent(NamedTuple):
    partition: object
    first_seq: int
    timestamp: int
    rows: int
    nbytes: int

    def block(self):
        return SimpleNamespace(
            header=SimpleNamespace(first_seq=self.first_seq, timestamp=self.timestamp, rows=self.rows),
            nbytes=self.nbytes,
        )


def unhandled_after(blocks, credited=0):
    unhandled = UnhandledBlocks()
    for sent in blocks:
        unhandled.sent(sent.partition, sent.block())
    unhandled.credited(credited)
    return unhandled


def live(count, step_us, partition=PARTITIONS[0]):
    """Blocks of one partition, of one row and 100 bytes."""
    return [Sent(partition, number + 1, number * step_us, 1, 100) for number in range(count)]


BLOCKS = st.lists(
    st.builds(
        Sent,
        st.sampled_from(PARTITIONS),
        st.integers(1, 1_000),
        st.integers(0, 20 * SPAN_US),
        st.integers(1, 5),
        st.integers(1, 50),
    ),
    max_size=300,
)


@given(BLOCKS, st.integers(0, 12_000))
def test_marks_cover_what_is_not_credited_and_know_its_oldest_block(blocks, credited):
    marks = list(unhandled_after(blocks, credited).marks())
    left, begin = credited, 0
    for index, sent in enumerate(blocks):
        if left < sent.nbytes:
            break
        left, begin = left - sent.nbytes, index + 1
    for feed_id in (b"a", b"b"):
        rest = [sent for sent in blocks[begin:] if sent.partition.feed_id == feed_id]
        of_feed = [mark for mark in marks if mark.partition.feed_id == feed_id]
        assert sum(mark.mutations for mark in of_feed) >= sum(sent.rows for sent in rest)
        if rest:
            assert min(mark.timestamp for mark in of_feed) <= min(sent.timestamp for sent in rest)
    places = {(sent.partition.feed_id, sent.first_seq - 1, sent.timestamp) for sent in blocks}
    assert all((mark.partition.feed_id, mark.after_seq, mark.timestamp) in places for mark in marks)


@given(BLOCKS)
def test_nothing_is_left_of_what_was_credited(blocks):
    unhandled = unhandled_after(blocks, sum(sent.nbytes for sent in blocks))
    assert not list(unhandled.marks())
    unhandled.credited(7)  # more than there was: the next block is not handled yet
    unhandled.sent(PARTITIONS[0], live(1, 0)[0].block())
    assert len(list(unhandled.marks())) == 1


def test_nothing_credited_is_exact():
    blocks = live(10_000, SPAN_US // 3)
    marks = list(unhandled_after(blocks).marks())
    assert len(marks) <= MARKS_MAX
    assert (marks[0].after_seq, marks[0].timestamp) == (0, 0)
    assert sum(mark.mutations for mark in marks) == 10_000


def test_a_live_stream_that_is_credited_is_exact_within_a_span():
    blocks = live(200, SPAN_US // 4)
    unhandled = unhandled_after(blocks[:20])
    for handled in range(10, 180, 10):
        for sent in blocks[handled + 10 : handled + 20]:
            unhandled.sent(sent.partition, sent.block())
        unhandled.credited(10 * 100)
        [first, *_] = unhandled.marks()
        assert blocks[handled].timestamp - SPAN_US < first.timestamp <= blocks[handled].timestamp


def test_blocks_at_one_time_share_a_mark_in_each_feed():
    assert len(list(unhandled_after(live(1_000, 0)).marks())) == 1
    mixed = [sent for pair in zip(live(500, 0), live(500, 0, PARTITIONS[2]), strict=True) for sent in pair]
    assert [mark.mutations for mark in unhandled_after(mixed).marks()] == [500, 500]


def test_marks_of_alternating_feeds_are_bounded():
    mixed = [sent for pair in zip(live(500, SPAN_US), live(500, SPAN_US, PARTITIONS[2]), strict=True) for sent in pair]
    unhandled = unhandled_after(mixed)
    assert len(list(unhandled.marks())) <= 2 * MARKS_MAX
    assert sum(mark.mutations for mark in unhandled.marks()) == 1_000
