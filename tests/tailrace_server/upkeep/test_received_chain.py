"""A chain that another node has sent takes the place of what a partition has, in one step."""

import errno

import pytest
import trio

from tailrace.errors import BadSegment, NoSpace
from tailrace.model import Level
from tailrace.model.failover import FailoverEntry, FailoverLog
from tailrace_server.manifest import producers_to_json
from tailrace_server.partition.replica_apply import OtherHistory, apply_producers
from tailrace_server.segment import Segment, SegmentWriter
from tailrace_server.upkeep.installer import RolledBack
from tailrace_server.upkeep.received_chain import ReceivedChain, install_received_chain, prepare_to_receive


class Pair:
    """A leader with flushed rows, and a replica to which its files are copied."""

    def __init__(self, make_engine):
        self.leader, self.replica = make_engine(), make_engine()
        self.replica.host.randomness.token(1_000)  # it makes other ids than the leader
        self.source, self.partition = self.leader.create(), self.replica.create()

    async def write(self, *rows, flush=True):
        for row in rows:
            self.leader.put(self.source, row)
        if flush:
            await self.leader.flusher.flush_all(self.source)

    async def checkpoint(self):
        storage = self.leader.node.storage
        return ReceivedChain.of(await storage.checkpoints.take(self.source, Level.DISK, with_state=True))

    async def send(self, received):
        """Copies the files that the replica lacks, as a receiver leaves them."""
        await prepare_to_receive(self.replica.node.storage, self.partition)
        here = {segment.identity.segment_id for segment in self.partition.chain.segments}
        for segment in self.source.chain.segments:
            id = segment.identity.segment_id
            if id in received.segments and id not in here:
                self.send_file(segment)

    def send_file(self, segment):
        path, data = self.path(segment.identity.segment_id), bytes(self.leader.disk.content(segment.path))
        file = self.replica.disk.create(path + ".new")
        file.write_at(0, [data], len(data))
        file.sync()
        file.close()
        self.replica.disk.rename(path + ".new", path)

    def path(self, id):
        return self.replica.node.storage.store.segment_path(self.partition.feed_id, self.partition.id, id)

    async def install(self, received=None):
        received = received or await self.checkpoint()
        await self.send(received)
        await install_received_chain(self.replica.node.storage, self.partition, received)
        self.check()

    async def compact(self):
        """The replica compacts its two segments; the result."""
        storage, partition = self.replica.node.storage, self.partition
        older, newer = partition.chain.segments
        identity = newer.identity._replace(
            segment_id=b"m" * 16,
            base_id=older.identity.base_id,
            included_ids=(newer.identity.segment_id, older.identity.segment_id),
            is_major=True,
            after_seq=older.identity.after_seq,
            rows=0,
            tombstones=0,
            oldest_timestamp=0,
            newest_timestamp=0,
            key_value_bytes=0,
        )
        writer = SegmentWriter(self.replica.disk, self.path(identity.segment_id), identity)
        for segment in (older, newer):
            for block in segment.read_blocks(0, 1 << 20)[0]:
                writer.add(block)
        writer.finish()
        merged = Segment.open(storage.store.segment_files, self.path(identity.segment_id))
        await storage.installer.install_compacted(partition, (older, newer), merged)
        return merged

    async def adopt(self):
        """The replica has the leader's first rows, some of them flushed."""
        await self.write((b"a", b"1"))
        await self.install()

    def check(self):
        rows = self.leader.written[self.source.feed_id, 0][: self.partition.high_seq]
        self.replica.written[self.partition.feed_id, 0] = rows
        self.replica.check_rows(self.partition)

    def restart(self):
        self.replica.kill()
        self.partition = self.replica.partition()
        self.check()

    def names(self):
        return self.replica.segments(self.partition)


@pytest.fixture
def pair(make_engine):
    return Pair(make_engine)


def results(partition):
    entries, _ = partition.producers.snapshot(0.0)
    return {entry.producer_id: entry.results for entry in entries}


async def test_an_empty_partition_gets_a_chain_with_its_state(pair):
    await pair.write((b"a", b"1"), (b"b", b"2"))
    await pair.write((b"a", b"3"))
    await pair.write((b"c", b"4"), flush=False)  # not in the checkpoint
    await pair.install()
    assert pair.partition.log == pair.source.log
    for _ in range(2):
        partition = pair.partition
        assert (partition.high_seq, partition.durable_seq, partition.flushed_seq) == (3, 3, 3)
        assert results(partition)[7] == results(pair.source)[7][:3]
        pair.restart()


