"""Sets of nodes in this process; and a node of a set of three, the only one there is: the others are a test's hand."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import trio
from tests.tailrace_server.replication.made_set import REPLICATION, MadeNode, free_addresses, make_config
from tests.tailrace_server.replication.slow_path import never_now

from tailrace.link.address import Address
from tailrace_server.config import Config
from tailrace_server.node.start import recover
from tailrace_server.partition.branching import begin_branch
from tailrace_server.replication import catching_up
from tailrace_server.replication.replica_puller import ReplicaPuller
from tailrace_server.runtime.host import Host
from tailrace_server.upkeep.received_files import PartitionFiles

# Nobody listens there: the addresses that two replicas made by hand say that they have.
OTHERS = (Address("127.0.0.1", 1), Address("127.0.0.1", 2))
# They are of the node's cluster.
CLUSTER_ID = b"c" * 16


class Member:
    """A node that is led and followed by what a test does."""

    def __init__(self, node):
        self.node = node
        self.config = SimpleNamespace(listen=node.listening)
        self.url = f"tailrace://{Address(*node.listening)}"


@pytest.fixture
def open_member(tmp_path):
    """A function that serves a node, a member of a set or not, until its nursery is cancelled; as `RunningNode`."""

    async def run(*, task_status, in_set=True, replica_of=None):
        host = Host()
        listener = await host.network.listen("127.0.0.1", 0)
        address = Address(*listener.address)
        members = (address, *OTHERS) if in_set else ()
        config = Config(
            str(tmp_path / "data"), address, None, None, members=members, replica_of=replica_of, replication=REPLICATION
        )
        host.disk.make_directory(config.data)
        node = recover(config, host)
        node.services.join(CLUSTER_ID)
        node.services.listening = address
        for partition in node.feeds.system.partitions:
            if not partition.log:
                begin_branch(partition, b"s" * 16, node.storage.journal, 1)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(node.serve, listener)
                task_status.started(Member(node))
        finally:
            with trio.CancelScope(shield=True):
                await listener.aclose()
            node.stop()

    return run


@pytest.fixture
async def running(nursery, open_member):
    """The member of the set; it leads in term 1."""
    member = await nursery.start(open_member)
    member.node.leaderships.system.become_leader(1)
    return member


@pytest.fixture
async def source_and_replica(tmp_path, nursery):
    """A node that is alone, and a plain replica of it."""
    first, second = free_addresses(2)
    source = MadeNode(make_config(tmp_path / "source", first), nursery)
    replica = MadeNode(make_config(tmp_path / "replica", second, replica_of=first), nursery)
    await source.start()
    await replica.start()
    return source, replica


class Held:
    """Something that waits: ``reached`` is set when it does, and ``release`` lets it go on."""

    def __init__(self):
        self.reached = trio.Event()
        self._released = trio.Event()

    def release(self):
        self._released.set()

    async def wait(self):
        self.reached.set()
        await self._released.wait()


@pytest.fixture
def held_parts(monkeypatch):
    """The parts of segments that come: none is written before they are released."""
    held, store = Held(), PartitionFiles.store_parts

    async def wait(files, received):
        await held.wait()
        await store(files, received)

    monkeypatch.setattr(PartitionFiles, "store_parts", wait)
    return held


@pytest.fixture
def damaged_parts(monkeypatch):
    """Each part of a segment comes with wrong bytes."""
    store = PartitionFiles.store_parts

    async def damage(files, parts):
        await store(files, [(part, memoryview(bytes(len(data)))) for part, data in parts])

    monkeypatch.setattr(PartitionFiles, "store_parts", damage)


@pytest.fixture
def hold_rows(monkeypatch):
    """A function: from then on a member applies no row of the feed before they are released."""
    take = ReplicaPuller._take

    def hold(member, feed="orders"):
        held = Held()

        async def wait(puller, event):
            if puller._node is member.node.services and puller.feed.info.name == feed:
                await held.wait()
            await take(puller, event)

        monkeypatch.setattr(ReplicaPuller, "_take", wait)
        monkeypatch.setattr(ReplicaPuller, "_take_now", never_now)
        return held

    return hold


@pytest.fixture
def copied(monkeypatch):
    """The partitions whose segments were installed, in order, with the seqs that they stood at before and after."""
    installed, install = [], catching_up.install_received_chain

    async def noted(storage, partition, received):
        before = partition.high_seq
        await install(storage, partition, received)
        installed.append((partition.id, before, partition.high_seq))

    monkeypatch.setattr(catching_up, "install_received_chain", noted)
    return installed
