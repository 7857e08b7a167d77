"""The settings of a feed that can be changed, and what a change means for rows that are gone. Pure.

A row that was dropped under a shorter age does not come back with a longer one. So a change keeps, as ``Floors``,
before which time earlier settings may have dropped rows: a stream since a time asks for them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tailrace.errors import Forbidden, ProtocolError, TailraceError
from tailrace.model import FeedInfo, Level

# The settings that SET_FEED changes, and what to do instead for the others.
CHANGEABLE = ("replication", "history_age_s", "history_bytes", "tombstone_age_s", "level", "ttl_s")
FIXED = {
    "partitions": "create another feed with that number, and copy the rows",
    "keyspace": "there is only one",
    "retention": "create another feed with that retention, and copy the rows",
    "name": "create another feed with that name, and copy the rows",
}
HISTORY_SETTINGS = ("history_age_s", "history_bytes")
LEVELS = tuple(level.name.lower() for level in Level)


class Floors(NamedTuple):
    """Times in microseconds since 1970 UTC. Rows that were stamped before them may have been dropped.

    ``purged_us`` is about deletions, ``trimmed_us`` about mutations of a history. 0: none by an earlier setting.
    """

    purged_us: int = 0
    trimmed_us: int = 0


NO_FLOORS = Floors()


def changes_of_request(value: dict[str, Any]) -> dict[str, Any]:
    """Returns the settings that a SET_FEED names. Raises ProtocolError without any, TailraceError for fixed ones."""
    for name, advice in FIXED.items():
        if name in value:
            raise TailraceError(f"{name} of a feed cannot be changed: {advice}")
    changes = {name: value[name] for name in CHANGEABLE if name in value}
    if not changes:
        raise ProtocolError(f"SET_FEED names no setting; it may have {', '.join(CHANGEABLE)}")
    return changes


def changed(info: FeedInfo, changes: dict[str, Any]) -> FeedInfo:
    """Returns the settings with ``changes``, of which the values were not checked. Raises TailraceError."""
    for name in HISTORY_SETTINGS:
        if info.retention != "history" and changes.get(name) is not None:
            raise TailraceError(
                f"feed {info.name!r} has retention {info.retention}: {name} is for histories. tombstone_age_s says how "
                "long it keeps deletions"
            )
    return info._replace(**changes)


def as_listed(info: FeedInfo, listed: FeedInfo) -> FeedInfo:
    """Returns ``info`` with the settings of its row that can change. A repair may have lost the others, and guessed."""
    names = CHANGEABLE if info.retention == listed.retention else ("replication", "tombstone_age_s", "level", "ttl_s")
    return info._replace(**{name: getattr(listed, name) for name in names})


def floors_after(floors: Floors, before: FeedInfo, after: FeedInfo, now_us: int) -> Floors:
    """Returns the floors after a change at ``now_us``: rows may be gone that only the longer of two ages would keep."""
    if after.tombstone_age_s > before.tombstone_age_s:
        floors = floors._replace(purged_us=max(floors.purged_us, _ago(now_us, before.tombstone_age_s)))
    if before.retention != "history":
        return floors
    if before.history_bytes is not None and after.history_bytes is None:
        # By size any row may have been dropped.
        return floors._replace(trimmed_us=max(floors.trimmed_us, now_us))
    shorter = before.history_age_s is not None and (
        after.history_age_s is None or after.history_age_s > before.history_age_s
    )
    if shorter:
        assert before.history_age_s is not None
        floors = floors._replace(trimmed_us=max(floors.trimmed_us, _ago(now_us, before.history_age_s)))
    return floors


def loosest(first: FeedInfo, second: FeedInfo) -> FeedInfo:
    """Returns ``second`` with the longer ages and the larger size of both, under which no row of either is dropped."""

    def longer(one: Any, other: Any) -> Any:
        return None if one is None or other is None else max(one, other)

    return second._replace(
        history_age_s=longer(first.history_age_s, second.history_age_s),
        history_bytes=longer(first.history_bytes, second.history_bytes),
        tombstone_age_s=max(first.tombstone_age_s, second.tombstone_age_s),
        ttl_s=longer(first.ttl_s, second.ttl_s),
    )


def level_of(info: FeedInfo) -> Level | None:
    """Returns the level that writes to the feed get if they name none; None: the default of the node."""
    return None if info.level is None else Level.parse(info.level)


def check_level(info: FeedInfo, *, in_set: bool) -> None:
    """Raises Forbidden if the feed's own level is quorum, and its writes could not get that."""
    if level_of(info) is not Level.QUORUM:
        return
    if info.replication == "segment":
        raise Forbidden(
            f"feed {info.name!r} cannot have level quorum and replication mode segment: followers get its rows some "
            "seconds later. Set its level to disk or default, or its replication to stream"
        )
    if not in_set:
        raise Forbidden(
            f"feed {info.name!r} cannot have level quorum: it needs a set of nodes, and this node is in none. Set its "
            "level to disk or default"
        )


def _ago(now_us: int, age_s: float) -> int:
    return max(0, now_us - int(age_s * 1e6))