async def test_segments_that_are_here_stay_as_they_are(pair):
    await pair.adopt()
    [first] = pair.partition.chain.segments
    await pair.write((b"b", b"2"))
    await pair.install()
    assert pair.partition.chain.segments[0] is first
    assert len(pair.partition.chain.segments) == 2
    pair.restart()


@pytest.mark.slow
async def test_the_cost_does_not_depend_on_the_rows(pair):
    await pair.adopt()
    for index in range(50):
        await pair.write(*((b"k%d" % (40 * index + row), bytes(200)) for row in range(40)), flush=False)
    await pair.leader.flusher.flush_all(pair.source)
    received = await pair.checkpoint()
    await pair.send(received)
    [*_, segment] = pair.source.chain.segments
    read, open_file = 0, pair.replica.disk.open

    def counted(path, **how):
        file = open_file(path, **how)
        read_at = file.read_at

        def read_counted(offset, nbytes):
            nonlocal read
            read += nbytes
            return read_at(offset, nbytes)

        file.read_at = read_counted
        return file

    pair.replica.disk.open = counted
    await install_received_chain(pair.replica.node.storage, pair.partition, received)
    assert segment.nbytes > 400_000
    assert 0 < read < 50 * segment.blocks + 1_000, "more than the footer was read"


async def test_rows_of_the_tree_go_and_the_journal_does_not_bring_them_back(pair):
    await pair.adopt()
    await pair.write((b"b", b"2"), (b"c", b"3"), flush=False)
    replica = pair.replica
    for block in pair.source.tree.blocks_after(1):  # the replica has them in its journal and tree
        replica.node.storage.journal.append_block(pair.partition.feed_id, 0, pair.partition.log.branch, block)
        pair.partition.append(block, pair.partition.log.branch, replica.node.storage.journal.end[0], 0.0)
    replica.sync(pair.partition)
    await pair.write((b"b", b"4"))
    left = replica.node.storage.memory.used - pair.partition.tree.memory_bytes
    await pair.install()
    assert not pair.partition.tree.block_count
    assert replica.node.storage.memory.used == left
    assert pair.partition.journal_references.oldest is None, "the journal is kept for rows that segments have"
    pair.restart()


async def test_readers_keep_replaced_files(pair):
    await pair.adopt()
    checkpoints = pair.replica.node.storage.checkpoints
    kept = await checkpoints.take(pair.partition, Level.DISK)
    pair.source.chain = type(pair.source.chain)()  # as if the leader had compacted: other segments of the same rows
    pair.source.tree = type(pair.source.tree)()
    for block in _blocks(pair):
        pair.source.tree = pair.source.tree.append(block)
    await pair.write((b"b", b"2"))
    await pair.install()
    assert len(pair.names()) == 2
    assert checkpoints.find(kept.id, kept.segments[0].id).read_part(0, 8)
    await pair.replica.flusher.trim()
    assert len(pair.names()) == 2, "a file was removed that a checkpoint keeps"
    checkpoints.release(kept.id)
    await pair.replica.flusher.trim()
    assert len(pair.names()) == 1
    pair.restart()


def _blocks(pair):
    [segment] = pair.partition.chain.segments
    return segment.read_blocks(0, 1 << 20)[0]


async def test_work_that_was_begun_before_is_void(pair):
    await pair.adopt()
    replica, partition, log = pair.replica, pair.partition, pair.partition.log
    await pair.write((b"b", b"2"))
    received = await pair.checkpoint()
    await pair.send(received)
    installer, rollbacks = replica.node.storage.installer, partition.rollbacks
    await install_received_chain(replica.node.storage, partition, received)
    with pytest.raises(RolledBack):
        await installer.install_compacted(partition, (), partition.chain.segments[0], rollbacks)
    assert partition.log == log
    pair.restart()


async def test_a_flush_that_is_under_way_ends_first(pair):
    await pair.adopt()
    await pair.write((b"b", b"2"), flush=False)
    replica = pair.replica
    for block in pair.source.tree.blocks_after(1):
        replica.node.storage.journal.append_block(pair.partition.feed_id, 0, pair.partition.log.branch, block)
        pair.partition.append(block, pair.partition.log.branch, replica.node.storage.journal.end[0], 0.0)
    replica.sync(pair.partition)
    await pair.write((b"c", b"3"))
    received = await pair.checkpoint()
    await pair.send(received)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replica.flusher.flush, pair.partition)
        nursery.start_soon(install_received_chain, replica.node.storage, pair.partition, received)
    pair.check()
    assert pair.partition.flushed_seq == 3
    pair.restart()


