"""Streams between two times, against frames that are made by hand."""

import pytest
from tests.tailrace.consuming.test_session import LOG_U, LOG_V, Conversation, V

from tailrace.block import Stamps, encode_block
from tailrace.consuming.events import Mutations, Rollback
from tailrace.consuming.session import Subscription
from tailrace.errors import DataGone, ProtocolError, Unreachable
from tailrace.model import EndReason
from tailrace.model.position import Position, Positions
from tailrace.wire.frames import encode_frame
from tailrace.wire.messages import encode_error
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import RollBack, StreamOk


class Talk(Conversation):
    """A conversation whose blocks have rows with timestamps of their own."""

    def stamped(self, first_seq, *timestamps, partition=0):
        seqs = range(first_seq, first_seq + len(timestamps))
        keys = [b"k%d" % seq for seq in seqs]
        block = encode_block(keys, [b"v"] * len(keys), partition=partition, stamps=Stamps(list(seqs), list(timestamps)))
        self.hear(encode_frame(Opcode.BLOCK, block.tobytes(), self.id(partition)))
        return block.nbytes

    def answer(self, seq, first=None, last=None, *, log=LOG_U, high_seq=9):
        snapshot = None if first is None else (first, last)
        self.hear(StreamOk(0, seq, log, high_seq, snapshot).encode(self.id()))

    def given(self):
        """Seqs and timestamps of the mutations that are handed out now."""
        events = [event for event in self.events() if isinstance(event, Mutations)]
        return [row for event in events for row in zip(event.seqs(), event.timestamps(), strict=True)]


def since(us, **wanted):
    """A conversation since ``us``, up to its request."""
    made = Talk(Subscription("orders", "now", since_us=us, **wanted))
    assert made.greet() == ["STREAM_REQUEST"]
    return made


def test_a_time_is_asked_for_until_it_was_answered_and_never_again():
    made = since(500)
    assert (made.requests[0][1].seq, made.requests[0][1].since_us) == (None, 500)
    made.session.connection_lost(Unreachable("cut"))
    made.greet()
    assert (made.requests[0][1].seq, made.requests[0][1].since_us) == (None, 500)
    made.answer(5)
    assert made.events() == []
    assert made.session.positions[0] == Position.at(LOG_U, 5)
    made.session.connection_lost(Unreachable("cut"))
    made.greet()
    assert (made.requests[0][1].seq, made.requests[0][1].since_us) == (5, None)


def test_rows_from_before_are_left_out_and_the_position_goes_past_them():
    made = since(500)
    made.answer(2)
    made.start(2, 9)
    size = made.stamped(3, 100, 200)
    made.stamped(5, 300, 499, 500, 501)
    made.stamped(9, 501)
    made.end(9)
    assert made.given() == [(7, 500), (8, 501), (9, 501)]
    assert made.session.positions[0] == Position.at(LOG_U, 9)
    assert made.sent() == [], "what was dropped is credited with the rest"
    assert size


def test_only_rows_from_before():
    made = since(500)
    made.answer(2)
    made.start(2, 4)
    made.stamped(3, 100, 200)
    made.end(4)
    assert made.given() == []
    assert made.session.positions[0] == Position.at(LOG_U, 4), "a quiet consumer gets on too"


def test_in_the_middle_of_a_run():
    made = since(500)
    made.answer(4, 1, 8)
    assert made.events() == []
    assert made.session.positions[0] == Position.at(LOG_U, 4, 1, 8)
    made.start(4, 8, complete=False)
    made.stamped(5, 500, 600)
    assert made.given() == [(5, 500), (6, 600)]
    made.session.connection_lost(Unreachable("cut"))
    made.greet()
    request = made.requests[0][1]
    assert (request.snapshot_first, request.seq, request.snapshot_last) == (1, 6, 8)
    made.agree()
    made.start(6, 8, complete=False)
    made.stamped(8, 600)
    made.end(8)
    assert made.given() == [(8, 600)]
    assert made.session.positions[0] == Position.at(LOG_U, 8)


def test_a_run_that_is_rolled_back_is_read_again_from_its_start():
    made = since(500)
    made.answer(4, 1, 8)
    made.start(4, 8, complete=False)
    made.stamped(5, 500, 600)
    assert made.given() == [(5, 500), (6, 600)]
    made.session.connection_lost(Unreachable("cut"))
    made.greet()
    made.hear(RollBack(0, 1, LOG_V, "half_snapshot").encode(made.id()))
    assert made.events() == [Rollback(0, 1, (b"k5", b"k6"))]
    assert made.sent() == ["GET"]


def test_a_run_that_leaves_its_snapshot_out():
    made = since(500)
    made.hear(StreamOk(0, 9, LOG_U, 9, (1, 8)).encode(made.id()))
    with pytest.raises(ProtocolError, match="seq 9 lies outside of its snapshot"):
        made.events()


