from __future__ import annotations

import errno
import os

import pytest

from tailrace.block import Stamps, encode_block
from tailrace.errors import BadBlock, NoSpace
from tailrace_server.host.disk import RealDisk
from tailrace_server.segment import Segment, SegmentWriter
from tailrace_server.segment.writer import SYNC_BYTES, WRITE_BYTES

PATH = "/feed/made.seg"


@pytest.fixture
def disk(memory_disk):
    made = memory_disk()
    made.make_directory("/feed")
    return made


def fail(name, error):
    """A MemoryDisk's ``before`` that makes every call of a name fail."""

    def before(called, path):
        if called == name:
            raise OSError(error, os.strerror(error))

    return before


def test_a_segment_is_written_on_a_real_disk(tmp_path, identity_of, block_of):
    path = str(tmp_path / "made.seg")
    writer = SegmentWriter(RealDisk(), path, identity_of(2))
    writer.add(block_of([(b"a", b"1", 1, 1)]))
    assert os.listdir(tmp_path) == ["made.seg.new"]
    identity = writer.finish()
    writer.abandon()
    assert os.listdir(tmp_path) == ["made.seg"]
    segment = Segment.open(RealDisk(), path)
    assert segment.identity == identity
    assert segment.verify() == []
    os.remove(path)
    assert segment.read_blocks(0, 1)[0][0].columns().keys() == [b"a"]
    segment.close()


def test_small_blocks_are_written_together(disk, identity_of, block_of):
    writes = []
    disk.before = lambda name, path: writes.append(name) if name == "write_at" else None
    told = []
    writer = SegmentWriter(disk, PATH, identity_of(3_000), on_bytes=told.append)
    for seq in range(1, 3_001):
        writer.add(block_of([(b"a", b"x" * 400, seq, 1)]))
    writer.finish()
    assert len(writes) == len(told) < 10
    assert sum(told) == len(disk.content(PATH))
    assert max(told) < WRITE_BYTES + 10_000


def test_nothing_is_left_to_write_at_the_end(disk, identity_of, monkeypatch):
    monkeypatch.setattr("tailrace_server.segment.writer.WRITE_BYTES", 1)
    SegmentWriter(disk, PATH, identity_of(9)).finish()
    assert Segment.open(disk, PATH).verify() == []


def test_a_large_block_is_written_by_itself(disk, identity_of, block_of):
    told = []
    writer = SegmentWriter(disk, PATH, identity_of(2), on_bytes=told.append)
    writer.add(block_of([(b"a", os.urandom(2 * WRITE_BYTES), 1, 1)]))
    assert len(told) == 1
    writer.add(block_of([(b"a", b"", 2, 1)]))
    assert len(told) == 1
    writer.finish()
    assert len(told) == 2


def add_mebibytes(writer, block_of, count):
    for seq in range(1, count + 1):
        writer.add(block_of([(b"a", os.urandom(WRITE_BYTES), seq, 1)]))


def test_no_sync_has_much_to_write(disk, identity_of, block_of):
    """Else it would delay the fsyncs of other files."""
    calls = []
    disk.before = lambda name, path: calls.append(name)
    writer = SegmentWriter(disk, PATH, identity_of(9))
    add_mebibytes(writer, block_of, 9)
    writer.finish()
    assert [name for name in calls if name in ("write_at", "sync")] == [
        *(["write_at"] * (SYNC_BYTES // WRITE_BYTES) + ["sync"]) * 2,
        *["write_at"] * 2,
        "sync",
    ]
    assert Segment.open(disk, PATH).verify() == []


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_sync_that_fails_before_the_end_leaves_nothing_behind(disk, identity_of, block_of, error):
    writer = SegmentWriter(disk, PATH, identity_of(9))
    disk.before = fail("sync", error)
    with pytest.raises(OSError if error == errno.EIO else NoSpace):
        add_mebibytes(writer, block_of, 9)
    assert disk.names("/feed") == []


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([(b"a", b"", 4, 1)], r"seqs 4 to 4 is outside of the rest of the range, \(5, 9\]"),
        ([(b"a", b"", 5, 1)], "seqs 5 to 5"),
        ([(b"a", b"", 9, 1), (b"a", b"", 10, 1)], "seqs 9 to 10"),
    ],
)
def test_blocks_have_to_follow_each_other_within_the_run(disk, identity_of, block_of, rows, why):
    writer = SegmentWriter(disk, PATH, identity_of(9, after_seq=2))
    writer.add(block_of([(b"a", b"1", 3, 1), (b"b", b"1", 5, 1)]))
    with pytest.raises(ValueError, match=why):
        writer.add(block_of(rows))
    writer.add(block_of([(b"a", b"2", 9, 1)]))
    assert writer.finish().rows == 3


def test_a_block_of_another_partition_is_refused(disk, identity_of, block_of):
    writer = SegmentWriter(disk, PATH, identity_of(9, partition=4))
    with pytest.raises(ValueError, match="a block of partition 3 for a segment of 4"):
        writer.add(block_of([(b"a", b"", 1, 1)]))
    writer.abandon()


def test_rows_that_have_no_number_are_refused(disk, identity_of, block_of, monkeypatch):
    monkeypatch.setattr("tailrace_server.segment.writer.ROWS_MAX", 2)
    writer = SegmentWriter(disk, PATH, identity_of(9))
    writer.add(block_of([(b"a", b"", 1, 1), (b"b", b"", 2, 1)]))
    with pytest.raises(ValueError, match="a segment has at most 2 rows; begin another one"):
        writer.add(block_of([(b"a", b"", 3, 1)]))


