"""Parts of files against pieces that are made by hand."""

import collections

import pytest

from tailrace.errors import (
    ProtocolError,
    UnknownCheckpoint,
    Unreachable,
)
from tailrace.requests.plan import FetchParts
from tailrace.wire.bodies import encode_json
from tailrace.wire.messages import encode_error
from tailrace.wire.opcodes import Opcode
from tailrace.wire.segment_messages import SegmentFetch, data_header


class Parts:
    """A step that fetches two parts of a file of 1,000,000 bytes, and the pieces that came of each."""

    def __init__(self, made, *, seconds=10.0, sizes=(600_000, 400_000), places=None):
        self.content = bytes(range(256)) * 4_000
        self.came = [b""] * len(sizes)
        begins = [sum(sizes[:number]) for number in range(len(sizes))]
        step = FetchParts(
            b"c" * 16, [(b"s" * 16, *part) for part in zip(begins, sizes, strict=True)], self.receive, places
        )
        self.requests = step.queue(made.session, made.note("parts"), made.now + seconds)

    def receive(self, number, piece):
        self.came[number] += piece

    def answer(self, frame):
        asked = SegmentFetch.decode(frame.body)
        return data_header(asked.nbytes, frame.id) + self.content[asked.offset : asked.offset + asked.nbytes]

    def asked(self, made):
        return [SegmentFetch.decode(frame.body)[2:] for frame in made.sent()]


@pytest.mark.parametrize("size", [1, 7, 65_536, 250_000, 10_000_000])
def test_parts_are_handed_over_as_they_arrive(made, size):
    parts = Parts(made, sizes=(600, 400) if size < 10 else (600_000, 400_000))
    made.call("other")
    *frames, other = made.sent()
    data = b"".join(map(parts.answer, frames)) + encode_json(Opcode.RESULT, {}, other.id)
    for begin in range(0, len(data), size):
        made.hear(data[begin : begin + size])
        assert sum(map(len, parts.came)) >= min(begin + size, len(data)) - 150, "only headers and the other answer"
    assert b"".join(parts.came) == parts.content[: sum(map(len, parts.came))]
    assert made.answers == {"parts": sum(map(len, parts.came)), "other": {}}


def test_a_later_connection_is_asked_for_the_rest(made):
    """However early each connection breaks, those behind it go on from there."""
    parts = Parts(made)
    asked = []
    for _ in range(100):
        frames = made.sent()
        asked.append([SegmentFetch.decode(frame.body)[2:] for frame in frames])
        made.hear(b"".join(map(parts.answer, frames))[:60_016])
        if "parts" in made.answers:
            break
        assert made.session.has_progressed
        made.session.connection_lost(Unreachable("cut"))
        made.greet()
    assert asked[:2] == [[(0, 600_000), (600_000, 400_000)], [(60_000, 540_000), (600_000, 400_000)]]
    assert len(asked) == 17
    assert b"".join(parts.came) == parts.content[:1_000_000]


class OnePlace:
    """A buffer for pieces of parts, which is free again at once, and how often it was taken."""

    def __init__(self, nbytes):
        self.buffer = memoryview(bytearray(nbytes))
        self.taken = 0

    def next(self):
        return self.buffer

    def take(self):
        self.taken += 1


def hear_placed(made, data, size):
    """Hands over bytes as a link does: ``size`` at a time, into a place if there is one."""
    while data:
        place = made.session.place()
        if place is None:
            made.hear(data[:size])
            data = data[size:]
            continue
        body, header = place.buffers
        count = min(size, len(body) + len(header), len(data))
        body[: min(count, len(body))] = data[: min(count, len(body))]
        behind = data[len(body) : count]
        header[: len(behind)] = behind
        place.received(count)
        data = data[count:]


