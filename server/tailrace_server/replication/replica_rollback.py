"""Rolls a plain replica back if it has seen later terms than its leader.

Such a node was a leader once: it was replaced by force, and then led alone for a few starts, each of which began a
branch. A node never rolls back for a leader of a lower term, which may just be behind. But an operator has chosen the
leader of a plain replica, and the replica has no vote, so no other node relies on its rows. A member of a set never
does this.

    its log    a (1) ── b (2, base 80) ── c (3, base 95)      the leader's    a (1) ── x (2, base 60)
    it goes back to 95, and keeps a and b; from there it is rolled back as any other replica, to 60
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import trio

from tailrace.errors import NotLeader, UnknownFeed
from tailrace.link.address import Address
from tailrace.model.failover import FailoverLog
from tailrace.wire.bodies import field, hex_field, seq_field
from tailrace.wire.opcodes import Opcode
from tailrace_server.feeds.feed import Feed
from tailrace_server.partition.partition import Partition
from tailrace_server.replication.peers import ask, look_at
from tailrace_server.upkeep.rollback import roll_back

if TYPE_CHECKING:
    from tailrace_server.replication.groups import Group
    from tailrace_server.replication.leadership import Leadership
    from tailrace_server.replication.local_node import LocalNode

log = logging.getLogger("tailrace.server")


def newer_branches(own: FailoverLog, term: int) -> tuple[int, FailoverLog] | None:
    """Returns the base of the branches of ``own`` with a higher term, and the log without them.

    Pure. Returns None without such branches. ``term``: the leader's; 0 if the leader holds nothing yet, which says
    nothing about who is right.
    """
    if not term or own.term <= term:
        return None
    left = FailoverLog(entry for entry in own if entry.term <= term)
    return (min(entry.base for entry in own if entry.term > term) if left else 0), left


async def roll_back_newer(node: LocalNode, leadership: Leadership, address: Address) -> int:
    """Rolls back the rows of later terms than the leader at ``address`` has. Returns the number of partitions.

    Removed rows are kept in lost/. No other task may apply anything for ``node`` meanwhile.

    Raises:
        NotLeader: That node does not lead, or leads another cluster.
        Unreachable, ProtocolError, NoSpace, NotDurable, OSError: As the question and the rollback raise them.
    """
    config = node.config.replication
    seen = await look_at(node, address, {}, config.ask_timeout_s)
    if not seen.leads or seen.cluster_id != node.identity.cluster_id:
        raise NotLeader(f"{address} does not lead this node's cluster: nothing is given up for it")
    terms: dict[Partition, int] = {}
    group = leadership.group
    for feed in [node.feeds.system, *node.feeds]:
        if group.of_feed(feed):
            terms |= await _terms(node, group, address, feed)
    count = 0
    for partition, term in terms.items():
        newer = newer_branches(partition.log, term)
        if newer is not None and not partition.is_dropped:
            base, left = newer
            log.warning(
                "partition %s of feed %s rolls back to seq %s: the rows above are of term %s, and the leader that "
                "it follows, %s, is in term %s",
                *(partition.id, partition.feed_name, base, partition.log.term, address, term),
            )
            with trio.CancelScope(shield=True):
                await roll_back(node.storage, partition, base, left, leadership.on_shortfall)
            count += 1
    return count


async def _terms(node: LocalNode, group: Group, address: Address, feed: Feed) -> dict[Partition, int]:
    """Returns the leader's term of each partition of ``feed`` in ``group``; empty if the leader has no such feed."""
    what = "the answer to PARTITIONS"
    try:
        name = {"name": feed.info.name}
        answer = await ask(node, address, Opcode.PARTITIONS, name, node.config.replication.step_timeout_s)
    except UnknownFeed:
        return {}
    if hex_field(field(answer, "feed", dict, what), "feed_id", len(feed.info.feed_id), what) != feed.info.feed_id:
        return {}
    told = zip(feed.partitions, field(answer, "partitions", list, what), strict=False)
    found = [(partition, one) for partition, one in told if group.has(partition)]
    if any(field(one, "state", str, what) != "leader" for _, one in found):
        raise NotLeader(f"{address} does not lead any more: nothing is given up for it")
    return {partition: seq_field(one, "term", what) for partition, one in found if partition.damage is None}