def test_a_block_that_changed_in_memory_is_refused(disk, identity_of, block_of):
    good = block_of([(b"a", b"1", 1, 1)])
    body = bytearray(good.body)
    body[-1] ^= 1
    bad_body = type(good)(good.header, good.head, bytes(body))
    bad_header = type(good)(good.header._replace(last_seq=2), good.head, good.body)
    bad_head = type(good)(good.header, good.head[:-1] + b"!", good.body)
    writer = SegmentWriter(disk, PATH, identity_of(9))
    for bad in (bad_body, bad_header, bad_head):
        with pytest.raises(BadBlock):
            writer.add(bad)
    writer.add(good)
    assert writer.finish().rows == 1


def test_a_bad_identity_or_a_name_that_is_taken_is_refused(disk, identity_of):
    with pytest.raises(ValueError, match="the run"):
        SegmentWriter(disk, PATH, identity_of(0))
    with pytest.raises(ValueError, match="the writer's to fill in"):
        SegmentWriter(disk, PATH, identity_of(9, rows=1))
    assert disk.names("/feed") == []
    SegmentWriter(disk, PATH, identity_of(9)).finish()
    with pytest.raises(FileExistsError, match="a segment id is used once"):
        SegmentWriter(disk, PATH, identity_of(9))


def test_an_abandoned_segment_leaves_nothing(disk, identity_of, block_of):
    writer = SegmentWriter(disk, PATH, identity_of(9))
    writer.add(block_of([(b"a", b"1", 1, 1)]))
    writer.abandon()
    writer.abandon()
    assert disk.names("/feed") == []
    with pytest.raises(AssertionError, match="the segment is finished"):
        writer.finish()


def test_what_on_bytes_raises_passes_through(disk, identity_of):
    def stop(nbytes):
        raise KeyboardInterrupt

    writer = SegmentWriter(disk, PATH, identity_of(9), on_bytes=stop)
    with pytest.raises(KeyboardInterrupt):
        writer.finish()
    writer.abandon()
    assert disk.names("/feed") == []


@pytest.mark.parametrize("name", ["create", "write_at", "sync", "rename", "sync_directory"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_call_that_fails_leaves_nothing_behind(disk, identity_of, block_of, name, error):
    disk.before = fail(name, error)
    expected = OSError if error == errno.EIO else NoSpace
    with pytest.raises(expected) as caught:
        write_one(disk, identity_of, block_of)
    if expected is NoSpace:
        assert f"no space is left for the segment {PATH}" in str(caught.value)
    assert disk.names("/feed") == []
    disk.before = None
    write_one(disk, identity_of, block_of)
    assert disk.names("/feed") == ["made.seg"]


def test_a_disk_that_fills_up_while_blocks_are_added(memory_disk, identity_of, block_of):
    disk = memory_disk(size_bytes=3 * WRITE_BYTES)
    disk.make_directory("/feed")
    writer = SegmentWriter(disk, PATH, identity_of(99))
    blocks = [block_of([(b"a", os.urandom(WRITE_BYTES // 3), seq, 1)]) for seq in range(1, 20)]

    def add_all():
        for block in blocks:
            writer.add(block)

    with pytest.raises(NoSpace):
        add_all()
    assert disk.names("/feed") == []
    with pytest.raises(AssertionError, match="the segment is finished"):
        writer.add(block_of([(b"a", b"", 99, 1)]))


def write_one(disk, identity_of, block_of):
    writer = SegmentWriter(disk, PATH, identity_of(9))
    writer.add(block_of([(b"a", b"1", 1, 1)]))
    writer.finish()


@pytest.mark.parametrize("rows", [1, 30_000])
def test_a_segment_with_ttls_has_version_2_and_its_earliest_expiry(disk, identity_of, rows):
    """Also if its first block with a ttl comes when the header has been written."""
    stamps = Stamps(list(range(1, rows + 1)), [5_000_000] * rows)
    keys, values = [b"%09d" % row for row in range(rows)], [b"x" * 99] * rows
    writer = SegmentWriter(disk, PATH, identity_of(rows + 9))
    writer.add(encode_block(keys, values, partition=3, stamps=stamps, compress=False))
    assert (writer._offset > writer._buffered) == (rows > 1)  # the header is in the file, or not yet
    late = Stamps([rows + 2, rows + 3, rows + 4], [6_000_000, 7_000_000, 9_000_000])
    writer.add(encode_block([b"b", b"c", b"d"], [b"1", b"2", None], partition=3, stamps=late, ttls=[60, 58, 1]))
    assert writer.finish().earliest_expiry == 65_000_000
    assert bytes(disk.content(PATH))[4:6] == b"\2\0"
    segment = Segment.open(disk, PATH)
    assert segment.identity.earliest_expiry == 65_000_000
    assert segment.verify() == []


def test_a_segment_without_ttls_has_version_1(disk, identity_of, block_of):
    writer = SegmentWriter(disk, PATH, identity_of(2))
    writer.add(block_of([(b"a", b"1", 1, 1)]))
    assert writer.finish().earliest_expiry == 0
    content = bytes(disk.content(PATH))
    assert content[4:6] == content[-8:-6] == b"\1\0"
    assert b"earliest_expiry" not in content


def test_a_segment_of_expiries_alone_has_version_2(disk, identity_of):
    writer = SegmentWriter(disk, PATH, identity_of(2))
    writer.add(encode_block([b"a"], [None], partition=3, stamps=Stamps([1], [1]), ttls=[1]))
    assert writer.finish().earliest_expiry == 0
    assert bytes(disk.content(PATH))[4:6] == b"\2\0"
    assert Segment.open(disk, PATH).verify() == []
