"""The bound on the flushed rows that all streams of a connection hold in memory."""

import pytest
from tests.tailrace_server.stored import StoredPartition

from tailrace.model import EndReason, Level
from tailrace_server.stream import held_rows, rounds
from tailrace_server.stream.partition_stream import PartitionStream


@pytest.fixture
def many_slow(made, monkeypatch):
    """Streams of eight partitions, each of which has sent 1 of 4 blocks, and has no room for more."""
    monkeypatch.setattr(rounds, "SLICE_BYTES", 1)
    made.partitions = [StoredPartition(id) for id in range(8)]
    for id, partition in enumerate(made.partitions):
        for number in range(4):
            partition.put((b"%d" % number, bytes(100)))
        partition.sync()
        made.consumer.add(id, partition)
        made.rounds.open(PartitionStream(id, partition, Level.DISK, 0, None, 0, pins=partition.pins), lambda: None)
    made.block_bytes = next(made.partitions[0].tree.blocks_after(0)).nbytes
    made.rounds.set_window(8 * made.block_bytes)
    made.consumer.read()
    assert [made.held(id).seq for id in range(8)] == [1] * 8
    return made


def test_what_all_streams_of_a_connection_hold_is_bounded(many_slow, monkeypatch):
    """Each of them holds little that was flushed, and together they would hold much."""
    monkeypatch.setattr(held_rows, "HELD_BYTES_MAX", 2.5 * 3 * many_slow.block_bytes)
    holding = []
    for partition in many_slow.partitions:
        partition.flush()
        holding.append([id for id, slot in many_slow.rounds.slots.items() if slot.stream.flushed_bytes])
    assert holding == [[0], [0, 1], [], [3], [3, 4], [], [6], [6, 7]]
    assert many_slow.rounds.moves == 6
    many_slow.rounds.set_window(1 << 30)
    many_slow.consumer.read_all()
    for id, partition in enumerate(many_slow.partitions):
        assert many_slow.held(id).state == partition.state_at(4)
        assert len(many_slow.held(id).starts) == (2 if id < 6 else 1)


def test_what_was_sent_since_a_flush_is_not_held(many_slow, monkeypatch):
    monkeypatch.setattr(held_rows, "HELD_BYTES_MAX", 2.5 * 3 * many_slow.block_bytes)
    for id in (0, 1):
        many_slow.partitions[id].flush()
    many_slow.rounds.set_window(many_slow.rounds.window.nbytes + 8 * many_slow.block_bytes)
    many_slow.consumer.read()
    assert [many_slow.held(id).seq for id in range(8)] == [2] * 8
    many_slow.partitions[2].flush()
    assert many_slow.rounds.moves == 0


def test_who_is_closed_holds_nothing(many_slow, monkeypatch):
    monkeypatch.setattr(held_rows, "HELD_BYTES_MAX", 2.5 * 3 * many_slow.block_bytes)
    for id in (0, 1):
        many_slow.partitions[id].flush()
        many_slow.rounds.close(id, EndReason.CLOSED)
    for id in (2, 3):
        many_slow.partitions[id].flush()
    assert many_slow.rounds.moves == 0
