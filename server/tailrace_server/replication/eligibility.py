"""Whose answers count: those of members of this cluster and set, each on its own disk. Pure.

cluster    A set belongs to one cluster. A member on another cluster's directory has other feeds, terms and histories.
           A new directory belongs to no cluster until it joins one.
list       A majority is one of a list, and the first of the list founds the set. Lists that differ, even in their
           order alone, may make two sets of the same nodes, or two majorities without a common member. Once a record
           names the members (voters.py) the lists decide nothing: they differ while a node has not heard of it.
disk       A majority is one of disks, and a disk is known by its placement id. Two directories with one id, as
           ``cp -r`` makes them, would be one disk for level quorum and two for a promotion, and what one of them has
           acknowledged the other one may lack. An older copy of the same directory is a case of its own (lineage.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tailrace.errors import Forbidden
from tailrace.wire.bodies import hex_field

# Messages show this many characters of a list of members, which another node may make as long as it likes.
_SHOWN_CHARACTERS_MAX = 300


def why_other_cluster(own: bytes, name: str, told: bytes) -> str:
    """Returns the sentence on a node of another cluster, whose answers do not count; "" if both are of one cluster.

    Args:
        own: The id of this node's cluster, 16 bytes.
        name: The other node's address.
        told: The id of the other node's cluster.
    """
    if own == told:
        return ""
    return (
        f"{name} is of another cluster: {told.hex()} there, {own.hex()} here. One of the two was started on a wrong "
        "directory: start it on its own, or on an empty one"
    )


def require_cluster(own: bytes, value: dict[str, Any], what: str) -> None:
    """Raises Forbidden if the request ``what``, with this body, comes from another cluster. ProtocolError."""
    told = hex_field(value, "cluster_id", len(own), what)
    if told != own:
        raise Forbidden(f"{what}: the asker is of cluster {told.hex()}, this node is of cluster {own.hex()}")


def why_copy(own: bytes, name: str, told: bytes, known: Mapping[str, bytes]) -> str:
    """Returns the sentence on a node on a copied directory, whose answers do not count; "" if the directory is its own.

    Args:
        own: The placement id of this node, 16 bytes.
        name: The other node's address.
        told: The placement id of the other node.
        known: The placement ids of the other members by address, as they told them first.
    """
    others = (address for address, placement_id in sorted(known.items()) if placement_id == told and address != name)
    whose = "this node" if told == own else next(others, "")
    if not whose:
        return ""
    return (
        f"{name} has the placement id of {whose}, {told.hex()}: one of the two was started on the directory of the "
        "other one, or on a copy of it. Stop that one, and start it on its own directory, or on an empty one"
    )


def why_other_list(own: Sequence[str], name: str, told: Sequence[str], *, is_named: bool = False) -> str:
    """Returns the sentence on a node with another list of members, whose answers do not count; "" if the lists agree.

    Args:
        own: The addresses of this node's list, in their order. A node without a list is no member, and agrees with all.
        name: The other node's address.
        told: The addresses of the other node's list; empty if it is no member of a set.
        is_named: Whether a record that one of the two nodes knows names the members.
    """
    if not own or list(own) == list(told) or (told and is_named):
        return ""
    if not told:
        return f"{name} was started without --members, and is no member of this set"
    return f"{name} was started with other --members: {_shown(told)} there, {_shown(own)} here"


def _shown(addresses: Sequence[str]) -> str:
    text = ",".join(addresses)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else text[:_SHOWN_CHARACTERS_MAX] + "..."
