"""Chooses a node's next step by the keys of its cluster. Pure.

The first row of the table that fits decides:

| case | when | move |
|---|---|---|
| foreign | the keys are of another cluster than the one that this node knows, or that its directory is of | WAIT |
| lost | there are no voters, and this node knows some | PUT_BACK |
| older | the record is earlier than the one that this node knows | PUT_BACK |
| changed | the record is of the same term and epoch, and is another one | WAIT |
| unknown | none of the voters is one that this node, a voter, knows | WAIT |
| voter | this directory has a seat | SERVE |
| taken | this directory has no seat, and another node is registered at this node's address | WAIT |
| new_disk | this node has the address, or the id, of a member whose seat another directory has, or none | SERVE |
| joining | this node is to get a seat | SERVE |
| spare | this node is no member | SERVE |
| no_voters | there are no voters, and this node was in a set before | WAIT |
| to_return | a node that was in a set has registered: it knows the voters, and puts them back | WAIT |
| other_number | the registered nodes were started with different numbers of founders | WAIT |
| same_address | two of them have the same address | WAIT |
| too_few | fewer than that number have registered | WAIT |
| too_many | enough have, before this one | WAIT |
| all_there | enough have, and this one is among the first | FOUND |

A set is founded once: the voters are written by a transaction that holds only if there are none, and only if each of
the founders is still registered as it was. A node that knows a set never founds another one, and no node founds beside
it. So an etcd that has lost its keys gets them back, and does not get a second set.

The voters that a node knows are in its file CLUSTER. They were in the coordinator before: they are written there first.
The leader writes its own record there (`mirrored`), and a later record takes the place of an earlier one, never the
other way round. The coordinator has a copy: a vote is what the voters themselves have stored.

A record that seems to be later may be of no leader: an operator, or another program, has written it. The leader knows
that if a majority confirms, after it has read that record, that it still leads. A later leader would have had its
record stored by a majority before. Then the leader writes its own record as one that `replaces` the other one.

A directory without a seat is served without a vote. One of a member copies the leader's rows and gets the seat; a spare
waits until it is added (`tailrace member add`), which asks it.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

from tailrace.link.address import Address
from tailrace_server.coordination.cluster_keys import (
    ClusterKeys,
    Known,
    NodeValue,
    Voter,
    Voters,
    format_to_bytes,
    voters_to_bytes,
)
from tailrace_server.coordination.coordinator import Put, Unchanged

GROUP = 0


class Move(enum.Enum):
    """The kinds of steps."""

    SERVE = "serve"
    FOUND = "found"
    PUT_BACK = "put_back"
    MIRROR = "mirror"
    WAIT = "wait"


class Copy(NamedTuple):
    """A node's own knowledge of its set, from its file CLUSTER."""

    cluster_id: bytes
    voters: Voters


class OwnNode(NamedTuple):
    """This node, as it registers, and its knowledge of its set; None if it knows none."""

    node_id: bytes
    value: NodeValue
    copy: Copy | None


class Step(NamedTuple):
    """A move, the case of the table, for people the reason, and the transaction of the move."""

    move: Move
    case: str
    why: str = ""
    comparisons: tuple[Unchanged, ...] = ()
    puts: tuple[Put, ...] = ()


def decide(keys: ClusterKeys, own: OwnNode, known: Known) -> Step:
    """Returns the next step of a node that has registered or is about to."""
    copy = own.copy
    if copy is not None and known.cluster_id not in (None, copy.cluster_id):
        told = "" if known.cluster_id is None else known.cluster_id.hex()
        return _wait(
            "foreign",
            f"{keys.prefix} is of cluster {told}, and this directory is of cluster {copy.cluster_id.hex()}: start the "
            "node with the --cluster-store and --cluster of its own set",
        )
    if copy is None and not own.value.is_new and known.cluster_id not in (None, own.value.cluster_id):
        return _wait(
            "foreign",
            f"{keys.prefix} is of another cluster than this directory, which is of {own.value.cluster_id.hex()}: start "
            "the node with the --cluster-store and --cluster of its own set, or with an empty directory",
        )
    if known.voters is None or known.cluster_id is None:
        return _without_voters(keys, own, known)
    if copy is not None and known.voters.rank < copy.voters.rank:
        return _put_back(keys, copy, known, "older", f"{keys.prefix} has voters of {_order(known.voters)}")
    if copy is not None and known.voters.rank == copy.voters.rank and not known.voters.is_same(copy.voters):
        return _wait(
            "changed",
            f"the voters in {keys.prefix} are not those that this node knows, though both are of the same term and "
            f"epoch: this node keeps {_names(copy.voters)}; etcd has {_names(known.voters)}",
        )
    if copy is not None and _is_unknown(known.voters, copy.voters, own.value.placement_id):
        return _wait(
            "unknown",
            f"{keys.prefix} has voters that this set never had, of {_order(known.voters)}: this node keeps "
            f"{_names(copy.voters)}. The leader writes its own record back. Find out who has written to etcd: another "
            "set, whose --cluster is to have a name of its own; or an operator. If all disks of the set were replaced "
            "while this node was away, start it with an empty directory",
        )
    if known.voters.seat_of(own.value.placement_id) is not None:
        return Step(Move.SERVE, "voter")
    return _without_seat(own, known, known.voters)


