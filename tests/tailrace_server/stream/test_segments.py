"""Streams that read segments: hazards 10 and 12 of the design, letting go of memory, trimmed and damaged chains."""

import pytest
from tests.tailrace_server.stored import StoredPartition
from tests.tailrace_server.stream.consumer import Consumer

from tailrace.model import EndReason, Level
from tailrace.wire.opcodes import Opcode
from tailrace_server.chain import Chain, LostSegment
from tailrace_server.segment import SegmentDamaged
from tailrace_server.stream import disk_part, partition_stream, rounds
from tailrace_server.stream.partition_stream import PartitionStream
from tailrace_server.stream.rounds import Rounds

START, BLOCK, END, ENDED = "SNAPSHOT_START", "BLOCK", "SNAPSHOT_END", "STREAM_END"


class Made:
    """A partition, and one connection that streams it."""

    def __init__(self, window=1 << 30):
        self.partition = StoredPartition()
        self.rounds = Rounds(window)
        self.consumer = Consumer(self.rounds)
        self.news = 0

    def open(self, seq=0, *, id=1, level=Level.DISK, end=None, promised=None, purge_seq=None, **held):
        promised = seq if promised is None else promised
        stream = PartitionStream(
            id, self.partition, level, seq, end, promised, pins=self.partition.pins, purge_seq=purge_seq
        )
        self.consumer.add(id, self.partition, seq, promised=promised, **held)
        self.rounds.open(stream, self._notify)
        return stream

    def _notify(self):
        self.news += 1

    def held(self, id=1):
        return self.consumer.streams[id]

    def put(self, *rows):
        """A block each, durable."""
        for row in rows:
            self.partition.put(row)
        self.partition.sync()

    def read(self):
        """Everything that there is; the names of the frames of stream 1."""
        return [name for name, id in self.consumer.read_all() if id == 1]


@pytest.fixture
def made():
    return Made()


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
    monkeypatch.setattr(disk_part, "CHUNK_BYTES", 1)
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


def test_few_chunks_are_in_memory_at_a_time(monkeypatch):
    monkeypatch.setattr(rounds, "LOADS_MAX", 2)
    made = Made()
    made.put((b"a", b"1"))
    made.partition.flush()
    for id in range(1, 6):
        made.open(id=id)
    made.consumer.read()
    assert len(made.consumer.loads) == 2
    made.rounds.close(1, EndReason.CLOSED)
    made.consumer.read()
    assert len(made.consumer.loads) == 3, "who is gone gives its place to another"
    made.consumer.read_all()
    assert {made.held(id).seq for id in range(2, 6)} == {1}


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
    made.rounds.window_bytes = 1
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
    made.rounds.window_bytes = 0  # it is slow
    made.put((b"k", None), (b"x", b"3"))
    made.partition.flush()
    made.partition.fold(purge_before_us=1)
    assert made.partition.purge_seq == 2
    made.rounds.window_bytes = 1 << 30
    assert made.read() == [ENDED]
    assert made.held().end.reason is EndReason.PURGED
    assert made.held().state == {b"k": b"1"}


def test_hazard_12_a_purge_of_what_a_stream_holds_in_memory_ends_it_when_it_lets_go(made, monkeypatch):
    """The snapshot began before the purge, so its start could not tell."""
    monkeypatch.setattr(partition_stream, "HELD_BYTES_MAX", 500)
    made.put((b"k", b"1"))
    made.open()
    made.read()
    made.rounds.window_bytes = 1
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
    made.rounds.window_bytes = 0
    made.put((b"k", None))
    made.partition.flush()
    made.partition.fold(purge_before_us=1)
    made.rounds.window_bytes = 1 << 30
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
    made.consumer.on_returned = lambda opcode, cookie: came.append((opcode, cookie, made.held().state[b"k"]))
    made.put((b"k", b"1"), (b"x", bytes(300)))
    made.rounds.window_bytes = 0
    made.open()
    made.rounds.barrier(b"cookie")
    made.put((b"y", bytes(300)), (b"k", b"4"))
    made.partition.flush()
    assert made.partition.fold().blocks > 1
    made.rounds.window_bytes = 1 << 30
    made.read()
    assert came == [(Opcode.BARRIER_REACHED, b"cookie", b"4")]


