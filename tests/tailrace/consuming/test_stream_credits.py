"""The credit of a feed's handled blocks to their streams."""

from tests.tailrace.consuming.test_replica import OTHER, two_feeds

from tailrace.wire.frames import encode_frame
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import decode_number


def credits(made):
    """The streams' credit, by id, that is sent; the connection's is that of id 0."""
    return [(frame.id, decode_number(frame.body, "")) for frame in made.frames() if frame.opcode is Opcode.CREDIT]


def test_a_stream_is_credited_by_itself_when_no_block_of_its_feed_waits():
    made, first, second = two_feeds(window_bytes=8, takes_stream_credit=True)
    made.start(0, 9)
    nbytes = made.block(1, 3)
    assert credits(made) == []
    made.events(first)
    assert sorted(credits(made)) == [(0, nbytes), (made.id(), nbytes)]
    made.events(second)
    assert credits(made) == []


def test_a_node_that_knows_no_credit_of_streams_gets_none():
    made, first, _ = two_feeds(window_bytes=8)
    made.start(0, 9)
    nbytes = made.block(1, 3)
    made.events(first)
    assert credits(made) == [(0, nbytes)]


def test_little_that_is_left_of_the_window_is_credited_early():
    """A feed that is held up has the rest: a quarter of the window would never be handled."""
    made, first, _ = two_feeds(window_bytes=4000)
    made.hear(encode_frame(Opcode.BLOCK, bytes(3800), made.requests[OTHER, 0][0]))
    made.start(0, 9)
    nbytes = made.block(1, 3)
    assert 100 <= nbytes < 1000
    made.events(first)
    assert credits(made) == [(0, nbytes)]
