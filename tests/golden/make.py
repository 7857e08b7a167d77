"""Makes the golden data of the present release: ``python -m tests.golden.make`` (tests/README.md, "Golden data").

Nodes of this program, in this process, write small directories that use every format. They are packed into
``tests/golden/<release>/``, beside what a reader has to find in them. Ids, branches and times are those of the run.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

import trio
from tests.blocks_of_rows import block_of
from tests.golden.archive import HERE, pack
from tests.golden.found import found_in, logs_of, sinks_of, state_of
from tests.golden.meaning import to_json
from tests.tailrace_server.replication.made_set import (
    MadeNode,
    MadeSet,
    free_addresses,
    make_config,
    until,
)

import tailrace
from tailrace.consuming.events import Mutations, SnapshotEnd, SnapshotStart
from tailrace.link.address import Address
from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position
from tailrace.wire.replica_messages import Producers
from tailrace.wire.stage_messages import SinksTold
from tailrace_server.config import StorageConfig
from tailrace_server.coordination import cluster_keys
from tailrace_server.coordination.coordinator import Put
from tailrace_server.coordination.static_store import StaticStore
from tailrace_server.directory import restored_marks as marks
from tailrace_server.host.clock import SystemClock
from tailrace_server.host.disk import RealDisk
from tailrace_server.host.randomness import SystemRandomness
from tailrace_server.offline.backup import backup
from tailrace_server.offline.repair import repair
from tailrace_server.offline.repairing_mark import RepairingMark
from tailrace_server.upkeep.ahead_file import AheadFile

COLUMNS = {"city": "$.city"}
STORAGE = StorageConfig(reserve_bytes=0, free_bytes_min=0, journal_file_bytes_max=64 * 1024)
RETENTION = {"log": {"retention": "history", "history_bytes": 12_000}}


def value_of(number):
    """A value; every fifth one is long, and compresses well."""
    text = b"Rome " * 400 if number % 5 == 0 else b"%d" % (number * 7919)
    return b'{"city": "city %d", "text": "%s"}' % (number % 3, text)


async def write(feed, numbers, *, deletes=()):
    async with feed.writer() as writer:
        for number in numbers:
            await writer.put(b"key %d" % number, value_of(number))
        for number in deletes:
            await writer.delete(b"key %d" % number)


async def flush(node, name):
    for partition in node.node.feeds.named(name).partitions:
        await node.node.storage.flusher.flush_all(partition)


async def compacted(node):
    """Waits until the node has compacted "orders", and trimmed "log"."""
    orders, log = node.node.feeds.named("orders"), node.node.feeds.named("log")

    def holds():
        segments = [segment.identity for partition in orders.partitions for segment in partition.chain.segments]
        return any(each.deduplicated for each in segments) and all(partition.trim_seq for partition in log.partitions)

    with trio.fail_after(120):
        await until(holds)


def sealed_json(sealed):
    return {**sealed._asdict(), "stage_id": sealed.stage_id.hex()}


async def stage(feed, numbers):
    async with feed.stage() as stage:
        for number in numbers:
            await stage.put(b"staged %d" % number, value_of(number))
        return await stage.seal()


async def make_node(scratch, node, told):
    """A node's life: what a reader has to find of it goes to ``told``."""
    await node.start()
    async with tailrace.connect(node.url, retry_for=60) as client:
        orders = await client.create_feed("orders", partitions=2)
        log = await client.create_feed("log", partitions=1, level="disk", **RETENTION["log"])
        await client.create_feed("copied", partitions=1, replication="segment", tombstone_age_s=1_000.5)
        dropped = await client.create_feed("dropped", partitions=1)
        await dropped.put(b"gone", b"gone")
        await client.drop_feed("dropped")
        await client.create_token(
            "reader", role="read", feeds=["orders"], key_prefix=b"key ", expires_s=86_400 * 36_500
        )
        told["token"] = await client.create_token("admin", role="admin")
        for begin in (0, 20, 40, 60):
            await write(orders, range(begin, begin + 30), deletes=range(begin, begin + 5))
            await flush(node, "orders")
            await write(log, range(begin, begin + 20))
            await flush(node, "log")
        await compacted(node)
        told["positions_before"] = await positions_of(orders)
        told["state_before"] = dict(sorted((await state_of(orders)).items()))
        await flush(node, "_feeds")
        await write(orders, range(25, 35), deletes=(30, 31))
        await flush(node, "orders")
        first = await stage(orders, range(40))
        await orders.publish("golden-job", 1, [first])
        await log.publish("other-job", 7, [await stage(log, range(3))], origin="run-1")
        told["published"] = [sealed_json(first)]
    await node.kill()
    await node.start()  # a new branch in every partition
    async with tailrace.connect(node.url, retry_for=60) as client:
        orders, log = client.feed("orders"), client.feed("log")
        await write(orders, range(100, 120))
        told["positions_middle"] = await positions_of(orders)
        await orders.fetch(scratch / "copy")
        await follow(orders, scratch / "index.db")
        told["followed"] = dict(sorted((await state_of(orders)).items()))
    await node.stop()
    make_files(scratch / "files", Path(node.config.data))
    await node.start()
    async with tailrace.connect(node.url, retry_for=60) as client:
        orders, log = client.feed("orders"), client.feed("log")
        await write(orders, range(110, 130), deletes=(5, 6, 7))
        await write(log, range(500, 503))
        told["positions_inside"] = await positions_inside(orders)
        sealed = await stage(orders, range(200, 210))
        told["sealed"] = [sealed_json(sealed)]
        async with orders.stage() as left:
            await left.put(b"never sealed", b"1")
            with trio.move_on_after(0):
                await left.seal()
        node.node.storage.held.store_now()
        told["feeds"] = await found_in(client)
        told["sinks"] = sinks_of(node.node)
        backup(RealDisk(), node.config.data, str(scratch / "backup"), SystemClock().wall_us(), copies=True)
    await node.kill()


