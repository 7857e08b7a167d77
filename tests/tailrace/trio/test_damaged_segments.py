"""Copies and consumers of a node with a damaged segment: an error that says where and what to do, and no wrong row."""

import os

import pytest
import trio
from tests.tailrace_server.replication.made_set import until

import tailrace
from tailrace import BadSegment, EndReason, Mutations, Put, StreamEnded
from tailrace.indexes import MemoryIndex

KEYS = 400


def damage(path):
    """One bit in the middle is another one."""
    place = os.path.getsize(path) // 2
    with open(path, "r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(bytes([byte[0] ^ 1]))


def cut(path):
    """The second half is gone."""
    os.truncate(path, os.path.getsize(path) // 2)


def content(path):
    with open(path, "rb") as file:
        return file.read()


def mend(path, whole):
    """The file is in its place again, byte for byte."""
    with open(path, "r+b") as file:
        file.write(whole)


DAMAGES = pytest.mark.parametrize("harm", [damage, cut])


async def fill(feed, node):
    """Rows in a segment of each partition of ``node``. Returns them."""
    rows = {b"k%d" % number: os.urandom(500) for number in range(KEYS)}
    await feed.write([Put(key, value) for key, value in rows.items()])
    for partition in node.feeds.named("orders").partitions:
        await node.storage.flusher.flush(partition)
    return rows


async def flush_all(node):
    """Brings each partition of a follower to a segment, once the leader has told it that the rows are durable there."""
    for partition in node.feeds.named("orders").partitions:
        while not partition.chain.segments:
            await node.storage.flusher.flush(partition)
            await trio.sleep(0.01)


def segment_of(node, partition=1):
    [segment] = node.feeds.named("orders").partitions[partition].chain.segments
    return segment.path


@pytest.fixture
async def rows(running, feed):
    return await fill(feed, running.node)


@pytest.fixture
def path(running, rows):
    """The segment of partition 1."""
    return segment_of(running.node)


def taken_by(rows, event):
    """The rows of an event; each is as it was written."""
    if not isinstance(event, Mutations):
        return {}
    found = dict(zip(event.keys(), event.values(), strict=True))
    assert found.items() <= rows.items()
    return found


async def take_all(stream, rows, found):
    async for event in stream:
        found |= taken_by(rows, event)


async def read(feed, rows, found, **options):
    async with feed.consume(until="now", **options) as stream:
        await take_all(stream, rows, found)


def is_told(running, path):
    return path in (running.node.status()["failure"] or "")


@DAMAGES
@pytest.mark.parametrize("mode", ["auto", "segments", "stream"])
async def test_a_consumer_ends(running, feed, rows, path, mode, harm):
    harm(path)
    found = {}
    with pytest.raises(BadSegment, match="partition 1 of feed orders") as told:
        await read(feed, rows, found, catch_up=mode)
    assert path in str(told.value)
    assert "tailrace verify" in str(told.value)
    assert is_told(running, path)
    # The damaged one is released. Copies of the other three may be under way as the consumer ends: theirs expire.
    assert len(running.node.storage.checkpoints) <= 3


async def follow_to_a_barrier(feed, index):
    async with feed.follow(index) as follower:
        with pytest.raises(StreamEnded, match="partition 1 of feed orders cannot be read"):
            await follower.barrier()


async def test_a_follower_ends(feed, rows, path):
    damage(path)
    index = MemoryIndex()
    with pytest.raises(BadSegment, match="partition 1 of feed orders cannot be read"):
        await follow_to_a_barrier(feed, index)


async def test_what_is_not_damaged_comes_before_the_end(running, feed, rows, path):
    """The program may go on with the other partitions from its positions."""
    damage(path)
    found = {}
    others = frozenset((0, 2, 3))
    await read(feed, rows, found, partitions=others)
    assert len(found) > KEYS / 2


async def test_a_segment_that_is_mended_is_read_from_the_positions(running, feed, rows, path):
    whole = content(path)
    damage(path)
    found, stream = {}, feed.consume()
    with pytest.raises(BadSegment):  # at the entry, if the node reads the segment before it has answered for all
        async with stream:
            await take_all(stream, rows, found)
    positions = stream.positions
    if found:
        assert [status.last_end for status in stream.status().partitions if status.partition == 1] == [
            EndReason.DAMAGED
        ]
    mend(path, whole)
    await read(feed, rows, found, since=positions)
    assert found == rows


async def test_damage_that_passes_ends_no_consumer(running, feed, rows, path):
    """The node is asked three times: an operator may be putting the file in its place."""
    whole = content(path)
    damage(path)
    found = {}

    async def mend_soon():
        await until(lambda: is_told(running, path))
        mend(path, whole)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(mend_soon)
        await read(feed, rows, found, catch_up="stream")
    assert found == rows


@DAMAGES
async def test_a_fetch_ends(running, feed, rows, path, harm, tmp_path):
    harm(path)
    with pytest.raises(BadSegment, match="partition 1 of feed orders") as told:
        await feed.fetch(tmp_path / "copy")
    assert os.path.basename(path).removesuffix(".seg") in str(told.value)
    assert "tailrace verify" in str(told.value)


async def test_a_file_that_is_cut_while_it_is_fetched(running, feed, rows, path, tmp_path):
    feed_id = (await feed.resolve()).feed_id
    take = running.node.storage.checkpoints.take

    async def take_and_cut(partition, *arguments, **options):
        taken = await take(partition, *arguments, **options)
        if partition.feed_id == feed_id and partition.id == 1:
            cut(path)
        return taken

    running.node.storage.checkpoints.take = take_and_cut
    with pytest.raises(BadSegment, match="partition 1 of feed orders"):
        await feed.fetch(tmp_path / "copy")
    assert is_told(running, path)


async def test_a_fetch_goes_on_when_the_segment_is_mended(running, feed, rows, path, tmp_path):
    whole = content(path)
    damage(path)
    with pytest.raises(BadSegment):
        await feed.fetch(tmp_path / "copy")
    with pytest.raises(tailrace.BadCopy):
        tailrace.SegmentReader(tmp_path / "copy")
    mend(path, whole)
    await feed.fetch(tmp_path / "copy")
    reader, found = tailrace.SegmentReader(tmp_path / "copy"), {}
    for partition in reader.partitions:
        for event in reader.mutations(partition):
            found |= taken_by(rows, event)
    assert found == rows


@pytest.mark.parametrize("mode", ["segments", "stream"])
async def test_another_node_has_a_good_copy(members, mode):
    """A consumer of followers goes to the one whose copy can be read."""
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=4)
        rows = await fill(feed, members[0].node)
    await members.level("orders")
    bad, good = members[1], members[2]
    for member in (bad, good):
        await flush_all(member.node)
    damage(segment_of(bad.node))
    found = {}
    url = f"tailrace://{bad.address},{good.address}"
    async with tailrace.connect(url, state="follower") as client:
        await read(client.feed("orders"), rows, found, catch_up=mode)
    assert found == rows
    assert segment_of(bad.node) in bad.node.status()["failure"]


async def test_no_node_has_a_good_copy(members):
    async with members.client() as client:
        feed = await client.create_feed("orders", partitions=4)
        rows = await fill(feed, members[0].node)
    await members.level("orders")
    for member in members[1], members[2]:
        await flush_all(member.node)
        damage(segment_of(member.node))
    url = f"tailrace://{members[1].address},{members[2].address}"
    async with tailrace.connect(url, state="follower") as client:
        with pytest.raises(BadSegment, match="partition 1 of feed orders"):
            await read(client.feed("orders"), rows, {})
