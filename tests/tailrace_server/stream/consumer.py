"""A consumer of one connection that keeps what it is told, and asserts all that it may rely on."""

from __future__ import annotations

from tailrace.block import Block
from tailrace.wire.filters import EVERYTHING
from tailrace.wire.frames import FrameDecoder
from tailrace.wire.opcodes import Opcode
from tailrace.wire.stream_messages import SnapshotStartMessage, StreamEnd, decode_number, decode_seq
from tailrace_server.segment import SegmentDamaged


class Held:
    """What a consumer has of one stream: the state up to ``seq``, and the snapshot that it is in."""

    def __init__(self, partition, seq, state, promised=0, partial=False, wanted=EVERYTHING):
        self.partition = partition
        self.wanted = wanted
        self.advances = []  # the seq of every SEQ_ADVANCED
        self.seq = seq
        self.stood = seq  # the last seq where it could stand
        self.state = state
        self.promised = promised
        self.snapshot = None  # (after, last) while inside of one
        self.complete = not partial  # it may stand at the end of each block
        self.purge_seq = None  # as told when it began at 0
        self.trimmed = 0  # what had been trimmed then
        self.starts = []  # of every SNAPSHOT_START: (after, last, complete)
        self.end = None

    @property
    def may_stand(self):
        """The state here is one that the partition was in."""
        return self.complete or self.snapshot is None

    def lacks_any_up_to(self, seq):
        """There is a row up to ``seq``, and above where it could stand last, that it wants."""
        return any(key.startswith(self.wanted.key_prefix) for key, _ in self.partition.rows[self.stood : seq])

    def check(self):
        self.stood = self.seq
        expected = selected(self.partition.state_at(self.seq, self.trimmed), self.wanted)
        assert self.state == expected, f"another state than the partition's at {self.seq}"


def selected(state, wanted):
    """What a filter leaves of {key: value}."""
    return {
        key: b"" if wanted.keys_only else value for key, value in state.items() if key.startswith(wanted.key_prefix)
    }


