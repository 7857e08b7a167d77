"""Sessions of nodes with each other: a replica, and a set through its life. record.py plays them.

The frames are those of connections that nodes, and clients beside them, have made.
"""

from __future__ import annotations

import dataclasses
import random

import trio
from tests.golden.raw_sessions import block, connection_of, encode_frame, greeted, until
from tests.tailrace_server.replication.made_set import (
    COPY_ALWAYS,
    MadeNode,
    MadeSet,
    free_addresses,
    make_config,
    put,
)
from tests.tailrace_server.replication.made_set import until as until_true

import tailrace
from tailrace.model import Level
from tailrace.model.failover import FailoverLog
from tailrace.trio.host import Host as ClientHost
from tailrace.wire.opcodes import Opcode
from tailrace.wire.segment_messages import CheckpointRequest
from tailrace.wire.stream_messages import StreamRequest
from tailrace_server.config import Limits, StorageConfig
from tailrace_server.host.network import TcpNetwork
from tailrace_server.node.start import open_node
from tailrace_server.runtime.host import Host

# Flushes happen only when they are asked for.
STORAGE = StorageConfig(reserve_bytes=0, free_bytes_min=0, journal_file_bytes_max=64 * 1024, pushed_age_s=3_600.0)
REPLICATION = dataclasses.replace(COPY_ALWAYS, poll_s=0.3)
LIMITS = Limits(noop_interval_s=100.0, incoming_segments_max=1, checkpoint_flush_s=0.0)


class RecordedNetwork(TcpNetwork):
    """A network whose connections to other nodes are recorded."""

    def __init__(self, recorder):
        super().__init__()
        self._recorder = recorder

    async def connect(self, address):
        return await self._recorder.connect(address)


class RecordedNode(MadeNode):
    """A node whose connections to other nodes are recorded."""

    def __init__(self, config, nursery, recorder):
        super().__init__(config, nursery)
        self._recorder = recorder

    async def _run(self, *, task_status):
        try:
            with self._kill:
                async with open_node(self.config, Host(network=RecordedNetwork(self._recorder))) as self.node:
                    task_status.started()
                    with self._stop:
                        await trio.sleep_forever()
        finally:
            self.node = None
            self._stopped.set()


def node_at(scratch, nursery, recorder, address, **changes):
    options = {"storage": STORAGE, "replication": REPLICATION, "limits": LIMITS} | changes
    config = make_config(scratch / str(address.port), address, **options)
    return RecordedNode(config, nursery, recorder)


def client_of(url, recorder, **options):
    host = ClientHost(connect=recorder.connect, random=random.Random(3))
    return tailrace.connect(url, host=host, **{"retry_for": 60} | options)


async def replica(scratch, nursery, recorder):
    """A node, and a replica that copies a segment of it and then follows it."""
    first, second = free_addresses(2)
    leader = node_at(scratch, nursery, recorder, first)
    follower = node_at(scratch, nursery, recorder, second, replica_of=first)
    await leader.start()
    async with client_of(leader.url, recorder) as client:
        orders = await client.create_feed("orders", partitions=1)
        copied = await client.create_feed("copied", partitions=1, replication="segment")
        await put(orders, {b"copied %d" % number: b"1" for number in range(10)}, level="disk")
        async with orders.stage() as stage:
            await stage.put(b"staged", b"1")
            sealed = await stage.seal()
        await orders.publish("job", 1, [sealed])
        await flushed(client, orders)
        await follower.start()
        await until_true(lambda: follower.seqs("orders") == leader.seqs("orders"))
        await orders.put(b"live", b"1")
        await copied.put(b"pushed", b"1")
        await flushed(client, copied)
        await until_true(lambda: follower.seqs("orders") == leader.seqs("orders"))
        await until_true(lambda: follower.seqs("copied") == leader.seqs("copied"))
    await follower.stop()
    await leader.stop()


async def flushed(client, feed):
    """Moves the rows of a feed with one partition to a segment, by a request that is recorded."""
    feed_id = (await feed.resolve()).feed_id
    asked = CheckpointRequest(feed_id, 0, flush=True).to_json()
    kept = await client.call(Opcode.SEGMENT_CHECKPOINT, asked)
    await client.call(Opcode.SEGMENT_RELEASE, {"checkpoint": kept["checkpoint"]})


class Members(MadeSet):
    """A set whose connections are recorded."""

    def __init__(self, scratch, nursery, recorder):
        self.addresses = tuple(free_addresses(4))
        self.make = lambda address, members: node_at(scratch, nursery, recorder, address, members=members)
        super().__init__([self.make(address, self.addresses[:3]) for address in self.addresses[:3]])


