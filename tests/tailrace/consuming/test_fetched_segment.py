"""A segment that is fetched in parts: the blocks of the file come out, or an error; never another row."""

import random

import pytest
from tests.tailrace.consuming.nodes import FEED, Row
from tests.tailrace.consuming.segment_nodes import segment_of, small_parts

from tailrace.consuming import fetched_segment
from tailrace.consuming.fetched_segment import FetchedSegment
from tailrace.errors import BadBlock, BadSegment
from tailrace.model.failover import SEQ_MAX

ROWS = [Row(seq, b"key%d" % (seq % 7), b"value%d" % seq if seq % 5 else None) for seq in range(11, 60)]


@pytest.fixture(scope="module")
def file():
    """A segment of the run (10, 60], and its bytes."""
    return segment_of(ROWS, 10, 60, random.Random(1))


def parts_of(found, data):
    for number, (offset, nbytes) in enumerate(found.parts):
        assert 0 <= offset < offset + nbytes <= len(data), "it asks for what is there"
        found.take(number, memoryview(data)[offset : offset + nbytes])


def rows_in(told, data, *, after_seq=0, stop_seq=SEQ_MAX, feed_id=FEED, partition=0, nbytes=1):
    """The rows from the first block that has a row above ``after_seq`` to the last that begins up to ``stop_seq``."""
    segment = FetchedSegment(told, feed_id, partition, told.last_seq, stop_seq)
    while not segment.is_open:
        asked = []
        while (found := segment.next_of_footer()) is not None:
            asked.append(found)
        assert asked, "it waits for nothing"
        for found in asked:
            parts_of(found, data)
            segment.took(found, after_seq)
    ranges = [] if (local := segment.local_blocks()) is None else [local]
    while segment.has_more:
        ranges.append(segment.next_blocks(nbytes))
        parts_of(ranges[-1], data)
    rows = []
    for found in ranges:
        while not found.is_done:
            columns = found.next_block().columns()
            rows += map(Row, columns.seqs(), columns.keys(), columns.values())
    return rows


@pytest.mark.parametrize("seed", range(12))
def test_all_rows_come_however_the_file_is_cut(file, seed):
    told, data = file
    with small_parts(random.Random(seed)):
        assert rows_in(told, data, nbytes=(1, 300, 1 << 20)[seed % 3]) == ROWS


def test_it_begins_at_the_block_that_has_the_next_row(file):
    told, data = file
    for after_seq in range(10, 61):
        rows = rows_in(told, data, after_seq=after_seq)
        assert rows == ROWS[len(ROWS) - len(rows) :]
        assert [row.seq for row in rows if row.seq > after_seq] == list(range(after_seq + 1, 60))
        assert len([row for row in rows if row.seq <= after_seq]) < 3, "no block comes that has no row above"


@pytest.mark.parametrize("whole", [False, True])
def test_it_ends_with_the_block_that_has_the_last_row(file, whole, monkeypatch):
    told, data = file
    monkeypatch.setattr(fetched_segment, "WHOLE_BYTES_MAX", len(data) if whole else 0)
    monkeypatch.setattr(fetched_segment, "TAIL_BYTES", 128)
    for stop_seq in range(9, 62):
        rows = rows_in(told, data, stop_seq=stop_seq)
        assert rows == ROWS[: len(rows)]
        assert [row.seq for row in rows if row.seq <= stop_seq] == list(range(11, min(stop_seq, 59) + 1))
        assert len([row for row in rows if row.seq > stop_seq]) < 3, "no block comes that begins above"
        between = rows_in(told, data, after_seq=30, stop_seq=stop_seq)
        assert [row.seq for row in between if 30 < row.seq <= stop_seq] == list(range(31, min(stop_seq, 59) + 1))


def test_a_segment_without_rows():
    told, data = segment_of([], 10, 60, random.Random(1))
    assert rows_in(told, data) == []


@pytest.mark.long
@pytest.mark.parametrize("whole", [False, True])
def test_a_flipped_bit_gives_an_error_and_never_another_row(file, whole, monkeypatch):
    told, data = file
    monkeypatch.setattr(fetched_segment, "WHOLE_BYTES_MAX", len(data) if whole else 0)
    monkeypatch.setattr(fetched_segment, "TAIL_BYTES", 128)
    chance, caught = random.Random(3), 0
    for offset in range(len(data)):
        damaged = bytearray(data)
        damaged[offset] ^= 1 << chance.randrange(8)
        try:
            assert rows_in(told, bytes(damaged)) == ROWS
        except (BadSegment, BadBlock):
            caught += 1
    assert caught > len(data) // 4, "the key table, which is not read, and zeros are the largest parts"


@pytest.mark.parametrize(
    "changes", [{"id": b"x" * 16}, {"first_seq": 12}, {"last_seq": 61}, {"checksum": b"x" * 16}], ids=str
)
def test_another_segment_than_the_checkpoint_names(file, changes):
    told, data = file
    with pytest.raises(BadSegment):
        rows_in(told._replace(**changes), data)


@pytest.mark.parametrize("place", [{"feed_id": b"g" * 16}, {"partition": 1}], ids=str)
def test_a_segment_of_another_partition(file, place):
    with pytest.raises(BadSegment):
        rows_in(*file, **place)


@pytest.mark.parametrize("nbytes", [1, 95, 159, 160, 4000])
def test_a_file_that_is_too_short(file, nbytes):
    told, data = file
    with pytest.raises(BadSegment):
        rows_in(told._replace(nbytes=nbytes), data[:nbytes])


def test_a_footer_beyond_the_bound(file, monkeypatch):
    monkeypatch.setattr(fetched_segment, "FOOTER_BYTES_MAX", 100)
    with pytest.raises(BadSegment, match="footer"):
        rows_in(*file)
