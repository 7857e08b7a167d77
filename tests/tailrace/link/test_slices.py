"""The first bytes of some buffers."""

from hypothesis import given
from hypothesis import strategies as st

from tailrace.link import slices


@given(st.lists(st.integers(0, 7), max_size=12), st.integers(1, 20))
def test_the_pieces_are_the_first_bytes(sizes, most):
    data = bytes(range(sum(sizes)))
    buffers, begin = [], 0
    for size in sizes:
        buffers.append(memoryview(data)[begin : begin + size])
        begin += size
    before, slices.SLICE_BYTES = slices.SLICE_BYTES, most
    try:
        pieces, nbytes = slices.first_slice(buffers)
    finally:
        slices.SLICE_BYTES = before
    assert b"".join(pieces) == data[:most]
    assert nbytes == min(most, len(data))
