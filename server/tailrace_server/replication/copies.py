"""Whether another member was started on a copy of a directory. Pure.

A majority is one of disks, and a disk is known by its placement id. Two directories with one id, as `cp -r` makes them,
would count as one disk for level quorum and as two for a promotion; what one of them has acknowledged the other one may
lack.
"""

from __future__ import annotations

from collections.abc import Mapping


def why_copy(own: bytes, name: str, told: bytes, known: Mapping[str, bytes]) -> str:
    """Returns why nothing that the node ``name`` says counts, in a sentence; "" if its directory is one of its own.

    ``own``, ``told``: the placement ids (16 bytes) of this node and of the other one. ``known``: those of the other
    members by address, as they told them first.
    """
    others = (address for address, placement_id in sorted(known.items()) if placement_id == told and address != name)
    whose = "this node" if told == own else next(others, "")
    if not whose:
        return ""
    return (
        f"{name} has the placement id of {whose}, {told.hex()}: one of the two was started on the directory of the "
        "other one, or on a copy of it. Stop that one, and start it on its own directory, or on an empty one"
    )
