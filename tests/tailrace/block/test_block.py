from __future__ import annotations

import lz4.block
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tailrace.block import FLAG_COMPRESSED, Block, encode_block
from tailrace.block.encode import Stamps
from tailrace.errors import BadBlock

SMALL = encode_block([b"a", b"bc", b"d"], [b"1", None, b""], partition=1)
COMPRESSED = encode_block([b"key %d" % i for i in range(60)], [b"value" * 3] * 60, partition=1)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_a_block_comes_back(data, row_lists, encode_rows):
    rows = data.draw(row_lists)
    block = encode_rows(rows, compress=data.draw(st.booleans()), producer_id=9, producer_seq=4)
    back = Block.parse(block.tobytes())
    assert back == block
    assert back.nbytes == len(block.tobytes())
    assert list(zip(back.columns().keys(), back.columns().values(), strict=True)) == rows


@pytest.mark.parametrize("block", [SMALL, COMPRESSED], ids=["plain", "compressed"])
def test_every_flipped_bit_is_noticed(block):
    good = block.tobytes()
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(BadBlock):
            Block.parse(bytes(bad))


def test_every_other_length_is_refused():
    good = SMALL.tobytes()
    for length in range(len(good)):
        with pytest.raises(BadBlock, match="bytes"):
            Block.parse(good[:length])
    with pytest.raises(BadBlock, match="bytes"):
        Block.parse(good + b"\0")


def test_a_block_is_found_inside_a_longer_buffer():
    buffer = b"before" + SMALL.tobytes() + b"after"
    block = Block.parse_at(buffer, 6)
    assert block == SMALL
    assert isinstance(block.body, memoryview)
    assert block.body.obj is buffer
    assert block.columns().keys() == [b"a", b"bc", b"d"]


@pytest.mark.parametrize("keeps_columns", [False, True])
def test_a_raw_body_is_decompressed_once_and_checked(keeps_columns, monkeypatch):
    calls = []
    decompress = lz4.block.decompress
    monkeypatch.setattr(lz4.block, "decompress", lambda *body, **size: calls.append(1) or decompress(*body, **size))
    block = Block.parse(COMPRESSED.tobytes())
    raw = block.columns().raw if keeps_columns else decompress(block.body, block.header.raw_bytes)
    assert block.open_raw() == raw
    assert block._checked
    assert len(calls) == 1
    assert block.open_raw() == raw
    assert len(calls) == (1 if keeps_columns else 2)


def test_stamping_gives_seqs_and_leaves_the_body():
    stamped = SMALL.stamped(100, 1_234)
    assert stamped.body is SMALL.body
    assert SMALL.header.first_seq == 0
    assert (stamped.header.first_seq, stamped.header.last_seq, stamped.header.timestamp) == (100, 102, 1_234)
    back = Block.parse(stamped.tobytes())
    assert list(back.columns().seqs()) == [100, 101, 102]
    assert list(back.columns().timestamps()) == [1_234] * 3


def test_stamping_follows_columns_that_were_looked_at():
    SMALL.columns()
    assert list(SMALL.stamped(5, 1).columns().seqs()) == [5, 6, 7]


def test_numbering_changes_the_producer_only():
    numbered = SMALL.numbered(77, 3)
    assert numbered.body is SMALL.body
    assert numbered.header == SMALL.header._replace(producer_id=77, producer_seq=3)
    assert Block.parse(numbered.tobytes()) == numbered


def test_seqs_begin_at_one():
    with pytest.raises(ValueError, match="begin at 1"):
        SMALL.stamped(0, 1)


def test_a_block_with_its_own_seqs_is_not_stamped_again():
    block = encode_block([b"a", b"b"], [b"1", b"2"], partition=1, stamps=Stamps([5, 9], [10, 20]))
    with pytest.raises(ValueError, match="already"):
        block.stamped(1, 1)


def test_columns_are_kept_only_where_asked():
    block = Block.parse(COMPRESSED.tobytes())
    assert block.header.flags & FLAG_COMPRESSED
    assert block.open_columns() is not block.open_columns()
    assert block.columns() is block.columns() is block.open_columns()


def test_blocks_compare_by_content():
    same = Block.parse(SMALL.tobytes())
    assert same == SMALL
    assert hash(same) == hash(SMALL)
    assert SMALL.stamped(1, 1) != SMALL
    assert SMALL != "a block"
    assert "partition 1: 3 rows" in repr(SMALL)


def test_a_block_that_forgets_its_header_says_the_same():
    block = encode_block([b"a", b"b"], [b"1", None], partition=3, producer_id=9, producer_seq=4).stamped(7, 8)
    header, columns = block.header, block.columns()
    other = encode_block([b"a", b"b"], [b"1", None], partition=3, producer_id=9, producer_seq=4).stamped(7, 8)
    other.forget_header()
    other.forget_header()
    assert other.header == header
    assert other == block
    assert (other.nbytes, other.rows, other.columns().keys()) == (block.nbytes, 2, columns.keys())
    with pytest.raises(AttributeError, match="no attribute 'heder'"):
        other.heder  # noqa: B018
