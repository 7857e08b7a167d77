"""Files of pushed segments: written in parts, verified, continued, and bounded in number."""

import errno
from types import SimpleNamespace

import pytest
import xxhash

from tailrace.errors import BadSegment, NoSpace
from tailrace.segment.ends import END_BYTES, SegmentHeader, end_of
from tailrace_server.host.disk import TEMPORARY, RealDisk
from tailrace_server.upkeep.incoming_segments import IncomingSegments, PushedFile

FEED = b"f" * 16


class Store:
    """Names the files of segments."""

    def __init__(self, folder):
        self._folder = folder

    def segment_path(self, feed_id, partition, id):
        return str(self._folder / f"{id.hex()}.seg")


class Partition:
    """A partition as the files know it."""

    def __init__(self, number=3):
        self.feed_id, self.id, self.is_dropped = FEED, number, False


def content(id=b"s" * 16, partition=3, nbytes=1_000):
    """A file that is a segment as far as its ends tell, and its description."""
    body = SegmentHeader(FEED, partition, id).pack() + bytes(nbytes)
    file_sum = xxhash.xxh3_128_intdigest(body)
    data = body + end_of(file_sum)
    return data, PushedFile(id, len(data), file_sum.to_bytes(16, "big"))


@pytest.fixture
def incoming(tmp_path, disk):
    return IncomingSegments(disk, Store(tmp_path), 2)


@pytest.fixture
def disk():
    return RealDisk()


def test_a_file_gets_its_name_when_it_is_whole(incoming, tmp_path):
    partition, (data, pushed) = Partition(), content()
    segment = incoming.begin(partition, pushed)
    for begin in range(0, len(data), 300):
        assert segment.offset == begin
        segment.add(memoryview(data)[begin : begin + 300])
        assert [path.name for path in tmp_path.iterdir()] == [pushed.id.hex() + ".seg.pushed" + TEMPORARY]
    segment.finish()
    incoming.end(partition)
    assert (tmp_path / f"{pushed.id.hex()}.seg").read_bytes() == data
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("place", [0, 40, 70, 500, -END_BYTES, -1])
def test_a_byte_that_is_wrong(incoming, tmp_path, place):
    data, pushed = content()
    wrong = bytearray(data)
    wrong[place] ^= 1
    segment = incoming.begin(Partition(), pushed)
    segment.add(bytes(wrong))
    with pytest.raises(BadSegment, match="is not as the leader told"):
        segment.finish()
    assert not list(tmp_path.iterdir())


def test_a_file_that_ends_early(incoming, tmp_path):
    data, pushed = content()
    segment = incoming.begin(Partition(), pushed)
    segment.add(data[:-1])
    with pytest.raises(BadSegment, match=f"it has {len(data) - 1} bytes of {len(data)}"):
        segment.finish()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("id", "number"), [(b"t" * 16, 3), (b"s" * 16, 4)])
def test_a_file_of_another_segment_or_partition(incoming, tmp_path, id, number):
    data, pushed = content(id, number)
    segment = incoming.begin(Partition(3), pushed._replace(id=b"s" * 16))
    segment.add(data)
    with pytest.raises(BadSegment, match="it is segment"):
        segment.finish()
    assert not list(tmp_path.iterdir())


def test_a_transfer_that_broke_is_continued(incoming, tmp_path):
    partition, (data, pushed) = Partition(), content()
    broken = incoming.begin(partition, pushed)
    broken.add(data[:300])
    incoming.interrupt(partition)
    assert not broken.is_active
    segment = incoming.begin(partition, pushed)
    assert segment.offset == 300
    assert segment.is_active
    segment.add(data[300:])
    segment.finish()
    assert (tmp_path / f"{pushed.id.hex()}.seg").read_bytes() == data


def test_another_file_or_a_whole_one_begins_anew(incoming, tmp_path):
    partition, (data, pushed) = Partition(), content()
    incoming.begin(partition, pushed).add(data[:300])
    other = incoming.begin(partition, content(b"t" * 16)[1])
    assert other.offset == 0
    assert not list(tmp_path.iterdir())
    again = incoming.begin(partition, pushed)
    again.add(data)
    incoming.interrupt(partition)
    assert incoming.begin(partition, pushed).offset == 0


def test_a_disk_that_refuses_changes_nothing(incoming, disk, monkeypatch):
    partition, (data, pushed) = Partition(), content()
    segment = incoming.begin(partition, pushed)
    segment.add(data[:300])
    file = segment._file

    def full(*arguments):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(segment, "_file", SimpleNamespace(write_at=full))
    with pytest.raises(NoSpace, match="no space is left"):
        segment.add(data[300:])
    assert segment.offset == 300
    monkeypatch.setattr(segment, "_file", file)
    segment.add(data[300:])
    segment.finish()


def test_active_and_half_files_are_bounded(incoming, tmp_path):
    partitions = [Partition(number) for number in range(6)]
    for number, partition in enumerate(partitions):
        data, pushed = content(bytes([number]) * 16, number)
        incoming.begin(partition, pushed).add(data[:100])
        assert incoming.are_full == (number % 2 == 1)
        if number % 2:
            incoming.interrupt(partition)
            incoming.interrupt(partitions[number - 1])
    assert not incoming.are_full
    assert len(list(tmp_path.iterdir())) <= 4


def test_a_half_file_of_a_dropped_feed_goes(incoming, tmp_path):
    partition, (data, pushed) = Partition(), content()
    incoming.begin(partition, pushed).add(data[:300])
    partition.is_dropped = True
    incoming.interrupt(partition)
    assert not list(tmp_path.iterdir())
