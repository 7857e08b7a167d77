"""Streams of a partition that is published to, merged and flushed at any moment: nobody stands inside a publish."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.tailrace_server.stored import StoredPartition
from tests.tiers import examples

from tailrace.block import encode_block
from tailrace.model import Level
from tailrace.model.failover import FailoverLog
from tailrace.wire.frames import FrameDecoder
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stage_messages import SinksTold
from tailrace_server.blocks import cut_above
from tailrace_server.partition import published as appending
from tailrace_server.partition.replica_apply import apply_batch, apply_block, apply_sinks, follow_log
from tailrace_server.state.last_batches import LastBatch
from tailrace_server.stream import partition_stream
from tailrace_server.stream.partition_stream import PartitionStream
from tailrace_server.stream.replication_stream import ReplicationStream
from tailrace_server.tree import tree as tree_module

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 3)),
        st.tuples(st.just("publish"), st.lists(st.integers(1, 3), min_size=1, max_size=5)),
        st.tuples(st.sampled_from(["merge", "flush", "fold", "read"]), st.none()),
    ),
    max_size=40,
)


class RecordingJournal:
    """Takes records, and remembers nothing."""

    def append_published(self, feed_id, partition, branch, covered, bodies):
        return 1

    def append_block(self, *arguments):
        return 1

    append = append_block

    @staticmethod
    def file_of(place):
        return 1


class Published(StoredPartition):
    """A partition, with all runs that it ever had."""

    def __init__(self):
        super().__init__()
        self.all_runs = []
        self.batches = 0
        self.journal = RecordingJournal()

    def do(self, step, what):
        match step:
            case "write":
                self.write(rows=what)
                self.sync()
            case "publish":
                blocks = [encode_block([b"k"] * rows, [b"v"] * rows, partition=0, compress=False) for rows in what]
                after_seq = self.high_seq
                appending.publish(self, blocks, "job", self.batches, "job", self.journal, now_us=1)
                self.batches += 1
                self.all_runs.append((after_seq, self.high_seq))
                self.sync()
            case "merge":
                self.replace_tree(self.tree.merge_aged(self.durable_seq, self.merge_cuts))
            case "flush":
                self.flush()
            case "fold":
                if len(self.chain.segments) > 1:
                    self.fold()
        self.check()

    def is_inside(self, seq):
        return any(after < seq < last for after, last in self.all_runs)


@pytest.fixture(autouse=True)
def _small_bounds(monkeypatch):
    """So that trees have chunks, and snapshots ends, after a few blocks."""
    monkeypatch.setattr(tree_module, "CHUNK_BLOCKS_MAX", 4)
    monkeypatch.setattr(partition_stream, "SNAPSHOT_BLOCKS_MAX", 2)


def read_snapshot(stream):
    """The blocks of the next snapshot, loaded where they are in a segment."""
    stream.begin_snapshot()
    found = []
    while not stream.all_sent:
        part = stream.cursor_to_load
        if part is not None:
            part.loaded(*part.load())
        block = stream.next_block()
        if block is not None:
            found.append(block)
    return found


@settings(max_examples=examples(150))
@given(STEPS)
def test_a_consumer_never_stands_inside_a_publish(steps):
    partition = Published()
    stream = PartitionStream(1, partition, Level.DISK, 0, None, 0, pins=partition.pins)
    for step, what in steps:
        partition.do(step, what)
        for segment in partition.chain.segments:
            assert not partition.is_inside(segment.identity.last_seq)
        if step == "read":
            while stream.has_news:
                blocks = read_snapshot(stream)
                if stream.is_complete:
                    assert not any(partition.is_inside(block.header.last_seq) for block in blocks)
                stream.end_snapshot()
                assert not partition.is_inside(stream.delivered_seq)
    if partition.tree.block_count:
        for block in partition.tree.blocks_after(0):
            # Whoever asks for an end inside of a publish gets the whole of it.
            ended = PartitionStream(2, partition, Level.DISK, 0, block.header.last_seq, 0, pins=partition.pins)
            while ended.has_news:
                read_snapshot(ended)
                ended.end_snapshot()
            assert not partition.is_inside(ended.delivered_seq)


def frames_of(stream):
    """What a replica is told before the end of a snapshot: the last batches, None where it is not told."""
    frames = FrameDecoder().receive_data(b"".join(stream.before_end()))
    told = [SinksTold.decode(frame.body) for frame in frames if frame.opcode is Opcode.SINKS]
    return told[0] if told else None


@settings(max_examples=examples(150))
@example([("write", 1), ("read", None), ("write", 1), ("publish", [1, 1]), ("merge", None)])
@given(STEPS)
@example([*[("write", 1)] * 15, ("read", None), ("write", 1), ("merge", None)])
@example([*[("write", 1)] * 15, ("read", None), ("publish", [1]), ("merge", None)])
def test_a_replica_has_the_last_batches_wherever_it_stands(steps):
    """It takes what it is sent as a node does; where it could crash, rows and last batches agree."""
    partition, replica, journal = Published(), StoredPartition(1), RecordingJournal()
    replica.id, replica.log = partition.id, FailoverLog()
    follow_log(replica, partition.log, journal)

    def check():
        batches = [index for index, (_, last) in enumerate(partition.all_runs) if last <= replica.high_seq]
        last = replica.sinks.find("job")
        assert (-1 if last is None else last.batch) == max(batches, default=-1)
        assert not partition.is_inside(replica.high_seq)

    def follow():
        stream = ReplicationStream(
            1, partition, Level.MEMORY, replica.high_seq, None, replica.high_seq, pins=partition.pins, now=float
        )
        for frame in FrameDecoder().receive_data(b"".join(stream.at_start())):
            told = SinksTold.decode(frame.body)
            apply_sinks(replica, told.value, told.seq, journal)
        while stream.has_news:
            blocks = read_snapshot(stream)
            stream.end_snapshot()
            if blocks:  # merged, the first one may begin with what the replica has
                blocks[0] = cut_above(blocks[0], replica.high_seq)
            if stream.is_complete:
                for block in blocks:
                    apply_block(replica, block, journal, 0.0)
                    check()
            told = frames_of(stream)
            if told is not None:
                assert told.seq == stream.snapshot_last
                apply_sinks(replica, told.value, told.seq, journal)
            if stream.is_published:
                assert blocks[-1].header.last_seq == stream.snapshot_last
                apply_batch(replica, blocks, journal, 0.0)
            elif not stream.is_complete:  # a segment of its own
                fill(replica, stream.snapshot_last)
            check()
            replica.check()

    for step, what in steps:
        partition.do(step, what)
        if step == "read":
            follow()
    follow()
    assert replica.high_seq == partition.high_seq
    assert replica.sinks.as_of(replica.high_seq) == partition.sinks.as_of(partition.high_seq)


def fill(replica, last_seq):
    """As a run that was written past the tree: the rows are not looked at here."""
    replica.tree = type(replica.tree)(last_seq)
    replica.published.drop_through(last_seq)
    replica.high_seq = replica.durable_seq = last_seq
    replica.keys.drop_through(last_seq)
    replica.adopt_expected()


def test_a_publish_of_one_block_is_a_snapshot_of_its_own_to_a_replica():
    partition = Published()
    partition.do("write", 1)
    partition.do("publish", [2])
    partition.do("write", 1)
    stream = ReplicationStream(1, partition, Level.MEMORY, 0, None, 0, pins=partition.pins, now=float)
    ends = []
    while stream.has_news:
        read_snapshot(stream)
        stream.end_snapshot()
        told = frames_of(stream)
        value = None if told is None else {sink: LastBatch(*last) for sink, last in told.value.items()}
        ends.append((stream.snapshot_last, stream.is_published, value))
    assert ends == [(1, False, None), (3, True, {"job": LastBatch(0, "job", 3)}), (4, False, None)]