class Consumer:
    """``streams`` are `Held` by stream id."""

    def __init__(self, rounds):
        self.rounds = rounds
        self.decoder = FrameDecoder()
        self.streams = {}
        self.on_returned = lambda frame: None  # called with each BARRIER_REACHED and BARRIER_LOST
        self.log = []  # (opcode name, stream id)
        self.passes = 0
        self.turns = []  # partition ids of this pass, in order
        self.largest_block_bytes = 0
        self.uncredited = {}  # the bytes that were sent of each stream, and not credited to it
        self.loads = []  # under way
        self.failures = []

    def add(self, id, partition, seq=0, *, promised=0, state=None, partial=False, wanted=EVERYTHING):
        """A stream that is about to begin at ``seq``, with the state of then."""
        state = selected(partition.state_at(seq), wanted) if state is None else dict(state)
        self.streams[id] = Held(partition, seq, state, promised, partial, wanted)

    def read(self, bytes_max=1 << 20):
        """Reads what is sent next; the bytes of blocks in it."""
        size = 0
        for frame in self.decoder.receive_data(b"".join(self.rounds.next_buffers(bytes_max))):
            self.log.append((frame.opcode.name, frame.id))
            if frame.opcode is Opcode.BLOCK:
                size += len(frame.body)
                self.uncredited[frame.id] = self.uncredited.get(frame.id, 0) + len(frame.body)
                self.largest_block_bytes = max(self.largest_block_bytes, len(frame.body))
            self.receive(frame)
        assert not self.decoder.held_bytes
        for slot, part in self.rounds.next_loads():
            slot.stream.partition.pins.pin(part.segment)  # as a connection does: the stream may be closed meanwhile
            self.loads.append((slot, part))
        return size

    def load(self, index=0):
        """Ends one of the loads that are under way."""
        slot, part = self.loads.pop(index)
        try:
            blocks, following = part.load()
        except SegmentDamaged as error:
            self.failures.append(error)
            self.rounds.load_failed(slot, str(error))
        else:
            self.rounds.loaded(slot, part, blocks, following)
        finally:
            slot.stream.partition.pins.unpin(part.segment)

    def credit_streams(self, share=1):
        """Credits each stream by itself, as a replica does: with all that it was sent, or with a part of it."""
        for id, nbytes in self.uncredited.items():
            self.rounds.credit_stream(id, nbytes // share)
            self.uncredited[id] -= nbytes // share

    def read_all(self):
        """Reads and loads until nothing more comes, granting everything; the names of the frames of each stream."""
        self.log.clear()
        for _ in range(10_000):
            size = self.read()
            self.rounds.credit(size)
            self.credit_streams()
            rests = not size and not self.loads  # where a load has ended, another stream may have its place
            while self.loads:
                self.load()
            if rests and not self.rounds.has_news:
                return list(self.log)
        raise AssertionError("it never rests")

    def receive(self, frame):
        match frame.opcode:
            case Opcode.SNAPSHOT_START:
                self._start(self.streams[frame.id], SnapshotStartMessage.decode(frame.body))
            case Opcode.BLOCK:
                block = Block.parse(frame.body)
                self._take_turn(block.header.partition)
                self._block(self.streams[frame.id], block)
            case Opcode.SNAPSHOT_END:
                self._end(self.streams[frame.id], decode_seq(frame.body, "")[1])
            case Opcode.SEQ_ADVANCED:
                self._advance(self.streams[frame.id], decode_seq(frame.body, "")[1])
            case Opcode.STREAM_END:
                self.streams[frame.id].end = StreamEnd.decode(frame.body)
            case Opcode.ROUND_COMPLETE:
                self.passes += 1
                assert decode_number(frame.body, "") == self.passes
                self.turns.clear()
            case Opcode.BARRIER_REACHED | Opcode.BARRIER_LOST:
                self.on_returned(frame)

    def _take_turn(self, partition):
        assert not self.turns or self.turns[-1] <= partition, "a pass goes in the order of partitions"
        self.turns.append(partition)

    @staticmethod
    def _start(held, start):
        assert start.after_seq < start.last_seq, "a snapshot of nothing"
        assert start.last_seq >= held.promised
        if held.snapshot is None:
            assert start.after_seq == held.seq
        else:  # it was moved from memory to segments
            assert start.after_seq == held.snapshot[0]
            assert start.last_seq >= held.snapshot[1]
        if held.seq == 0:
            held.purge_seq, held.trimmed = start.purge_seq, held.partition.trim_seq
        held.snapshot = (start.after_seq, start.last_seq)
        held.complete = start.complete
        held.starts.append((*held.snapshot, start.complete))

    @staticmethod
    def _block(held, block):
        header = block.header
        assert held.snapshot is not None
        assert header.last_seq <= held.snapshot[1], "more than was announced"
        assert header.last_seq > held.seq or not held.complete, "sent twice"
        columns = block.columns()
        for seq, key, value in zip(columns.seqs(), columns.keys(), columns.values(), strict=True):
            if seq <= held.seq:
                continue
            assert key.startswith(held.wanted.key_prefix), "it was not asked for"
            assert not (held.wanted.keys_only and value), "values were not asked for"
            if held.complete:
                left_out = held.partition.rows[held.seq : seq - 1]
                assert not any(key.startswith(held.wanted.key_prefix) for key, _ in left_out), "something was left out"
            if value is None:
                held.state.pop(key, None)
            else:
                held.state[key] = bytes(value)
            held.seq = seq
        if held.may_stand:
            held.check()

    @staticmethod
    def _advance(held, seq):
        assert held.wanted != EVERYTHING, "everything was asked for"
        assert held.snapshot is None, "inside of a snapshot"
        assert seq > held.seq
        assert seq >= held.promised
        held.seq = seq
        held.advances.append(seq)
        held.check()

    @staticmethod
    def _end(held, seq):
        assert held.snapshot is not None
        assert seq == held.snapshot[1] >= held.seq
        held.seq, held.snapshot = seq, None
        held.check()
