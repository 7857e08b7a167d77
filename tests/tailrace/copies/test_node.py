"""A copy of a real node's segments: read, and then gone on from by stream."""

from __future__ import annotations

import os
import shutil

import pytest
from tests.tailrace.copies import copied

import tailrace
from tailrace.copies.layout import CHECKPOINT_NAME, FEED_NAME, FeedCopy, PartitionCopy, encode_checkpoint


async def flush(node, *, compact=False):
    for feed in node.feeds:
        for partition in feed.partitions:
            await node.storage.flusher.flush(partition)
            while compact and await node.storage.compactor.compact(partition, feed.info):
                pass


def copy_feed(node, client, name, directory):
    """Makes the files that a fetch would make."""
    feed = next(feed for feed in node.feeds if feed.info.name == name)
    numbers = tuple(partition.id for partition in feed.partitions)
    os.makedirs(directory)
    (directory / FEED_NAME).write_bytes(FeedCopy(client.cluster_id, feed.info, numbers).encode())
    for partition in feed.partitions:
        inside = directory / str(partition.id)
        inside.mkdir()
        segments = []
        for segment in partition.chain.segments:
            path = shutil.copy(segment.path, inside)
            run = copied.Run(segment.identity.after_seq, segment.identity.last_seq, [])
            segments.append(copied.entry_of(path, run))
        seq = partition.chain.flushed_seq
        copy = PartitionCopy(partition.id, seq, partition.purge_seq, partition.log, tuple(segments))
        (inside / CHECKPOINT_NAME).write_bytes(encode_checkpoint(feed.info.feed_id, copy))


@pytest.mark.parametrize("compact", [False, True], ids=["flushed", "compacted"])
async def test_a_copy_of_a_node_and_the_stream_behind_it(running, client, feed, tmp_path, compact):
    state = {}
    for turn in range(3):
        async with feed.writer() as writer:
            for number in range(turn, 200, turn + 1):
                key, value = b"key %d" % number, None if number % 7 == turn else b"value %d of %d" % (number, turn)
                state[key] = value
                await (writer.delete(key) if value is None else writer.put(key, value))
        await flush(running.node, compact=compact)
    copy_feed(running.node, client, "orders", tmp_path / "copy")
    later = {b"key 1": b"later", b"new": b"later, too"}
    for key, value in later.items():
        await feed.put(key, value)

    reader = tailrace.SegmentReader(tmp_path / "copy")
    found = {m.key: m.value for number in reader.partitions for event in reader.mutations(number) for m in event}
    assert found == state
    table = reader.to_arrow()
    assert table.num_rows == len(state), "each key once"
    assert dict(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True)) == state
    assert reader.verify() > 0
    for key in (b"key 5", b"key 7", b"new"):
        item = reader.get(key)
        assert (item and item.value) == state.get(key)
        if item is not None:
            assert item == await feed.get(key)

    rest = {}
    async with feed.consume(since=reader.positions, until="now") as stream:
        async for event in stream:
            if isinstance(event, tailrace.Mutations):
                rest |= {m.key: m.value for m in event}
    assert rest == later
