"""Plain rows, and an interrupt in the middle of a call of an outbox: another thread may be the next that adds."""

import contextlib
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace import Delete, Put
from tailrace.block import encode_block
from tailrace.codec import Codec
from tailrace.errors import TailraceError
from tailrace.requests.outbox import Outbox
from tailrace.requests.typed_feed import TypedOutbox
from tailrace.serializers import JSONSerializer

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


class Trial:
    """An outbox with a program that puts as the shells do, and what it sends."""

    def __init__(self, *, takes_plain_rows, **bounds):
        self.blocks, self.settles, self.plain = [], [], 0
        self.outbox = Outbox(1, send=self.send, kick=lambda: None, **bounds)
        self.outbox._is_plain = takes_plain_rows

    def send(self, block, settle):
        columns = block.columns()
        self.blocks.append((columns.keys(), columns.values()))
        self.settles.append(settle)

    def do(self, step):
        kind, *arguments = step
        if kind == "answer":
            if self.settles:
                self.settles.pop(0)(None)
        elif kind == "ship":
            self.outbox.ship_all()
        elif kind == "ship_block":
            self.outbox.ship_block(BLOCK, self.send)
        elif kind == "write":
            for _ in self.outbox.extend_all(*arguments, lambda: None):
                self.enter()
        else:
            self.put(*arguments)

    def put(self, key, value, ttl):
        plain = self.outbox.plain
        if plain is not None and ttl is None and value is not None and plain.add(key, value):
            self.plain += 1
            return
        if not self.outbox.is_open:
            self.enter()
        self.outbox.add(key, value, None if value is None else ttl)

    def enter(self):
        while not self.outbox.has_room:
            self.settles.pop(0)(None)
        self.outbox.enter()


keys = st.binary(min_size=1, max_size=4)
plain_puts = st.tuples(st.just("put"), keys, st.binary(max_size=30), st.none())
puts = st.tuples(st.just("put"), keys, st.none() | st.binary(max_size=30), st.sampled_from([None, None, 5]))
writes = st.tuples(
    st.just("write"), st.lists(st.builds(Put, keys, st.binary(max_size=30), st.none()) | st.builds(Delete, keys))
)
steps = st.lists(
    plain_puts | plain_puts | plain_puts | puts | writes | st.sampled_from([("answer",), ("ship",), ("ship_block",)]),
    max_size=60,
)


@given(steps, st.sampled_from([60, 400, 1 << 20]), st.sampled_from([2, 7, 1000]), st.sampled_from([100, 700, 1 << 20]))
@example([("put", b"k", b"", None)] * 3 + [("put", b"key", b"val", None), ("ship",), ("answer",)], 60, 7, 700)
def test_plain_rows_leave_as_others_do(made, batch_bytes, batch_rows, bytes_max):
    """The same blocks with the same rows, at the same step, and the same bytes and waits after each step."""
    bounds = {"batch_bytes": batch_bytes, "batch_rows": batch_rows, "bytes_max": bytes_max}
    one, other = Trial(takes_plain_rows=True, **bounds), Trial(takes_plain_rows=False, **bounds)
    for step in made:
        one.do(step)
        other.do(step)
        assert one.blocks == other.blocks
        assert one.outbox.nbytes == other.outbox.nbytes
        assert (one.outbox.is_open, one.outbox.has_room) == (other.outbox.is_open, other.outbox.has_room)
        assert one.outbox.plain is None or one.outbox.is_open
    one.outbox.ship_all()
    other.outbox.ship_all()
    assert one.blocks == other.blocks
    assert other.plain == 0


def test_most_rows_of_a_writer_are_added_as_plain_rows():
    trial = Trial(takes_plain_rows=True, batch_bytes=1 << 20, batch_rows=10_000, bytes_max=1 << 24)
    for number in range(20_000):
        trial.put(b"%d" % number, bytes(100), None)
    assert trial.plain > 19_500
    assert len(trial.blocks) == 2


def end(outbox, how):
    if how == "fail":
        outbox.fail(TailraceError("lost"))
    elif how == "refuse":
        outbox.refuse(TailraceError("forked"))
    elif how == "close":
        outbox.close("it has ended")
    elif how == "ttl":
        outbox.add(b"k", b"v", 5)
    else:
        list(outbox.extend_all([Put(b"k", b"v")], lambda: None))


@pytest.mark.parametrize("how", ["fail", "refuse", "close", "ttl", "write"])
def test_no_plain_row_passes_what_ends_them(how):
    outbox = Trial(takes_plain_rows=True, batch_bytes=1 << 20, batch_rows=100, bytes_max=1 << 24).outbox
    outbox.add(b"k", b"v")
    assert outbox.plain is not None
    end(outbox, how)
    assert outbox.plain is None


def test_typed_rows_are_never_taken_as_they_are():
    codec = Codec("orders", JSONSerializer(), None)
    outbox = TypedOutbox(
        codec, 1, batch_bytes=1 << 20, batch_rows=9, bytes_max=1 << 24, send=lambda *_: None, kick=lambda: None
    )
    outbox.add(b"k", {"v": 1})
    assert outbox.is_open
    assert outbox.plain is None
