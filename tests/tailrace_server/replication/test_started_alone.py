"""Plain replicas that are started without --replica-of, written to, and started as replicas again."""

import dataclasses
import json
import os
import pathlib
import shutil

import pytest
from tests.tailrace_server.replication.made_set import (
    COPY_ALWAYS,
    MadeNode,
    free_addresses,
    make_config,
    numbered,
    until,
)

import tailrace
from tailrace.consuming.events import SnapshotEnd, SnapshotStart
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position
from tailrace_server.config import StorageConfig
from tailrace_server.manifest.store import AHEAD_NAME
from tailrace_server.replication.membership import FILE_NAME
from tailrace_server.runtime.host import Host
from tailrace_server.upkeep.ahead_file import AheadFile

MODES = ("stream", "segment", "copies")


class Pair:
    """A leader and its plain replica, with one feed of a partition; the replica can be started alone."""

    def __init__(self, source, replica):
        self.source, self.replica = source, replica
        self.as_replica = replica.config

    async def write(self, node, rows):
        async with tailrace.connect(node.url, retry_for=60) as client:
            for key, value in rows.items():
                await client.feed("orders").put(key, value)
        await node.flush()

    async def level(self):
        source, replica = self.source, self.replica
        await until(lambda: replica.logs("orders") == source.logs("orders"))
        await until(lambda: replica.seqs("orders") == source.seqs("orders"))
        assert replica.rows("orders") == source.rows("orders")

    async def alone(self, **changes):
        self.replica.config = dataclasses.replace(self.as_replica, replica_of=None, **changes)
        await self.replica.start()

    async def again(self):
        self.replica.config = self.as_replica
        await self.replica.start()


@pytest.fixture(params=MODES)
async def pair(request, tmp_path, nursery):
    first, second = free_addresses(2)
    options = {"storage": StorageConfig(pushed_age_s=0.05)}
    if request.param == "copies":
        options["replication"] = COPY_ALWAYS
    source = MadeNode(make_config(tmp_path / "source", first, **options), nursery)
    replica = MadeNode(make_config(tmp_path / "replica", second, replica_of=first, **options), nursery)
    await source.start()
    await replica.start()
    async with tailrace.connect(source.url, retry_for=60) as client:
        mode = "segment" if request.param == "segment" else "stream"
        await client.create_feed("orders", partitions=1, replication=mode)
    made = Pair(source, replica)
    await made.write(source, numbered(0, 10))
    await made.level()
    return made


def lost_seqs(node):
    """The seqs of the feed that lost/ has."""
    paths = pathlib.Path(node.config.data, "lost").glob("*/index.jsonl")
    lines = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    feed_id = node.node.feeds.named("orders").info.feed_id.hex()
    found = [line for line in lines if line["feed"] == feed_id]
    return [seq for line in found for seq in range(line["first_seq"], line["last_seq"] + 1)]


async def test_a_replica_that_was_written_to_alone_gives_its_rows_up(pair, caplog):
    """Both have written seqs 11 to 15 since: without a branch of its own the replica would keep its rows."""
    source, replica = pair.source, pair.replica
    await replica.stop()
    await pair.alone()
    await pair.write(replica, {b"alone %d" % number: b"x" for number in range(5)})
    await replica.stop()
    await pair.write(source, {b"source %d" % number: b"y" for number in range(5)})
    await pair.again()
    await pair.level()
    assert source.seqs("orders") == [15]
    assert lost_seqs(replica) == [11, 12, 13, 14, 15]
    assert "rolls back to seq 10" in caplog.text
    replica.node.check()


async def test_an_unwritten_replica_is_equal_again(pair):
    source, replica = pair.source, pair.replica
    await replica.stop()
    await pair.alone()
    await replica.stop()
    await pair.write(source, numbered(10, 5))
    await pair.again()
    await pair.level()
    assert not lost_seqs(replica)


async def test_a_replica_that_leads_alone_begins_a_branch_once(pair):
    replica = pair.replica
    before = replica.logs("orders")
    await replica.stop()
    await pair.alone()
    first = replica.logs("orders")
    assert [log.term for log in first] == [log.term + 1 for log in before]
    assert [log[0].base for log in first] == [10]
    assert FILE_NAME not in os.listdir(replica.config.data)
    await replica.stop()
    await replica.start()
    assert replica.logs("orders") == first
    assert replica.rows("orders") == numbered(0, 10)


async def test_a_promoted_replica_that_is_started_alone_keeps_its_branch(pair):
    """Its promotion has begun one; the old leader follows it, and gives up what it wrote meanwhile."""
    source, replica = pair.source, pair.replica
    await replica.promote(force=True)
    promoted = replica.logs("orders")
    await replica.stop()
    await pair.alone()
    assert replica.logs("orders") == promoted
    await pair.write(replica, {b"new": b"x"})
    await pair.write(source, {b"old": b"y"})
    await source.stop()
    source.config = dataclasses.replace(source.config, replica_of=replica.address)
    await source.start()
    await Pair(replica, source).level()
    assert lost_seqs(source) == [11]


async def test_the_old_leader_of_a_replica_that_leads_alone_follows_it(pair):
    source, replica = pair.source, pair.replica
    await replica.stop()
    await pair.alone()
    await pair.write(replica, {b"new": b"x"})
    await pair.write(source, {b"old": b"y"})
    await source.stop()
    source.config = dataclasses.replace(source.config, replica_of=replica.address)
    await source.start()
    await Pair(replica, source).level()
    assert lost_seqs(source) == [11]


async def test_a_copy_of_a_stopped_leader_follows_it(pair, tmp_path):
    """Both were written to: the copy was not stopped where it stands, so it has begun a branch."""
    source, replica = pair.source, pair.replica
    await replica.stop()
    await source.stop()
    shutil.rmtree(replica.config.data)
    shutil.copytree(source.config.data, replica.config.data)
    await source.start()
    await pair.alone()
    await pair.write(replica, {b"copy": b"x"})
    await pair.write(source, {b"own": b"y"})
    await replica.stop()
    await pair.again()
    await pair.level()
    assert lost_seqs(replica) == [11]


async def test_a_restored_copy_that_was_alone_follows_the_leader(pair):
    source, replica = pair.source, pair.replica
    await replica.stop()
    await source.stop()
    shutil.rmtree(replica.config.data)
    shutil.copytree(source.config.data, replica.config.data)
    await source.start()
    await pair.alone(restored=True)
    await pair.write(replica, {b"copy": b"x"})
    await pair.write(source, {b"own": b"y"})
    await replica.stop()
    await pair.again()
    await pair.level()
    assert lost_seqs(replica) == [11]


async def test_rows_that_came_ahead_are_dropped_by_a_node_that_leads_alone(pair, caplog):
    replica = pair.replica
    [partition] = await replica.flush()
    path = os.path.join(replica.node.storage.store.partition_directory(partition.feed_id, partition.id), AHEAD_NAME)
    nowhere = Position.at(FailoverLog(), 0)
    await replica.stop()
    file = AheadFile.create(Host().disk, path, partition.feed_id, 0, 20, partition.log, bytes(16))
    file.append([SnapshotStart(0, 21, 25, nowhere, True, 0, False), SnapshotEnd(0, 21, 25, nowhere)])
    await pair.alone()
    assert AHEAD_NAME not in os.listdir(os.path.dirname(path))
    assert "drops seqs 21 to 25, which came ahead of the rows below them: this node leads by itself" in caplog.text
    assert replica.rows("orders") == numbered(0, 10)
