"""Streams that read segments: hazards 10 and 12 of the design, and barriers."""

import gc
import weakref

import pytest
from tests.tailrace_server.stored import StoredPartition

from tailrace.model import EndReason, Level
from tailrace.wire.opcodes import Opcode
from tailrace_server.stream import chunk_reads, partition_stream, segment_cursor
from tailrace_server.stream.partition_stream import PartitionStream

START, BLOCK, END, ENDED = "SNAPSHOT_START", "BLOCK", "SNAPSHOT_END", "STREAM_END"


# Segments, then the tree


def test_a_snapshot_a_segment_and_one_of_the_tree(made):
    made.put((b"a", b"1"), (b"b", b"2"))
    made.partition.flush()
    made.put((b"a", b"3"))
    made.partition.flush()
    made.put((b"c", b"4"))
    made.open()
    assert made.read() == [START, BLOCK, BLOCK, END, START, BLOCK, END, START, BLOCK, END]
    assert made.held().starts == [(0, 2, True), (2, 3, True), (3, 4, True)]
    assert made.held().state == {b"a": b"3", b"b": b"2", b"c": b"4"}


def test_it_begins_inside_of_a_segment_and_of_a_block(made):
    made.partition.put((b"a", b"1"), (b"b", b"2"), (b"c", b"3"))
    made.put((b"d", b"4"))
    made.partition.flush()
    made.open(2)
    made.read()
    assert made.held().starts == [(2, 4, True)]
    assert made.held().seq == 4


def test_a_stream_that_waits_for_its_chunk_has_no_turn_and_others_go_on(made, monkeypatch):
    monkeypatch.setattr(segment_cursor, "CHUNK_BYTES", 1)
    made.put((b"a", b"1"), (b"b", b"2"))
    made.partition.flush()
    other = StoredPartition(1)
    other.put((b"x", b"1"))
    other.sync()
    made.open()
    made.rounds.open(PartitionStream(2, other, Level.DISK, 0, None, 0, pins=other.pins), lambda: None)
    made.consumer.add(2, other)
    made.consumer.read()
    assert made.consumer.log == [(START, 1), (START, 2), (BLOCK, 2), (END, 2), ("ROUND_COMPLETE", 0)]
    assert not made.rounds.has_news
    assert len(made.consumer.loads) == 1
    made.consumer.load()
    assert made.rounds.has_news
    assert made.read() == [BLOCK, BLOCK, END]


def test_few_chunks_are_in_memory_at_a_time(made, monkeypatch):
    monkeypatch.setattr(chunk_reads, "LOADS_MAX", 2)
    made.put((b"a", b"1"))
    made.partition.flush()
    for id in range(1, 6):
        made.open(id=id)
    made.consumer.read()
    assert len(made.consumer.loads) == 2
    made.rounds.close(1, EndReason.CLOSED)
    made.consumer.read()
    assert len(made.consumer.loads) == 2, "a thread still reads for who is gone"
    made.consumer.load()
    made.consumer.read()
    assert len(made.consumer.loads) == 2, "and now another has its place"
    made.consumer.read_all()
    assert {made.held(id).seq for id in range(2, 6)} == {1}


def test_a_window_of_less_than_a_chunk_reads_one_and_only_when_there_is_room(made):
    made.put((b"a", b"1"))
    made.partition.flush()
    made.put((b"b", b"2"))
    made.partition.flush()
    made.rounds.set_window(1)
    for id in (1, 2, 3):
        made.open(id=id)
    made.consumer.read()
    assert len(made.consumer.loads) == 1
    made.consumer.load()
    size = made.consumer.read()
    assert size, "a block is sent, and the window is full"
    assert not made.consumer.loads
    made.rounds.credit(size)
    assert made.rounds.has_news, "else nothing would begin to read"
    made.consumer.read_all()
    assert {made.held(id).seq for id in (1, 2, 3)} == {2}


