"""Whether two nodes belong to one cluster. Pure.

A set is of one cluster. A member that was started on another cluster's directory has other feeds, terms and histories:
its answers, promises and standings mean nothing here. A new directory belongs to no cluster until it joins one.
"""

from __future__ import annotations

from typing import Any

from tailrace.errors import Forbidden
from tailrace.wire.bodies import hex_field


def why_other_cluster(own: bytes, name: str, told: bytes) -> str:
    """Returns why nothing that the node ``name`` says counts, in a sentence; "" if both are of one cluster.

    ``own``, ``told``: the ids (16 bytes) of this node's cluster and of the other one's.
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
