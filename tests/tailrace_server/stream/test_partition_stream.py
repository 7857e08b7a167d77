import pytest

from tailrace.model import Level
from tailrace_server.stream import partition_stream as module
from tailrace_server.stream.partition_stream import PartitionStream


@pytest.fixture
def partition(make_partition):
    """Blocks 1..3, 4..6, 7..9 durable, 10..12 in memory."""
    partition = make_partition(0)
    for _ in range(3):
        partition.write(rows=3)
    partition.sync()
    partition.write(rows=3)
    return partition


def open_stream(partition, after_seq=0, *, level=Level.DISK, end_seq=None, promised_seq=None):
    promised = after_seq if promised_seq is None else promised_seq
    return PartitionStream(1, partition, level, after_seq, end_seq, promised, pins=partition.pins)


def snapshot(stream):
    """(after, last, [(first, last) of the blocks]) of the next snapshot."""
    stream.begin_snapshot()
    bounds = (stream.snapshot_after, stream.snapshot_last)
    blocks = []
    while (block := stream.next_block()) is not None:
        blocks.append((block.header.first_seq, block.header.last_seq))
        assert stream.delivered_seq == block.header.last_seq
    assert stream.all_sent
    stream.end_snapshot()
    assert stream.delivered_seq == stream.snapshot_last
    return *bounds, blocks


def test_a_snapshot_is_what_the_level_shows(partition):
    stream = open_stream(partition)
    assert stream.has_news
    assert snapshot(stream) == (0, 9, [(1, 3), (4, 6), (7, 9)])
    assert not stream.has_news
    assert snapshot(open_stream(partition, 3, level=Level.MEMORY)) == (3, 12, [(4, 6), (7, 9), (10, 12)])


def test_what_is_written_meanwhile_is_not_in_it(partition):
    stream = open_stream(partition)
    stream.begin_snapshot()
    partition.sync()
    while stream.next_block():
        pass
    assert stream.delivered_seq == 9
    assert snapshot(stream) == (9, 12, [(10, 12)])


def test_a_consumer_may_stand_inside_of_a_block(partition):
    assert snapshot(open_stream(partition, 5)) == (5, 9, [(4, 6), (7, 9)])


@pytest.mark.parametrize(("end_seq", "last"), [(0, None), (1, 3), (3, 3), (4, 6), (9, 9), (12, 9), (100, 9)])
def test_an_end_is_reached_at_the_end_of_its_block(partition, end_seq, last):
    stream = open_stream(partition, end_seq=end_seq)
    assert stream.at_end == (not end_seq)
    assert stream.has_news != stream.at_end
    if last is not None:
        assert snapshot(stream)[1] == last
        assert stream.at_end == (end_seq <= 9)


def test_a_large_snapshot_is_cut(partition, monkeypatch):
    monkeypatch.setattr(module, "SNAPSHOT_BLOCKS_MAX", 2)
    stream = open_stream(partition)
    assert snapshot(stream) == (0, 6, [(1, 3), (4, 6)])
    assert stream.has_news
    assert snapshot(stream) == (6, 9, [(7, 9)])
    monkeypatch.setattr(module, "SNAPSHOT_BYTES_MAX", 10)
    monkeypatch.setattr(module, "SNAPSHOT_BLOCKS_MAX", 100)
    assert snapshot(open_stream(partition)) == (0, 3, [(1, 3)])


def test_no_stream_ends_below_what_was_promised(partition):
    stream = open_stream(partition, 3, end_seq=5, promised_seq=9)
    assert snapshot(stream) == (3, 9, [(4, 6), (7, 9)])
    assert stream.at_end


def test_no_snapshot_ends_below_what_was_promised(partition, monkeypatch):
    monkeypatch.setattr(module, "SNAPSHOT_BLOCKS_MAX", 1)
    assert snapshot(open_stream(partition, 3, promised_seq=9)) == (3, 9, [(4, 6), (7, 9)])
    stream = open_stream(partition, 3, promised_seq=12)
    assert not stream.has_news, "what is not visible yet makes a stream wait"
    partition.sync()
    assert stream.has_news
    assert snapshot(stream) == (3, 12, [(4, 6), (7, 9), (10, 12)])