def test_a_stream_that_is_closed_while_it_waits_for_a_chunk_is_forgotten(made, monkeypatch):
    """Else a client that opens and closes streams while the disk hangs would fill the memory with them."""
    monkeypatch.setattr(chunk_reads, "LOADS_MAX", 1)
    made.put((b"a", b"1"))
    made.partition.flush()
    made.open(id=1)
    made.consumer.read()
    streams = []
    for id in range(2, 12):
        streams.append(weakref.ref(made.open(id=id)))
        made.consumer.read()
        made.rounds.close(id, EndReason.CLOSED)
    gc.collect()
    assert not any(stream() for stream in streams)
    made.consumer.read_all()
    assert made.held(1).seq == 1


def test_a_segment_that_is_read_stays_until_the_last_reader_has_gone(made):
    made.put((b"a", b"1"), (b"a", b"2"))
    old = made.partition.flush()
    made.open(id=1)
    made.open(id=2)
    made.consumer.read()
    made.partition.fold()
    assert made.partition.pins.retired_bytes == old.nbytes
    assert made.partition.remove_free() == 0
    made.rounds.close(1, EndReason.CLOSED)
    assert made.partition.remove_free() == 0
    made.consumer.read_all()
    assert made.held(2).starts == [(0, 2, True)], "it has read the old one to its end"
    assert made.partition.remove_free() == 1
    assert not made.partition.disk.exists(old.path)


# Hazard 10: a snapshot's announced end against segments that reach beyond it


def test_hazard_10_a_consumer_never_stands_inside_of_a_deduplicated_run(made):
    made.put((b"k", b"1"), (b"x", b"2"), (b"k", b"3"), (b"y", b"4"))
    made.partition.flush()
    made.partition.fold()
    made.open(end=2)
    made.consumer.add(1, made.partition)
    made.read()
    assert made.held().starts == [(0, 4, False)], "not to the end that was asked for, where k is missing"
    assert made.held().end.reason is EndReason.END_REACHED
    assert made.held().seq == 4


def test_hazard_10_a_snapshot_of_the_tree_that_goes_on_from_segments_ends_where_they_do(made, monkeypatch):
    monkeypatch.setattr(partition_stream, "HELD_BYTES_MAX", 0)
    monkeypatch.setattr(partition_stream, "SNAPSHOT_BLOCKS_MAX", 2)
    made.put((b"k", b"1"), (b"x", b"2"), (b"k", b"3"), (b"y", b"4"))
    made.rounds.set_window(1)
    made.open()
    made.rounds.credit(made.consumer.read())
    assert made.held().snapshot == (0, 2)
    made.partition.flush()
    made.read()
    assert made.held().starts == [(0, 2, True), (0, 4, True)], "the same first and the higher last"
    assert made.held().state == {b"k": b"3", b"x": b"2", b"y": b"4"}


def test_hazard_10_after_a_half_snapshot_no_other_ends_below_its_end(made):
    """Half of (0, 4] was applied at level memory; at level disk it waits until 4 is visible."""
    made.put((b"k", b"1"), (b"x", b"2"), (b"k", b"3"))
    made.partition.put((b"y", b"4"))
    made.open(2, promised=4)
    assert made.read() == []
    made.partition.flush()
    assert made.read() == []
    made.partition.sync()
    made.read()
    assert made.held().starts == [(2, 4, True)], "of a segment and of the tree"
    made.partition.flush()
    made.open(2, promised=4, id=2)
    made.read()
    assert made.held(2).starts == [(2, 4, True)], "of two segments"


# Hazard 12: tombstones are purged


def test_hazard_12_a_purge_under_an_open_stream_ends_it(made):
    made.put((b"k", b"1"))
    made.open()
    made.read()
    made.rounds.set_window(0)  # it is slow
    made.put((b"k", None), (b"x", b"3"))
    made.partition.flush()
    made.partition.fold(purge_before_us=1)
    assert made.partition.purge_seq == 2
    made.rounds.set_window(1 << 30)
    assert made.read() == [ENDED]
    assert made.held().end.reason is EndReason.PURGED
    assert made.held().state == {b"k": b"1"}