async def test_producers_of_blocks_that_did_not_come_are_forgotten(pair):
    """A leader has told of its producers ahead of blocks; then the replica gets a chain that ends before these."""
    await pair.adopt()
    partition, storage = pair.partition, pair.replica.node.storage
    value = {
        "evicted_age_s": None,
        "branches": [partition.log.branch.hex()],
        "entries": [[f"{8:016x}", 1, 0.0, [[1, 0, 5, 9]]]],
    }
    apply_producers(partition, value, 9, storage.journal, 0.0)
    await pair.write((b"b", b"2"), (b"c", b"3"))
    await pair.install()
    for _ in range(2):
        entries, _ = pair.partition.producers.snapshot(0.0)
        assert {entry.producer_id for entry in entries} == {7}, "the resend of a lost block would count as written"
        pair.restart()


async def refuse(pair, received, error, match):
    before, names = pair.partition.chain.segments, pair.names()
    with pytest.raises(error, match=match):
        await install_received_chain(pair.replica.node.storage, pair.partition, received)
    assert (pair.partition.chain.segments, pair.names()) == (before, names)
    pair.check()
    pair.restart()


async def test_another_history_is_refused(pair):
    await pair.adopt()
    await pair.write((b"b", b"2"))
    received = await pair.checkpoint()
    await pair.send(received)
    other = FailoverLog([FailoverEntry(b"v" * 16, 9, 0)])
    await refuse(pair, received._replace(log=other), OtherHistory, "rolled back")


async def test_a_chain_that_ends_too_early_is_refused(pair):
    await pair.adopt()
    early = await pair.checkpoint()
    await pair.write((b"b", b"2"))
    await pair.install()
    await refuse(pair, early, BadSegment, "end at seq 1")


async def test_a_chain_with_a_gap_is_refused(pair):
    await pair.adopt()
    await pair.write((b"b", b"2"))
    await pair.write((b"c", b"3"))
    received = await pair.checkpoint()
    await pair.send(received)
    gap = received._replace(segments=(received.segments[0], received.segments[2]))
    before = pair.names()
    with pytest.raises(BadSegment, match="does not begin at the end of the one before"):
        await install_received_chain(pair.replica.node.storage, pair.partition, gap)
    assert pair.names() == before
    pair.restart()
    assert len(pair.names()) == 1, "the start has not removed a file that no manifest names"


async def test_a_segment_that_has_left_the_chain_meanwhile_is_refused(pair):
    """Its file may still be there, and is about to be removed."""
    await pair.adopt()
    await pair.write((b"b", b"2"))
    received = await pair.checkpoint()
    await pair.send(received)
    told = received._replace(files=frozenset(received.segments[:1]))  # the second one is said to be a link
    before = pair.names()
    with pytest.raises(BadSegment, match="has left the chain meanwhile"):
        await install_received_chain(pair.replica.node.storage, pair.partition, told)
    assert pair.names() == before
    assert pair.partition.high_seq == 1
    await install_received_chain(
        pair.replica.node.storage, pair.partition, told._replace(files=frozenset(received.segments[1:]))
    )
    pair.check()


async def test_a_file_of_another_feed_is_refused(pair):
    other = pair.leader.create("other")
    pair.leader.put(other, (b"x", b"1"))
    await pair.leader.flusher.flush_all(other)
    await prepare_to_receive(pair.replica.node.storage, pair.partition)
    pair.leader.written.setdefault((pair.source.feed_id, 0), [])
    [segment] = other.chain.segments
    pair.send_file(segment)
    received = ReceivedChain(
        1, (segment.identity.segment_id,), other.log, 0, 0, producers_to_json(other.producers, 1, 0.0), {}
    )
    with pytest.raises(BadSegment, match="is of partition 0 of feed"):
        await install_received_chain(pair.replica.node.storage, pair.partition, received)
    assert pair.partition.high_seq == 0