async def members(scratch, nursery, recorder):
    """A set from its founding on: rows at quorum, staged batches, pushed segments, each change of its leader."""
    nodes = Members(scratch, nursery, recorder)
    await nodes.start()
    first = await nodes.settled()
    async with client_of(nodes.url, recorder) as client:
        orders = await client.create_feed("orders", partitions=1)
        await client.create_feed("copied", partitions=8, replication="segment")
        await put(orders, {b"%d" % number: b"1" for number in range(5)})
        await publish(orders, 1)
        await nodes.level("orders")
        await pushed(client, nodes, first)
        follower = next(node for node in nodes if node is not first)
        await asked(recorder, nodes, first, follower)
        await handed_over(recorder, first, follower)
        await nodes.settled()
        await put(orders, {b"handed over": b"1"})
        await changed(nodes, client_of(nodes.url, recorder))
        await promoted(nodes, recorder)
        await put(orders, {b"promoted": b"1"})
        await nodes.level("orders")
    for node in nodes:
        await node.stop()


async def publish(feed, batch):
    async with feed.stage() as stage:
        await stage.put(b"staged %d" % batch, b"1")
        sealed = await stage.seal("quorum")
    await feed.publish("job", batch, [sealed])


async def pushed(client, nodes, leader):
    """Segments of several partitions at once: a follower declines those above its bound."""
    copied = client.feed("copied")
    for number in range(40):
        await copied.put(b"%d" % number, b"1", level="disk")
    await leader.flush("copied")
    await until_true(lambda: all(node.seqs("copied") == leader.seqs("copied") for node in nodes))


async def asked(recorder, nodes, leader, follower):
    """What a follower answers to clients: a write, a read, a barrier, and one without a leader."""
    transport = await recorder.connect(follower.address)
    connection = connection_of(transport)
    asking = await greeted(connection)
    feed_id = follower.node.feeds.named("orders").info.feed_id
    await asking.write(block(), feed_id=feed_id)  # not_leader
    request = StreamRequest(feed_id, 0, FailoverLog(), 0, 0, 0, 0, None, Level.DISK, "follower")
    await connection.send(request.encode(99))
    await until(connection, Opcode.STREAM_OK)
    await connection.send(encode_frame(Opcode.BARRIER, b"reached", 0))
    await until(connection, Opcode.BARRIER_REACHED)
    await leader.kill()
    await connection.send(encode_frame(Opcode.BARRIER, b"lost", 0))
    await until(connection, Opcode.BARRIER_LOST)
    transport.close()
    await leader.start()
    while not leader.leads:
        await promoted_again(leader)
    await nodes.settled()


async def handed_over(recorder, leader, to):
    transport = await recorder.connect(leader.address)
    asking = await greeted(connection_of(transport))
    await asking.result(Opcode.HANDOVER, {"to": str(to.address), "force": False})
    transport.close()


async def promoted_again(node):
    """An operator promotes the node; it may have to wait until enough others answer."""
    try:
        await node.promote()
    except tailrace.TailraceError:
        await trio.sleep(0.1)


async def changed(nodes, client):
    """A member is added, and removed again."""
    joining = nodes.make(nodes.addresses[3], nodes.addresses)
    await joining.start()
    leader = await nodes.settled()
    async with client as asking:
        await asking.call(Opcode.MEMBER_CHANGE, {"action": "add", "name": str(joining.address)})
        await until_true(lambda: joining.member.local.votes)
        await until_true(lambda: joining.seqs("orders") == leader.seqs("orders"))
        await asking.call(Opcode.MEMBER_CHANGE, {"action": "remove", "name": str(joining.address)})
        await until_true(lambda: all(len(node.member.local.file.now.voters.names) == 3 for node in nodes))
    await joining.stop()


async def promoted(nodes, recorder):
    """The leader is lost, and another one is promoted, by a request that is recorded."""
    lost = await nodes.settled()
    chosen = next(node for node in nodes if node is not lost)
    await lost.kill()
    transport = await recorder.connect(chosen.address)
    asking = await greeted(connection_of(transport))
    while True:  # it may have to wait until it sees that the leader is lost
        if (await asking.json(Opcode.PROMOTE, {"force": False})).opcode is Opcode.RESULT:
            break
        await trio.sleep(0.1)
    transport.close()
    await lost.start()
    await nodes.settled()


async def joined(scratch, nursery, recorder):
    """A new node becomes a member, with a client connected: that one is told to connect anew."""
    nodes = Members(scratch, nursery, recorder)
    await nodes.start()
    await nodes.settled()
    joining = nodes.make(nodes.addresses[3], nodes.addresses)
    await joining.start()
    transport = await recorder.connect(joining.address)
    connection = connection_of(transport)
    await greeted(connection, session="cd" * 16)
    async with client_of(nodes.url, recorder) as client:
        await client.call(Opcode.MEMBER_CHANGE, {"action": "add", "name": str(joining.address)})
        assert (await connection.receive()).opcode is Opcode.ERROR  # unreachable
    transport.close()
    for node in (joining, *nodes):
        await node.stop()


SESSIONS = {each.__name__: each for each in (replica, members, joined)}
