"""A follower copies its leader's segments to a disk that has just the room for them."""

import contextlib

import pytest
from tests.tailrace_server.upkeep.test_received_chain import Pair

from tailrace.errors import Unreachable
from tailrace.model import Level
from tailrace_server.compaction.task import CompactionTask
from tailrace_server.compaction.worker import compact
from tailrace_server.replication import catching_up
from tailrace_server.replication.catching_up import CatchUp
from tailrace_server.segment import Segment

TERM = 1
WINDOW_BYTES = 64 * 1024


class Source:
    """The leader of a pair, as `SegmentSource`. The connection breaks after ``parts_max`` parts."""

    def __init__(self, pair, parts_max):
        self.storage, self.source, self.left, self.asked = pair.leader.node.storage, pair.source, parts_max, []

    async def checkpoint(self, request):
        return await self.storage.checkpoints.take(self.source, Level.DISK, with_state=True)

    def ask(self, checkpoint_id, parts):
        self.asked += [(checkpoint_id, part) for part in parts]

    async def receive(self, parts):
        received = []
        for part in parts:
            if not self.left:
                raise Unreachable("the connection of a test")
            self.left -= 1
            checkpoint_id, asked = self.asked.pop(0)
            segment = self.storage.checkpoints.find(checkpoint_id, asked.segment.id)
            received.append((part, memoryview(segment.read_part(asked.offset, asked.nbytes))))
        return received

    def release(self, checkpoint_id):
        self.storage.checkpoints.release(checkpoint_id)


@pytest.fixture
def pair(make_engine, monkeypatch):
    pair = Pair(make_engine)
    pair.partition.state = "follower"
    monkeypatch.setattr(catching_up, "WINDOW_BYTES_FIRST", WINDOW_BYTES)
    monkeypatch.setattr(catching_up, "next_window", lambda window_bytes, _: window_bytes)
    return pair


async def copy(pair, monkeypatch, parts_max=1_000):
    @contextlib.asynccontextmanager
    async def source(*_):
        yield Source(pair, parts_max)

    monkeypatch.setattr(catching_up, "segment_source", source)
    node = pair.replica.node.services
    await CatchUp(node, pair.partition, "leader", "leader", TERM, None, lambda: False, None).run()


async def compact_all(pair):
    """The leader replaces its segments by one."""
    storage, folded = pair.leader.node.storage, pair.source.chain.segments
    id = pair.leader.host.randomness.token(16)
    path = storage.store.segment_path(pair.source.feed_id, 0, id)
    bounds = pair.source.hash_first, pair.source.hash_last
    paths = tuple(segment.path for segment in folded)
    compact(CompactionTask(paths, path, id, *bounds, True, True, None, pair.source.high_seq), pair.leader.disk)
    merged = Segment.open(storage.store.segment_files, path)
    await storage.installer.install_compacted(pair.source, folded, merged)
    return merged


async def test_the_halves_of_an_older_checkpoint_make_room(pair, monkeypatch):
    """They would stay as long as the follower tries, and it would try until there is room."""
    for number in range(2):
        await pair.write((b"k%d" % number, pair.leader.host.randomness.token(5 * WINDOW_BYTES)))
    with pytest.raises(Unreachable):
        await copy(pair, monkeypatch, parts_max=3)
    merged = await compact_all(pair)
    disk = pair.replica.disk
    directory = pair.replica.node.storage.store.partition_directory(pair.partition.feed_id, 0)

    def free_bytes(_):
        halves = [name for name in disk.names(directory) if name.endswith(".seg.new")]
        return merged.nbytes - sum(len(disk.content(f"{directory}/{name}")) for name in halves)

    monkeypatch.setattr(disk, "free_bytes", free_bytes)
    assert free_bytes("") < merged.nbytes
    await copy(pair, monkeypatch)
    pair.check()
    assert [segment.identity.segment_id for segment in pair.partition.chain.segments] == [merged.identity.segment_id]