def test_a_barrier_comes_back_where_the_last_rows_were_purged(made):
    came = []
    made.consumer.on_returned = lambda opcode, cookie: came.append(opcode)
    made.put((b"x", b"1"), (b"k", None))
    made.partition.flush()
    made.partition.fold(purge_before_us=1)
    made.open()
    made.rounds.barrier(b"cookie")
    assert made.read() == [START, BLOCK, END]
    assert came == [Opcode.BARRIER_REACHED]


# Letting go of memory


@pytest.fixture
def slow(made, monkeypatch):
    """A stream that has sent 2 of 10 blocks of a snapshot, and has no room for more."""
    monkeypatch.setattr(partition_stream, "HELD_BYTES_MAX", 600)
    for number in range(10):
        made.put((b"%d" % (number % 4), bytes(100)))
    made.rounds.window_bytes = 300
    made.open()
    made.consumer.read()
    assert made.held().seq == 2
    return made


def test_a_slow_stream_gives_memory_back_after_a_flush(slow):
    stream = slow.rounds.streams[1]
    slow.partition.flush()
    assert not stream._blocks
    assert slow.news
    assert slow.partition.account.used == slow.partition.tree.memory_bytes
    slow.rounds.window_bytes = 1 << 30
    slow.read()
    assert slow.held().starts == [(0, 10, True), (0, 10, True)]
    assert slow.held().state == slow.partition.state_at(10)


def test_it_keeps_what_is_not_flushed(slow):
    slow.put((b"new", b"1"))
    slow.partition.flush(9)
    stream = slow.rounds.streams[1]
    assert [block.header.first_seq for block in stream._blocks] == [10]
    slow.rounds.window_bytes = 1 << 30
    slow.read()
    assert slow.held().starts == [(0, 10, True), (0, 10, True), (10, 11, True)]


def test_little_is_not_let_go_of(slow):
    slow.partition.flush(4)
    assert len(slow.rounds.streams[1]._blocks) == 8
    slow.partition.flush(9)
    assert len(slow.rounds.streams[1]._blocks) == 1


def test_what_was_folded_meanwhile_is_told_to_be_incomplete(slow):
    slow.partition.flush(4)
    slow.partition.fold()
    slow.partition.flush()
    slow.rounds.window_bytes = 1 << 30
    slow.read()
    assert slow.held().starts[0] == (0, 10, True)
    assert len(slow.held().starts) == 2
    assert slow.held().state == slow.partition.state_at(10)


def test_who_has_sent_nothing_yet_is_told_of_the_purge_when_it_lets_go(made, monkeypatch):
    monkeypatch.setattr(partition_stream, "HELD_BYTES_MAX", 500)
    made.put((b"k", b"1"), (b"k", None), (b"x", b"3"))
    stream = made.open()
    stream.begin_snapshot()
    made.rounds._announce(stream)
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
    trimmed.rounds.barrier(b"cookie")
    assert trimmed.read() == [START, END]
    assert trimmed.held().seq == 7
    assert not trimmed.rounds.barriers
    trimmed.put((b"d", b"8"))
    trimmed.read()
    assert trimmed.held().state == {b"d": b"8"}


def test_a_trim_of_what_a_stream_holds_ends_it_when_it_lets_go(made, monkeypatch):
    monkeypatch.setattr(partition_stream, "HELD_BYTES_MAX", 0)
    made.rounds.window_bytes = 1
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
    assert end.reason is EndReason.ERROR
    assert damaged.path in end.message
    assert "damaged at offset 64" in end.message
    assert made.held(2).seq == 2
    assert len(made.consumer.failures) == 1
    assert not made.partition.pins._readers


def test_a_segment_that_could_not_be_opened_ends_who_has_to_read_it(made):
    made.put((b"a", b"1"))
    segment = made.partition.flush()
    error = SegmentDamaged(segment.path, 7, "it is gone")
    made.partition.chain = Chain([LostSegment(segment.identity, segment.nbytes, error)])
    made.put((b"b", b"2"))
    made.open(id=1)
    made.open(1, id=2)
    assert made.read() == [START, ENDED]
    assert made.held(1).end.reason is EndReason.ERROR
    assert f"{segment.path} is damaged at offset 7" in made.held(1).end.message
    assert made.held(2).seq == 2