def test_what_is_gone_ends_it():
    made = since(500)
    made.hear(encode_error(DataGone("trimmed up to seq 7", first_seq=8), made.id()))
    with pytest.raises(DataGone, match="trimmed up to seq 7") as raised:
        made.events()
    assert raised.value.first_seq == 8
    assert made.session.failure is raised.value


def test_after_a_rollback_to_the_beginning_too():
    made = since(500)
    made.answer(5)
    assert made.events() == []
    made.session.connection_lost(Unreachable("cut"))
    made.greet()
    made.hear(RollBack(0, 0, LOG_V, "no_common_branch").encode(made.id()))
    assert made.events() == [Rollback(0, 0, None)]
    assert made.sent() == ["STREAM_REQUEST"]
    made.agree(log=LOG_V)
    made.start(0, 6, branch=V)
    made.stamped(1, 100, 200, 499, 500, 501, 502)
    assert made.given() == [(4, 500), (5, 501), (6, 502)]


def test_an_end_is_asked_again_for_since_the_same_time():
    made = since(500)
    made.stream_end(EndReason.DRAINING)
    made.events()
    made.now += 5
    assert made.sent() == ["STREAM_REQUEST"]
    assert made.requests[0][1].since_us == 500


def until(us, since="beginning", **wanted):
    """A conversation until ``us`` whose stream has been agreed to."""
    stored = (since,) if isinstance(since, Positions) else ()
    made = Talk(Subscription("orders", since, until_us=us, stored=stored, **wanted))
    assert made.greet() == ["STREAM_REQUEST"]
    assert (made.requests[0][1].until_us, made.requests[0][1].end_seq) == (us, None)
    made.agree()
    assert made.events() == []
    return made


def test_the_first_row_that_is_too_late_ends_it():
    made = until(500)
    made.start(0, 9)
    made.stamped(1, 100, 200)
    made.stamped(3, 300, 499, 500, 501)
    assert made.given() == [(1, 100), (2, 200), (3, 300), (4, 499)]
    assert made.session.positions[0] == Position.at(LOG_U, 4), "what was cut off comes to who goes on from there"
    assert made.session.finished
    assert made.sent() == ["STREAM_CLOSE"]
    made.stamped(7, 502)
    made.stream_end(EndReason.CLOSED)
    assert made.events() == []
    made.session.connection_lost(Unreachable("cut"))
    assert made.session.finished


def test_a_block_of_nothing_but_later_rows():
    made = until(500)
    made.start(0, 9)
    made.stamped(1, 500, 501)
    assert made.given() == []
    assert made.session.finished
    assert made.session.positions[0] == Position.at(LOG_U, 0)


def test_it_ends_in_the_middle_of_a_run_and_goes_on_from_there():
    made = until(500)
    made.start(0, 9, complete=False)
    made.stamped(2, 100, 200, 500)
    assert made.given() == [(2, 100), (3, 200)]
    positions = made.session.positions
    assert positions[0] == Position.at(LOG_U, 3, 0, 9)
    made = until(900, since=positions)
    request = made.requests[0][1]
    assert (request.snapshot_first, request.seq, request.snapshot_last) == (0, 3, 9)
    made.start(3, 9, complete=False)
    made.stamped(4, 500, 600)
    assert made.given() == [(4, 500), (5, 600)]


def test_a_run_whose_first_rows_are_too_late_is_not_begun():
    made = until(500)
    made.start(0, 9, complete=False)
    made.stamped(2, 500)
    made.events()
    assert made.session.positions.get(0, Position.at(LOG_U, 0))[1:4] == (0, 0, 0)


def test_the_node_may_end_it_where_nothing_comes():
    made = until(500)
    made.stream_end(EndReason.END_REACHED)
    assert made.events() == []
    assert made.session.finished


def test_every_reconnect_names_the_time_again():
    made = until(500)
    made.session.connection_lost(Unreachable("cut"))
    made.greet()
    assert made.requests[0][1].until_us == 500


def test_since_and_until_in_one_block():
    made = Talk(Subscription("orders", "now", since_us=200, until_us=400))
    made.greet()
    made.answer(0)
    made.start(0, 9)
    made.stamped(1, 100, 200, 399, 400)
    assert made.given() == [(2, 200), (3, 399)]
    assert made.session.positions[0] == Position.at(LOG_U, 3)
    assert made.session.finished


def test_nothing_between_two_times():
    made = Talk(Subscription("orders", "now", since_us=200, until_us=400))
    made.greet()
    made.answer(0)
    made.start(0, 9)
    made.stamped(1, 100, 400)
    assert made.given() == []
    assert made.session.finished


def test_one_of_two_partitions_ends_before_the_other():
    made = Talk(Subscription("orders", until_us=500))
    made.greet(high_seqs=(0, 0))
    for partition in (0, 1):
        made.agree(partition)
    made.start(0, 9)
    made.stamped(1, 600)
    assert made.events()
    assert not made.session.finished
    made.stream_end(EndReason.END_REACHED, 1)
    made.events()
    assert made.session.finished
