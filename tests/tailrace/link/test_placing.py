from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tailrace.wire.test_frames import forged, plain

from tailrace.errors import ProtocolError, TooLarge
from tailrace.link import placing
from tailrace.link.placing import (
    IDLE_READS,
    KEPT_BYTES_MAX,
    PLACED_BYTES_MAX,
    PLACED_BYTES_MIN,
    READ_BYTES_MIN,
    SMALL_READS_MAX,
    FrameBuffers,
    PlacingDecoder,
)
from tailrace.wire.frames import FRAME_BODY_BYTES_MAX, FRAME_HEADER_BYTES, encode_frame, frame_header
from tailrace.wire.opcodes import Opcode

frames = st.tuples(st.sampled_from(Opcode), st.binary(max_size=60), st.integers(0, 2**32 - 1), st.integers(0, 255))
LARGE = 3 * PLACED_BYTES_MIN
SMALL = {
    "PLACED_BYTES_MIN": 8,
    "PLACED_BYTES_MAX": 70,
    "READ_BYTES_MIN": 24,
    "READ_BYTES_MAX": 90,
    "ROOM_BYTES_MIN": 10,
    "STEP_BYTES": 1,
}


def receive(decoder, data, *, placed=True):
    """As a shell does: the bytes are received to their place, if there is one, and a header behind it."""
    place = decoder.next_place() if placed else None
    if place is None:
        return decoder.receive_data(data)
    count = min(len(place), len(data))
    place[:count] = data[:count]
    found = decoder.receive_data(place[:count])
    return found + decoder.receive_data(bytes(data[count:])) if data[count:] else found


def large(number, nbytes=LARGE):
    return encode_frame(Opcode.BLOCK, bytes([number]) * nbytes, number)


@given(st.lists(frames, max_size=8), st.lists(st.integers(1, 90), min_size=1), st.lists(st.booleans(), min_size=1))
def test_however_the_bytes_come_the_frames_are_the_same(sent, sizes, ways):
    with mock.patch.multiple(placing, **SMALL):  # nearly every frame is a large one
        decoder, left = PlacingDecoder(), memoryview(b"".join(encode_frame(*frame) for frame in sent))
        received, turn = [], 0
        while left:
            size = sizes[turn % len(sizes)]
            received += receive(decoder, left[:size], placed=ways[turn % len(ways)])
            left, turn = left[size:], turn + 1
    assert plain(received) == sent
    assert decoder.held_bytes == 0
    assert decoder.is_between_frames


def test_the_rest_of_a_large_frame_is_received_to_where_it_stays():
    decoder, data = PlacingDecoder(), large(7)
    assert decoder.next_place() is None
    assert decoder.receive_data(data[:FRAME_HEADER_BYTES]) == []
    place = decoder.next_place()
    assert len(place) >= LARGE
    assert decoder.held_bytes == FRAME_HEADER_BYTES
    assert not decoder.is_between_frames
    place[:LARGE] = data[FRAME_HEADER_BYTES:]
    (frame,) = decoder.receive_data(place[:LARGE])
    assert plain([frame]) == [(Opcode.BLOCK, bytes([7]) * LARGE, 7, 0)]
    assert frame.body.obj is place.obj
    assert frame.body.readonly


def test_a_buffer_is_used_again_when_no_view_of_its_frame_is_left():
    decoder = PlacingDecoder()

    def next_body(number):
        (frame,) = receive(decoder, large(number)[:100]) + receive(decoder, large(number)[100:])
        return frame.body

    kept, part = next_body(1), next_body(2)[5:9]
    found = {id(next_body(number).obj) for number in range(3, 50)}
    assert len(found) <= 3
    assert bytes(kept) == bytes([1]) * LARGE
    assert bytes(part) == bytes([2]) * 4
    assert not found & {id(kept.obj), id(part.obj)}
    del kept, part
    assert len({id(next_body(number).obj) for number in range(50)}) <= 3


def test_frames_that_a_program_keeps_are_never_written_over():
    decoder, kept = PlacingDecoder(), []
    for number in range(250):
        data = large(number, LARGE + number)
        kept += receive(decoder, data[:20]) + receive(decoder, data[20:])
    assert [(frame.id, bytes(frame.body)) for frame in kept] == [
        (number, bytes([number]) * (LARGE + number)) for number in range(250)
    ]


