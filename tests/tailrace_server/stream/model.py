"""The streams of a connection against a model: whatever happens meanwhile, a consumer has the partition's state."""

from __future__ import annotations

import random

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.tailrace_server.stored import StoredPartition
from tests.tailrace_server.stream.consumer import Consumer
from tests.tailrace_server.stream.slots import check_slots

from tailrace.model import EndReason, Level
from tailrace.wire.filters import EVERYTHING, StreamFilter
from tailrace.wire.opcodes import Opcode
from tailrace_server.stream import chunk_reads, partition_stream, rounds, segment_cursor
from tailrace_server.stream.filter import FilterCache
from tailrace_server.stream.partition_stream import PartitionStream
from tailrace_server.stream.rounds import Rounds

PARTITIONS = 3
KEYS = [b"a", b"ab", b"c", b"d"]
FILTERS = [EVERYTHING, StreamFilter(b"a"), StreamFilter(b"ab", True), StreamFilter(b"", True), StreamFilter(b"z")]
BOUNDS = {
    rounds: {"SLICE_BYTES": [1, 300, 1 << 20]},
    chunk_reads: {"LOADS_MAX": [1, 8]},
    partition_stream: {
        "SNAPSHOT_BLOCKS_MAX": [2, 3, 100],
        "HELD_BYTES_MAX": [0, 300],
        "EXAMINED_BYTES_MAX": [1, 40_000],
    },
    segment_cursor: {"CHUNK_BYTES": [1, 400, 1 << 20]},
}
WHENEVER = {"which": st.integers(0, PARTITIONS - 1)}


