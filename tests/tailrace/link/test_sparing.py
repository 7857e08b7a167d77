"""The log lines of events that come again and again."""

import logging

import pytest

from tailrace.errors import Unreachable
from tailrace.link.address import parse_address
from tailrace.link.finder import Finder
from tailrace.link.sparing import SECONDS, Sparing
from tailrace.wire.messages import HelloOk

HELLO_OK = HelloOk(1, "0" * 32, "0" * 32, "", 1 << 25, 10.0, ("memory", "disk"))


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_the_first_event_is_told_and_then_one_in_a_minute_with_those_left_out(clock):
    sparing = Sparing(clock)
    told = []
    for _ in range(6 * int(SECONDS)):
        told.append(sparing.note())
        clock.now += 0.5
    assert [text for text in told if text is not None] == ["", *[" (119 more since the last such line)"] * 2]


def test_a_long_outage_takes_few_lines_and_its_end_one(clock, caplog):
    finder = Finder((parse_address("a:1"),), "leader", clock)
    caplog.set_level(logging.INFO, "tailrace.client")
    finder.next_try()
    finder.check(HELLO_OK)
    finder.log_loss(Unreachable("it broke"), was_open=True)
    for _ in range(7_200):
        clock.now += 0.5
        finder.log_loss(Unreachable("nothing listens"), was_open=False)
    finder.check(HELLO_OK)
    first, *failed, last = caplog.messages
    assert first == "the connection to a:1 ended, and another is made: it broke"
    assert 50 <= len(failed) <= 62
    assert failed[0] == "no connection to a:1: nothing listens"
    assert last == "connected to a:1 after 3600.0 s without a node, and 7200 tries that failed"


def test_a_first_connection_is_no_event(clock, caplog):
    caplog.set_level(logging.DEBUG, "tailrace.client")
    Finder((parse_address("a:1"),), "leader", clock).check(HELLO_OK)
    assert caplog.messages == []


def test_a_connection_that_breaks_again_and_again_takes_few_lines(clock, caplog):
    finder = Finder((parse_address("a:1"),), "leader", clock)
    caplog.set_level(logging.INFO, "tailrace.client")
    for _ in range(600):
        finder.check(HELLO_OK)
        finder.log_loss(Unreachable("it broke"), was_open=True)
        clock.now += 0.1
    assert len(caplog.messages) == 2
