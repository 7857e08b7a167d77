"""Nodes of the model that send segments, too: checkpoints that expire, files that come damaged, requests refused."""

from __future__ import annotations

import contextlib
import random
from unittest import mock

from tests.memory_disk import MemoryDisk
from tests.segments import block_of, identity_of
from tests.tailrace.consuming.nodes import FEED, Conversation

from tailrace.errors import BadSegment, NotDurable, UnknownCheckpoint
from tailrace.segment.format import file_sum_in
from tailrace.wire.bodies import encode_json
from tailrace.wire.messages import encode_error
from tailrace.wire.opcodes import Opcode
from tailrace.wire.segment_messages import CheckpointFile, PartitionCheckpoint, SegmentFetch, data_header
from tailrace_server.segment import SegmentWriter

# How often a request fails, of a hundred.
FAILURES = {"checkpoint": 8, "expired": 5, "refused": 3, "damaged": 5}


def segment_of(rows, after_seq, last_seq, chance, *, partition=0, feed_id=FEED, compress=False):
    """A segment of rows (seq, key, value) in the run (after_seq, last_seq]: its entry in a chain, and its file."""
    segment_id = chance.randbytes(16)
    identity = identity_of(
        last_seq, after_seq=after_seq, partition=partition, segment_id=segment_id, feed_id=feed_id, deduplicated=True
    )
    disk = MemoryDisk()
    disk.make_directory("/s")
    writer = SegmentWriter(disk, "/s/segment", identity)
    while rows:
        count = chance.randint(1, 3)
        stamped = [(row.key, row.value, row.seq, 1000 + row.seq) for row in rows[:count]]
        writer.add(block_of(stamped, partition=partition, compress=compress))
        rows = rows[count:]
    writer.finish()
    file = disk.open("/s/segment")
    data = file.read_at(0, file.size())
    checksum = file_sum_in(data[-24:]).to_bytes(16, "big")
    return CheckpointFile(segment_id, len(data), checksum, after_seq + 1, last_seq), data


class SegmentConversation(Conversation):
    """A node's side of one connection, whose partition has segments up to some seq. It checks what it is asked."""

    failures = FAILURES

    def __init__(self, node, chance: random.Random):
        super().__init__(node, chance)
        self.kept = {}  # checkpoint id -> {segment id: bytes}

    def _answer(self, frame):
        match frame.opcode:
            case Opcode.SEGMENT_CHECKPOINT:
                yield self._checkpoint(frame.id)
            case Opcode.SEGMENT_FETCH:
                yield from self._fetch(frame.id, SegmentFetch.decode(frame.body))
            case Opcode.SEGMENT_RELEASE:
                yield encode_json(Opcode.RESULT, {}, frame.id)
            case _:
                yield from super()._answer(frame)

    def _fails(self, what):
        return self._random.random() * 100 < self.failures[what]

    def _checkpoint(self, id):
        if self._fails("checkpoint"):
            return encode_error(NotDurable("ask again"), id)
        node = self.node
        segments = [self._segment(after, last) for after, last in self._runs()]
        seq = segments[-1][0].last_seq if segments else 0
        checkpoint_id = self._random.randbytes(16)
        self.kept[checkpoint_id] = {file.id: data for file, data in segments}
        files = tuple(file for file, _ in segments)
        told = PartitionCheckpoint(checkpoint_id, 60.0, FEED, 0, seq, node.purge_seq, 0, node.log, files)
        return encode_json(Opcode.RESULT, told.to_json(), id)

    def _runs(self):
        """The runs of the chain: the first one reaches as far as was folded, the last one to the flushed seq."""
        node = self.node
        ends = sorted({self._random.randint(node.folded_to, node.high_seq) for _ in range(self._random.randint(0, 3))})
        if node.folded_to:
            ends = sorted(
                {node.folded_to if self._random.random() < 0.5 else ends[0] if ends else node.folded_to, *ends}
            )
        after = 0
        for last in ends:
            if last > after:
                yield after, last
                after = last

    def _segment(self, after_seq, last_seq):
        rows = [row for row in self.node.rows if after_seq < row.seq <= last_seq]
        if self._random.random() < 0.5:
            newest = {row.key: row for row in rows}
            rows = [row for row in rows if newest[row.key] is row]
        return segment_of(rows, after_seq, last_seq, self._random)

    def _fetch(self, id, fetch):
        if self._fails("expired"):
            self.kept.clear()
        kept = self.kept.get(fetch.checkpoint_id)
        if kept is None:
            yield encode_error(UnknownCheckpoint("expired"), id)
            return
        data = kept[fetch.segment_id]
        assert fetch.offset + fetch.nbytes <= len(data), "it asks beyond the end"
        if self._fails("refused"):
            yield encode_error(BadSegment("the disk cannot read it"), id)
            return
        part = bytearray(data[fetch.offset : fetch.offset + fetch.nbytes])
        if self._fails("damaged"):
            part[self._random.randrange(len(part))] ^= 1 << self._random.randrange(8)
        yield data_header(len(part), id) + bytes(part)


@contextlib.contextmanager
def small_parts(chance):
    """Files are fetched in small parts, in one of several ways."""
    changed = {
        "fetched_segment.WHOLE_BYTES_MAX": chance.choice((0, 0, 1 << 20)),
        "fetched_segment.TAIL_BYTES": chance.choice((128, 700, 4096)),
        "fetched_range.PART_BYTES_MAX": chance.choice((100, 1000, 1 << 20)),
        "catch_up.RANGE_BYTES": chance.choice((1, 500)),
        "catch_up.STREAM_SECONDS": chance.choice((45.0, 200.0)),
    }
    with contextlib.ExitStack() as stack:
        for name, value in changed.items():
            stack.enter_context(mock.patch(f"tailrace.consuming.{name}", value))
        yield
