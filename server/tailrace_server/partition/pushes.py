"""The state of a partition whose feed may be replicated by segments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tailrace_server.chain import ChainLink
from tailrace_server.manifest.manifest import SegmentEntry


class PushState:
    """Whether followers get segments instead of rows, and which of them have acknowledged which segments."""

    def __init__(self) -> None:
        self.by_segments = False  # the feed's replication mode is ``segment``
        self._placements: dict[bytes, frozenset[bytes]] = {}
        self._watchers: dict[Callable[[], None], None] = {}

    @property
    def placements(self) -> Mapping[bytes, frozenset[bytes]]:
        """The data directories that have acknowledged segments, by the segments' ids."""
        return self._placements

    def replicate(self, *, by_segments: bool) -> None:
        """Takes the feed's replication mode."""
        self.by_segments = by_segments

    def acknowledge(self, links: Iterable[ChainLink]) -> None:
        """Takes over the acknowledgements of ``links``, all links of the chain. The next manifest has them."""
        self._placements = {link.id: link.placements for link in links if link.placements}

    def restore(self, entries: Iterable[SegmentEntry]) -> None:
        """Takes over the acknowledgements in a manifest."""
        self._placements = {entry.id: frozenset(entry.placements) for entry in entries if entry.placements}

    def watch_chain(self, changed: Callable[[], None]) -> None:
        """Calls ``changed`` each time that the chain has changed, until ``unwatch_chain``."""
        self._watchers[changed] = None

    def unwatch_chain(self, changed: Callable[[], None]) -> None:
        """Ends ``watch_chain``."""
        self._watchers.pop(changed, None)

    def chain_changed(self) -> None:
        """Tells all watchers that the chain has changed."""
        for changed in list(self._watchers):
            changed()