def test_buffers_are_bounded_and_shrink_with_what_the_program_keeps():
    buffers = FrameBuffers()
    views = [memoryview(buffers.take(1 << 20)) for _ in range(30)]
    assert buffers.kept_bytes <= KEPT_BYTES_MAX
    del views
    for _ in range(30):
        buffers.take(1 << 20)
    assert buffers.kept_bytes == 2 << 20
    buffers.take(PLACED_BYTES_MAX)  # larger than those that are kept
    assert len(buffers.take(PLACED_BYTES_MAX)) == PLACED_BYTES_MAX


def test_a_header_alone_gets_no_huge_buffer():
    decoder = PlacingDecoder()
    decoder.receive_data(frame_header(Opcode.BLOCK, PLACED_BYTES_MAX))  # with its header it is larger
    assert decoder.next_place() is None
    assert decoder.held_bytes == FRAME_HEADER_BYTES


def test_headers_are_checked_before_anything_is_placed():
    with pytest.raises(TooLarge):
        PlacingDecoder().receive_data(frame_header(Opcode.BLOCK, FRAME_BODY_BYTES_MAX + 1))
    with pytest.raises(ProtocolError, match="unknown opcode"):
        PlacingDecoder().receive_data(forged(LARGE, 0xEE))
    with pytest.raises(ProtocolError, match="check"):
        PlacingDecoder().receive_data(bytes([1]) + frame_header(Opcode.BLOCK, LARGE)[1:])


def test_many_frames_of_a_read_share_a_buffer_and_only_the_last_one_moves():
    decoder, data = PlacingDecoder(), b"".join(map(large, range(1, 101)))
    received, at = decoder.receive_data(data[:100]), 100
    while at < len(data):
        place = decoder.next_place()
        count = min(len(place), len(data) - at)
        place[:count] = data[at : at + count]
        received += decoder.receive_data(place[:count])
        at += count
    assert plain(received) == [(Opcode.BLOCK, bytes([number]) * LARGE, number, 0) for number in range(1, 101)]
    assert len({id(frame.body.obj) for frame in received}) < 20


def test_bytes_that_come_elsewhere_are_copied_for_the_frames_that_they_split_only():
    decoder, data = PlacingDecoder(), b"".join(map(large, range(1, 21)))
    received, kept = [], 0
    for at in range(0, len(data), 200_000):
        piece = data[at : at + 200_000]
        found = decoder.receive_data(piece)
        kept += sum(frame.body.obj is piece for frame in found)
        received += found
    assert plain(received) == [(Opcode.BLOCK, bytes([number]) * LARGE, number, 0) for number in range(1, 21)]
    assert kept >= 15
    assert decoder.is_between_frames


def test_small_frames_end_the_use_of_buffers_and_a_large_one_begins_it_anew():
    decoder = PlacingDecoder()
    receive(decoder, large(1)[:50])
    receive(decoder, large(1)[50:])
    assert decoder.next_place() is not None
    found = []
    for number in range(SMALL_READS_MAX):
        found += receive(decoder, encode_frame(Opcode.SNAPSHOT_END, bytes([number])))
    assert decoder.next_place() is None
    assert [bytes(frame.body) for frame in found] == [bytes([number]) for number in range(SMALL_READS_MAX)]
    receive(decoder, large(2)[:50])
    assert decoder.next_place() is not None


def test_a_huge_frame_behind_others_is_joined_of_pieces():
    decoder, huge = PlacingDecoder(), large(2, PLACED_BYTES_MAX)
    receive(decoder, large(1)[:50])
    receive(decoder, large(1)[50:])
    found = receive(decoder, huge[:100])
    assert decoder.next_place() is None
    found += receive(decoder, huge[100:]) + receive(decoder, large(3))
    assert plain(found)[0] == (Opcode.BLOCK, bytes([2]) * PLACED_BYTES_MAX, 2, 0)
    assert plain(found)[1][2] == 3


def test_a_quiet_connection_keeps_no_buffers():
    decoder = PlacingDecoder()
    receive(decoder, large(1)[:50])
    receive(decoder, large(1)[50:])
    assert decoder._buffers.kept_bytes
    for _ in range(IDLE_READS):
        receive(decoder, encode_frame(Opcode.NOOP))
    assert not decoder._buffers.kept_bytes


def test_the_decoder_of_the_next_connection_has_the_same_buffers_and_no_bytes():
    decoder = PlacingDecoder()
    receive(decoder, large(2)[:500])
    decoder = decoder.anew()
    assert decoder.is_between_frames
    receive(decoder, large(3)[:50])
    (frame,) = receive(decoder, large(3)[50:])
    assert bytes(frame.body) == bytes([3]) * LARGE
    assert decoder._buffers.kept_bytes == 2 * READ_BYTES_MIN
