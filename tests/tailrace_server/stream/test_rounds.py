"""What a connection sends, read as a consumer would, against what its partitions hold."""

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.stateful import invariant, run_state_machine_as_test
from tests.tailrace_server.stream.consumer import Consumer
from tests.tailrace_server.stream.model import StreamsModel
from tests.tiers import examples

from tailrace.model import EndReason, Level
from tailrace.wire.filters import StreamFilter
from tailrace.wire.frames import FrameDecoder
from tailrace.wire.stream_messages import StreamEnd
from tailrace_server.stream import rounds
from tailrace_server.stream.partition_stream import PartitionStream
from tailrace_server.stream.rounds import Rounds


class RoundsModel(StreamsModel):
    """Nothing moves."""

    @invariant()
    def snapshots_are_whole_and_announced_once(self):
        for held in self.consumer.streams.values() if hasattr(self, "consumer") else ():
            assert all(complete for _, _, complete in held.starts)
            assert len({after for after, _, _ in held.starts}) == len(held.starts)


def test_model():
    run_state_machine_as_test(
        RoundsModel, settings=settings(max_examples=examples(150), stateful_step_count=30, deadline=None)
    )


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
    consumer = Consumer(connection)
    for id, slot in connection.slots.items():
        consumer.add(id, slot.stream.partition)

    def read():
        consumer.log.clear()
        consumer.read()
        return list(consumer.log)

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
    connection.set_window(1)
    partitions[2].write()
    partitions[2].write()
    assert read_all() == [(START, 3), (BLOCK, 3)]
    assert connection.window.is_full
    partitions[0].write()
    assert read_all() == []
    for expected in ([(BLOCK, 3), (END, 3)], [COMPLETE, *whole(1)], [COMPLETE]):
        connection.credit(1 << 20)
        assert read_all() == expected


def test_a_pass_goes_on_behind_a_stream_that_was_closed_in_its_turn(connection, partitions, read_all):
    connection.set_window(1)
    partitions[2].write()
    partitions[2].write()
    assert read_all() == [(START, 3), (BLOCK, 3)]
    for id in (0, 3):
        partitions[id].write()
    connection.close(3, EndReason.CLOSED)
    for expected in ([("STREAM_END", 3)], whole(4), [COMPLETE, *whole(1)], [COMPLETE]):
        assert read_all() == expected
        connection.credit(1 << 20)


def test_one_call_gives_a_few_turns(connection, partitions, monkeypatch):
    monkeypatch.setattr(rounds, "TURNS_MAX", 3)
    for partition in partitions:
        partition.write()
    connection.next_buffers(1 << 20)
    assert connection.turns_given == 3
    assert connection.has_news
    connection.next_buffers(1 << 20)
    assert connection.turns_given == 4
    assert not connection.has_news


def test_the_streams_of_a_feed_are_found_by_it(connection, partitions):
    feed_id = partitions[0].feed_id
    assert {slot.stream.id for slot in connection.slots_of(feed_id)} == {1, 2, 3, 4}
    assert connection.slots_of(b"another feed") == []
    connection.close(2, EndReason.CLOSED)
    assert {slot.stream.id for slot in connection.slots_of(feed_id)} == {1, 3, 4}
    assert connection.close_some(2)
    assert len(connection.slots_of(feed_id)) == 1
    assert not connection.close_some(2)
    assert connection.slots_of(feed_id) == []


def test_an_end_and_a_barrier_leave_though_the_window_is_full(connection, partitions, read_all):
    connection.set_window(1)
    partitions[1].write()
    read_all()
    connection.barriers.add(b"cookie")
    connection.close(3, EndReason.DRAINING, "bye")
    assert read_all() == [("BARRIER_REACHED", 0), ("STREAM_END", 3)]


def test_a_stream_that_drains_comes_to_the_end_of_its_snapshot_and_begins_none(connection, partitions, read_all):
    connection.set_window(1)
    partitions[2].write()
    partitions[2].write()
    assert read_all() == [(START, 3), (BLOCK, 3)]
    partitions[0].write()
    connection.drain("bye")
    partitions[2].write()
    assert sorted(read_all()) == [("STREAM_END", id) for id in (1, 2, 4)]
    connection.credit(1 << 20)
    assert read_all() == [(BLOCK, 3), (END, 3), ("STREAM_END", 3)]
    assert not connection.slots


def test_streams_of_feeds_and_partitions_that_are_gone_are_not_watched(connection, partitions):
    connection.close_all()
    for partition in partitions:
        partition.write()
        assert not partition.watchers.is_watched
    assert not connection.has_news


def test_a_stream_that_asks_for_no_more_than_it_has_ends_at_once(partitions):
    connection, calls = Rounds(1 << 30), []
    partitions[0].write()
    stream = PartitionStream(1, partitions[0], Level.MEMORY, 1, 1, 1, pins=partitions[0].pins)
    connection.open(stream, lambda: calls.append(1))
    assert calls
    assert StreamEnd.decode(FrameDecoder().receive_data(b"".join(connection.next_buffers(1)))[0].body).partition == 0
    assert not connection.slots


filters = st.sampled_from([None, StreamFilter(b"k"), StreamFilter(b"other"), StreamFilter(b"", True)])
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
            filters,
        ),
        st.tuples(st.just("close"), st.integers(1, 3)),
        st.tuples(st.just("barrier"), st.binary(min_size=1, max_size=2)),
        st.tuples(st.just("credit"), st.sampled_from([100, 1 << 30])),
        st.tuples(st.just("pump"), st.sampled_from([1, 300, 32_900, 1 << 20])),
    ),
    max_size=40,
)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)  # it is a class, and keeps nothing
@given(operations, st.sampled_from([1, 500, 1 << 30]), st.sampled_from([1, rounds.JOIN_BYTES_MAX]), filters)
def test_the_way_of_one_block_gives_the_bytes_of_the_general_one(make_partition, steps, window, join_bytes_max, first):
    """The same history twice, once without the short way: after each step both have sent the same and stand alike."""
    short, general = (OneSide(make_partition, window) for _ in range(2))
    general.rounds._only_block = lambda slot, bytes_max: []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "JOIN_BYTES_MAX", join_bytes_max)
        for step in [("open", 0, Level.DISK, 0, None, first), *steps, ("pump", 1 << 20)]:
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
        open_streams = [slot.stream for slot in made.slots.values()]
        streams = [(s.id, s.delivered_seq, s.snapshot_after, s.snapshot_last) for s in open_streams]
        counts = made.round_number, made.window.outstanding_bytes, made.examined_bytes
        return *counts, made.has_news, self.notified, streams

    def write(self, partition, rows, value_bytes):
        self.partitions[partition].write(rows, value_bytes)

    def sync(self, partition):
        self.partitions[partition].sync()

    def open(self, partition, level, after_seq, end_seq, wanted):
        held = self.partitions[partition]
        after_seq = min(after_seq, held.visible_seq(level))
        self.opened += 1
        stream = PartitionStream(self.opened, held, level, after_seq, end_seq, after_seq, pins=held.pins, wanted=wanted)
        self.rounds.open(stream, self.notify)

    def notify(self):
        self.notified += 1

    def close(self, stream_id):
        self.rounds.close(stream_id, EndReason.CLOSED)

    def barrier(self, cookie):
        self.rounds.barriers.add(cookie)

    def credit(self, consumed_bytes):
        self.rounds.credit(consumed_bytes)

    def pump(self, bytes_max):
        return b"".join(self.rounds.next_buffers(bytes_max))
