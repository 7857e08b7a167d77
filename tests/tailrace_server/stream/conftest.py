from __future__ import annotations

import pytest
from tests.tailrace_server.stored import StoredPartition
from tests.tailrace_server.stream.consumer import Consumer

from tailrace.model import Level
from tailrace_server.stream.partition_stream import PartitionStream
from tailrace_server.stream.rounds import Rounds


@pytest.fixture
def make_partition():
    """A function from an id to a partition without a journal."""
    return StoredPartition


class Made:
    """A partition, and one connection that streams it."""

    def __init__(self):
        self.partition = StoredPartition()
        self.rounds = Rounds(1 << 30)
        self.consumer = Consumer(self.rounds)
        self.news = 0

    def open(
        self,
        seq=0,
        *,
        id=1,
        level=Level.DISK,
        end=None,
        promised=None,
        purge_seq=None,
        until_us=None,
        wanted=None,
        **held,
    ):
        promised = seq if promised is None else promised
        if wanted is not None:
            held["wanted"] = wanted
        stream = PartitionStream(
            id,
            self.partition,
            level,
            seq,
            end,
            promised,
            pins=self.partition.pins,
            purge_seq=purge_seq,
            until_us=until_us,
            wanted=wanted,
        )
        self.consumer.add(id, self.partition, seq, promised=promised, **held)
        self.rounds.open(stream, self._notify)
        return stream

    def _notify(self):
        self.news += 1

    def held(self, id=1):
        return self.consumer.streams[id]

    def put(self, *rows):
        """A block each, durable."""
        for row in rows:
            self.partition.put(row)
        self.partition.sync()

    def read(self):
        """Everything that there is; the names of the frames of stream 1."""
        return [name for name, id in self.consumer.read_all() if id == 1]


@pytest.fixture
def made():
    return Made()
