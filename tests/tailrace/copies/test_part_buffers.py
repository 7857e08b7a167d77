from hypothesis import given
from hypothesis import strategies as st

from tailrace.copies.part_buffers import BUFFER_BYTES, PartBuffers


def test_a_buffer_is_used_again():
    buffers = PartBuffers(1)
    piece = buffers.next()[:10]
    assert buffers.next().obj is piece.obj, "it was not taken yet"
    buffers.take()
    assert buffers.next() is None
    buffers.give_back(piece)
    assert buffers.next().obj is piece.obj
    assert len(buffers.next()) == BUFFER_BYTES


def test_other_bytes_are_no_buffer():
    buffers = PartBuffers(1)
    buffers.next()
    buffers.take()
    buffers.give_back(memoryview(b"received in another way"))
    buffers.give_back(memoryview(bytearray(b"decrypted; other pieces of it are in use")))
    assert buffers.next() is None


def test_a_buffer_that_was_given_back_is_given_back_no_more():
    buffers = PartBuffers(1)
    piece = buffers.next()
    buffers.take()
    for _ in range(2):
        buffers.give_back(piece)
    buffers.next()
    buffers.take()
    assert buffers.next() is None


@given(st.lists(st.integers(0, 3), max_size=30))
def test_no_buffer_is_in_use_twice(steps):
    """A step gives one of the pieces back, or takes a buffer if there is no such piece."""
    buffers, taken = PartBuffers(3), []
    for step in steps:
        if step < len(taken):
            buffers.give_back(taken.pop(step))
        elif (found := buffers.next()) is not None:
            assert all(found.obj is not piece.obj for piece in taken)
            buffers.take()
            taken.append(found[:1])
        assert len(taken) < 3 or buffers.next() is None