@pytest.mark.parametrize("room", [100, 4_096, 1_000_000])
@pytest.mark.parametrize("size", [1, 7, 65_536, 10_000_000])
def test_parts_are_received_into_their_places(made, size, room):
    places = OnePlace(room)
    parts = Parts(made, sizes=(600, 400) if size < 10 else (600_000, 400_000), places=places)
    made.call("other")
    assert made.session.place() is None, "nothing has come"
    *frames, other = made.sent()
    hear_placed(made, b"".join(map(parts.answer, frames)) + encode_json(Opcode.RESULT, {}, other.id), size)
    assert b"".join(parts.came) == parts.content[: sum(map(len, parts.came))]
    assert made.answers == {"parts": sum(map(len, parts.came)), "other": {}}
    assert places.taken or size > 1_000_000, "all comes with the first header"
    assert made.session.place() is None


def test_a_part_that_is_given_up_takes_no_place(made):
    places = OnePlace(1_000)
    parts = Parts(made, places=places)
    first, _ = made.sent()
    data = parts.answer(first)
    made.hear(data[:1_016])
    place = made.session.place()
    place.buffers[0][:] = data[1_016:2_016]
    for request in parts.requests:
        made.session.withdraw(request)
    place.received(1_000)
    assert places.taken == 0
    assert made.session.place() is None
    made.hear(data[2_016:])
    assert sum(map(len, parts.came)) == 1_000


def test_a_place_goes_on_behind_the_bytes_of_an_earlier_connection(made):
    parts = Parts(made, places=OnePlace(50_000))
    for _ in range(100):
        frames = made.sent()
        hear_placed(made, b"".join(map(parts.answer, frames))[:60_016], 30_000)
        if "parts" in made.answers:
            break
        made.session.connection_lost(Unreachable("cut"))
        made.greet()
        assert made.session.place() is None
    assert b"".join(parts.came) == parts.content[:1_000_000]


def test_no_part_is_given_up_while_bytes_of_parts_arrive(made):
    parts = Parts(made, seconds=10.0)
    frames = made.sent()
    data = b"".join(map(parts.answer, frames))
    for begin in range(0, 900_000, 10_000):
        made.now += 9.0
        made.session.expire()
        made.hear(data[begin : begin + 10_000])
    assert not made.answers
    made.now += 5.0
    made.session.postpone(5.0)
    made.now += 9.0
    made.session.expire()
    assert not made.answers
    made.now += 1.0
    made.session.expire()
    assert isinstance(made.answers["parts"], Unreachable)
    made.hear(data[900_000:])
    assert sum(map(len, parts.came)) == 900_000 - 32, "bytes that come too late are dropped"


@pytest.mark.parametrize("size", [10_000, 600_100])
@pytest.mark.parametrize("nbytes", [599_999, 600_001])
def test_a_part_of_another_length(made, nbytes, size):
    parts = Parts(made)
    first, _ = made.sent()
    data = data_header(nbytes, first.id) + bytes(nbytes)
    with pytest.raises(ProtocolError, match="SEGMENT_DATA"):
        collections.deque(made.hear(data[begin : begin + size]) for begin in range(0, len(data), size))
    assert sum(map(len, parts.came)) < 600_000
    assert not made.answers


def test_a_part_that_fails_half_way(made):
    parts = Parts(made)
    frames = made.sent()
    made.hear(parts.answer(frames[0])[:100_000])
    made.session.connection_lost(Unreachable("cut"))
    first, second = made.greet().sent()
    made.hear(encode_error(UnknownCheckpoint("not kept"), first.id))
    assert not made.answers, "the other part is still on its way"
    made.hear(encode_error(UnknownCheckpoint("not kept"), second.id))
    assert isinstance(made.answers["parts"], UnknownCheckpoint)
    assert len(parts.came[0]) == 100_000 - 16


def test_pieces_that_answer_another_request(made):
    made.call("a")
    (frame,) = made.sent()
    data = data_header(100_000, frame.id) + bytes(100_000)
    made.hear(data[:50_000])
    with pytest.raises(ProtocolError):
        made.hear(data[50_000:])


def test_a_part_whose_caller_is_gone_is_dropped(made):
    parts = Parts(made)
    data = b"".join(map(parts.answer, made.sent()))
    made.hear(data[:100_000])
    for request in parts.requests:
        made.session.withdraw(request)
    made.hear(data[100_000:])
    assert sum(map(len, parts.came)) == 100_000 - 16
    assert made.session.idle
    assert not made.answers
