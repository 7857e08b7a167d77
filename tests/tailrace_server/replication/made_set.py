"""A set of nodes in this process, over loopback sockets and real time."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from typing import NamedTuple

import trio

import tailrace
from tailrace.block import encode_block
from tailrace.errors import UnknownFeed
from tailrace.link.address import Address
from tailrace.testing.ports import free_ports
from tailrace.trio.request import ask
from tailrace.wire.opcodes import Opcode
from tailrace_server.config import Config, Failover, Replication
from tailrace_server.node.start import open_node
from tailrace_server.replication.role import Role
from tailrace_server.replication.voters import voters_to_json
from tailrace_server.state.last_batches import to_json

# Looks come often, so that tests wait for little; the time-outs stay long, so that a busy machine breaks nothing. Tests
# say when who leads: failover by itself has tests of its own.
REPLICATION = Replication(failover=Failover.MANUAL, poll_s=0.05, ask_timeout_s=20.0, step_timeout_s=40.0)
POLL_SECONDS = 0.01
# A member copies segments however few bytes it lacks.
COPY_ALWAYS = dataclasses.replace(REPLICATION, catch_up_bytes_min=0)


def free_addresses(count):
    """Addresses that nobody listens at, whether the nodes that are to do so are up or down."""
    return [Address("127.0.0.1", port) for port in free_ports(count)]


async def until(holds):
    """Returns once ``holds()`` is true. It does not hold while a node lacks a feed that ``holds`` looks at."""
    while True:
        with contextlib.suppress(UnknownFeed):
            if holds():
                return
        await trio.sleep(POLL_SECONDS)


class MadeNode:
    """A node that is stopped, killed and started again at the same address; its disk may be replaced."""

    def __init__(self, config, nursery):
        self.config = config
        self.address = Address(*config.listen)
        self.node = None
        self._nursery = nursery
        self._stop = self._kill = trio.CancelScope()
        self._stopped = trio.Event()

    @property
    def url(self):
        return f"{'tailraces' if self.config.tls else 'tailrace'}://{self.address}"

    @property
    def is_up(self):
        return self.node is not None

    @property
    def leads(self):
        return self.is_up and self.node.leaderships.system.role is Role.LEADER

    @property
    def member(self):
        return self.node.members[0]

    def follows(self, leader):
        return (
            self.is_up
            and self.node.leaderships.system.leader == str(leader.address)
            and self.member.following is not None
        )

    async def start(self):
        self._stop, self._kill, self._stopped = trio.CancelScope(), trio.CancelScope(), trio.Event()
        await self._nursery.start(self._run)

    async def _run(self, *, task_status):
        try:
            with self._kill:
                async with open_node(self.config) as self.node:
                    task_status.started()
                    with self._stop:
                        await trio.sleep_forever()
                    self.node.check()
        finally:
            self.node = None
            self._stopped.set()

    async def stop(self):
        """Stops cleanly."""
        self._stop.cancel()
        await self._stopped.wait()

    async def kill(self):
        """Stops without a word to anybody, and leaves the directory as a process that was killed would."""
        self._kill.cancel()
        await self._stopped.wait()
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(self.config.data, "CLEAN"))

    def replace_disk(self):
        """All data of a node that is down is gone."""
        shutil.rmtree(self.config.data)

    async def ask(self, opcode, **value):
        """The node's answer to a request of another one, or of an operator; of one of its cluster, if not said."""
        if opcode in (Opcode.PROMISE, Opcode.TAKE_OVER, Opcode.ACCEPTED_SEQS):
            value.setdefault("cluster_id", self.node.identity.cluster_id.hex())
        if opcode is Opcode.PROMISE:
            value.setdefault("voters", voters_to_json(self.member.local.file.now.voters))
        return await ask(self.address, opcode, value, timeout_s=120.0)

    async def promote(self, *, force=False):
        return await self.ask(Opcode.PROMOTE, force=force)

    async def hand_over(self, to):
        return await self.ask(Opcode.HANDOVER, to=str(to.address))

    async def flush(self, feed="orders"):
        """Writes all rows of a feed into segments; gives its partitions."""
        partitions = self.node.feeds.named(feed).partitions
        for partition in partitions:
            await self.node.storage.flusher.flush_all(partition)
        return partitions

    def seqs(self, feed):
        """High seqs of a feed's partitions; None where the node does not have the feed."""
        if feed not in [found.info.name for found in self.node.feeds]:
            return None
        return [p.high_seq for p in self.node.feeds.named(feed).partitions]

    def rows(self, feed):
        """What the node holds of a feed, by key."""
        found = {}
        for partition in self.node.feeds.named(feed).partitions:
            blocks = [block for segment in partition.chain.segments for block in segment.read_blocks(0, 1 << 40)[0]]
            blocks += partition.tree.blocks_after(partition.flushed_seq)
            for block in blocks:
                columns = block.open_columns()
                found.update(zip(columns.keys(), columns.values(), strict=True))
        return {key: value for key, value in found.items() if value is not None}

    def logs(self, feed):
        return [p.log for p in self.node.feeds.named(feed).partitions]


