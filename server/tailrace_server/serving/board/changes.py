"""Finds what has changed between two answers of one view, so that a console is sent no more. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# The member of a view that is a list of rows, and the member of a row that names it.
LISTS = {
    "feeds": ("feeds", "name"),
    "feed": ("states", "id"),
    "consumers": ("consumers", "id"),
    "consumer": ("partitions", "id"),
}
# Members that grow by themselves: a page counts them up.
AGES = frozenset(("since_s", "age_s", "uptime_s", "at_s", "stuck_s", "since_ack_s"))
_LAG = "lag_s"
# A lag grows by itself too, while nothing is handled. It is sent if it differs by more from that.
LAG_SECONDS_MAX = 1.0


class Shown:
    """What a console has of one view. Only its own methods change its fields."""

    def __init__(self, topic: str) -> None:
        self._list, self._key = LISTS.get(topic, ("", ""))
        self._members: dict[str, tuple[Any, float]] | None = None  # with the time at which each was sent
        self._rows: dict[Any, tuple[Any, float]] = {}
        self._failure: tuple[str, str] | None = None

    def fail(self, error: str, text: str) -> dict[str, Any] | None:
        """Returns the message that there is no value now, and why; None if the console has it already."""
        told, self._failure = self._failure, (error, text)
        self._members = None
        return None if told == self._failure else {"type": "failed", "error": error, "message": text}

    def update(self, value: Mapping[str, Any], now: float) -> dict[str, Any] | None:
        """Returns the message for a console that is to have ``value`` at ``now``; None if nothing has changed."""
        self._failure = None
        rows = {row[self._key]: row for row in value[self._list]} if self._list else {}
        members = {name: member for name, member in value.items() if name != self._list}
        if self._members is None:
            self._members = {name: (member, now) for name, member in members.items()}
            self._rows = {key: (row, now) for key, row in rows.items()}
            return {"type": "value", "value": value}
        changed = _changed(self._members, members, now)
        message: dict[str, Any] = {"set": changed} if changed else {}
        if self._list:
            message |= self._update_rows(rows, now)
        if not message:
            return None
        # The page takes all members to be as of now, so those that have only grown are told as well.
        changed |= {name: member for name, member in members.items() if name in AGES or name == _LAG}
        self._members.update({name: (member, now) for name, member in changed.items()})
        return {"type": "changes", **message, "set": changed}

    def _update_rows(self, rows: Mapping[Any, Any], now: float) -> dict[str, Any]:
        changed = _changed(self._rows, rows, now)
        gone = [key for key in self._rows if key not in rows]
        is_ordered = list(self._rows) == list(rows)
        self._rows = {key: (row, now) if key in changed else self._rows[key] for key, row in rows.items()}
        message: dict[str, Any] = {"rows": list(changed.values())} if changed else {}
        message |= {"gone": gone} if gone else {}
        return message | ({} if is_ordered else {"order": list(rows)})


def _changed(sent: Mapping[Any, tuple[Any, float]], values: Mapping[Any, Any], now: float) -> dict[Any, Any]:
    """Returns those of ``values`` that are new, or differ from what was sent."""
    return {
        name: value
        for name, value in values.items()
        if name not in sent or not same(name, sent[name][0], value, now - sent[name][1])
    }


def same(name: Any, old: Any, new: Any, seconds: float) -> bool:
    """Returns whether ``new`` is what a page makes of ``old`` after some seconds."""
    if name in AGES:
        return (old is None) == (new is None)
    if name == _LAG and old is not None and new is not None:
        return bool(old) == bool(new) and abs(new - old - (seconds if old else 0.0)) <= LAG_SECONDS_MAX
    if isinstance(old, dict) and isinstance(new, dict):
        return old.keys() == new.keys() and all(same(key, value, new[key], seconds) for key, value in old.items())
    if isinstance(old, list) and isinstance(new, list):
        return len(old) == len(new) and all(same("", one, other, seconds) for one, other in zip(old, new, strict=True))
    return bool(old == new)
