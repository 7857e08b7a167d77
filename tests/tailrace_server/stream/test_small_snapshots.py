"""The short way of a replica's snapshot of a few blocks against the general one: the same bytes, and the same state."""

import hypothesis.strategies as st
from hypothesis import HealthCheck, example, given, settings
from tests.tailrace_server.stored import StoredPartition
from tests.tiers import examples

from tailrace.block import encode_block
from tailrace.model import EndReason, Level
from tailrace_server.state.recent_traces import RecentTraces
from tailrace_server.stream.replication_stream import ReplicationStream
from tailrace_server.stream.rounds import Rounds

PARTITIONS = 3
partition_ids = st.integers(0, PARTITIONS - 1)
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("write"), partition_ids, st.integers(1, 3), st.sampled_from([1, 200, 40_000]), st.integers(0, 2)
        ),
        st.tuples(st.just("write"), partition_ids, st.integers(1, 3), st.just(1), st.just(1)),
        st.tuples(st.just("fill"), partition_ids, st.integers(1, 130)),
        st.tuples(st.just("sync"), partition_ids),
        st.tuples(st.just("flush"), partition_ids),
        st.tuples(st.just("open"), partition_ids, st.integers(0, 6), st.booleans()),
        st.tuples(st.just("close"), st.integers(1, 4)),
        st.tuples(st.just("barrier"), st.binary(min_size=1, max_size=2)),
        st.tuples(st.just("credit"), st.sampled_from([100, 1_000, 1 << 30])),
        st.tuples(st.just("credit_stream"), st.integers(1, 4), st.sampled_from([100, 1 << 30])),
        st.tuples(st.just("drain")),
        st.tuples(st.just("trace")),
        st.tuples(st.just("pump"), st.sampled_from([1, 300, 1 << 20])),
    ),
    max_size=40,
)
PUMP = ("pump", 1 << 20)


class OneSide:
    """Partitions, and the rounds of a replica's connection over them."""

    def __init__(self, window):
        self.partitions = [StoredPartition(id) for id in range(PARTITIONS)]
        self.rounds = Rounds(window)
        self.notified = self.opened = self.written = 0
        self.traces = RecentTraces()

    def do(self, what, *arguments):
        """The bytes that come of it."""
        return getattr(self, what)(*arguments) or b""

    def state(self):
        made = self.rounds
        slots = [(slot.state, slot.under_way_bytes, slot.flushed_bytes) for slot in made.slots.values()]
        streams = [
            (s.id, s.delivered_seq, s.sent_seq, s.snapshot_after, s.snapshot_last, s.has_news, s.all_sent)
            for s in (slot.stream for slot in made.slots.values())
        ]
        window = made.window
        counts = made.round_number, window.outstanding_bytes, window.sent_blocks, window.sent_bytes, made.turns_given
        return counts, made.has_news, made.waits_for_credit, self.notified, slots, streams

    def write(self, partition, rows, value_bytes, producer_id):
        """A block of so many rows; producer 0: a merged one."""
        held = self.partitions[partition]
        self.written += 1
        values = [bytes(value_bytes)] * rows
        block = encode_block(
            [b"k"] * rows,
            values,
            partition=partition,
            producer_id=producer_id,
            producer_seq=self.written,
            compress=False,
        )
        held.hang_recovered(block.stamped(held.high_seq + 1, 1))

    def fill(self, partition, blocks):
        for _ in range(blocks):
            self.write(partition, 1, 1, 1)

    def sync(self, partition):
        self.partitions[partition].sync()

    def flush(self, partition):
        self.partitions[partition].flush()

    def open(self, partition, after_seq, is_credited):
        held = self.partitions[partition]
        self.opened += 1
        after_seq = min(after_seq, held.high_seq)
        stream = ReplicationStream(
            *(self.opened, held, Level.MEMORY, after_seq, None, after_seq),
            pins=held.pins,
            now=lambda: 0.0,
            is_credited=is_credited,
        )
        stream.at_start()
        self.rounds.open(stream, self.notify)

    def notify(self):
        self.notified += 1

    def close(self, stream_id):
        self.rounds.close(stream_id, EndReason.CLOSED)

    def barrier(self, cookie):
        self.rounds.barriers.add(cookie)

    def credit(self, consumed_bytes):
        self.rounds.credit(consumed_bytes)

    def credit_stream(self, stream_id, consumed_bytes):
        self.rounds.credit_stream(stream_id, consumed_bytes)

    def drain(self):
        self.rounds.drain("bye")

    def trace(self):
        self.rounds.send_traces(self.traces)

    def pump(self, bytes_max):
        sent = b"".join(self.rounds.next_buffers(bytes_max))
        for slot, part in self.rounds.next_loads():
            self.rounds.loaded(slot, part, *part.load(1 << 20))
        return sent


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=examples(300), deadline=None)
@given(steps, st.sampled_from([1, 500, 3_000, 1 << 30]))
@example(
    [("open", 0, 0, False), PUMP, ("write", 0, 1, 1, 1), ("write", 1, 1, 1, 1), PUMP, ("fill", 0, 3), PUMP], 1 << 30
)
def test_the_short_way_gives_the_bytes_of_the_general_one(history, window):
    """The same history twice, once without the short way: after each step both have sent the same and stand alike."""
    short, general = OneSide(window), OneSide(window)
    general.rounds._send_few = lambda slot, stream: 0
    opened = [("open", id, 0, id == 1) for id in range(PARTITIONS)]
    for step in [*opened, *history, PUMP, ("credit", 1 << 30), PUMP]:
        assert short.do(*step) == general.do(*step)
        assert short.state() == general.state()


def test_a_few_blocks_of_several_partitions_take_the_short_way():
    made = OneSide(1 << 30)
    sent = []
    send_few = made.rounds._send_few
    made.rounds._send_few = lambda slot, stream: sent.append(send_few(slot, stream)) or sent[-1]
    for id in range(PARTITIONS):
        made.open(id, 0, True)
        made.fill(id, 1)
    made.pump(1 << 20)
    assert sent == [0, 0, 0], "the replica has no last batches yet"
    sent.clear()
    for id in range(PARTITIONS):
        made.fill(id, 2)
    made.pump(1 << 20)
    assert len(sent) == 3
    assert all(sent)
    made.write(0, 1, 1, 0)
    made.write(1, 1, 70_000, 1)
    sent.clear()
    made.pump(1 << 20)
    assert sent == [0, 0], "a merged block, and one that is not small"
