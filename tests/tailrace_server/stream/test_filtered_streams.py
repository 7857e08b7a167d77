"""Filtered streams: what is announced, how far they come, and what a turn of theirs may cost."""

import pytest
from tests.tailrace_server.stored import StoredPartition

from tailrace.model import EndReason, Level
from tailrace.wire.filters import StreamFilter
from tailrace_server.stream import partition_stream, segment_cursor
from tailrace_server.stream.partition_stream import PartitionStream

START, BLOCK, END, ADVANCED, ENDED = "SNAPSHOT_START", "BLOCK", "SNAPSHOT_END", "SEQ_ADVANCED", "STREAM_END"
WANTED = StreamFilter(b"w/")


@pytest.fixture
def other():
    return StoredPartition(1)


def test_a_snapshot_in_which_nothing_matches_says_only_how_far_it_came(made):
    made.open(wanted=WANTED)
    made.put((b"a", b"1"), (b"b", b"2"))
    assert made.read() == [ADVANCED]
    assert made.held().advances == [2]
    made.put((b"w/a", b"3"))
    assert made.read() == [START, BLOCK, END]
    assert made.held().starts == [(2, 3, True)]


def test_a_snapshot_is_announced_with_the_first_block_that_matches(made):
    made.put((b"a", b"1"), (b"w/a", b"2"), (b"b", b"3"))
    made.open(wanted=WANTED)
    assert made.read() == [START, BLOCK, END]
    assert made.held().starts == [(0, 3, True)]
    assert made.held().state == {b"w/a": b"2"}


def test_keys_only_leaves_values_out_and_says_what_was_deleted(made):
    made.open(wanted=StreamFilter(keys_only=True))
    made.put((b"a", b"1"), (b"b", b"2"), (b"a", None))
    made.read()
    assert made.held().state == {b"b": b""}


def test_many_writes_that_do_not_match_are_one_word_a_pass(made):
    made.open(wanted=WANTED)
    for _ in range(100):
        made.put((b"a", b"1"))
    assert made.read() == [ADVANCED]
    assert made.held().advances == [100]


@pytest.mark.parametrize("chunk_bytes", [1, 1 << 20])
def test_segments_in_which_nothing_matches_are_told_of_one_by_one(made, monkeypatch, chunk_bytes):
    monkeypatch.setattr(segment_cursor, "CHUNK_BYTES", chunk_bytes)
    for _ in range(2):
        made.put((b"a", b"1"), (b"b", b"2"), (b"a", b"3"))
        made.partition.flush()
        made.partition.fold(len(made.partition.chain.segments) - 1)
    made.put((b"c", b"4"))
    made.open(wanted=WANTED)
    assert made.read() == [ADVANCED, ADVANCED, ADVANCED]
    assert made.held().advances == [3, 6, 7]


def test_a_consumer_that_begins_is_told_the_purge_seq_first(made):
    made.put((b"w/a", b"1"), (b"w/a", None), (b"b", b"2"), (b"c", b"3"))
    made.partition.flush()
    made.partition.fold(purge_before_us=1)
    made.open(wanted=WANTED)
    assert made.read() == [START, END]
    assert made.held().purge_seq == 2
    made.put((b"d", b"4"))
    assert made.read() == [ADVANCED]


@pytest.mark.parametrize("flushed", [False, True], ids=["tree", "segments"])
def test_a_consumer_is_not_told_of_what_was_purged_after_its_snapshot_was_taken(made, flushed, monkeypatch):
    monkeypatch.setattr(partition_stream, "EXAMINED_BYTES_MAX", 1)
    made.put((b"b", b"1"), (b"w/a", b"2"))
    if flushed:
        made.partition.flush()
    made.open(wanted=WANTED)
    made.consumer.read(1)  # the snapshot is taken, and nothing of it has matched so far
    made.put((b"w/a", None), (b"c", b"3"))
    made.partition.flush()
    made.partition.fold(purge_before_us=2)
    assert made.partition.purge_seq == 3
    assert made.read() == [START, BLOCK, END, ENDED]
    held = made.held()
    assert (held.seq, held.purge_seq, held.end.reason) == (2, 0, EndReason.PURGED)
    # It has w/a, whose deletion is gone: it must not go on from here, whatever it was told.
    made.open(2, id=2, purge_seq=held.purge_seq, wanted=WANTED)
    made.consumer.read_all()
    assert made.held(2).end.reason is EndReason.PURGED


def test_nothing_is_told_below_what_was_promised(made):
    made.put((b"w/a", b"1"), (b"a", b"2"), (b"b", b"3"), (b"c", b"4"))
    made.partition.flush(2)
    made.open(1, promised=4, wanted=WANTED)
    assert made.read() == [ADVANCED]
    assert made.held().advances == [4]


