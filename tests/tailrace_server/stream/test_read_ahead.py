"""What is read ahead of a stream whose segments are not in the system's memory."""

import pytest
from tests.tailrace_server.stored import StoredPartition

from tailrace_server.host.disk import RealDisk, RealFile, read_file
from tailrace_server.host.open_files import OpenFiles
from tailrace_server.partition.chain import Chain, LostSegment
from tailrace_server.segment import Segment, SegmentDamaged
from tailrace_server.stream import read_ahead as module
from tailrace_server.stream import segment_cursor
from tailrace_server.stream.read_ahead import Part, ReadAhead
from tailrace_server.stream.segment_cursor import SegmentCursor

BLOCKS = 12


@pytest.fixture
def partition(monkeypatch):
    """Two segments of blocks that are as long as each other, a chunk each. Four blocks are read ahead."""
    made = StoredPartition()
    for _ in range(2):
        for _ in range(BLOCKS):
            made.write(rows=2)
        made.sync()
        made.flush()
    monkeypatch.setattr(segment_cursor, "CHUNK_BYTES", 1)
    monkeypatch.setattr(module, "AHEAD_BYTES", 4 * made.chain.segments[0].block_bytes(0))
    return made


@pytest.fixture
def ahead():
    return ReadAhead()


def part_of(partition, segment=0):
    found = partition.chain.segments[segment]
    return SegmentCursor(found, found.identity.after_seq, partition.pins)


def read_chunk(part):
    part.loaded(*part.load())
    while part.next_block() is not None:
        pass


def blocks_of(part):
    """The segment's end, and the numbers of the blocks of a part of it."""
    places = [part.segment.place_of(number)[0] for number in range(part.segment.blocks + 1)]
    return part.segment.identity.last_seq, range(places.index(part.offset), places.index(part.offset + part.nbytes))


def test_nothing_without_a_chunk_that_was_not_in_memory(partition, ahead):
    part = part_of(partition)
    read_chunk(part)
    assert ahead.next(part, partition.chain) is None


def test_a_thread_begins_again_when_half_of_it_is_used(partition, ahead):
    part, found = part_of(partition), []
    read_chunk(part)
    ahead.missed(part)
    while not part.is_done:
        following = ahead.next(part, partition.chain)
        if following is not None:
            found.append((part._index, blocks_of(following)))
            ahead.read(was_missing=True)
        read_chunk(part)
    first, second = (segment.identity.last_seq for segment in partition.chain.segments)
    assert found == [
        (1, (first, range(1, 5))),
        (3, (first, range(5, 9))),
        (7, (first, range(9, 12))),
        (10, (second, range(4))),
    ]


def test_it_goes_on_in_the_next_segment(partition, ahead):
    part = part_of(partition)
    while not part.is_done:
        read_chunk(part)
    ahead.missed(part)
    assert blocks_of(ahead.next(part, partition.chain))[1] == range(4)
    ahead.read(was_missing=True)
    part = part_of(partition, 1)
    read_chunk(part)
    assert ahead.next(part, partition.chain) is None
    read_chunk(part)
    assert blocks_of(ahead.next(part, partition.chain))[1] == range(4, 8)


def test_it_skips_what_the_next_segment_has_of_this_one(partition, ahead):
    part = part_of(partition)
    while not part.is_done:
        read_chunk(part)
    ahead.missed(part)
    partition.fold(history=True)
    following = ahead.next(part, partition.chain)
    [compacted] = partition.chain.segments
    assert following.segment is compacted
    assert following.offset == compacted.place_of(compacted.block_after(part.segment.identity.last_seq))[0]


def test_nothing_is_read_of_a_segment_that_is_lost(partition, ahead):
    part = part_of(partition)
    while not part.is_done:
        read_chunk(part)
    ahead.missed(part)
    first, second = partition.chain.segments
    lost = LostSegment(second.identity, second.nbytes, SegmentDamaged(second.path, 0, "gone"))
    assert ahead.next(part, Chain([first, lost])) is None
    assert SegmentCursor(lost, 0, partition.pins).offset == 0
    assert ahead.next(part, partition.chain).segment is second, "its file was put back"


def test_nothing_follows_the_last_segment(partition, ahead):
    part = part_of(partition, 1)
    while not part.is_done:
        read_chunk(part)
    ahead.missed(part)
    assert ahead.next(part, partition.chain) is None


def test_one_part_at_a_time(partition, ahead):
    part = part_of(partition)
    ahead.missed(part)
    assert ahead.next(part, partition.chain) is not None
    while not part.is_done:
        read_chunk(part)
        ahead.missed(part)
        assert ahead.next(part, partition.chain) is None
    ahead.read(was_missing=True)
    assert ahead.next(part, partition.chain) is not None


def test_it_ends_with_a_part_that_was_in_memory(partition, ahead):
    part = part_of(partition)
    ahead.missed(part)
    assert ahead.next(part, partition.chain) is not None
    ahead.read(was_missing=False)
    while not part.is_done:
        read_chunk(part)
        assert ahead.next(part, partition.chain) is None


def test_only_for_the_stream_that_has_waited(partition, ahead):
    ahead.missed(part_of(partition))
    assert ahead.next(part_of(partition, 1), partition.chain) is None


@pytest.mark.parametrize("is_cached", [True, False])
def test_a_part_is_read_only_if_it_is_not_in_memory(is_cached, tmp_path, partition, monkeypatch):
    path = tmp_path / "a.seg"
    path.write_bytes(read_file(partition.disk, partition.chain.segments[0].path))
    files = OpenFiles(RealDisk(), 4)
    segment = Segment.open(files, str(path))
    loads = []
    monkeypatch.setattr(RealFile, "is_cached", lambda *_: is_cached)
    monkeypatch.setattr(RealFile, "load", lambda _, *place: loads.append(place))
    assert Part(segment, 64, 128).bring() is not is_cached
    assert loads == ([] if is_cached else [(64, 128)])
    assert files.idle == 1, "the descriptor was given back"
    segment.close()
