"""The callbacks of those that watch a partition: its streams, waiting answers, and replicas."""

from __future__ import annotations

from collections.abc import Callable

from tailrace.model import Level


class Watchers:
    """Callbacks for rows that become visible, and for those that move from the tree to a segment."""

    __slots__ = ("_by_level", "_flushed", "disk", "memory")

    def __init__(self) -> None:
        # Dicts keep the order. Each write reaches these two levels, so the partition calls their watchers itself.
        self.memory: dict[Callable[[], None], None] = {}
        self.disk: dict[Callable[[], None], None] = {}
        self._by_level: tuple[dict[Callable[[], None], None], ...] = (self.memory, self.disk, {})
        self._flushed: dict[Callable[[], None], None] = {}

    @property
    def is_watched(self) -> bool:
        """Whether any call of ``watch`` is still in force."""
        return any(self._by_level)

    def watch(self, level: Level, notify: Callable[[], None]) -> None:
        """Calls ``notify`` each time that more rows become visible at ``level``, until ``unwatch``."""
        self._by_level[level][notify] = None

    def unwatch(self, level: Level, notify: Callable[[], None]) -> None:
        """Ends ``watch``."""
        self._by_level[level].pop(notify, None)

    def more_visible(self, level: Level) -> None:
        """Tells the watchers of ``level`` that more rows are visible."""
        for notify in self._by_level[level]:
            notify()

    def on_flush(self, moved: Callable[[], None]) -> None:
        """Calls ``moved`` each time that rows have moved from the tree to a segment, until ``off_flush``."""
        self._flushed[moved] = None

    def off_flush(self, moved: Callable[[], None]) -> None:
        """Ends ``on_flush``."""
        self._flushed.pop(moved, None)

    def flushed(self) -> None:
        """Tells that rows have moved from the tree to a segment."""
        for moved in list(self._flushed):
            moved()
