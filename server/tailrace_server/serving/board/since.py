"""Remembers since when things are as they are."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any


class Since:
    """The values of named things, and the time of their last change. Only its own methods change its fields."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._known: dict[str, dict[Any, tuple[Any, float]]] = {}

    def note(self, subject: str, values: Mapping[Any, Hashable]) -> dict[Any, float]:
        """Notes all ``values`` of a subject, by name: those that are not among them are forgotten.

        Returns the seconds since each has had its value, as far as that was seen.
        """
        now, before = self._monotonic(), self._known.get(subject, {})
        known = self._known[subject] = {}
        for name, value in values.items():
            seen = before.get(name)
            known[name] = seen if seen is not None and seen[0] == value else (value, now)
        return {name: now - at for name, (_, at) in known.items()}
