"""Keeps HELD up to date while a node runs: a lower bound of the data on its disk (journal/held.py).

HELD is written with each start, soon after the journal has begun a file, and every ten seconds while anything changes.
It is written in a thread, and no writer waits for it. A crash before it is written leaves the older one, which claims
less, and is still right.
"""

from __future__ import annotations

import contextlib
import functools

import trio

from tailrace_server.feeds.catalog import Catalog
from tailrace_server.feeds.feed import Feed
from tailrace_server.journal import Journal, JournalFailed
from tailrace_server.journal.held import HeldFeed, HeldMark, OtherStart, store_held
from tailrace_server.runtime.host import Host
from tailrace_server.upkeep.installer import Installer

# An older copy that lacks less than this time goes unnoticed. A line and two fsyncs in this time cost next to nothing.
HELD_SECONDS = 10.0
# The bound of other members' directories that are remembered in each group: the present ones, and some of replaced
# disks.
OTHERS_MAX = 64
_PLACEMENT_ID_BYTES = 16
# The partitions that one turn of the loop reads: about a millisecond.
LOOKS_AT_ONCE = 1_024


class HeldWriter:
    """Writes HELD. ``keep`` is called about once a second, by one task."""

    def __init__(self, host: Host, data: str, journal: Journal, catalog: Catalog, installer: Installer) -> None:
        self._host = host
        self._data = data
        self._journal = journal
        self._catalog = catalog
        self._installer = installer
        # The starts of other members' directories, by the key of ``remember``: kept for the next start.
        self.others: dict[bytes, OtherStart] = {}
        # The state at the last writing: file and end of the journal, installed manifests, the others.
        self._kept: tuple[int, int, int, dict[bytes, OtherStart]] = (0, 0, -1, {})
        self._kept_at = -HELD_SECONDS  # monotonic

    async def keep(self) -> None:
        """Writes HELD if it is due. If the disk refuses the older one stays, and the next call tries again.

        A cancelled call has written HELD or has not.
        """
        state = self._state()
        now = self._host.clock.monotonic()
        if state == self._kept or (state[0] == self._kept[0] and now - self._kept_at < HELD_SECONDS):
            return
        feeds = {}
        count = 0
        for feed in self._catalog.feeds():
            feeds[feed.info.feed_id] = held_feed(feed)
            count += len(feed.partitions)
            if count >= LOOKS_AT_ONCE:
                count = 0
                await trio.lowlevel.checkpoint()
        with contextlib.suppress(OSError, JournalFailed):
            await self._host.workers.in_thread(functools.partial(self._store, feeds, state[-1]))
            self._kept = state
        self._kept_at = now

    def store_now(self) -> None:
        """Writes HELD, and blocks; for a start, when all its data is durable. OSError: the older one may be there."""
        self._kept = self._state()
        self._kept_at = self._host.clock.monotonic()
        self._store({feed.info.feed_id: held_feed(feed) for feed in self._catalog.feeds()}, self._kept[-1])

    def remember(self, key: bytes, start: OtherStart) -> None:
        """Notes the start of another member's directory; durable with the next HELD.

        ``key``: the directory's placement id, and behind it the group's number if that is not 0.
        """
        self.others.pop(key, None)
        self.others[key] = start
        of_group = [other for other in self.others if other[_PLACEMENT_ID_BYTES:] == key[_PLACEMENT_ID_BYTES:]]
        for other in of_group[:-OTHERS_MAX]:
            del self.others[other]

    def _state(self) -> tuple[int, int, int, dict[bytes, OtherStart]]:
        return *self._journal.end, self._installer.installs, dict(self.others)

    def _store(self, feeds: dict[bytes, HeldFeed], others: dict[bytes, OtherStart]) -> None:
        self._journal.sync()  # so that all data that was read above is durable
        store_held(self._host.disk, self._data, HeldMark(self._journal.synced_end, feeds, dict(others)))


def held_feed(feed: Feed) -> HeldFeed:
    """Returns the entry of a feed in HELD, as it is now."""
    seqs = tuple(partition.high_seq for partition in feed.partitions)
    rollbacks = {partition.id: partition.rollbacks for partition in feed.partitions if partition.rollbacks}
    return HeldFeed(feed.first_branch, seqs, rollbacks)
