"""The shares of feeds in the window of a replica's connection."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.stream.feed_shares import FeedShares

WINDOW = 1 << 20


class MadeSlot:
    def __init__(self, feed, *, is_credited=True):
        self.stream = SimpleNamespace(partition=SimpleNamespace(feed_id=feed), is_credited=is_credited)
        self.under_way_bytes = 0

    def add_under_way(self, nbytes):
        self.under_way_bytes += nbytes


def send_all(shares, slot, outstanding, size=1024):
    """Sends blocks until there is no room. Returns how many bytes are under way, of all."""
    while outstanding < WINDOW and shares.has_room(slot, WINDOW - outstanding):
        shares.sent(slot, size)
        outstanding += size
    return outstanding


def test_each_feed_that_is_held_up_leaves_half_of_what_is_left():
    shares, outstanding, left = FeedShares(), 0, WINDOW
    for number in range(5):
        outstanding = send_all(shares, MadeSlot(b"%d" % number), outstanding)
        assert abs(WINDOW - outstanding - left // 2) <= 1024
        left = WINDOW - outstanding


def test_the_streams_of_a_feed_share_its_share():
    shares = FeedShares()
    outstanding = send_all(shares, MadeSlot(b"f"), 0)
    assert send_all(shares, MadeSlot(b"f"), outstanding) == outstanding
    assert send_all(shares, MadeSlot(b"g"), outstanding) > outstanding


def test_a_consumer_that_credits_no_stream_has_all_of_the_window():
    assert FeedShares().has_room(MadeSlot(b"f", is_credited=False), 0)


def test_a_stream_waits_until_its_feed_has_room():
    shares, first, second = FeedShares(), MadeSlot(b"f"), MadeSlot(b"g")
    outstanding = send_all(shares, first, 0)
    shares.hold(first)
    assert shares.holds(first)
    assert not shares.holds(second)
    assert shares.take_released(WINDOW - outstanding) == []
    shares.credited(first, 1024)
    assert shares.take_released(WINDOW - outstanding + 1024) == [first]
    assert not shares.is_holding


def test_a_stream_that_ends_has_nothing_under_way_and_does_not_wait():
    shares, first, second = FeedShares(), MadeSlot(b"f"), MadeSlot(b"f")
    outstanding = send_all(shares, first, 0)
    for slot in (first, second):
        shares.hold(slot)
    shares.forget(first)
    assert shares.take_released(WINDOW - outstanding) == [second]
    assert first.under_way_bytes == 0


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-3000, 3000)), max_size=50))
def test_what_is_credited_twice_counts_once(steps):
    shares, slots = FeedShares(), [MadeSlot(b"%d" % (number % 2)) for number in range(4)]
    for number, nbytes in steps:
        if nbytes > 0:
            shares.sent(slots[number], nbytes)
        else:
            shares.credited(slots[number], -nbytes)
    assert all(slot.under_way_bytes >= 0 for slot in slots)
    for slot in slots:
        shares.forget(slot)
    assert all(shares.has_room(slot, 1) for slot in slots)
