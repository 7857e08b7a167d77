"""Reads and writes the file CLUSTER: the voters, the directory and the keys that it belongs to, and the addresses."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tailrace.link.address import Address, parse_address
from tailrace_server.coordination.cluster_keys import cluster_of, format_to_bytes, voters_of, voters_to_bytes
from tailrace_server.coordination.coordinator import Put, StoreDamaged
from tailrace_server.coordination.founding import Copy, OwnNode
from tailrace_server.coordination.static_store import StaticStore

# The keys of the file.
_FORMAT, _VOTERS, _ADDRESSES, _OWN, _PREFIX = "format", "voters", "addresses", "placement_id", "prefix"


def copy_in(file: StaticStore, placement_id: bytes) -> Copy | None:
    """Returns the voters in a file CLUSTER; None if it has none, or if it is another directory's.

    It was copied with that one then. A file of an earlier version does not say whose it is: it is that of a voter.
    Raises StoreDamaged.
    """
    format, voters, own = (file.read(key).value for key in (_FORMAT, _VOTERS, _OWN))
    if format is None or voters is None:
        return None
    copy = Copy(cluster_of(format), voters_of(voters))
    is_own = copy.voters.seat_of(placement_id) is not None if own is None else own == placement_id.hex().encode()
    return copy if is_own else None


def prefix_in(file: StaticStore) -> str | None:
    """Returns the prefix of the keys that a file CLUSTER is of; None if it is of an earlier version, or empty."""
    found = file.read(_PREFIX).value
    return None if found is None else found.decode(errors="replace")


def copy_puts(copy: Copy, own: OwnNode, prefix: str) -> list[Put]:
    """Returns what puts the voters into a file CLUSTER, with whose it is and which keys it is of."""
    return [
        Put(_FORMAT, format_to_bytes(copy.cluster_id)),
        Put(_VOTERS, voters_to_bytes(copy.voters)),
        Put(_OWN, own.value.placement_id.hex().encode()),
        Put(_PREFIX, prefix.encode()),
    ]


def addresses_put(addresses: Mapping[Address, Address]) -> Put:
    """Returns what puts the addresses of nodes, by their names, into a file CLUSTER."""
    told = {str(name): str(address) for name, address in addresses.items()}
    return Put(_ADDRESSES, json.dumps(told).encode())


def addresses_in(file: StaticStore) -> dict[Address, Address]:
    """Returns the addresses of nodes by their names; none if the file has none. Raises StoreDamaged."""
    data = file.read(_ADDRESSES).value
    if data is None:
        return {}
    try:
        return {parse_address(name): parse_address(address) for name, address in json.loads(data).items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise StoreDamaged(f"the addresses in CLUSTER cannot be read: {error}") from None
