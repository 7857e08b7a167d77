"""Streams under which something moves or goes: memory that was flushed, a history that is trimmed, damaged segments."""

import pytest

from tailrace.model import EndReason
from tailrace_server.partition.chain import Chain, LostSegment
from tailrace_server.segment import SegmentDamaged
from tailrace_server.stream import partition_stream
from tailrace_server.stream.chunk_reads import LOADS_MAX

START, BLOCK, END, ENDED = "SNAPSHOT_START", "BLOCK", "SNAPSHOT_END", "STREAM_END"


# Letting go of memory


@pytest.fixture
def slow(made, monkeypatch):
    """A stream that has sent 2 of 10 blocks of a snapshot, and has no room for more."""
    monkeypatch.setattr(partition_stream, "HELD_BYTES_MAX", 600)
    for number in range(10):
        made.put((b"%d" % (number % 4), bytes(100)))
    made.rounds.set_window(300)
    made.open()
    made.consumer.read()
    assert made.held().seq == 2
    return made


def test_a_slow_stream_gives_memory_back_after_a_flush(slow):
    stream = slow.rounds.slots[1].stream
    slow.partition.flush()
    assert not stream._blocks
    assert slow.news
    assert slow.partition.account.used == slow.partition.tree.memory_bytes
    slow.rounds.set_window(1 << 30)
    slow.read()
    assert slow.held().starts == [(0, 10, True), (0, 10, True)]
    assert slow.held().state == slow.partition.state_at(10)


def test_it_keeps_what_is_not_flushed(slow):
    slow.put((b"new", b"1"))
    slow.partition.flush(9)
    stream = slow.rounds.slots[1].stream
    assert [block.header.first_seq for block in stream._blocks] == [10]
    slow.rounds.set_window(1 << 30)
    slow.read()
    assert slow.held().starts == [(0, 10, True), (0, 10, True), (10, 11, True)]


def test_little_is_not_let_go_of(slow):
    slow.partition.flush(4)
    assert len(slow.rounds.slots[1].stream._blocks) == 8
    slow.partition.flush(9)
    assert len(slow.rounds.slots[1].stream._blocks) == 1


def test_what_was_folded_meanwhile_is_told_to_be_incomplete(slow):
    slow.partition.flush(4)
    slow.partition.fold()
    slow.partition.flush()
    slow.rounds.set_window(1 << 30)
    slow.read()
    assert slow.held().starts[0] == (0, 10, True)
    assert len(slow.held().starts) == 2
    assert slow.held().state == slow.partition.state_at(10)


def test_who_has_sent_nothing_yet_is_told_of_the_purge_when_it_lets_go(made, monkeypatch):
    monkeypatch.setattr(partition_stream, "HELD_BYTES_MAX", 500)
    made.put((b"k", b"1"), (b"k", None), (b"x", b"3"))
    made.open()
    made.rounds._start_snapshot(made.rounds.slots[1])
    made.partition.flush()
    made.partition.fold(purge_before_us=1)
    monkeypatch.setattr(partition_stream, "HELD_BYTES_MAX", 0)
    made.put((b"y", b"4"))
    made.partition.flush()
    made.read()
    assert made.held().purge_seq == 2
    assert made.held().state == {b"x": b"3", b"y": b"4"}
    assert not made.held().end


# A history that is kept for a while


@pytest.fixture
def trimmed(made):
    """Seqs 1 to 4 were dropped, 5 and 6 are in a segment, 7 is in memory."""
    for number in range(3):
        made.put((b"a%d" % number, b"1"), (b"b", b"%d" % number))
        made.partition.flush()
    made.partition.trim(2)
    made.put((b"c", b"7"))
    return made


def test_who_begins_at_0_gets_what_is_kept(trimmed):
    trimmed.open()
    assert trimmed.read() == [START, BLOCK, BLOCK, END, START, BLOCK, END]
    assert trimmed.held().starts == [(0, 6, False), (6, 7, True)], "rows are missing from the first"
    assert trimmed.held().state == {b"a2": b"1", b"b": b"2", b"c": b"7"}


