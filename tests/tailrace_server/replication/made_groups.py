"""A set of nodes with two groups of partitions in each process: even partitions, ``_feeds`` among them, and odd ones.

No message names a group. So each group has addresses of its own: a connection to a node's second listener is about the
odd group.
"""

from __future__ import annotations

import trio
from tests.tailrace_server.replication.made_set import MadeNode, free_addresses, make_config, until

import tailrace
from tailrace.model.hashing import key_hash, partition_of_hash
from tailrace.trio.request import ask
from tailrace.wire.opcodes import Opcode
from tailrace_server.node.start import open_node
from tailrace_server.replication.groups import Grouping, GroupSettings
from tailrace_server.replication.role import Role
from tailrace_server.runtime.host import Host

EVEN, ODD = 0, 1
PARTITIONS = 4


def by_parity(feed_id, partition):
    """Even partitions, that of ``_feeds`` among them, are group 0, odd ones group 1."""
    return partition % 2


def partition_of(key):
    """The number of a key's partition, of four."""
    return partition_of_hash(key_hash(key), PARTITIONS)


def keys_of(group, count):
    """Keys whose partitions belong to ``group``."""
    keys = (b"%d" % number for number in range(1000))
    return [key for key in keys if partition_of(key) % 2 == group][:count]


class TwoGroupsNode(MadeNode):
    """A member of both groups. ``members``: the addresses of the even group, and those of the odd one."""

    def __init__(self, config, nursery, members, number):
        super().__init__(config, nursery)
        self.addresses = [addresses[number] for addresses in members]
        settings = [
            GroupSettings(
                group, tuple(_turned(addresses, group)), addresses[number], None, ("MEMBERSHIP", "ODD")[group]
            )
            for group, addresses in enumerate(members)
        ]
        self.grouping = Grouping(settings, by_parity)

    async def _run(self, *, task_status):
        host = Host()
        try:
            with self._kill:
                listener = await host.network.listen(*self.addresses[ODD])
                try:
                    async with (
                        open_node(self.config, host, self.grouping) as self.node,
                        trio.open_nursery() as nursery,
                    ):
                        nursery.start_soon(listener.serve, self.node.handler_of(ODD))
                        task_status.started()
                        with self._stop:
                            await trio.sleep_forever()
                        self.node.check()
                        nursery.cancel_scope.cancel()
                finally:
                    with trio.CancelScope(shield=True):
                        await listener.aclose()
        finally:
            self.node = None
            self._stopped.set()

    def leadership(self, group):
        return self.node.leaderships.of_group(group)

    def leads_group(self, group):
        return self.is_up and self.leadership(group).role is Role.LEADER

    def follows_in(self, group, leader):
        if not self.is_up or self.leadership(group).leader != str(leader.addresses[group]):
            return False
        return self.node.members[group].following is not None

    def partitions(self, feed, group):
        return self.node.feeds.named(feed).partitions[group::2]

    async def ask_of(self, group, opcode, **value):
        """The node's answer to a request about a group."""
        return await ask(self.addresses[group], opcode, value, timeout_s=120.0)

    async def hand_over_in(self, group, to):
        return await self.ask_of(group, Opcode.HANDOVER, to=str(to.addresses[group]))


def _turned(addresses, count):
    """The list from the ``count``-th on, and then those before: another member founds each group."""
    return [*addresses[count:], *addresses[:count]]


class TwoGroups:
    """Three nodes."""

    def __init__(self, nodes):
        self.nodes = nodes

    def __iter__(self):
        return iter(self.nodes)

    async def start(self):
        for node in self.nodes:
            await node.start()

    async def settled(self, group):
        """One node leads the group, and all others that are up follow it there; gives the leader."""

        def is_settled():
            up = [node for node in self.nodes if node.is_up]
            leaders = [node for node in up if node.leads_group(group)]
            return len(leaders) == 1 and all(n is leaders[0] or n.follows_in(group, leaders[0]) for n in up)

        await until(is_settled)
        return next(node for node in self.nodes if node.leads_group(group))

    async def level(self, feed, group):
        """All that are up hold what the leader does of the group's partitions of ``feed``, on the same branches."""
        leader = await self.settled(group)

        def held(node):
            if feed not in [found.info.name for found in node.node.feeds]:
                return None
            return [(p.high_seq, p.log) for p in node.partitions(feed, group)]

        await until(lambda: all(held(node) == held(leader) for node in self.nodes if node.is_up))
        return leader

    def client(self, group, **options):
        """A client whose leader is that of ``group``."""
        url = "tailrace://" + ",".join(str(node.addresses[group]) for node in self.nodes)
        return tailrace.connect(url, **({"retry_for": 60} | options))


def make_groups(tmp_path, nursery, count=3):
    """Nodes that are new, none of them started."""
    addresses = free_addresses(2 * count)
    members = tuple(addresses[:count]), tuple(addresses[count:])
    configs = (
        make_config(tmp_path / f"data {number}", address, members=members[EVEN])
        for number, address in enumerate(members[EVEN])
    )
    return TwoGroups([TwoGroupsNode(config, nursery, members, number) for number, config in enumerate(configs)])
