"""An interrupt in the middle of a call of an outbox: another thread may be the next that adds."""

import contextlib
import sys

import pytest

from tailrace.block import encode_block
from tailrace.errors import TailraceError
from tailrace.requests.outbox import Outbox

BLOCK = encode_block([b"k"], [b"v"], partition=0)


def interrupted(monkeypatch, outbox):
    """Interrupts the call that ships the first batch, when that has left the batches and is not sent."""
    take = outbox._batches.take

    def taken(partition):
        take(partition)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(outbox._batches, "take", taken)
        outbox.add(b"a", b"1")
        with pytest.raises(KeyboardInterrupt):
            outbox.add(b"b", b"2")


@pytest.mark.parametrize(
    "go_on",
    [
        lambda outbox, send: [outbox.add(b"%d" % number, b"3") for number in range(2)],
        lambda outbox, send: [outbox.add(b"c", b"3"), outbox.ship_all()],
        lambda outbox, send: outbox.ship_block(BLOCK, send),
    ],
    ids=["the next block", "all blocks", "a block of the caller"],
)
def test_rows_that_an_interrupt_has_lost_are_told_to_the_next_that_ships(monkeypatch, go_on):
    sent = []

    def send(block, settle):
        sent.append(block)

    outbox = Outbox(1, batch_bytes=1_000, batch_rows=2, bytes_max=10_000, send=send, kick=lambda: None)
    interrupted(monkeypatch, outbox)
    assert outbox.is_open  # so another thread adds without a look at what was before
    with pytest.raises(TailraceError, match="a call was interrupted while it added or sent rows"):
        go_on(outbox, send)
    assert sent == []
    assert not outbox.is_open


@pytest.mark.parametrize(
    "wait", [lambda outbox: outbox.has_room, lambda outbox: outbox.is_settled(1)], ids=["for room", "for the answers"]
)
def test_a_block_that_an_interrupt_has_kept_from_the_session_ends_the_waits_of_others(wait):
    """It counts as in flight, and its answer never comes."""

    def send(block, settle):
        raise KeyboardInterrupt

    outbox = Outbox(1, batch_bytes=1_000, batch_rows=2, bytes_max=1, send=send, kick=lambda: None)
    with pytest.raises(KeyboardInterrupt):
        outbox.add(b"a", b"1")
    assert wait(outbox)
    with pytest.raises(TailraceError, match="a call was interrupted while it added or sent rows"):
        outbox.enter()
    assert wait(outbox)


@contextlib.contextmanager
def interrupt_at(line):
    """Raises KeyboardInterrupt at the ``line``-th line of the outbox that runs in this context."""
    left = line

    def trace(frame, event, argument):
        nonlocal left
        if frame.f_code.co_filename != Outbox.check.__code__.co_filename:
            return None
        if event == "line":
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def test_a_second_interrupt_does_not_hide_the_first():
    """The check that finds the lost rows is interrupted itself, at each of its lines."""

    def send(block, settle):
        raise KeyboardInterrupt

    for line in range(1, 30):
        outbox = Outbox(1, batch_bytes=1_000, batch_rows=1, bytes_max=1_000, send=send, kick=lambda: None)
        with pytest.raises(KeyboardInterrupt):
            outbox.add(b"a", b"1")
        with pytest.raises((KeyboardInterrupt, TailraceError)) as caught, interrupt_at(line):
            outbox.check()
        with pytest.raises(TailraceError, match="interrupted while it added or sent rows"):
            outbox.check()
        if caught.type is not KeyboardInterrupt:
            break
    assert 3 < line < 29


def test_an_interrupt_while_a_refused_block_is_noted_does_not_hide_the_refusal():
    def send(block, settle):
        raise TailraceError("refused")

    for line in range(1, 60):
        outbox = Outbox(1, batch_bytes=1_000, batch_rows=1, bytes_max=1_000, send=send, kick=lambda: None)
        with pytest.raises((KeyboardInterrupt, TailraceError)) as caught, interrupt_at(line):
            outbox.add(b"a", b"1")
        if outbox.unanswered:
            with pytest.raises(TailraceError):
                outbox.check()
        if caught.type is not KeyboardInterrupt:
            break
    assert 10 < line < 59