def test_who_stands_below_is_told_so(trimmed):
    trimmed.open(3)
    assert trimmed.read() == [ENDED]
    assert trimmed.held().end.reason is EndReason.TRIMMED
    trimmed.open(4, id=2)
    trimmed.read()
    assert trimmed.held(2).state == trimmed.partition.state_at(7)


def test_where_all_segments_were_trimmed_the_tree_is_left(trimmed):
    trimmed.partition.trim(1)
    trimmed.open()
    assert trimmed.read() == [START, BLOCK, END]
    assert trimmed.held().state == {b"c": b"7"}


def test_where_everything_was_trimmed_a_consumer_is_at_the_end(trimmed):
    trimmed.partition.flush()
    trimmed.partition.trim(2)
    trimmed.open()
    trimmed.rounds.barriers.add(b"cookie")
    assert trimmed.read() == [START, END]
    assert trimmed.held().seq == 7
    assert not trimmed.rounds.barriers
    trimmed.put((b"d", b"8"))
    trimmed.read()
    assert trimmed.held().state == {b"d": b"8"}


def test_a_trim_of_what_a_stream_holds_ends_it_when_it_lets_go(made, monkeypatch):
    monkeypatch.setattr(partition_stream, "HELD_BYTES_MAX", 0)
    made.rounds.set_window(1)
    made.put((b"a", b"1"), (b"b", b"2"), (b"c", b"3"))
    made.open()
    made.rounds.credit(made.consumer.read())
    monkeypatch.setattr(partition_stream, "HELD_BYTES_MAX", 10_000)
    made.partition.flush()
    made.partition.trim(1)
    monkeypatch.setattr(partition_stream, "HELD_BYTES_MAX", 0)
    made.put((b"d", b"4"))
    made.partition.flush()
    made.read()
    assert made.held().end.reason is EndReason.TRIMMED


# Damage


def test_a_damaged_segment_ends_its_streams_and_no_others(made):
    made.put((b"a", b"1"))
    damaged = made.partition.flush()
    made.put((b"b", b"2"))
    made.partition.flush()
    made.partition.disk.flip(damaged.path, 8 * 100)
    made.open(id=1)
    made.open(1, id=2)
    assert made.read() == [START, ENDED]
    end = made.held(1).end
    assert end.reason is EndReason.DAMAGED
    assert damaged.path in end.message
    assert "damaged at offset 64" in end.message
    assert made.held(2).seq == 2
    assert len(made.consumer.failures) == 1
    assert not made.partition.pins._readers


def test_chunks_that_could_not_be_read_leave_room_for_others(made):
    made.put((b"a", b"1"))
    damaged = made.partition.flush()
    made.put((b"b", b"2"))
    made.partition.flush()
    made.partition.disk.flip(damaged.path, 8 * 100)
    for id in range(1, LOADS_MAX + 1):
        made.open(id=id)
        made.read()
        assert made.held(id).end.reason is EndReason.DAMAGED
    made.open(1, id=LOADS_MAX + 1)
    made.read()
    assert made.held(LOADS_MAX + 1).seq == 2
    assert made.rounds._reads._chunks == 0


def test_a_segment_that_could_not_be_opened_ends_who_has_to_read_it(made):
    made.put((b"a", b"1"))
    segment = made.partition.flush()
    error = SegmentDamaged(segment.path, 7, "it is gone")
    made.partition.chain = Chain([LostSegment(segment.identity, segment.nbytes, error)])
    made.put((b"b", b"2"))
    made.open(id=1)
    made.open(1, id=2)
    assert made.read() == [START, ENDED]
    assert made.held(1).end.reason is EndReason.DAMAGED
    assert f"{segment.path} is damaged at offset 7" in made.held(1).end.message
    assert made.held(2).seq == 2