@pytest.mark.parametrize("later", [(), ((b"d", b"4"),)], ids=["one block", "two"])
@pytest.mark.parametrize("flushed", [False, True])
def test_a_part_of_a_block_that_the_consumer_has_is_not_sent_again(made, later, flushed):
    made.partition.put((b"w/a", b"1"), (b"b", b"2"), (b"c", b"3"))
    made.put(*later)
    made.partition.sync()
    if flushed:
        made.partition.flush()
    made.open(1, wanted=WANTED)
    assert made.read() == [ADVANCED]


def test_a_stream_ends_where_nothing_matches(made):
    made.open(end=2, wanted=WANTED)
    made.put((b"a", b"1"), (b"b", b"2"))
    assert made.read() == [ADVANCED, ENDED]
    assert made.held().end.reason is EndReason.END_REACHED


@pytest.mark.parametrize(("promised", "names"), [(0, [ADVANCED, ENDED]), (2, [ADVANCED, ENDED]), (3, [ENDED])])
def test_a_stream_that_ends_at_a_time_says_how_far_it_has_come(made, promised, names):
    for timestamp in (10, 20, 30):
        made.partition.put((b"a", b"1"), timestamp=timestamp)
    made.partition.sync()
    made.open(until_us=30, promised=promised, wanted=WANTED)
    assert made.read() == names
    assert made.held().advances == [2] * (len(names) - 1)
    assert made.held().end.reason is EndReason.END_REACHED


def test_a_stream_that_ends_at_a_time_after_a_match_says_only_that(made):
    for timestamp, key in ((10, b"a"), (20, b"w/a"), (25, b"b"), (30, b"c")):
        made.partition.put((key, b"1"), timestamp=timestamp)
    made.partition.sync()
    made.open(until_us=30, wanted=WANTED)
    assert made.read() == [START, BLOCK, ENDED]


def test_what_was_passed_over_counts_as_delivered_to_a_barrier(made):
    returned = []
    made.consumer.on_returned = lambda frame: returned.append(bytes(frame.body))
    made.open(wanted=WANTED)
    made.put((b"a", b"1"))
    made.rounds.barriers.add(b"cookie")
    made.consumer.read()
    assert [name for name, _ in made.consumer.log] == [ADVANCED, "BARRIER_REACHED", "ROUND_COMPLETE"]
    assert returned == [b"cookie"]


def test_a_barrier_need_not_wait_for_the_end_of_a_long_search(made, monkeypatch):
    monkeypatch.setattr(partition_stream, "EXAMINED_BYTES_MAX", 1)
    made.put((b"a", b"1"), (b"b", b"2"))
    made.open(wanted=WANTED)
    made.rounds.barriers.add(b"cookie")
    made.put((b"c", b"3"), (b"d", b"4"))
    names = []
    while ADVANCED not in names:
        made.consumer.read(1)
        names = [name for name, _ in made.consumer.log]
    assert names.index("BARRIER_REACHED") < names.index(ADVANCED)


def test_a_long_search_takes_turns_and_holds_up_neither_others_nor_a_barrier(made, other, monkeypatch):
    monkeypatch.setattr(partition_stream, "EXAMINED_BYTES_MAX", 1)
    returned = []
    made.consumer.on_returned = lambda frame: returned.append(bytes(frame.body))
    for _ in range(3):
        made.put((b"a", b"1"))
    made.open(wanted=WANTED)
    other.put((b"x", b"1"))
    other.sync()
    made.rounds.open(PartitionStream(2, other, Level.DISK, 0, None, 0, pins=other.pins), lambda: None)
    made.consumer.add(2, other)
    made.rounds.barriers.add(b"cookie")
    made.consumer.read_all()
    names = [name for name, _ in made.consumer.log]
    assert names[:4] == [START, BLOCK, END, "ROUND_COMPLETE"]
    assert names[4:] == ["ROUND_COMPLETE", ADVANCED, "BARRIER_REACHED", "ROUND_COMPLETE"]


def test_what_is_looked_through_counts_against_what_is_asked_for(made, monkeypatch):
    monkeypatch.setattr(partition_stream, "EXAMINED_BYTES_MAX", 1)
    for _ in range(3):
        made.put((b"a", b"1"))
    made.open(wanted=WANTED)
    for count in (1, 2):
        made.rounds.next_buffers(1)
        assert made.rounds.examined_bytes == count * partition_stream.EXAMINED_BLOCK_BYTES
        assert made.rounds.has_news


def test_a_snapshot_that_was_not_announced_moves_to_segments_without_a_word(made, monkeypatch):
    monkeypatch.setattr(partition_stream, "EXAMINED_BYTES_MAX", 1)
    monkeypatch.setattr(partition_stream, "HELD_BYTES_MAX", 0)
    for _ in range(3):
        made.put((b"a", b"1"))
    made.open(wanted=WANTED)
    made.consumer.read(1)
    made.partition.flush()
    assert made.read() == [ADVANCED]
    assert made.held().seq == 3