@pytest.mark.parametrize("call", ["write_at", "rename", "sync_directory"])
async def test_a_disk_that_refuses_leaves_the_old_chain(pair, call):
    await pair.adopt()
    await pair.write((b"b", b"2"))
    received = await pair.checkpoint()
    await pair.send(received)
    seen = 0

    def before(name, path):
        nonlocal seen
        in_partition = "MANIFEST" in path or (name == "sync_directory" and pair.partition.feed_id.hex() in path)
        if name == call and in_partition:
            seen += 1
            if seen == (2 if call == "sync_directory" else 1):  # the first one is for the received names
                raise OSError(errno.ENOSPC, "no room", path)

    pair.replica.disk.before = before
    with pytest.raises((OSError, NoSpace)):
        await install_received_chain(pair.replica.node.storage, pair.partition, received)
    pair.replica.disk.before = None
    pair.check()
    assert pair.partition.high_seq == 1
    # Rows that come by stream now are above the old chain, also at the next start.
    await pair.replica.node.storage.installer.settle(pair.partition)
    manifest = pair.replica.node.storage.store.read(pair.partition.feed_id, 0)
    assert manifest.flushed_seq == 1, "the manifest on the disk hides rows that are journaled from now on"
    await install_received_chain(pair.replica.node.storage, pair.partition, received)
    pair.check()
    assert pair.partition.high_seq == 2
    pair.restart()


async def test_a_failed_manifest_is_written_over_before_rows_come(pair):
    await pair.adopt()
    await pair.write((b"b", b"2"))
    received = await pair.checkpoint()
    await pair.send(received)
    installer, renamed = pair.replica.node.storage.installer, False

    def before(name, path):
        nonlocal renamed
        renamed |= name == "rename" and "MANIFEST" in path
        if renamed and name in ("sync_directory", "create"):
            raise OSError(errno.EIO, "a bad disk", path)

    pair.replica.disk.before = before
    with pytest.raises(OSError, match="a bad disk"):
        await install_received_chain(pair.replica.node.storage, pair.partition, received)
    with pytest.raises(OSError, match="a bad disk"):
        await installer.settle(pair.partition)
    pair.replica.disk.before = None
    await installer.settle(pair.partition)
    pair.restart()
    assert pair.partition.high_seq == 1


async def test_a_replaced_segment_that_is_still_read_comes_back(pair):
    """The replica has compacted it meanwhile: its file stays, although it was to go after its last reader."""
    await pair.adopt()
    await pair.write((b"b", b"2"))
    received = await pair.checkpoint()
    await pair.install(received)
    storage, [first, second] = pair.replica.node.storage, pair.partition.chain.segments
    storage.pins.pin(first)
    storage.pins.pin(second)
    received = ReceivedChain(2, received.segments, received.log, 0, 0, received.producers, received.sinks)
    merged = await pair.compact()
    assert pair.partition.chain.segments == (merged,)
    await install_received_chain(storage, pair.partition, received)
    assert pair.partition.chain.segments == (first, second)
    storage.pins.unpin(first)
    storage.pins.unpin(second)
    await pair.replica.flusher.trim()
    assert len(pair.names()) == 2, "a file of the chain was removed, or a replaced one stays"
    pair.check()
    pair.restart()


async def test_a_segment_that_is_being_removed_is_told(pair):
    await pair.adopt()
    storage, [first] = pair.replica.node.storage, pair.partition.chain.segments
    id = first.identity.segment_id
    assert not storage.pins.is_leaving(id)
    await pair.write((b"b", b"2"))
    await pair.install()
    await pair.compact()
    assert storage.pins.is_leaving(id)
    free = storage.pins.take_free()
    assert storage.pins.is_leaving(id), "its file may still be there"
    storage.pins.retire(free)
    storage.pins.removed(free)
    assert storage.pins.is_leaving(id), "it was retired again, since its file could not be removed"
    await pair.replica.flusher.trim()
    assert not storage.pins.is_leaving(id)


async def test_a_file_that_is_about_to_be_removed_is_not_installed(pair):
    """The replica has compacted the segment, and the leader has it still. The trimmer would remove the chain's file."""
    await pair.adopt()
    await pair.write((b"b", b"2"))
    await pair.install()
    await pair.compact()
    await pair.write((b"c", b"3"))
    received = await pair.checkpoint()
    await pair.send(received)
    with pytest.raises(BadSegment, match="is being removed"):
        await install_received_chain(pair.replica.node.storage, pair.partition, received)
    await pair.replica.flusher.trim()
    await pair.send(received)
    await install_received_chain(pair.replica.node.storage, pair.partition, received)
    await pair.replica.flusher.trim()
    assert len(pair.names()) == 3
    pair.check()
    pair.restart()
