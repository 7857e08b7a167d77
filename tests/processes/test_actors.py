"""Each act breaks what it says: nodes, and the commands of operators, tell of it."""

from __future__ import annotations

import contextlib
import random
import re

import pytest
import trio
from tests.tailrace_server.coordination.made_etcd import Etcd, require_etcd

import tailrace
from tailrace.wire.opcodes import Opcode

from .actor import Actor
from .disk_acts import DiskActs
from .group import Group
from .history import History
from .member_acts import MemberActs
from .network_acts import NetworkActs
from .store_acts import StoreActs

pytestmark = [pytest.mark.slow, pytest.mark.soak]

SECONDS_MAX = 240.0


class Scene:
    """A set under a writer, and what its actors need."""

    def __init__(self, group, nursery):
        self.group = group
        self.nursery = nursery
        self.history = History(1)

    def actor(self, kind, *arguments):
        return kind(self.group, self.history, random.Random(1), *arguments)

    async def leader(self):
        while (leader := await self.group.leader()) is None:  # noqa: ASYNC110 - another process
            await trio.sleep(0.1)
        return leader

    async def settled(self):
        """Waits until all nodes vote and have a leader."""
        actor = self.actor(Actor)

        async def is_settled():
            return await actor.all_vote() and all([await follows(node) for node in self.group.nodes])

        while not await is_settled():  # noqa: ASYNC110 - other processes
            await trio.sleep(0.1)

    async def logged(self, pattern, nodes=None):
        """Waits until one of the nodes has logged it."""

        def is_logged():
            return any(re.search(pattern, node.log_path.read_text()) for node in nodes or self.group.nodes)

        while not is_logged():  # noqa: ASYNC110 - other processes
            await trio.sleep(0.1)

    async def write(self):
        """Writes at quorum, again and again, whatever happens to the set."""
        async with tailrace.connect(self.group.url, connect_timeout=SECONDS_MAX, retry_for=SECONDS_MAX) as client:
            feed = await client.create_feed("orders", partitions=1)
            while True:
                with contextlib.suppress(tailrace.Retryable, tailrace.OutcomeUnknown):
                    await feed.put(b"k", b"v" * 1_000, level="quorum")
                await trio.sleep(0.02)


async def follows(node):
    """Returns whether a node has a leader, which may be itself."""
    return bool(((await node.ask()) or {}).get("leader"))


@contextlib.asynccontextmanager
async def opened(folder, nursery, **options):
    group = Group(folder, 3, failover="auto", can_trouble=True, **options)
    await group.connect(nursery)
    try:
        with trio.fail_after(SECONDS_MAX):
            await group.start(group.nodes)
            scene = Scene(group, nursery)
            await scene.settled()
            nursery.start_soon(scene.write)
            yield scene
    finally:
        group.end_at_once()


@pytest.fixture
async def scene(tmp_path, nursery):
    async with opened(tmp_path, nursery) as scene:
        yield scene


async def trouble_of_the_leader(scene, actor, act):
    """Repeats an act on disks until it is the leader's. Returns the leader."""
    while True:
        await act()
        leader = await scene.group.leader()
        troubled = next(node for node in scene.group.nodes if node.disk_trouble)
        if troubled is leader or (leader is None and troubled.disk_trouble == "hangs"):
            return troubled
        await actor.mend()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("hang", "an fsync has taken 5 s so far"),
        ("fail", r"disk stuck -> unfit \(.*Input/output error"),
        ("fill", "hands over to .*, whose disk has room"),
        ("narrow", "hands over to .*, whose disk has room"),
    ],
)
async def test_a_disk_is_in_trouble_until_it_is_mended(scene, name, told):
    disks = scene.actor(DiskActs)
    node = await trouble_of_the_leader(scene, disks, getattr(disks, name))
    await scene.logged(told, [node])
    assert await disks.mend()
    while not await follows(node):  # noqa: ASYNC110 - another process
        await trio.sleep(0.1)


async def test_a_mute_leader_hears_the_others_and_is_lost_to_them(scene):
    network, leader = scene.actor(NetworkActs), await scene.leader()
    await network.mute_leader()
    await scene.logged("no sign of life of the leader", [node for node in scene.group.nodes if node is not leader])
    await scene.logged("no majority of the set has confirmed", [leader])
    await network.mend()
    await scene.logged("leads: follow|a majority of the set confirms", [leader])


async def test_a_node_that_is_refused_is_reset(scene):
    network, leader = scene.actor(NetworkActs), await scene.leader()
    other = next(node for node in scene.group.nodes if node is not leader)
    scene.group.network.refuse(other, leader)
    await scene.logged("reset by peer", [other])
    assert await network.mend()


async def test_members_are_added_exchanged_replaced_and_removed(scene):
    def tell(what):
        print(what)

    members = scene.actor(MemberActs, scene.nursery, tell)
    for act, count in ((members.add, 4), (members.move, 4), (members.replace, 4), (members.remove, 3)):
        changes = members.changes
        while await act() is None:  # noqa: ASYNC110 - not all vote yet
            await trio.sleep(0.1)
        await members.settled()
        assert members.changes > changes
        assert len(scene.group.nodes) == count
    assert len(scene.group.former) == 2
    leader = await scene.leader()
    seen = (await leader.ask(Opcode.STATUS))["replication"]
    assert sorted(seen["members"]) == sorted(node.member for node in scene.group.nodes)


async def test_etcd_is_lost_and_a_member_moves(tmp_path, nursery):
    require_etcd()
    etcd = Etcd(tmp_path / "etcd").start().wait()
    try:
        async with opened(tmp_path, nursery, store=f"etcd://{etcd.endpoint}") as scene:
            store = scene.actor(StoreActs, etcd)
            members = scene.actor(MemberActs, nursery, print)
            for act in (store.kill_store, store.pause_store):
                await act()
                assert await members.add() is None
                await scene.logged("the cluster store: .*", scene.group.nodes)
                assert await store.mend()
            await store.lose_store()
            await scene.logged("the voters of the set are written to")
            before = {each.address for each in scene.group.nodes}
            await members.move()
            (moved,) = [each for each in scene.group.nodes if each.address not in before]
            await scene.logged(f"the member {moved.member} is at {moved.address} now")
    finally:
        etcd.stop()
