"""Barrier cookies over streams: what each stream has to deliver, and the frames that go back."""

from types import SimpleNamespace

import pytest

from tailrace.wire.frames import encode_frame
from tailrace.wire.opcodes import Opcode
from tailrace_server.stream.stream_barriers import StreamBarriers

FEED = b"f" * 16


def stream(id, *, delivered, high, end=None):
    partition = SimpleNamespace(id=10 + id, feed_id=FEED, high_seq=high)
    return SimpleNamespace(id=id, delivered_seq=delivered, end_seq=end, partition=partition)


def reached(cookie):
    return encode_frame(Opcode.BARRIER_REACHED, cookie)


class Made:
    """Barriers over two streams: one has been sent all of 5 rows, the other 3 of 8, of which 7 were asked for."""

    def __init__(self):
        self.level, self.behind = stream(1, delivered=5, high=5), stream(2, delivered=3, high=8, end=7)
        self.sent = []
        slots = {each.id: SimpleNamespace(stream=each) for each in (self.level, self.behind)}
        self.barriers = StreamBarriers(slots, self.sent.append)

    def deliver(self, stream, seq):
        stream.delivered_seq = seq
        self.barriers.delivered(stream)


@pytest.fixture
def made():
    return Made()


def test_a_cookie_returns_once_each_stream_has_sent_what_was_accepted_when_it_came(made):
    made.barriers.add(b"one")
    made.behind.partition.high_seq = made.level.partition.high_seq = 100
    made.deliver(made.behind, 6)
    assert (made.sent, len(made.barriers), bool(made.barriers.waiting)) == ([], 1, True)
    made.deliver(made.behind, 7)
    assert (made.sent, len(made.barriers), bool(made.barriers.waiting)) == ([reached(b"one")], 0, False)


def test_a_held_cookie_waits_for_its_release(made):
    barrier = made.barriers.add(b"one", held=True)
    made.deliver(made.behind, 7)
    assert made.sent == []
    made.barriers.release(barrier)
    assert made.sent == [reached(b"one")]


def test_on_a_follower_a_cookie_waits_for_what_the_leader_had_accepted(made):
    barrier = made.barriers.add_elsewhere(b"one")
    made.barriers.add_behind(b"two", barrier)
    made.barriers.asked(barrier)
    made.barriers.settle(barrier, lambda feed_id, partition: {11: 6, 12: 100}[partition])
    made.deliver(made.behind, 7)
    assert made.sent == []
    made.deliver(made.level, 6)
    assert made.sent == [reached(b"one"), reached(b"two")]


def test_a_stream_that_ends_early_loses_the_cookies_that_need_it(made):
    made.barriers.add(b"one")
    made.barriers.ended(made.level, is_complete=False)
    assert made.sent == []
    made.barriers.ended(made.behind, is_complete=False)
    assert made.sent == [encode_frame(Opcode.BARRIER_LOST, b"one", 12)]


def test_a_stream_that_has_come_to_its_end_loses_no_cookie(made):
    made.barriers.add(b"one")
    made.barriers.ended(made.behind, is_complete=True)
    assert made.sent == [reached(b"one")]


def test_all_cookies_are_lost_at_once_when_the_leader_cannot_be_asked(made):
    made.barriers.add_behind(b"two", made.barriers.add_elsewhere(b"one"))
    made.barriers.lose_all()
    assert made.sent == [encode_frame(Opcode.BARRIER_LOST, cookie) for cookie in (b"one", b"two")]