class MadeSet:
    """Nodes that were made with one list of members."""

    def __init__(self, nodes):
        self.nodes = nodes

    @property
    def url(self):
        scheme = self.nodes[0].url.partition("://")[0]
        return f"{scheme}://" + ",".join(str(node.address) for node in self.nodes)

    def __iter__(self):
        return iter(self.nodes)

    def __getitem__(self, number):
        return self.nodes[number]

    async def start(self):
        for node in self.nodes:
            await node.start()

    @property
    def leader(self):
        """The one that leads; AssertionError where none or several do."""
        [leader] = [node for node in self.nodes if node.leads]
        return leader

    async def settled(self):
        """One leads, and all others that are up follow it; gives the leader."""

        def is_settled():
            up = [node for node in self.nodes if node.is_up]
            leaders = [node for node in up if node.leads]
            return len(leaders) == 1 and all(node is leaders[0] or node.follows(leaders[0]) for node in up)

        await until(is_settled)
        return self.leader

    async def level(self, feed):
        """All that are up hold what the leader does of a feed, on the same branches."""
        leader = await self.settled()

        def is_level():
            others = [node for node in self.nodes if node.is_up and node is not leader]
            return all(node.seqs(feed) == leader.seqs(feed) and node.logs(feed) == leader.logs(feed) for node in others)

        await until(is_level)
        return leader

    async def filled(self, client, rows, partitions=1):
        """A new feed "orders" with these keys and values, which all that are up hold; gives the client's handle."""
        feed = await client.create_feed("orders", partitions=partitions)
        for key, value in rows.items():
            await feed.put(key, value, level="quorum")
        await self.level("orders")
        return feed

    def client(self, **options):
        return tailrace.connect(self.url, **({"retry_for": 60} | options))


def numbered(first, count):
    """Rows with the keys and values of ``count`` numbers."""
    return {b"%d" % number: b"v%d" % number for number in range(first, first + count)}


async def put(feed, rows, level="quorum", **options):
    """Writes ``rows`` in batches, deletions for values of None, and returns when they have reached ``level``."""
    async with feed.writer(level=level, **options) as writer:
        for key, value in rows.items():
            await (writer.delete(key) if value is None else writer.put(key, value))


async def publish_one(feed):
    """Publishes a batch of one row."""
    async with feed.stage() as stage:
        await stage.put(b"batch", b"1")
        sealed = await stage.seal()
    await feed.publish("job", 1, [sealed])


def resend_state(partition):
    """By what a partition knows resends: the results of producers, by id, and the last batches of sinks."""
    results = {entry.producer_id: entry.results for entry in partition.producers.snapshot(0.0)[0]}
    return results, to_json(partition.sinks.as_of(partition.high_seq))


class Written(NamedTuple):
    """The last block that a partition's only producer wrote."""

    producer_id: int
    number: int
    result: object

    def is_known_to(self, partition):
        """Returns whether the partition answers the block, if it comes again, with its result."""
        block = encode_block(
            [b"0"], [b"again"], partition=0, producer_id=self.producer_id, producer_seq=self.number, compress=False
        )
        decision = partition.producers.decide(block.header.producer_id, self.number, resend=True, now=0.0)
        return decision.result == self.result


def last_written(partition):
    [entry] = [entry for entry in partition.producers.snapshot(0.0)[0] if entry.results]
    return Written(entry.producer_id, *entry.results[-1])


def make_set(tmp_path, nursery, count=3, **changes):
    """A set of ``count`` new nodes, none of them started."""
    addresses = tuple(free_addresses(count))
    return MadeSet(
        [
            MadeNode(make_config(tmp_path / f"data {number}", address, members=addresses, **changes), nursery)
            for number, address in enumerate(addresses)
        ]
    )


def make_config(data, address, **changes):
    config = Config(str(data), listen=tuple(address), http=None, ws=None, replication=REPLICATION)
    return dataclasses.replace(config, **changes)
