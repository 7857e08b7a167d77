"""What a connection sends, read as a consumer would, against what its partitions hold."""

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tailrace.block import Block
from tailrace.model import EndReason, Level
from tailrace.wire.frames import FrameDecoder
from tailrace.wire.messages import SnapshotStartMessage, StreamEnd, decode_number, decode_seq
from tailrace.wire.opcodes import Opcode
from tailrace_server.stream import partition_stream, rounds
from tailrace_server.stream.partition_stream import PartitionStream
from tailrace_server.stream.rounds import Rounds


class Reader:
    """A consumer of one connection: reads the frames, and asserts all that a consumer may rely on."""

    def __init__(self, connection):
        self.connection = connection
        self.decoder = FrameDecoder()
        self.seqs = {}  # stream id -> last seq delivered
        self.snapshots = {}  # stream id -> (after, last) while inside of one
        self.ended = {}  # stream id -> StreamEnd
        self.promised = {}
        self.returned = []  # (opcode, cookie)
        self.log = []  # (opcode name, stream id) in order
        self.turns = []  # partition ids of this pass, in order
        self.rounds = 0

    def read(self, bytes_max=1 << 20):
        """Reads what is sent next; the bytes of blocks in it."""
        buffers = self.connection.next_buffers(bytes_max)
        size = 0
        for frame in self.decoder.receive_data(b"".join(buffers)):
            self.log.append((frame.opcode.name, frame.id))
            if frame.opcode is Opcode.BLOCK:
                size += len(frame.body)
            self.receive(frame)
        assert not self.decoder.held_bytes
        return size

    def receive(self, frame):
        id = frame.id
        match frame.opcode:
            case Opcode.SNAPSHOT_START:
                start = SnapshotStartMessage.decode(frame.body)
                assert start.complete
                assert id not in self.snapshots
                assert start.after_seq == self.seqs[id] < start.last_seq
                assert start.last_seq >= self.promised.get(id, 0)
                self.snapshots[id] = start.last_seq
                self.take_turn(start.partition)
            case Opcode.BLOCK:
                block = Block.parse(frame.body)
                assert block.header.first_seq <= self.seqs[id] + 1, "something was left out"
                assert block.header.last_seq > self.seqs[id], "sent twice"
                self.seqs[id] = block.header.last_seq
                self.take_turn(block.header.partition)
            case Opcode.SNAPSHOT_END:
                _, seq = decode_seq(frame.body, "")
                assert seq == self.snapshots.pop(id) == self.seqs[id]
            case Opcode.STREAM_END:
                self.ended[id] = StreamEnd.decode(frame.body)
            case Opcode.ROUND_COMPLETE:
                self.rounds += 1
                assert decode_number(frame.body, "") == self.rounds
                self.turns.clear()
            case Opcode.BARRIER_REACHED | Opcode.BARRIER_LOST:
                self.returned.append((frame.opcode, bytes(frame.body), frame.id))

    def take_turn(self, partition):
        assert not self.turns or self.turns[-1] <= partition, "a pass goes in the order of partitions"
        self.turns.append(partition)


