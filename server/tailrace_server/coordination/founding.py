"""Chooses a node's next step by the keys of its cluster. Pure.

The first row of the table that fits decides:

| case | when | move |
|---|---|---|
| foreign | the keys are of another cluster than the one that this node knows | WAIT |
| lost | there are no voters, and this node knows some | PUT_BACK |
| older | the voters are of an earlier epoch than those that this node knows | PUT_BACK |
| changed | the voters are not those that this node knows | WAIT |
| voter | this node is one of the voters | SERVE |
| spare | this node is not one of the voters | WAIT |
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
"""

from __future__ import annotations

import enum
from typing import NamedTuple

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
    if known.voters is None or known.cluster_id is None:
        return _without_voters(keys, own, known)
    if copy is not None and known.voters.epoch < copy.voters.epoch:
        return _put_back(keys, copy, known, "older", f"{keys.prefix} has voters of epoch {known.voters.epoch}")
    if copy is not None and known.voters != copy.voters:
        return _wait(
            "changed",
            f"the voters in {keys.prefix} are not those that this node knows, though no member was replaced by a "
            f"command: this node keeps {_names(copy.voters)}; etcd has {_names(known.voters)}",
        )
    if any(voter.placement_id == own.value.placement_id for voter in known.voters.voters):
        return Step(Move.SERVE, "voter")
    return _wait(
        "spare",
        f"the set of {_names(known.voters)} is founded, and this directory is none of its voters: it has no vote, and "
        "is not served",
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
        f"{what}: this node puts back those of epoch {copy.voters.epoch}",
        tuple(Unchanged(name, known.revisions.get(name, 0)) for name in names),
        tuple(Put(name, value) for name, value in zip(names, values, strict=True)),
    )


def _names(voters: Voters) -> str:
    return f"{','.join(str(voter.name) for voter in voters.voters)} (epoch {voters.epoch})"


def _wait(case: str, why: str) -> Step:
    return Step(Move.WAIT, case, why)
