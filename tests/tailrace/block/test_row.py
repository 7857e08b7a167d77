from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tailrace.block import KEY_BYTES_MAX, VALUE_BYTES_MAX, encode_block, encode_row

U64 = st.integers(0, 2**64 - 1)
KEYS = st.binary(min_size=1, max_size=40)
VALUES = st.none() | st.binary(max_size=600) | st.integers(0, 600).map(bytes)


@example(b"k" * KEY_BYTES_MAX, bytes(VALUE_BYTES_MAX), 0, 2**31 - 1, 0, 0)
@given(KEYS, VALUES, U64, st.integers(0, 2**31 - 1), U64, st.integers(0, 2**32 - 1))
def test_the_bytes_are_those_of_the_general_way(key, value, hash_, partition, producer_id, producer_seq):
    numbers = {"partition": partition, "producer_id": producer_id, "producer_seq": producer_seq}
    row = encode_row(key, value, hash_=hash_, **numbers)
    block = encode_block([key], [value], hashes=[hash_], **numbers)
    assert row.tobytes() == block.tobytes()
    assert row.header == block.header
    assert type(row.header) is type(block.header)


def test_a_number_that_does_not_fit_is_named():
    with pytest.raises(ValueError, match="producer_seq=4294967296"):
        encode_row(b"k", b"v", hash_=0, partition=0, producer_id=1, producer_seq=2**32)