async def positions_of(feed):
    """The positions of a consumer that has read everything."""
    async with feed.consume(until="now") as stream:
        async for _ in stream:
            pass
        return str(stream.positions)


async def positions_inside(feed):
    """Positions inside a snapshot: of a consumer that has read some of it."""
    async with feed.consume(until="now", catch_up="stream") as stream:
        async for event in stream:
            if isinstance(event, tailrace.Mutations):
                return str(stream.positions)
    raise AssertionError("there was no mutation")


async def follow(feed, path):
    index = tailrace.indexes.SQLiteIndex(path, columns=COLUMNS, full_text=["city"])
    async with feed.follow(index) as follower:
        await follower.barrier()


async def make_set(nodes, told):
    """Three members: an election, a handover, rows at quorum, a rollback, a promotion; one of them has rows ahead."""
    await nodes.start()
    first = await nodes.settled()
    second, third = [node for node in nodes if node is not first]
    async with nodes.client() as client:
        feed = await client.create_feed("orders", partitions=2)
        await write(feed, range(20))
        await nodes.level("orders")
        for node in nodes:
            await flush(node, "orders")
        await first.hand_over(second)
        await nodes.settled()
        await write(feed, range(10, 30), deletes=(0, 1))
        await nodes.level("orders")
        await third.kill()
        await first.kill()
        await feed.put(b"only here", b"1", level="disk")
        await second.kill()
        await first.start()
        await third.start()
        await first.promote()
        await write(feed, range(30, 50))
        await second.start()  # it rolls back what only it had
        await nodes.level("orders")
        told["rows"] = dict(sorted((await state_of(feed)).items()))
        told["positions"] = await positions_of(feed)
        told["logs"] = await logs_of(feed)
        told["rolled_back"], told["ahead"] = nodes.nodes.index(second), nodes.nodes.index(third)
        partition = first.node.feeds.named("orders").partitions[0]
        ahead = partition.feed_id, partition.id, partition.high_seq + 100, partition.log
    for node in nodes:
        await node.kill()
    write_ahead(third.config.data, *ahead)


def write_ahead(data, feed_id, partition, seq, log):
    """Rows that came ahead of the rows below them, in the file that a follower keeps for them."""
    path = f"{data}/feeds/{feed_id.hex()}/{partition}/AHEAD"
    file = AheadFile.create(RealDisk(), path, feed_id, partition, seq, log, bytes(range(16)))
    place = Position.at(FailoverLog(), 0)
    block = block_of([(b"ahead %d" % n, b"v%d" % n, seq + n, 1_000 + n) for n in (1, 2, 3)])
    told = [Producers(partition, seq + 3, {"a": 3}), SinksTold(partition, seq + 3, {"s": [1]})]
    file.append(
        [
            SnapshotStart(partition, seq + 1, seq + 3, place, True, 0, False),
            *told,
            Mutations(block),
            SnapshotEnd(partition, seq + 1, seq + 3, place),
        ]
    )


