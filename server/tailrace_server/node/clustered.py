"""A node with ``--cluster-store``: it gets the list of members from the coordinator, and then starts as any member.

The order at a start: the directory's ids are durable; the node registers; the set is founded, or known from the file
CLUSTER of an earlier start; the node starts. So a node of a founded set starts without the coordinator.

From then on the node's own record of the voters says who the members are (voters.py). The coordinator has a copy of the
leader's, as a majority has stored it, which new nodes begin with, and the addresses.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator
from functools import partial
from typing import NamedTuple

import trio

from tailrace import _version
from tailrace.link.address import Address, parse_address
from tailrace_server.config import Config
from tailrace_server.coordination.cluster_file import copy_in, prefix_in
from tailrace_server.coordination.cluster_keys import NO_ID, ClusterKeys, NodeValue, Voter, Voters
from tailrace_server.coordination.cluster_link import ClusterLink, Leading
from tailrace_server.coordination.etcd_store import EtcdStore
from tailrace_server.coordination.founding import OwnNode
from tailrace_server.coordination.moved_network import MovedNetwork
from tailrace_server.coordination.static_store import FILE_NAME, StaticStore
from tailrace_server.coordination.store_state import StoreHealth
from tailrace_server.coordination.store_url import StoreUrl
from tailrace_server.directory.identity import BadDirectory, Identity
from tailrace_server.feeds.feed import SYSTEM_FEED_ID
from tailrace_server.journal.reserve import Reserve
from tailrace_server.manifest.store import FEEDS_NAME
from tailrace_server.node.node import Node
from tailrace_server.node.start import open_node, prepare
from tailrace_server.replication.member import Member
from tailrace_server.replication.membership import MembershipFile
from tailrace_server.replication.promotion import is_confirmed
from tailrace_server.replication.role import Role
from tailrace_server.runtime.host import Host, system_host

log = logging.getLogger("tailrace.server")

# An answer that takes longer is slow: a lease of 4 s is renewed every 1.3 s.
_SLOW_AFTER_S = 1.0


class ClusterStore(NamedTuple):
    """The options of a node with a coordinator. ``voters``: the number of nodes that found the set."""

    url: StoreUrl
    voters: int


@contextlib.asynccontextmanager
async def open_clustered(config: Config, store: ClusterStore, host: Host | None = None) -> AsyncIterator[Node]:
    """Waits until the set is founded, and then serves as `open_node` while the body runs.

    ``config`` names no members. Raises as `open_node`, StoreRefused and StoreDamaged; BadDirectory if the directory
    belongs to a set of another name.
    """
    host = system_host(config) if host is None else host
    identity = prepare(config, host)
    health = StoreHealth(host.clock.monotonic, log.warning, _SLOW_AFTER_S)
    etcd = EtcdStore(store.url, health)
    try:
        # Also a full disk has room for the members: without them the node would not start while etcd is gone.
        reserve = Reserve(host.disk, config.data, config.storage.reserve_bytes)
        file = StaticStore(host.disk, f"{config.data}/{FILE_NAME}", reserve.write_small)
        link = _link(config, store, host, identity, etcd, file)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run)
            await link.founded()
            log.info("the members are %s", ", ".join(map(str, link.voters.names)))
            config = dataclasses.replace(
                config, members=link.members, member_name=link.own_name, may_found=link.is_voter
            )
            host = dataclasses.replace(host, network=MovedNetwork(host.network, link.address_of))
            async with open_node(config, host) as node:
                file.write_by(node.storage.space.write_small)
                link.led_by(partial(_leading, node), partial(_is_confirmed, node), partial(_has_seat, node))
                node.coordinated(link.to_json, partial(_address_of, link))
                yield node
            nursery.cancel_scope.cancel()
    finally:
        with trio.CancelScope(shield=True):
            await etcd.aclose()


def _link(
    config: Config, store: ClusterStore, host: Host, identity: Identity, etcd: EtcdStore, file: StaticStore
) -> ClusterLink:
    value = NodeValue(
        Address(*config.listen),
        identity.placement_id,
        identity.cluster_id,
        store.voters,
        _is_new(config, host, identity),
        _version.__version__,
    )
    copy = copy_in(file, identity.placement_id)
    own, keys = OwnNode(identity.node_id, value, copy), ClusterKeys.of(config.cluster)
    if copy is not None:
        _require_prefix(config, prefix_in(file), keys.prefix)
    return ClusterLink(etcd, etcd.health, keys, own, file, str(store.url))


def _require_prefix(config: Config, told: str | None, prefix: str) -> None:
    """Raises BadDirectory for another name than that of the set, below which the node would put its set's voters."""
    if told is not None and told != prefix:
        name = told.removeprefix("/tailrace/").rstrip("/")
        raise BadDirectory(
            f"{config.data} belongs to a set whose keys are below {told}, and this node was started with those below "
            f"{prefix}: start it with --cluster {name}, or with an empty directory as a node of the other set"
        )


def _is_new(config: Config, host: Host, identity: Identity) -> bool:
    """Returns whether the directory has never belonged to a set, and has no feeds."""
    membership = MembershipFile(host.disk, config.data, identity.placement_id).now
    feeds = f"{config.data}/{FEEDS_NAME}"
    names = set(host.disk.names(feeds)) if host.disk.exists(feeds) else set()
    return not membership.founded and not names - {SYSTEM_FEED_ID.hex()}


def _leading(node: Node) -> Leading | None:
    leadership = node.leaderships.unnamed
    if leadership.role is not Role.LEADER:
        return None
    return Leading(leadership.term, _record_of(node.members[leadership.group.number]))


async def _is_confirmed(node: Node) -> bool:
    """Returns whether a majority confirms, after this call has begun, that this node leads."""
    return await is_confirmed(node.members[node.leaderships.unnamed.group.number])


def _has_seat(node: Node) -> bool:
    """Returns whether this directory has a seat by the record that it has stored."""
    member = node.members[node.leaderships.unnamed.group.number]
    return member.local.file.now.voters.has(node.identity.placement_id)


def _record_of(member: Member) -> Voters | None:
    """Returns the record by which a member leads, as the coordinator has it.

    None in epoch 0, and until a majority has stored the record: the next leader may not know it, and goes on with an
    earlier one.
    """
    record, names = member.local.file.now.voters, member.leadership.members.now
    if not record.epoch or len(names) < len(record.seats) or not member.seats.is_stored:
        return None
    voters = tuple(Voter(id, NO_ID, name) for id, name in zip(record.seats, names, strict=False))
    return Voters(record.epoch, voters, record.term, names[len(voters) :])


def _address_of(link: ClusterLink, name: str) -> str:
    try:
        return str(link.address_of(parse_address(name)))
    except ValueError:  # a name that a peer has told
        return name