class Place(NamedTuple):
    """The name of a node in its set, and whether it is that of a member."""

    name: Address
    is_member: bool


def place_of(own: OwnNode, voters: Voters, addresses: Mapping[Address, Address]) -> Place:
    """Returns the place of a node by the record: that of its directory, else of its node id, else of its address.

    ``addresses``: the present addresses of members, by name, as far as they are known.
    """
    seated = voters.seat_of(own.value.placement_id)
    if seated is not None:
        return Place(seated.name, is_member=True)
    for voter in voters.voters:
        if voter.node_id == own.node_id:
            return Place(voter.name, is_member=True)
    for name in voters.names:
        if addresses.get(name, name) == own.value.address:
            return Place(name, is_member=True)
    return Place(own.value.address, is_member=False)


def addresses_of(known: Known, before: Mapping[Address, Address]) -> dict[Address, Address]:
    """Returns the present address of each member by its name: of its registered node, else as it was ``before``.

    A new disk of a member that had moved may be at the member's first address again. Members that are there no more are
    left out, so this does not grow.
    """
    assert known.voters is not None, "the set is founded"
    addresses = {name: before[name] for name in known.voters.names if name in before}
    unseated = {node.address for node in known.nodes.values() if known.voters.seat_of(node.placement_id) is None}
    for voter in known.voters.voters:
        node = known.nodes.get(voter.node_id)
        if node is not None and node.placement_id == voter.placement_id:
            addresses[voter.name] = node.address
        elif voter.name in unseated:
            addresses[voter.name] = voter.name
    return addresses


def mirrored(keys: ClusterKeys, record: Voters, known: Known) -> Step | None:
    """Returns the leader's step that writes its record; None if it is there, or a later one, or another set's.

    ``record``: the leader's, without nodes. ``known``: the keys as the leader has read them last.
    """
    if known.voters is None:
        return None
    record = _after(record, known.voters)
    value = record.with_nodes(known.nodes, known.voters)
    if known.voters == value or _is_in_the_way(known.voters, record):
        return None
    return _mirror(keys, value, known, "mirrored")


def replaced(keys: ClusterKeys, record: Voters, known: Known) -> Step | None:
    """Returns the step of a leader that writes its record over one that no leader wrote; None if there is none.

    Run it only if a majority has confirmed the leader after it has read ``known``. While a leader of a later term is
    registered, which an operator may have forced, nothing is written. Arguments as for `mirrored`.
    """
    if known.voters is None or not _is_in_the_way(known.voters, _after(record, known.voters)):
        return None
    if known.leader is not None and known.leader.term > record.term:
        return None
    value = record.replacing(known.voters).with_nodes(known.nodes, known.voters)
    return _mirror(keys, value, known, "replaced")


def _mirror(keys: ClusterKeys, value: Voters, known: Known, case: str) -> Step:
    key = keys.voters(GROUP)
    comparisons = tuple(Unchanged(name, known.revisions[name]) for name in (keys.format, key))
    return Step(Move.MIRROR, case, "", comparisons, (Put(key, voters_to_bytes(value)),))


def _after(record: Voters, told: Voters) -> Voters:
    """Returns the record that also replaces what ``told`` has replaced, unless it is later than that anyway."""
    return record._replace(replaces=told.replaces) if told.replaces >= record.order else record


def _is_in_the_way(told: Voters, record: Voters) -> bool:
    """Returns whether the coordinator has another record that seems to be later than the leader's, or as late."""
    return told.rank > record.rank or (told.rank == record.rank and not told.is_same(record))


