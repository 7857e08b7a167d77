"""A node may have a hundred thousand streams without news: the memory that each of them takes is bounded."""

import gc
import tracemalloc

import pytest

from tailrace.model import Level
from tailrace_server.stream.filter import FilterCache
from tailrace_server.stream.partition_stream import PartitionStream
from tailrace_server.stream.rounds import Rounds

pytestmark = pytest.mark.slow

STREAMS = 500
# 850 are needed on 64 bits.
STREAM_BYTES_MAX = 1_000


@pytest.fixture
def traced():
    """The function that returns the bytes that were allocated since, and are still in use."""

    def traced():
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    gc.collect()
    tracemalloc.start()
    yield traced
    tracemalloc.stop()


@pytest.mark.parametrize("is_written", [False, True], ids=["new", "read to its end"])
def test_a_stream_without_news_takes_less_than_a_kilobyte(make_partition, traced, is_written):
    partition, rounds, filtered = make_partition(0), Rounds(1 << 30), FilterCache()
    if is_written:
        for _ in range(2):
            partition.write()
    before = traced()
    for id in range(1, STREAMS + 1):
        stream = PartitionStream(id, partition, Level.MEMORY, 0, None, 0, pins=partition.pins, filtered=filtered)
        rounds.open(stream, gc.isenabled)  # any function
    while rounds.next_buffers(1 << 20):
        pass
    assert all(slot.stream.delivered_seq == partition.high_seq for slot in rounds.slots.values())
    # The frames around the blocks of a snapshot stay.
    assert (traced() - before) / STREAMS < STREAM_BYTES_MAX + 300 * is_written
