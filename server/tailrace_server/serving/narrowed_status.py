"""Cuts from a status what a token for some feeds may not know: the names of other feeds, wherever they are. Pure.

Free texts name feeds as they like: reasons, forecasts, failures. So only the texts below stay, and whatever a later
version adds is hidden until it is listed here. Numbers tell no names.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

# Returns whether a feed of this name is shown.
Shows: TypeAlias = Callable[[str], bool]

# In place of a failure of which the details are hidden.
HIDDEN = "something is wrong with the node; ask with a token for all feeds what it is"

# The members that are texts without names of feeds.
_PLAIN = frozenset(
    (
        *("software", "node_id", "cluster", "cluster_id", "placement_id", "unclean_start", "data"),
        *("role", "state", "mode", "default_level", "leader", "members", "replica_of", "address", "promotion_case"),
        *("expires_at", "client_certificates"),
    )
)


def narrowed(head: dict[str, Any], shows: Shows) -> dict[str, Any]:
    """Returns a status without what only tokens for all feeds are told. Its members stay, with empty values."""
    cut = {key: _cut(key, value, shows) for key, value in head.items()}
    return {**cut, "failure": HIDDEN if head["failure"] else None, "connections": []}


def _cut(key: str, value: Any, shows: Shows) -> Any:
    if isinstance(value, dict):
        return {name: _cut(name, member, shows) for name, member in value.items()}
    if isinstance(value, list):
        shown = [each for each in value if _is_shown(key, each, shows)]
        return [_cut(key, each, shows) if _feed_of(each) is None else each for each in shown]
    if isinstance(value, str):
        return value if key in _PLAIN else ""
    return value


def _feed_of(value: Any) -> str | None:
    return value.get("feed") if isinstance(value, dict) else None


def _is_shown(key: str, value: Any, shows: Shows) -> bool:
    if isinstance(value, str):
        return key in _PLAIN
    feed = _feed_of(value)
    return feed is None or shows(feed)
