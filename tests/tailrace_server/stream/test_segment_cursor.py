import pytest
from tests.tailrace_server.stored import StoredPartition

from tailrace.errors import BadBlock
from tailrace.wire.filters import StreamFilter
from tailrace_server.partition.chain import LostSegment
from tailrace_server.segment import SegmentDamaged
from tailrace_server.segment.file import SegmentFile
from tailrace_server.stream import segment_cursor as module
from tailrace_server.stream.segment_cursor import SegmentCursor


@pytest.fixture
def partition():
    """A segment of the blocks 1..2, 3..4, 5..6."""
    made = StoredPartition()
    for _ in range(3):
        made.write(rows=2)
    made.sync()
    made.flush()
    return made


def part_of(partition, after_seq=0):
    return SegmentCursor(partition.chain.segments[0], after_seq, partition.pins)


def read(part):
    """(first, last) of the blocks of each load."""
    loads = []
    while not part.is_done:
        assert part.needs_load
        assert part.next_block() is None
        part.loaded(*part.load())
        loads.append([])
        while (block := part.next_block()) is not None:
            loads[-1].append((block.header.first_seq, block.header.last_seq))
    assert not part.needs_load
    return loads


@pytest.mark.parametrize(("after_seq", "begin"), [(0, 0), (1, 0), (2, 1), (4, 2), (5, 2), (6, 3), (9, 3)])
def test_it_begins_with_the_block_that_has_more(partition, after_seq, begin):
    loads = read(part_of(partition, after_seq))
    assert [block for load in loads for block in load] == [(1, 2), (3, 4), (5, 6)][begin:]


def test_a_chunk_at_a_time(partition, monkeypatch):
    assert len(read(part_of(partition))) == 1
    monkeypatch.setattr(module, "CHUNK_BYTES", 1)
    assert read(part_of(partition)) == [[(1, 2)], [(3, 4)], [(5, 6)]]


def test_it_pins_its_segment_until_it_is_closed(partition):
    part = part_of(partition)
    partition.pins.retire(partition.chain.segments)
    assert partition.pins.take_free() == []
    part.loaded(*part.load())
    part.close()
    assert part.next_block() is None
    assert partition.pins.take_free() == list(partition.chain.segments)


def test_damage_is_told_with_its_place(partition):
    segment = partition.chain.segments[0]
    partition.disk.flip(segment.path, 8 * 70)
    with pytest.raises(SegmentDamaged, match="damaged at offset 64") as caught:
        part_of(partition).load()
    assert (caught.value.path, caught.value.offset) == (segment.path, 64)


def test_a_block_that_cannot_be_looked_into_is_damage(partition, monkeypatch):
    """Its sums are right, so only who opens it finds out."""

    def refuse(block, wanted):
        raise BadBlock("the padding before the keys is not zero")

    monkeypatch.setattr(module, "filter_block", refuse)
    part = SegmentCursor(partition.chain.segments[0], 0, partition.pins, StreamFilter(b"k"))
    with pytest.raises(SegmentDamaged, match="the padding before the keys is not zero") as caught:
        part.load()
    assert caught.value.path == partition.chain.segments[0].path


def test_what_a_filter_leaves_of_a_segment(partition):
    wanted = SegmentCursor(partition.chain.segments[0], 2, partition.pins, StreamFilter(b"k"))
    assert read(wanted) == [[(3, 4), (5, 6)]]
    unwanted = SegmentCursor(partition.chain.segments[0], 2, partition.pins, StreamFilter(b"other"))
    assert read(unwanted) == [[]]


def test_a_chunk_in_memory_is_read_without_a_thread(partition):
    part = part_of(partition)
    blocks, index = part.load_cached()
    assert (list(map(str, blocks)), index) == (list(map(str, part.load()[0])), 3)


@pytest.mark.parametrize("what", ["is not in memory", "is filtered", "is large"])
def test_a_chunk_takes_a_thread_if_it(what, partition, monkeypatch):
    part = part_of(partition)
    if what == "is not in memory":
        monkeypatch.setattr(SegmentFile, "read_cached", lambda file, offset, nbytes: None)
    elif what == "is filtered":
        part = SegmentCursor(partition.chain.segments[0], 0, partition.pins, StreamFilter(b"x"))
    else:
        monkeypatch.setattr(module, "CACHED_BYTES_MAX", 1)
    assert part.load_cached() is None
    assert part.needs_load


@pytest.mark.parametrize("load", [SegmentCursor.load, SegmentCursor.load_cached])
def test_a_segment_that_cannot_be_opened_is_told_by_each_way_to_read(load, partition):
    segment = partition.chain.segments[0]
    lost = LostSegment(segment.identity, segment.nbytes, SegmentDamaged(segment.path, 0, "gone"))
    with pytest.raises(SegmentDamaged, match="gone"):
        load(SegmentCursor(lost, 0, partition.pins))