class StreamsModel(RuleBasedStateMachine):
    """Partitions that are written to, and a connection that streams them. ``is_replica``: to a replica."""

    is_replica = False

    @initialize(window=st.sampled_from([1, 600, 1 << 30]), seed=st.integers(0, 1 << 20))
    def start(self, window, seed):
        self.make(window, seed)

    def make(self, window, seed):
        rnd = random.Random(seed)
        self.before = [(module, name, getattr(module, name)) for module, names in BOUNDS.items() for name in names]
        for module, names in BOUNDS.items():
            for name, choices in names.items():
                setattr(module, name, rnd.choice(choices))
        self.partitions = [StoredPartition(id) for id in range(PARTITIONS)]
        self.rounds = Rounds(window)
        self.filtered = FilterCache()
        self.consumer = Consumer(self.rounds)
        self.consumer.on_returned = self.returned
        self.opened = {}
        self.cookies = []  # {stream id: seq needed} in the order of arrival
        self.back = self.sent = self.granted = self.written = 0

    def held(self, id):
        return self.consumer.streams[id]

    # What happens to partitions

    @rule(
        **WHENEVER,
        keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4),
        puts=st.booleans(),
        value_bytes=st.sampled_from([4, 150]),
    )
    def write(self, which, keys, puts, value_bytes):
        self.written += 1
        value = self.written.to_bytes(4, "big").ljust(value_bytes, b".") if puts else None
        self.partitions[which].put(*((key, value) for key in keys))

    @rule(**WHENEVER)
    def sync(self, which):
        self.partitions[which].sync()

    # What happens to streams

    @rule(
        **WHENEVER,
        level=st.sampled_from([Level.MEMORY, Level.DISK]),
        end=st.none() | st.integers(0, 30),
        place=st.floats(0, 1),
        promised_place=st.none() | st.floats(0, 1),
        wanted=st.sampled_from(FILTERS),
    )
    def open_stream(self, which, level, end, place, promised_place, wanted):
        """At 0, or where a consumer may be that was told of all that was purged."""
        partition, id = self.partitions[which], len(self.opened) + 1
        seq = int(place * partition.visible_seq(level))
        if seq < partition.purge_seq:
            seq = 0
        promised = seq if promised_place is None else seq + int(promised_place * (partition.high_seq - seq))
        stream = PartitionStream(
            id,
            partition,
            level,
            seq,
            end,
            promised,
            pins=partition.pins,
            wanted=None if wanted == EVERYTHING else wanted,
            filtered=self.filtered,
        )
        self.consumer.add(id, partition, seq, promised=promised, wanted=wanted)
        self._open(stream)

    def _open(self, stream):
        stream.is_credited = self.is_replica
        self.opened[stream.id] = stream
        self.rounds.open(stream, lambda: None)

    @rule()
    def resume(self):
        """Those that were ended as purged, and that what they were told lets go on."""
        for held in list(self.consumer.streams.values()):
            if held.end is None or held.end.reason is not EndReason.PURGED or held.snapshot or not held.seq:
                continue
            held.end, partition, id = held.end._replace(reason=EndReason.CLOSED), held.partition, len(self.opened) + 1
            if held.seq < partition.purge_seq != held.purge_seq or held.seq < partition.trim_seq:
                continue
            promised = max(held.seq, held.purge_seq or 0)
            wanted = None if held.wanted == EVERYTHING else held.wanted
            stream = PartitionStream(
                id,
                partition,
                Level.DISK,
                held.seq,
                None,
                promised,
                pins=partition.pins,
                purge_seq=held.purge_seq,
                wanted=wanted,
                filtered=self.filtered,
            )
            self.consumer.add(id, partition, held.seq, promised=promised, state=held.state, wanted=held.wanted)
            self._open(stream)

    @precondition(lambda self: self.opened)
    @rule(data=st.data())
    def close_stream(self, data):
        self.rounds.close(data.draw(st.sampled_from(sorted(self.opened))), EndReason.CLOSED)

    @rule()
    def close_nothing(self):
        self.rounds.close(4711, EndReason.CLOSED)

    @rule()
    def barrier(self):
        needed = {}
        for id, slot in self.rounds.slots.items():
            high_seq, end_seq = slot.stream.partition.high_seq, slot.stream.end_seq
            needed[id] = high_seq if end_seq is None else min(high_seq, end_seq)
        self.cookies.append(needed)
        self.rounds.barriers.add(len(self.cookies).to_bytes(4, "big"))

    def returned(self, frame):
        self.back += 1
        assert int.from_bytes(frame.body, "big") == self.back, "out of the order of arrival"
        needed = self.cookies[self.back - 1].items()
        if frame.opcode is Opcode.BARRIER_REACHED:
            early = [id for id, seq in needed if self.held(id).lacks_any_up_to(seq)]
            assert not early, "a barrier came back early"
        else:
            behind = [self.held(id) for id, seq in needed if self.held(id).stood < seq]
            ended = [held for held in behind if held.partition.id == frame.id and held.end is not None]
            assert any(held.end.reason is not EndReason.END_REACHED for held in ended)

    @rule(bytes_max=st.sampled_from([1, 500, 1 << 20]))
    def pump(self, bytes_max):
        self.sent += self.consumer.read(bytes_max)

    @precondition(lambda self: self.consumer.loads)
    @rule(data=st.data())
    def load(self, data):
        self.consumer.load(data.draw(st.integers(0, len(self.consumer.loads) - 1)))

    @rule(share=st.sampled_from([1, 2]))
    def credit(self, share):
        consumed = (self.sent - self.granted) // share
        self.granted += consumed
        self.rounds.credit(consumed)

    @precondition(lambda self: self.consumer.uncredited)
    @rule(share=st.sampled_from([1, 2]))
    def credit_streams(self, share):
        self.consumer.credit_streams(share)

    # What has to be

    @invariant()
    def partitions_are_well(self):
        for partition in getattr(self, "partitions", ()):
            partition.check()
            assert partition.account.used == partition.tree.memory_bytes

    @invariant()
    def slots_are_as_their_states_say(self):
        if hasattr(self, "rounds"):
            check_slots(self.rounds)
            ended = [slot for slot, _ in self.consumer.loads if slot.stream.id not in self.rounds.slots]
            held = sum(slot.holds_chunk for slot in self.rounds.slots.values())
            assert self.rounds._reads._chunks == held + len(ended)

    @invariant()
    def the_window_is_kept(self):
        if hasattr(self, "rounds"):
            window = self.rounds.window
            assert window.outstanding_bytes == self.sent - self.granted
            assert window.outstanding_bytes < window.nbytes + self.consumer.largest_block_bytes

    @invariant()
    def ends_have_their_reasons(self):
        for id, held in self.consumer.streams.items() if hasattr(self, "consumer") else ():
            assert held.end is None or id not in self.rounds.slots
            match held.end and held.end.reason:
                case EndReason.END_REACHED:
                    assert held.snapshot is None
                    assert held.seq >= self.opened[id].end_seq
                case EndReason.PURGED:
                    # What a filter passes over counts as delivered, though the consumer was not told yet.
                    assert held.seq < held.partition.purge_seq
                    assert held.seq or held.wanted.key_prefix

    def teardown(self):
        if not hasattr(self, "rounds"):
            return
        try:
            self.finish()
        finally:
            for module, name, value in self.before:
                setattr(module, name, value)

    def finish(self):
        for partition in self.partitions:
            partition.sync()
        self.rounds.credit(self.sent - self.granted)
        self.consumer.read_all()
        assert self.back == len(self.cookies), "a cookie did not come back"
        for id, stream in self.opened.items():
            held = self.held(id)
            if id in self.rounds.slots:
                assert held.snapshot is None
                assert held.seq == stream.partition.high_seq
                assert stream.end_seq is None or stream.end_seq > held.seq
        self.rounds.close_all()
        for partition in self.partitions:
            assert partition.pins.retired_bytes == 0
            partition.remove_free()
            files = set(partition.disk.names(partition.directory))
            assert files == {segment.path.rpartition("/")[2] for segment in partition.chain.segments}
