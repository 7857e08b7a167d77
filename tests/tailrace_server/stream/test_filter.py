"""The node's memory of what filters have left of blocks."""

import pytest

from tailrace.block import Stamps, encode_block
from tailrace.block.filtering import filter_block
from tailrace.wire.filters import StreamFilter
from tailrace_server.stream import filter as module
from tailrace_server.stream.filter import FilterCache


@pytest.fixture
def looks(monkeypatch):
    """The blocks that were looked at."""
    looks = []

    def look(block, wanted):
        looks.append(block)
        return filter_block(block, wanted)

    monkeypatch.setattr(module, "filter_block", look)
    return looks


def block_of_many(first_seq=1):
    stamps = Stamps(list(range(first_seq, first_seq + 100)), [1000] * 100)
    return encode_block([b"%d/%d" % (row % 2, row) for row in range(100)], [b"value"] * 100, partition=3, stamps=stamps)


def test_streams_with_one_filter_look_once(looks):
    cache, block = FilterCache(), block_of_many()
    odd, even = (cache.filter_block(block, StreamFilter(prefix)) for prefix in (b"1/", b"0/"))
    assert cache.filter_block(block, StreamFilter(b"1/")) is odd is not even
    assert cache.filter_block(block, StreamFilter(b"2/")) is cache.filter_block(block, StreamFilter(b"2/")) is None
    assert len(looks) == 3


def test_what_is_remembered_is_bounded(looks, monkeypatch):
    monkeypatch.setattr(module, "CACHE_BLOCKS_MAX", 3)
    cache, blocks = FilterCache(), [block_of_many(seq) for seq in range(1, 6)]
    for block in blocks:
        cache.filter_block(block, StreamFilter(b"1/"))
    assert len(cache) == 3
    cache.filter_block(blocks[0], StreamFilter(b"1/"))
    assert looks == [*blocks, blocks[0]]
    monkeypatch.setattr(module, "CACHE_BYTES_MAX", 1)
    cache.filter_block(blocks[1], StreamFilter(b"1/"))
    assert (len(cache), cache.nbytes) == (0, 0)