def make_files(target, data):
    """The files that no directory of the others has: those of a clean stop, of etcd, and of unfinished work."""
    target.mkdir()
    disk, path = RealDisk(), str(target)
    shutil.copy(data / "NODE", target)
    shutil.copy(data / "CLEAN", target)
    for name in (marks.RESTORING_NAME, marks.OF_SET_NAME):
        marks.mark(disk, path, name)
    RepairingMark("20260131-154500", bytes(range(16)), (3, 5)).store(disk, path)
    StaticStore(disk, f"{path}/CLUSTER").write((), [Put(key, value) for key, value in cluster_values().items()])


def cluster_values():
    """The keys of a cluster in etcd, and their values."""
    keys, (first, second, third) = cluster_keys.ClusterKeys.of("golden"), (bytes([n]) * 16 for n in (1, 2, 3))
    names = [Address("10.0.0.1", 4700), Address("10.0.0.2", 4700)]
    voters = (cluster_keys.Voter(first, second, names[0]), cluster_keys.Voter(cluster_keys.NO_ID, third, names[1]))
    return {
        keys.format: cluster_keys.format_to_bytes(third),
        keys.voters(0): cluster_keys.voters_to_bytes(
            cluster_keys.Voters(4, voters, 3, (Address("10.0.0.3", 4700),), (2, 9))
        ),
        keys.node(second): cluster_keys.node_to_bytes(
            cluster_keys.NodeValue(names[0], first, third, 3, False, tailrace.__version__)
        ),
        keys.leader(0): cluster_keys.leader_to_bytes(cluster_keys.LeaderValue(second, first, names[0], 3, 4)),
    }


def cluster_in(files):
    """What the file CLUSTER tells of the cluster "golden"."""
    entries = StaticStore(RealDisk(), f"{files}/CLUSTER").view("/tailrace/").entries
    known = cluster_keys.known_of(cluster_keys.ClusterKeys.of("golden"), entries)
    nodes = {node_id.hex(): node for node_id, node in known.nodes.items()}
    return {"cluster_id": known.cluster_id, "voters": known.voters, "leader": known.leader, "nodes": nodes}


def make_repaired(source, target):
    """A repair of a directory whose oldest segment is damaged: lost/ has the rows that could not stay."""
    shutil.copytree(source, target)
    segments = sorted(target.glob("feeds/[1-9a-f]*/*/*.seg"), key=lambda path: path.stat().st_size)
    data = bytearray(segments[-1].read_bytes())
    data[200] ^= 1
    segments[-1].write_bytes(bytes(data))
    repair(RealDisk(), str(target), SystemRandomness(), SystemClock(), "20260131-154500")


async def make(scratch):
    """Makes everything below ``scratch``; returns what a reader has to find."""
    told = {"release": tailrace.__version__, "node": {}, "set": {}}
    async with trio.open_nursery() as nursery:
        first, *others = free_addresses(4)
        config = make_config(scratch / "node", first, storage=STORAGE)
        await make_node(scratch, MadeNode(config, nursery), told["node"])
        members = [
            make_config(scratch / f"member{n}", address, members=tuple(others), storage=STORAGE)
            for n, address in enumerate(others)
        ]
        await make_set(MadeSet([MadeNode(each, nursery) for each in members]), told["set"])
        nursery.cancel_scope.cancel()
    make_repaired(scratch / "node", scratch / "repaired")
    told["cluster"] = to_json(cluster_in(scratch / "files"))
    return told


def main():
    target = HERE / ".".join(tailrace.__version__.split(".")[:2])
    if (target / "told.json").exists() and "--again" not in sys.argv:
        raise SystemExit(
            f"{target} is there: golden data of a release never change (--again replaces them all the same)"
        )
    target.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        scratch = Path(made)
        told = trio.run(make, scratch)
        for name in ("node", "backup", "copy", "index.db", "repaired", "files", "member0", "member1", "member2"):
            pack(scratch / name, target / f"{name}.tar.xz")
    (target / "told.json").write_text(json.dumps(told, indent=1, sort_keys=True) + "\n")
    print(f"{target}: {sum(path.stat().st_size for path in target.iterdir()):,} bytes")


if __name__ == "__main__":
    main()
