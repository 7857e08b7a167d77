"""The file of one segment: goes on behind what is there, and gets its name when it is right."""

import errno
import itertools
import os

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from tests.tailrace.copies.conftest import FEED, segment_file

from tailrace.copies.layout import SegmentCopy
from tailrace.copies.receiver import SegmentReceiver
from tailrace.errors import BadSegment
from tailrace.segment.ends import end_of

ID = b"s" * 16
DATA = segment_file(ID, bytes(range(256)) * 10)
SEGMENT = SegmentCopy(ID, len(DATA), DATA[-24:-8][::-1], 1, 10)
NAME = f"{ID.hex()}.seg"


def receive(folder, pieces, segment=SEGMENT):
    receiver = SegmentReceiver(str(folder), FEED, 0, segment)
    try:
        for piece in pieces:
            receiver.add(piece)
        receiver.finish()
    finally:
        receiver.close()


def test_the_disk_begins_to_write_before_the_end(tmp_path, monkeypatch):
    """In ranges that follow each other; what an earlier fetch has left is not among them."""
    monkeypatch.setattr("tailrace.copies.receiver._WRITE_OUT_BYTES", 1_000)
    ranges, fadvise = [], os.posix_fadvise
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, *range_: (ranges.append(range_[:2]), fadvise(fd, *range_)))
    half = SegmentReceiver(str(tmp_path), FEED, 0, SEGMENT)
    half.add(DATA[:300])
    half.close()
    receive(tmp_path, [DATA[begin : begin + 400] for begin in range(300, len(DATA), 400)])
    assert ranges == [(300, 1_200), (1_500, 1_148)]
    assert (tmp_path / NAME).read_bytes() == DATA


@given(st.lists(st.integers(0, len(DATA)), max_size=6), st.integers(0, 6))
def test_any_pieces_and_any_break_give_the_file(tmp_path_factory, cuts, broken):
    folder = tmp_path_factory.mktemp("files")
    places = [0, *sorted(cuts), len(DATA)]
    pieces = [DATA[begin:end] for begin, end in itertools.pairwise(places)]
    first = SegmentReceiver(str(folder), FEED, 0, SEGMENT)
    for piece in pieces[:broken]:
        first.add(piece)
    first.close()
    second = SegmentReceiver(str(folder), FEED, 0, SEGMENT)
    assert second.offset == sum(map(len, pieces[:broken]))
    for piece in pieces[broken:]:
        second.add(piece)
    second.finish()
    assert (folder / NAME).read_bytes() == DATA
    assert os.listdir(folder) == [NAME]


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (DATA[:-1], "bytes of"),
        (DATA + b"x", "bytes of"),
        (bytes([DATA[0] ^ 1]) + DATA[1:], "its checksum is"),
        (DATA[:-20] + bytes([DATA[-20] ^ 1]) + DATA[-19:], "it does not end as"),
        (DATA[:-1] + b"F", "it does not end as"),
    ],
)
def test_a_wrong_file_gets_no_name(tmp_path, data, match):
    with pytest.raises(BadSegment, match=match):
        receive(tmp_path, [data])
    assert os.listdir(tmp_path) == []


def test_a_file_that_could_not_be_made_durable_begins_anew(tmp_path, monkeypatch):
    """The system has dropped pages that it could not write; reads and a second fsync would not tell."""
    fsync = os.fsync

    def refuse(fd):
        monkeypatch.setattr(os, "fsync", fsync)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match=NAME):
        receive(tmp_path, [DATA])
    assert os.listdir(tmp_path) == []
    receive(tmp_path, [DATA])
    assert os.listdir(tmp_path) == [NAME]


def test_a_file_system_without_advice(tmp_path, monkeypatch):
    monkeypatch.setattr("tailrace.copies.receiver._WRITE_OUT_BYTES", 1_000)

    def refuse(*_):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "posix_fadvise", refuse)
    receive(tmp_path, [DATA])
    assert os.listdir(tmp_path) == [NAME]


def test_a_half_file_that_is_too_long_is_begun_anew(tmp_path):
    (tmp_path / (NAME + ".new")).write_bytes(bytes(len(DATA) + 1))
    receive(tmp_path, [DATA])
    assert (tmp_path / NAME).read_bytes() == DATA


def test_a_file_of_another_version(tmp_path):
    data = segment_file(ID, b"")
    data = data[:4] + b"\3" + data[5:]
    data = data[:-24] + end_of(xxhash.xxh3_128_intdigest(data[:-24]))
    with pytest.raises(BadSegment, match="version 3"):
        receive(tmp_path, [data], SEGMENT._replace(nbytes=len(data), checksum=data[-24:-8][::-1]))