def _is_unknown(told: Voters, known: Voters, own_id: bytes) -> bool:
    """Returns whether a voter by the record that it knows is told of none of those voters."""
    return known.seat_of(own_id) is not None and not told.ids & known.ids


def _without_seat(own: OwnNode, known: Known, voters: Voters) -> Step:
    """Returns the step of a node whose directory has no seat."""
    address = own.value.address
    others = sorted(id.hex() for id, node in known.nodes.items() if id != own.node_id and node.address == address)
    if others:
        return _wait(
            "taken",
            f"node {others[0]} is registered at {address} still: this directory takes its place when that one is gone, "
            "within seconds of its stop",
        )
    place = place_of(own, voters, addresses_of(known, {}))
    if place.name in voters.learners:
        return Step(Move.SERVE, "joining", f"{place.name} gets a vote when it has caught up")
    if place.is_member:
        return Step(Move.SERVE, "new_disk", f"this directory of {place.name} gets the vote when it has caught up")
    return Step(
        Move.SERVE,
        "spare",
        f"{address} is no member of {_names(voters)}: it has no vote and copies no rows until it is added with "
        f"`tailrace member add {address} --node {voters.names[0]}`",
    )


def _without_voters(keys: ClusterKeys, own: OwnNode, known: Known) -> Step:
    if own.copy is not None:
        return _put_back(keys, own.copy, known, "lost", f"{keys.prefix} has lost the voters")
    if not own.value.is_new:
        return _wait(
            "no_voters",
            f"{keys.prefix} has no voters, and this directory belonged to a set, or has feeds: it founds no other one",
        )
    for node_id, node in sorted(known.nodes.items()):
        if not node.is_new:
            return _wait(
                "to_return", f"node {node_id.hex()} at {node.address} was in a set before: no set is founded beside it"
            )
    numbers = sorted({node.voters for node in known.nodes.values()} | {own.value.voters})
    if len(numbers) > 1:
        return _wait("other_number", f"nodes were started with different --voters: {', '.join(map(str, numbers))}")
    [number] = numbers
    founders = sorted(known.nodes, key=lambda id: (known.created[id], id))[:number]
    addresses = [known.nodes[id].address for id in founders]
    twice = sorted({str(address) for address in addresses if addresses.count(address) > 1})
    if twice:
        return _wait("same_address", f"two nodes have registered as {twice[0]}: start one with another --listen")
    if len(founders) < number:
        return _wait(
            "too_few", f"{len(founders)} of {number} nodes have registered; the set is founded with all of them"
        )
    if own.node_id not in founders:
        return _wait("too_many", f"{number} nodes have registered before this one, and found the set")
    voters = tuple(Voter(known.nodes[id].placement_id, id, known.nodes[id].address) for id in founders)
    if len({voter.placement_id for voter in voters}) < number:
        return _wait("same_address", "two nodes have registered with the same placement id: one has a copied directory")
    comparisons = [Unchanged(keys.format, 0), Unchanged(keys.voters(GROUP), 0)]
    comparisons += [Unchanged(key, known.revisions[key]) for key in map(keys.node, founders)]
    puts = (
        Put(keys.format, format_to_bytes(known.nodes[founders[0]].cluster_id)),
        Put(keys.voters(GROUP), voters_to_bytes(Voters(1, voters))),
    )
    return Step(Move.FOUND, "all_there", "", tuple(comparisons), puts)


def _put_back(keys: ClusterKeys, copy: Copy, known: Known, case: str, what: str) -> Step:
    """Returns the step that writes what this node knows, unless another node has changed the keys meanwhile."""
    names = (keys.format, keys.voters(GROUP))
    values = (format_to_bytes(copy.cluster_id), voters_to_bytes(copy.voters))
    return Step(
        Move.PUT_BACK,
        case,
        f"{what}: this node puts back those of {_order(copy.voters)}",
        tuple(Unchanged(name, known.revisions.get(name, 0)) for name in names),
        tuple(Put(name, value) for name, value in zip(names, values, strict=True)),
    )


def _names(voters: Voters) -> str:
    return f"{','.join(map(str, voters.names))} ({_order(voters)})"


def _order(voters: Voters) -> str:
    return f"term {voters.term}, epoch {voters.epoch}"


def _wait(case: str, why: str) -> Step:
    return Step(Move.WAIT, case, why)
