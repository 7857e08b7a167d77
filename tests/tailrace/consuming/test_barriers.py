"""Barriers across streams and connections, with time by command."""

from tailrace.consuming.barriers import Barriers
from tailrace.link.backoff import FIRST_SECONDS


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def waiting():
    """A clock, barriers with one of the cookie b"mine", and the list of those that were reached."""
    clock, reached = Clock(), []
    barriers = Barriers(clock, lambda: 0.5)
    barriers.add(b"mine", lambda: reached.append(b"mine"))
    return clock, barriers, reached


def test_a_barrier_is_sent_once_and_comes_back():
    _, barriers, reached = waiting()
    [cookie] = barriers.send()
    assert not barriers.unsent
    assert barriers.send() == []
    assert barriers.came_back(cookie) == b"mine"
    barriers.reach(b"mine")
    assert reached == [b"mine"]
    assert not barriers


def test_an_answer_to_a_stream_that_has_stopped_does_not_count():
    _, barriers, _ = waiting()
    [old] = barriers.send()
    barriers.stream_stopped()
    assert barriers.unsent
    [new] = barriers.send()
    assert new != old
    assert barriers.came_back(old) is None
    assert barriers.came_back(new) == b"mine"


def test_a_lost_barrier_is_sent_again_after_a_pause():
    clock, barriers, _ = waiting()
    [cookie] = barriers.send()
    barriers.was_lost(cookie)
    barriers.was_lost(b"unknown")
    assert barriers.unsent
    assert barriers.send() == []
    assert 0 < barriers.next_at - clock.now <= FIRST_SECONDS
    clock.now = barriers.next_at
    assert len(barriers.send()) == 1


def test_a_new_connection_needs_no_pause():
    _, barriers, _ = waiting()
    [cookie] = barriers.send()
    barriers.was_lost(cookie)
    barriers.connection_lost()
    assert len(barriers.send()) == 1


def test_a_forgotten_barrier_is_not_reached():
    _, barriers, reached = waiting()
    [cookie] = barriers.send()
    barriers.forget(b"mine")
    assert not barriers
    assert barriers.came_back(cookie) is None
    barriers.reach(b"mine")
    assert reached == []
