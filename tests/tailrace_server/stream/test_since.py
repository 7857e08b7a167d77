"""Where a stream begins that is asked for since a time: against a list of all rows, and damage."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tailrace_server.stored import StoredPartition
from tests.tiers import examples

from tailrace.errors import DataGone
from tailrace.model import Level
from tailrace_server.partition.chain import Chain, LostSegment
from tailrace_server.segment import SegmentDamaged
from tailrace_server.stream.partition_stream import PartitionStream
from tailrace_server.stream.rounds import Rounds
from tailrace_server.stream.since import DroppedBefore, StreamStart, checked_start, find_start, find_start_in


class StampedPartition(StoredPartition):
    """Knows when each row was stamped, ``stamps[0]`` that of seq 1."""

    def __init__(self, history=False):
        super().__init__()
        self.stamps = []
        self.history = history

    def write_at(self, timestamp, *rows):
        self.put(*rows, timestamp=timestamp)
        self.stamps += [timestamp] * len(rows)

    def present(self):
        """(seq, timestamp) of every row that is there."""
        blocks = [
            block for segment in self.chain.segments for n in range(segment.blocks) for block in [segment.read_block(n)]
        ]
        columns = [block.open_columns() for block in (*blocks, *self.tree.blocks_after(0))]
        return [row for c in columns for row in zip(c.seqs(), c.timestamps(), strict=True)]

    def purged(self):
        """Seqs of rows that are missing, though nothing newer of their key is there, nor was."""
        there = {seq for seq, _ in self.present()}
        last = {key: seq for seq, (key, _) in enumerate(self.rows, 1)}
        return [seq for seq in last.values() if seq not in there and seq > self.trim_seq]

    def begin(self, since_us, bounds=None):
        """Where a stream begins. DataGone."""
        found = find_start(self, since_us)
        start = found if isinstance(found, StreamStart) else find_start_in(found, since_us)
        return checked_start(self, start, since_us, bounds or DroppedBefore())


_row = st.tuples(st.sampled_from([b"a", b"b", b"c"]), st.sampled_from([b"v", None]))
_step = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 2), st.lists(_row, min_size=1, max_size=4)),
    st.just(("flush",)),
    st.just(("merge",)),
    st.tuples(st.just("fold"), st.integers(0, 2), st.integers(0, 3)),
    st.just(("trim",)),
)


@settings(max_examples=examples(300))
@given(steps=st.lists(_step, max_size=25), history=st.booleans(), since_us=st.integers(9, 18))
def test_everything_stamped_since_comes_or_it_is_said_that_it_is_gone(steps, history, since_us):
    partition, now = StampedPartition(history), 10
    for kind, *details in steps:
        if kind == "write":
            now += details[0]
            partition.write_at(now, *details[1])
            partition.sync()
        elif kind == "merge":
            partition.replace_tree(partition.tree.merge_aged(partition.durable_seq))
        elif kind == "flush":
            partition.flush()
        elif kind == "fold" and (partition.flush() or partition.chain.segments):
            first = min(details[0], len(partition.chain.segments) - 1)
            may_purge = first == 0 and not history and not partition.trim_seq
            partition.fold(first, purge_before_us=now - details[1] if may_purge else None, history=history)
        elif kind == "trim" and history and (partition.flush() or partition.chain.segments):
            partition.trim(1)
    present = partition.present()
    stamped = [seq for seq, timestamp in present if timestamp >= since_us]
    missing = [seq for seq in partition.purged() if partition.stamps[seq - 1] >= since_us]
    missing += [seq for seq in range(1, partition.trim_seq + 1) if partition.stamps[seq - 1] >= since_us]
    older = [seq for seq, timestamp in present if timestamp < since_us]
    if not missing:
        # Where all that is known is known, it is never said for nothing, nor by the stream itself afterwards.
        dropped = [partition.stamps[seq - 1] + 1 for seq in (partition.purge_seq, partition.trim_seq) if seq]
        bound = max(dropped, default=0)
        if since_us >= bound:
            start = partition.begin(since_us, DroppedBefore(bound, bound))
            assert all(seq > start.seq for seq in stamped)
            stream = PartitionStream(1, partition, Level.DISK, start.seq, None, 0, pins=partition.pins)
            assert not stream.is_purged
            assert not stream.is_trimmed
    try:
        start = partition.begin(since_us)
    except DataGone:
        gone_seq = max(partition.purge_seq, partition.trim_seq)
        assert gone_seq > max(older, default=0), "what was dropped lies below a row that is older than the time"
        return
    assert not missing
    assert all(seq > start.seq for seq in stamped)
    assert start.snapshot_first <= start.seq <= start.snapshot_last <= partition.flushed_seq or start == StreamStart.at(
        start.seq, start.known_seq
    )
    # What is older and comes even so is of one block of the tree, whose columns nobody has opened.
    unread = [seq for seq in older if seq > start.seq]
    assert not unread or partition.tree.find(unread[0]) is partition.tree.find(unread[-1]) is not None
    # Whoever begins there is given all of it.
    assert rows_of(partition, start) >= set(stamped)


def rows_of(partition, start):
    """The seqs that a consumer is given that begins at ``start``, and has nothing of its own."""
    rounds = Rounds(1 << 30)
    seqs = set()
    stream = PartitionStream(
        1, partition, Level.DISK, start.seq, partition.high_seq, start.snapshot_last, pins=partition.pins
    )
    rounds.open(stream, lambda: None)
    ends = []
    while stream.id in rounds.slots:
        stream.begin_snapshot()
        while (part := stream.cursor_to_load) is not None or not stream.all_sent:
            if part is not None:
                part.loaded(*part.load())
            block = stream.next_block()
            if block is not None:
                seqs |= {seq for seq in block.open_columns().seqs() if seq > start.seq}
        stream.end_snapshot()
        ends.append(stream.delivered_seq)
        if stream.at_end:
            rounds.close_all()
    assert not ends or ends[0] >= start.snapshot_last, "no snapshot ends inside the run"
    return seqs


def test_in_a_run_the_stream_begins_in_the_middle_and_knows_the_bounds():
    partition = StampedPartition()
    for timestamp in (10, 20, 30, 40):
        partition.write_at(timestamp, (b"k%d" % timestamp, b"v"), (b"k", b"v"))
    partition.sync()
    partition.flush(through=2)
    partition.flush()
    assert partition.begin(25) == StreamStart.at(4, 4)
    partition.fold()
    assert partition.begin(25) == StreamStart(3, 0, 8, 3)  # seq 4 is superseded
    assert partition.begin(10) == StreamStart.at(0, 0)
    assert partition.begin(40) == StreamStart(5, 0, 8, 5)
    assert partition.begin(41) == StreamStart.at(8, 8)


def test_deletions_that_are_known_to_be_older_do_not_matter():
    partition = StampedPartition()
    partition.write_at(10, (b"k", None))
    partition.sync()
    partition.flush()
    partition.fold(purge_before_us=10)
    partition.write_at(50, (b"l", b"v"))
    partition.sync()
    with pytest.raises(DataGone, match="purged up to seq 1") as raised:
        partition.begin(40)
    assert raised.value.first_seq == 2
    assert partition.begin(40, DroppedBefore(purged_before_us=30)) == StreamStart.at(1, 0)
    with pytest.raises(DataGone):
        partition.begin(29, DroppedBefore(purged_before_us=30))


def test_where_deletions_are_known_to_be_older_it_begins_behind_them():
    """It would be told to begin anew otherwise, as one that has not seen them."""
    partition = StampedPartition()
    partition.write_at(10, (b"k", b"v"), (b"l", None), (b"m", None))
    partition.write_at(50, (b"n", b"v"), (b"n", b"w"))
    partition.sync()
    partition.flush()
    partition.fold(purge_before_us=10)
    assert (partition.purge_seq, [seq for seq, _ in partition.present()]) == (3, [1, 5])
    assert partition.begin(40, DroppedBefore(purged_before_us=30)) == StreamStart(3, 0, 5, 1)
    stream = PartitionStream(1, partition, Level.DISK, 3, None, 5, pins=partition.pins)
    assert not stream.is_purged


def test_a_deletion_that_was_the_last_row_of_its_segment():
    """Between what is there from before and from after, nobody knows when it was."""
    partition = StampedPartition()
    partition.write_at(10, (b"k", b"v"))
    partition.write_at(20, (b"l", None))
    partition.sync()
    partition.flush()
    partition.fold(purge_before_us=20)
    partition.write_at(50, (b"m", b"v"))
    partition.sync()
    for since_us in (11, 20, 30, 50):
        with pytest.raises(DataGone):
            partition.begin(since_us)
    assert partition.begin(51) == StreamStart.at(3, 3)


def test_a_history_that_begins_later():
    partition = StampedPartition(history=True)
    for timestamp in (10, 20):
        partition.write_at(timestamp, (b"k", b"v"))
        partition.sync()
        partition.flush()
    partition.trim(1)
    with pytest.raises(DataGone, match="trimmed up to seq 1") as raised:
        partition.begin(15)
    assert raised.value.first_seq == 2
    assert partition.begin(15, DroppedBefore(trimmed_before_us=11)) == StreamStart.at(1, 0)
    assert partition.begin(21) == StreamStart.at(2, 2)


def test_many_blocks_are_bisected(monkeypatch):
    partition = StampedPartition()
    for timestamp in range(1_000):
        partition.write_at(timestamp, (b"%d" % timestamp, bytes(200)))
    partition.sync()
    segment = partition.flush()
    assert segment.blocks == 1_000
    reads = []
    read_block = segment.read_block
    monkeypatch.setattr(type(segment), "read_block", lambda self, number: reads.append(number) or read_block(number))
    assert partition.begin(700) == StreamStart.at(700, 700)
    assert len(reads) <= 11


def test_the_chunks_of_the_tree_are_bisected():
    partition = StampedPartition()
    for number in range(300):
        partition.write_at(number // 2, (b"k", b"v"))
    for since_us in range(1, 150):
        assert partition.tree.seq_before(since_us) == 2 * since_us
    assert partition.tree.seq_before(0) == 0


def test_a_segment_that_cannot_be_opened():
    partition = StampedPartition()
    partition.write_at(10, (b"k", b"v"))
    partition.write_at(20, (b"k", b"v"))
    partition.sync()
    segment = partition.flush()
    partition.chain = Chain([LostSegment(segment.identity, segment.nbytes, SegmentDamaged(segment.path, 0, "gone"))])
    with pytest.raises(SegmentDamaged, match="gone"):
        partition.begin(15)
    assert partition.begin(21) == StreamStart.at(2, 2)
