"""A node of files: checkpoints and parts, as a server would tell them, for plans that no network carries out."""

from __future__ import annotations

import json
import os
import random

import pytest
import xxhash

from tailrace.copies.fetch import Exchange, FeedFetch, OnDisk
from tailrace.errors import BadSegment, TailraceError, UnknownCheckpoint
from tailrace.model import Level
from tailrace.model.failover import FailoverLog
from tailrace.requests.plan import Call
from tailrace.segment.ends import SegmentHeader, end_of
from tailrace.wire.opcodes import Opcode
from tailrace.wire.segment_messages import CheckpointFile, PartitionCheckpoint, SegmentRelease

FEED = bytes(range(16))
LOG = FailoverLog([(b"u" * 16, 1, 0)])


def segment_file(segment_id, body, *, feed_id=FEED, partition=0):
    """A file that has the two ends of a segment; a fetch looks at nothing else."""
    data = SegmentHeader(feed_id, partition, segment_id).pack() + body
    return data + end_of(xxhash.xxh3_128_intdigest(data))


class FileNode:
    """A node with one feed. ``files`` are those of each partition, (id, content, first seq, last seq), oldest first."""

    def __init__(self, partitions=1):
        self.partitions = partitions
        self.files = {number: [] for number in range(partitions)}
        self.log = LOG
        self.calls = []  # opcodes, in their order
        self.kept = {}  # the files of each checkpoint
        self.taken = 0
        self.piece_bytes = 100_000
        self.order = list
        self.askers = []  # of the checkpoints that were asked for
        self.reported = []  # the ids of segments that were reported as damaged

    def add(self, body=b"", *, partition=0, rows=10):
        """Flushes another segment."""
        chain = self.files[partition]
        begin = chain[-1][3] if chain else 0
        segment_id = xxhash.xxh3_128_digest(b"%d %d %d" % (partition, begin, self.taken) + body)
        data = segment_file(segment_id, body, partition=partition)
        chain.append((segment_id, data, begin + 1, begin + rows))

    def compact(self, body=b"", *, partition=0):
        """Puts one segment in the place of all."""
        rows = self.files[partition][-1][3]
        self.files[partition] = []
        self.add(b"compacted" + body, partition=partition, rows=rows)

    def checkpoint(self, partition):
        chain = self.files[partition]
        self.taken += 1
        checkpoint_id = self.taken.to_bytes(16, "big")
        self.kept[checkpoint_id] = {segment_id: data for segment_id, data, _, _ in chain}
        segments = tuple(
            CheckpointFile(id_, len(data), data[-24:-8][::-1], first, last) for id_, data, first, last in chain
        )
        seq = chain[-1][3] if chain else 0
        return PartitionCheckpoint(checkpoint_id, 60.0, FEED, partition, seq, 0, 0, self.log, segments)

    def answer(self, call):
        self.calls.append(call.opcode)
        if call.opcode is Opcode.PARTITIONS:
            settings = {"keyspace": "hash", "retention": "compact", "history_age_s": None, "history_bytes": None}
            settings |= {"tombstone_age_s": 259_200, "replication": "stream", "partitions": self.partitions}
            return {"feed": {"name": "orders", "feed_id": FEED.hex(), **settings}, "partitions": []}
        if call.opcode is Opcode.SEGMENT_CHECKPOINT:
            self.askers.append(call.value["asker"])
            return self.checkpoint(call.value["partition"]).to_json()
        assert call.opcode is Opcode.SEGMENT_RELEASE
        release = SegmentRelease.decode(json.dumps(call.value).encode())
        self.kept.pop(release.checkpoint_id, None)
        self.reported += release.damaged
        return {}

    def parts(self, exchange):
        """Answers in pieces of ``piece_bytes`` at most, the parts in ``order``."""
        self.calls.append(Opcode.SEGMENT_FETCH)
        if exchange.checkpoint_id not in self.kept:
            raise UnknownCheckpoint("not kept")
        kept = self.kept[exchange.checkpoint_id]
        for number in self.order(range(len(exchange.parts))):
            id_, offset, nbytes = exchange.parts[number]
            data = memoryview(kept[id_])[offset : offset + nbytes]
            if len(data) != nbytes:
                raise BadSegment("beyond the end")
            for begin in range(0, nbytes, self.piece_bytes):
                exchange.store(number, data[begin : begin + self.piece_bytes])

    def restart(self):
        self.kept.clear()


class ClientOfOne:
    """The part of `ClientCore` that a fetch uses."""

    cluster_id = b"c" * 16
    state = "leader"

    def __init__(self, source):
        self.now = 0.0
        self.source = source

    def clock(self):
        self.now += 0.01
        return self.now


class Feed:
    name = "orders"


class Killed(BaseException):
    """The process of the fetch ends here."""


class Fetcher:
    """Fetches from ``node`` into ``path``, step by step. ``before`` is called with each step, and may raise."""

    def __init__(self, node, path):
        self.node = node
        self.path = str(path)
        self.before = lambda step: None
        self.source = random.Random(7)

    def run(self, plan):
        try:
            step = next(plan)
            while True:
                try:
                    self.before(step)
                    answer = self._take(step)
                except (TailraceError, OSError) as error:
                    step = plan.throw(error)
                else:
                    step = plan.send(answer)
        except StopIteration as end:
            return end.value
        finally:
            plan.close()

    def _take(self, step):
        if isinstance(step, OnDisk):
            return step.function()
        if isinstance(step, Exchange):
            return self.node.parts(step)
        return self.node.answer(step) if isinstance(step, Call) else None

    def fetch(self, partitions=None):
        """Fetches all, and returns what became of each partition."""
        fetch = FeedFetch(ClientOfOne(self.source), Feed(), self.path, partitions, Level.DISK)
        try:
            chosen = self.run(fetch.begin())
            return {number: self.run(fetch.partition(number)) for number in chosen}
        finally:
            fetch.close()

    def names(self, partition=0):
        return sorted(os.listdir(os.path.join(self.path, str(partition))))

    def expected(self, partition=0):
        """The names of a whole copy of what the node has."""
        return sorted([*(f"{id_.hex()}.seg" for id_, *_ in self.node.files[partition]), "CHECKPOINT.json"])

    def check_whole(self, partition=0):
        """The copy is what the node has, byte by byte."""
        assert self.names(partition) == self.expected(partition)
        for id_, data, *_ in self.node.files[partition]:
            with open(os.path.join(self.path, str(partition), f"{id_.hex()}.seg"), "rb") as file:
                assert file.read() == data


@pytest.fixture
def file_node():
    return FileNode()


@pytest.fixture
def fetcher(file_node, tmp_path):
    return Fetcher(file_node, tmp_path / "copy")


@pytest.fixture(scope="session")
def made():
    """The classes, for tests that make their own."""
    return FileNode, Fetcher, Killed
