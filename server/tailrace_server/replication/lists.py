"""Whether two members were started with the same list. Pure.

A majority is one of a list, and the first of a list founds the set. So lists that differ, be it in their order alone,
may make two sets of the same nodes, or two majorities that have nobody in common.
"""

from __future__ import annotations

from collections.abc import Sequence

# A longer list is cut off where it is shown: another node tells it.
_SHOWN_CHARACTERS_MAX = 300


def why_other_list(own: Sequence[str], name: str, told: Sequence[str]) -> str:
    """Why nothing that the node ``name`` says counts, in a sentence; "" where it does.

    ``own``, ``told``: the addresses in their order; ``own`` may be empty of a node that is no member: it is not for it
    to judge. A node that tells no list is no member of the set.
    """
    if not own or list(own) == list(told):
        return ""
    if not told:
        return f"{name} was started without --members, and is no member of this set"
    return f"{name} was started with other --members: {_shown(told)} there, {_shown(own)} here"


def _shown(addresses: Sequence[str]) -> str:
    text = ",".join(addresses)
    return text if len(text) <= _SHOWN_CHARACTERS_MAX else text[:_SHOWN_CHARACTERS_MAX] + "..."
