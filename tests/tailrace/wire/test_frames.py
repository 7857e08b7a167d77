import itertools
import tracemalloc

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import ProtocolError, TooLarge
from tailrace.wire.frames import FRAME_GOES_ON, FRAME_HEADER_BYTES, FrameDecoder, encode_frame, frame_header
from tailrace.wire.opcodes import Opcode

frames = st.tuples(st.sampled_from(Opcode), st.binary(max_size=60), st.integers(0, 2**32 - 1), st.integers(0, 255))


def forged(body_bytes, opcode, *, flags=0, reserved=0, id=0):
    """A header whose check is right, whatever it says."""
    start = (
        body_bytes.to_bytes(4, "little")
        + bytes([opcode, flags])
        + reserved.to_bytes(2, "little")
        + id.to_bytes(4, "little")
    )
    return start + (xxhash.xxh3_64_intdigest(start) & 0xFFFFFFFF).to_bytes(4, "little")


def pieces(data, cuts):
    ends = sorted({cut % (len(data) + 1) for cut in cuts} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def plain(decoded):
    return [(frame.opcode, bytes(frame.body), frame.id, frame.flags) for frame in decoded]


@given(st.lists(frames, max_size=6), st.lists(st.integers(0), max_size=40))
def test_however_the_bytes_are_split_the_frames_are_the_same(sent, cuts):
    data = b"".join(encode_frame(*frame) for frame in sent)
    decoder = FrameDecoder()
    received = []
    for piece in pieces(data, cuts):
        received += plain(decoder.receive_data(piece))
    assert received == sent
    assert decoder.held_bytes == 0


@given(st.lists(frames, max_size=6), st.lists(st.integers(0), max_size=40), st.sampled_from(Opcode))
def test_pieces_of_frames_are_joined_to_the_same_frames(sent, cuts, opcode):
    decoder = FrameDecoder(in_pieces=(opcode,))
    received, begun = [], b""
    for data in pieces(b"".join(encode_frame(*frame) for frame in sent), cuts):
        for frame in decoder.receive_data(data):
            goes_on = bool(frame.flags & FRAME_GOES_ON)
            assert frame.opcode is opcode or not goes_on
            begun += frame.body
            if not goes_on:
                received.append((frame.opcode, begun, frame.id, frame.flags))
                begun = b""
        assert decoder.held_bytes < FRAME_HEADER_BYTES or any(code is not opcode for code, *_ in sent)
    assert (received, begun) == (sent, b"")
    assert decoder.held_bytes == 0


@given(st.lists(frames, max_size=6), st.lists(st.integers(1, 50), min_size=1), st.sampled_from(Opcode))
def test_pieces_that_were_received_elsewhere_are_joined_to_the_same_frames(sent, sizes, opcode):
    """As a link does that receives the rest of a body into a buffer, and other bytes as they come."""
    decoder, left = FrameDecoder(in_pieces=(opcode,)), b"".join(encode_frame(*frame) for frame in sent)
    received, begun = [], b""
    for size in itertools.cycle(sizes):
        if not left:
            break
        id, left_bytes = decoder.begun_piece
        data, left = left[: min(size, left_bytes or size)], left[min(size, left_bytes or size) :]
        found = [decoder.receive_piece(memoryview(data))] if left_bytes else decoder.receive_data(data)
        assert not left_bytes or found[0].id == id
        for frame in found:
            begun += frame.body
            if not frame.flags & FRAME_GOES_ON:
                received.append((frame.opcode, begun, frame.id, frame.flags))
                begun = b""
    assert (received, begun) == (sent, b"")


@given(st.lists(frames, min_size=1, max_size=3), st.integers(1, 80))
def test_what_is_incomplete_waits(sent, missing):
    data = b"".join(encode_frame(*frame) for frame in sent)
    missing = min(missing, len(data))
    decoder = FrameDecoder()
    first = plain(decoder.receive_data(data[:-missing]))
    assert len(first) < len(sent)
    assert first + plain(decoder.receive_data(data[-missing:])) == sent


@given(st.lists(frames, max_size=6), st.lists(st.integers(0), max_size=40), st.integers(1, 4))
def test_frames_may_be_taken_a_few_at_a_time(sent, cuts, frames_max):
    decoder = FrameDecoder()
    received = []
    for piece in pieces(b"".join(encode_frame(*frame) for frame in sent), cuts):
        decoder.feed(piece)
        while some := decoder.next_frames(frames_max):
            assert len(some) <= frames_max
            received += plain(some)
    assert received == sent
    assert decoder.held_bytes == 0


PIECES = {
    "bytes": [1] * 20_000,
    "a few bytes": [37] * 5_000,
    "packets": [1_448] * 500,
    "growing": list(range(1, 900)),
    "reads": [64 * 1024] * 20,
}


@pytest.mark.parametrize("sizes", PIECES.values(), ids=PIECES)
def test_a_frame_that_drips_in_costs_twice_its_bytes_at_most(sizes):
    total = sum(sizes)
    tracemalloc.start()
    try:
        decoder = FrameDecoder()
        before, _ = tracemalloc.get_traced_memory()
        decoder.receive_data(frame_header(Opcode.WRITE, total + 1))
        for size in sizes:
            assert decoder.receive_data(bytes(size)) == []
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert decoder.held_bytes == total + FRAME_HEADER_BYTES
    assert held - before <= 2 * total + 8_192


@given(st.integers(1, 300_000), st.integers(0, 300_000))
def test_the_beginning_of_a_frame_does_not_keep_what_was_received_before_it(before, begun):
    """One read may have a megabyte of frames, and the beginning of another one behind them."""
    data = encode_frame(Opcode.WRITE, bytes(before)) + frame_header(Opcode.WRITE, begun + 1) + bytes(begun)
    tracemalloc.start()
    try:
        decoder = FrameDecoder()
        decoder.receive_data(bytes(memoryview(data)))  # which nobody else keeps
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held <= 2 * (begun + FRAME_HEADER_BYTES) + 8_192


def test_a_large_frame_in_small_pieces_is_joined_once():
    data = encode_frame(Opcode.WRITE, bytes(1_000_000), 7)
    decoder = FrameDecoder()
    for start in range(0, len(data), 1000):
        received = decoder.receive_data(data[start : start + 1000])
        assert decoder.held_bytes == (0 if received else min(start + 1000, len(data)))
    assert len(received[0].body) == 1_000_000


def test_a_frame_is_its_layout():
    data = encode_frame(Opcode.BARRIER, b"cookie", 0x01020304, 5)
    assert data[:12] == bytes([6, 0, 0, 0, 0x3B, 5, 0, 0, 4, 3, 2, 1])
    assert data[12:16] == (xxhash.xxh3_64_intdigest(data[:12]) & 0xFFFFFFFF).to_bytes(4, "little")
    assert data[16:] == b"cookie"
    assert len(frame_header(Opcode.BARRIER, 6)) == FRAME_HEADER_BYTES == 16


@given(st.integers(0, 16 * 8 - 1), st.binary(max_size=4))
def test_every_flipped_bit_of_a_header_is_noticed(bit, body):
    data = bytearray(encode_frame(Opcode.GET, body, 3))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ProtocolError, match="does not match its check"):
        FrameDecoder().receive_data(bytes(data))