class RoundsModel(RuleBasedStateMachine):
    @initialize(window=st.sampled_from([1, 600, 1 << 30]), slice_bytes=st.sampled_from([1, 300, 1 << 20]))
    def start(self, window, slice_bytes):
        self.before = rounds.SLICE_BYTES, partition_stream.SNAPSHOT_BLOCKS_MAX
        rounds.SLICE_BYTES, partition_stream.SNAPSHOT_BLOCKS_MAX = slice_bytes, 3
        self.partitions = [self.make_partition(id) for id in range(3)]
        self.connection = Rounds(window)
        self.reader = Reader(self.connection)
        self.next_id = 1
        self.open = {}  # stream id -> stream
        self.sent = self.granted = 0
        self.cookies = []  # (cookie, {stream id: seq needed}) in the order of arrival
        self.checked = 0
        self.notified = False

    def notify(self):
        self.notified = True

    @rule(partition=st.integers(0, 2), rows=st.integers(1, 3), value_bytes=st.sampled_from([1, 200]))
    def write(self, partition, rows, value_bytes):
        self.partitions[partition].write(rows, value_bytes)

    @rule(partition=st.integers(0, 2))
    def sync(self, partition):
        self.partitions[partition].sync()

    @rule(
        partition=st.integers(0, 2),
        level=st.sampled_from([Level.MEMORY, Level.DISK]),
        end=st.none() | st.integers(0, 12),
        data=st.data(),
    )
    def open_stream(self, partition, level, end, data):
        held = self.partitions[partition]
        after = data.draw(st.integers(0, held.visible_seq(level)))
        promised = data.draw(st.sampled_from([after, held.visible_seq(level)]))
        stream = PartitionStream(self.next_id, held, level, after, end, promised, pins=held.pins)
        self.reader.seqs[stream.id] = after
        self.reader.promised[stream.id] = promised if end is None else 0
        self.open[stream.id] = stream
        self.next_id += 1
        self.connection.open(stream, self.notify)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def close_stream(self, data):
        self.connection.close(data.draw(st.sampled_from(sorted(self.open))), EndReason.CLOSED)

    @rule()
    def close_nothing(self):
        self.connection.close(4711, EndReason.CLOSED)

    @rule()
    def barrier(self):
        cookie = len(self.cookies).to_bytes(4, "big")
        needed = {
            id: stream.partition.high_seq if stream.end_seq is None else min(stream.partition.high_seq, stream.end_seq)
            for id, stream in self.open.items()
            if id in self.connection.streams
        }
        self.cookies.append((cookie, needed))
        self.connection.barrier(cookie)

    @rule(bytes_max=st.sampled_from([1, 500, 1 << 20]))
    def pump(self, bytes_max):
        self.sent += self.reader.read(bytes_max)
        self.check_returned()

    @rule(share=st.sampled_from([1, 2]))
    def credit(self, share):
        consumed = (self.sent - self.granted) // share
        self.granted += consumed
        self.connection.credit(consumed)

    def check_returned(self):
        for opcode, cookie, lost in self.reader.returned[self.checked :]:
            expected, needed = self.cookies[self.checked]
            assert cookie == expected, "out of the order of arrival"
            behind = {id for id, seq in needed.items() if self.reader.seqs[id] < seq}
            ended = {id for id in behind if id in self.reader.ended}
            if opcode is Opcode.BARRIER_REACHED:
                assert not behind, "a barrier came back early"
            else:
                assert any(
                    self.open[id].partition.id == lost and self.reader.ended[id].reason is EndReason.CLOSED
                    for id in ended
                )
            self.checked += 1

    @invariant()
    def the_window_is_kept(self):
        if hasattr(self, "connection"):
            largest = 96 + 3 * 250 + 100
            assert self.connection.outstanding_bytes == self.sent - self.granted
            assert self.connection.outstanding_bytes < self.connection.window_bytes + largest

    @invariant()
    def an_end_is_told_once_it_is_reached(self):
        if hasattr(self, "connection"):
            for id, end in self.reader.ended.items():
                assert id not in self.connection.streams
                if end.reason is EndReason.END_REACHED:
                    assert self.reader.seqs[id] >= self.open[id].end_seq
                    assert id not in self.reader.snapshots

    def teardown(self):
        if not hasattr(self, "connection"):
            return
        try:
            self.finish()
        finally:
            rounds.SLICE_BYTES, partition_stream.SNAPSHOT_BLOCKS_MAX = self.before

    def finish(self):
        for partition in self.partitions:
            partition.sync()
        for _ in range(1000):
            self.credit(1)
            before = len(self.reader.log)
            self.pump(1 << 20)
            if len(self.reader.log) == before:
                break
        assert not self.connection.has_news, "it never rests"
        assert self.checked == len(self.cookies), "a cookie did not come back"
        for id, stream in self.open.items():
            if id in self.connection.streams:
                assert self.reader.seqs[id] == stream.partition.high_seq
                assert stream.end_seq is None or stream.end_seq > stream.partition.high_seq
                assert id not in self.reader.snapshots


def test_model(make_partition):
    # Hypothesis makes the state machine itself, so that it cannot ask for the fixture.
    RoundsModel.make_partition = staticmethod(make_partition)
    run_state_machine_as_test(RoundsModel, settings=settings(max_examples=150, stateful_step_count=30, deadline=None))


@pytest.fixture
def partitions(make_partition):
    return [make_partition(id) for id in range(4)]


@pytest.fixture
def connection(partitions):
    """Streams 1 to 4 of partitions 0 to 3, opened in another order; everything is visible at once."""
    made = Rounds(1 << 30)
    for id in (2, 0, 3, 1):
        made.open(
            PartitionStream(id + 1, partitions[id], Level.MEMORY, 0, None, 0, pins=partitions[id].pins), lambda: None
        )
    return made


@pytest.fixture
def read_all(connection):
    """A function that reads what is sent now: (opcode, stream id) of each frame."""
    reader = Reader(connection)
    reader.seqs = {id: stream.delivered_seq for id, stream in connection.streams.items()}

    def read():
        reader.log.clear()
        reader.read()
        return list(reader.log)

    return read


START, BLOCK, END = "SNAPSHOT_START", "BLOCK", "SNAPSHOT_END"
COMPLETE = ("ROUND_COMPLETE", 0)


def whole(stream_id):
    return [(START, stream_id), (BLOCK, stream_id), (END, stream_id)]


def test_a_round_goes_over_those_with_news_in_the_order_of_their_ids(connection, partitions, read_all):
    for id in (3, 0, 1):
        partitions[id].write()
    assert read_all() == [*whole(1), *whole(2), *whole(4), COMPLETE]
    assert not connection.has_news
    assert connection.next_buffers(1 << 20) == []


