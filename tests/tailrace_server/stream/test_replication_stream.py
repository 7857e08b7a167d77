from tests.tailrace_server.stored import StoredPartition

from tailrace.model import Level
from tailrace_server.stream import replication_stream
from tailrace_server.stream.replication_stream import ReplicationStream
from tailrace_server.stream.rounds import Rounds

TOLD_BYTES = 1_000_000


def test_what_is_told_of_producers_counts_as_sent(monkeypatch):
    """Else the tables of thousands of partitions with a small block each would be in memory at once."""
    monkeypatch.setattr(replication_stream, "encode_producers", lambda *_: [bytes(TOLD_BYTES)])
    rounds = Rounds(1 << 30)
    for id in range(20):
        partition = StoredPartition(id)
        partition.write()
        stream = ReplicationStream(id, partition, Level.MEMORY, 0, None, 0, pins=partition.pins, now=lambda: 0.0)
        rounds.open(stream, lambda: None)
    sizes = []
    while buffers := rounds.next_buffers(TOLD_BYTES):
        sizes.append(sum(map(len, buffers)))
    assert max(sizes) < 3 * TOLD_BYTES
    assert sum(sizes) > 20 * TOLD_BYTES