def test_each_kind_of_bad_header_is_named():
    with pytest.raises(ProtocolError, match="unknown opcode 0x7f"):
        FrameDecoder().receive_data(forged(0, 0x7F))
    with pytest.raises(ProtocolError, match="NOOP: reserved bits"):
        FrameDecoder().receive_data(forged(0, Opcode.NOOP, reserved=1))
    with pytest.raises(TooLarge, match="WRITE of 101 bytes; at most 100 are accepted"):
        FrameDecoder(100).receive_data(forged(101, Opcode.WRITE))


def test_the_bound_may_be_raised_once_the_peer_is_known():
    decoder = FrameDecoder(4)
    decoder.body_bytes_max = 100
    assert len(decoder.receive_data(encode_frame(Opcode.WRITE, bytes(100)))) == 1


def test_a_body_may_be_bounded_by_its_opcode():
    bounds = {Opcode.STATUS: 5_000, Opcode.WRITE: 1_000_000}
    for opcode, bound in bounds.items():
        decoder = FrameDecoder(500_000, bounds.__getitem__)
        lowest = min(bound, 500_000)
        assert decoder.receive_data(frame_header(opcode, lowest)) == []
        with pytest.raises(TooLarge, match=f"{opcode.name} of {lowest + 1} bytes; at most {lowest} are accepted"):
            FrameDecoder(500_000, bounds.__getitem__).receive_data(frame_header(opcode, lowest + 1))


@given(st.lists(st.binary(max_size=50), max_size=5))
def test_hostile_bytes_end_in_a_documented_error(chunks):
    decoder = FrameDecoder(1000)
    try:
        for chunk in chunks:
            decoder.receive_data(chunk)
    except (ProtocolError, TooLarge):
        return
    assert decoder.held_bytes < FRAME_HEADER_BYTES


@given(st.integers(0, 2**32 - 1), st.integers(0, 255), st.integers(0, 3), st.binary(max_size=40))
def test_hostile_headers_with_a_right_check_do_too(body_bytes, opcode, reserved, rest):
    decoder = FrameDecoder(1000)
    try:
        for frame in decoder.receive_data(forged(body_bytes, opcode, reserved=reserved) + rest):
            assert len(frame.body) <= 1000
    except (ProtocolError, TooLarge):
        return
    assert decoder.held_bytes <= 1000 + FRAME_HEADER_BYTES
