"""A fetch of the blocking client that is interrupted while it stores bytes."""

import pytest

from tailrace.blocking.fetch import _take
from tailrace.copies.fetch import Exchange
from tailrace.copies.part_buffers import PartBuffers
from tailrace.errors import Unreachable


class Runner:
    """Has received three pieces of one part; the request goes on, or ends with ``error``."""

    def __init__(self, error=None):
        self.error = error

    def deadline(self, timeout):
        return 0.0

    def ask(self, fetch, deadline, work):
        for piece in (b"one", b"two", b"three"):
            fetch.receive(0, memoryview(piece))
        if self.error is not None:
            raise self.error
        work.do()


def test_no_piece_takes_the_place_of_one_that_an_interrupt_has_lost():
    stored = []

    def store(number, piece):
        if piece == b"two":
            raise KeyboardInterrupt  # between the queue and the file
        stored.append(bytes(piece))

    with pytest.raises(KeyboardInterrupt):
        _take(Runner(), Exchange(b"c" * 16, [(b"s" * 16, 0, 11)], store, PartBuffers(1)), None)
    assert stored == [b"one"]


def test_what_came_before_an_error_is_stored():
    stored = []

    def store(number, piece):
        stored.append(bytes(piece))

    step = Exchange(b"c" * 16, [(b"s" * 16, 0, 11)], store, PartBuffers(1))
    with pytest.raises(Unreachable):
        _take(Runner(Unreachable("the node has gone")), step, None)
    assert stored == [b"one", b"two", b"three"]