def test_hazard_12_a_purge_of_what_a_stream_holds_in_memory_ends_it_when_it_lets_go(made, monkeypatch):
    """The snapshot began before the purge, so its start could not tell."""
    monkeypatch.setattr(partition_stream, "HELD_BYTES_MAX", 500)
    made.put((b"k", b"1"))
    made.open()
    made.read()
    made.rounds.set_window(1)
    made.put((b"y", b"2"), (b"k", None), (b"x", b"4"))
    made.rounds.credit(made.consumer.read())
    assert made.held().seq == 2
    made.partition.flush()  # too little to let go of
    made.partition.fold(purge_before_us=1)
    assert made.partition.purge_seq == 3
    assert not made.held().end
    monkeypatch.setattr(partition_stream, "HELD_BYTES_MAX", 0)
    made.put((b"z", b"5"))
    made.partition.flush()
    made.read()
    assert made.held().end.reason is EndReason.PURGED
    assert b"k" in made.held().state


@pytest.mark.parametrize(("purge_seq", "ends"), [(None, True), (2, True), (3, False)])
def test_hazard_12_below_the_purge_seq_only_who_was_told_of_it_goes_on(made, purge_seq, ends):
    """P is what a consumer was told when it began at 0: what was purged then it never had."""
    made.put((b"k", b"1"))
    made.partition.flush()
    made.put((b"x", b"2"), (b"k", None), (b"y", b"4"))
    made.partition.flush()
    made.partition.fold(purge_before_us=1)
    assert made.partition.purge_seq == 3
    made.open(2, purge_seq=purge_seq, state={b"x": b"2"}, partial=True)
    if ends:
        assert made.read() == [ENDED]
        assert made.held().end.reason is EndReason.PURGED
    else:
        assert made.read() == [START, BLOCK, END]
        assert made.held().state == {b"x": b"2", b"y": b"4"}


def test_hazard_12_who_begins_at_0_is_told_of_the_purge_and_goes_on_below_it(made, monkeypatch):
    made.put((b"k", b"1"), (b"k", None), (b"x", b"3"))
    made.partition.flush()
    made.partition.fold(purge_before_us=1)
    made.put((b"y", b"4"))
    made.open()
    made.read()
    assert made.held().purge_seq == 2
    assert made.held().state == {b"x": b"3", b"y": b"4"}
    assert not made.held().end


def test_hazard_12_a_second_purge_concerns_who_has_filled_up_to_below_it(made):
    made.put((b"k", b"1"))
    made.partition.flush()
    made.open()
    made.read()
    made.rounds.set_window(0)
    made.put((b"k", None))
    made.partition.flush()
    made.partition.fold(purge_before_us=1)
    made.rounds.set_window(1 << 30)
    made.read()
    assert made.held().end.reason is EndReason.PURGED


# Segments without rows


def test_a_segment_of_nothing_brings_consumers_to_its_end(made):
    made.put((b"k", b"1"), (b"k", None))
    made.partition.flush()
    made.partition.fold(purge_before_us=1)
    assert made.partition.chain.segments[0].blocks == 0
    made.open()
    assert made.read() == [START, END]
    assert made.held().seq == 2


# Barriers


def test_a_barrier_waits_for_the_end_of_a_deduplicated_run(made):
    """The cookie was sent after k@1; that is superseded by k@4, which comes last."""
    came = []
    made.consumer.on_returned = lambda frame: came.append((frame.opcode, bytes(frame.body), made.held().state[b"k"]))
    made.put((b"k", b"1"), (b"x", bytes(300)))
    made.rounds.set_window(0)
    made.open()
    made.rounds.barriers.add(b"cookie")
    made.put((b"y", bytes(300)), (b"k", b"4"))
    made.partition.flush()
    assert made.partition.fold().blocks > 1
    made.rounds.set_window(1 << 30)
    made.read()
    assert came == [(Opcode.BARRIER_REACHED, b"cookie", b"4")]


def test_a_barrier_comes_back_where_the_last_rows_were_purged(made):
    came = []
    made.consumer.on_returned = lambda frame: came.append(frame.opcode)
    made.put((b"x", b"1"), (b"k", None))
    made.partition.flush()
    made.partition.fold(purge_before_us=1)
    made.open()
    made.rounds.barriers.add(b"cookie")
    assert made.read() == [START, BLOCK, END]
    assert came == [Opcode.BARRIER_REACHED]