def test_large_snapshots_take_turns_in_slices(connection, partitions, read_all, monkeypatch):
    monkeypatch.setattr(rounds, "SLICE_BYTES", 100)
    for id in (0, 2):
        for _ in range(2):
            partitions[id].write(value_bytes=100)
    assert read_all() == [
        *[(START, 1), (BLOCK, 1), (START, 3), (BLOCK, 3), COMPLETE],
        *[(BLOCK, 1), (END, 1), (BLOCK, 3), (END, 3), COMPLETE],
    ]


def test_a_turn_that_a_full_window_interrupts_goes_on_first(connection, partitions, read_all):
    connection.window_bytes = 1
    partitions[2].write()
    partitions[2].write()
    assert read_all() == [(START, 3), (BLOCK, 3)]
    assert connection.window_full
    partitions[0].write()
    assert read_all() == []
    for expected in ([(BLOCK, 3), (END, 3)], [COMPLETE, *whole(1)], [COMPLETE]):
        connection.credit(1 << 20)
        assert read_all() == expected


def test_an_end_and_a_barrier_leave_though_the_window_is_full(connection, partitions, read_all):
    connection.window_bytes = 1
    partitions[1].write()
    read_all()
    connection.barrier(b"cookie")
    connection.close(3, EndReason.DRAINING, "bye")
    assert read_all() == [("BARRIER_REACHED", 0), ("STREAM_END", 3)]


def test_streams_of_feeds_and_partitions_that_are_gone_are_not_watched(connection, partitions):
    connection.close_all()
    for partition in partitions:
        partition.write()
        assert not any(partition._watchers.values())
    assert not connection.has_news


def test_a_stream_that_asks_for_no_more_than_it_has_ends_at_once(partitions):
    connection, calls = Rounds(1 << 30), []
    partitions[0].write()
    stream = PartitionStream(1, partitions[0], Level.MEMORY, 1, 1, 1, pins=partitions[0].pins)
    connection.open(stream, lambda: calls.append(1))
    assert calls
    assert StreamEnd.decode(FrameDecoder().receive_data(b"".join(connection.next_buffers(1)))[0].body).partition == 0
    assert not connection.streams


operations = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 1), st.integers(1, 2), st.sampled_from([1, 200])),
        st.tuples(st.just("sync"), st.integers(0, 1)),
        st.tuples(
            st.just("open"),
            st.integers(0, 1),
            st.sampled_from([Level.MEMORY, Level.DISK]),
            st.integers(0, 4),
            st.none() | st.integers(0, 6),
        ),
        st.tuples(st.just("close"), st.integers(1, 3)),
        st.tuples(st.just("barrier"), st.binary(min_size=1, max_size=2)),
        st.tuples(st.just("credit"), st.sampled_from([100, 1 << 30])),
        st.tuples(st.just("pump"), st.sampled_from([1, 300, 1 << 20])),
    ),
    max_size=40,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # it is a class, and keeps nothing
@given(operations, st.sampled_from([1, 500, 1 << 30]), st.sampled_from([1, rounds.JOIN_BYTES_MAX]))
def test_the_way_of_one_block_gives_the_bytes_of_the_general_one(make_partition, steps, window, join_bytes_max):
    """The same history twice, once without the short way: after each step both have sent the same and stand alike."""
    short, general = (OneSide(make_partition, window) for _ in range(2))
    general.rounds._only_block = lambda stream, bytes_max: []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "JOIN_BYTES_MAX", join_bytes_max)
        for step in [("open", 0, Level.DISK, 0, None), *steps, ("pump", 1 << 20)]:
            assert short.do(*step) == general.do(*step)
            assert short.state() == general.state()


class OneSide:
    """Two partitions and a connection's rounds over them."""

    def __init__(self, make_partition, window):
        self.partitions = [make_partition(id) for id in range(2)]
        self.rounds = Rounds(window)
        self.notified = self.opened = 0

    def do(self, what, *arguments):
        """The bytes that come of it."""
        return getattr(self, what)(*arguments) or b""

    def state(self):
        made = self.rounds
        streams = [(s.id, s.delivered_seq, s.snapshot_after, s.snapshot_last) for s in made.streams.values()]
        return made.round_number, made.outstanding_bytes, made.has_news, self.notified, streams

    def write(self, partition, rows, value_bytes):
        self.partitions[partition].write(rows, value_bytes)

    def sync(self, partition):
        self.partitions[partition].sync()

    def open(self, partition, level, after_seq, end_seq):
        held = self.partitions[partition]
        after_seq = min(after_seq, held.visible_seq(level))
        self.opened += 1
        stream = PartitionStream(self.opened, held, level, after_seq, end_seq, after_seq, pins=held.pins)
        self.rounds.open(stream, self.notify)

    def notify(self):
        self.notified += 1

    def close(self, stream_id):
        self.rounds.close(stream_id, EndReason.CLOSED)

    def barrier(self, cookie):
        self.rounds.barrier(cookie)

    def credit(self, consumed_bytes):
        self.rounds.credit(consumed_bytes)

    def pump(self, bytes_max):
        return b"".join(self.rounds.next_buffers(bytes_max))
