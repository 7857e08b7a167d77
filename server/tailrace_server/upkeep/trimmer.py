"""The trimmer: removes files that are not needed any more, of the journal, replaced segments and dropped feeds."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Awaitable, Callable, Sequence

import trio

from tailrace.errors import NoSpace, TailraceError, UnknownFeed
from tailrace_server.feeds.catalog import Catalog, Drop
from tailrace_server.journal import Journal
from tailrace_server.manifest.feed_file import FeedFile
from tailrace_server.manifest.store import ManifestStore
from tailrace_server.partition.chain import Pins
from tailrace_server.runtime.host import Host
from tailrace_server.segment import Segment
from tailrace_server.upkeep.held_writer import HeldWriter
from tailrace_server.upkeep.installer import Installer

# The partitions that one turn of the loop checks: about a millisecond.
LOOKS_AT_ONCE = 1_024
# The new feeds whose FEED files are written together: about 0.1 s of the disk. They share fsyncs, and a thread.
FEEDS_TOGETHER = 64


class Trimmer:
    """Trims after flushes, beside the next flushes, in an order that survives a crash between any two steps."""

    def __init__(
        self,
        host: Host,
        journal: Journal,
        store: ManifestStore,
        installer: Installer,
        catalog: Catalog,
        pins: Pins,
        held: HeldWriter,
    ) -> None:
        self._host = host
        self._journal = journal
        self._store = store
        self._installer = installer
        self._catalog = catalog
        self._pins = pins
        self._held = held
        self._writing_feeds = trio.Lock()

    async def trim(self) -> None:
        """Removes all files that may go. OSError, NoSpace: some are still there, and the next call continues.

        A step is done even if one before it has failed: a file that cannot be removed does not keep the journal. The
        data of dropped feeds comes last: it may take seconds, and the journal needs the marks of the drops only.
        """
        failures: list[OSError | TailraceError] = []
        for step in (
            self._remove_segments,
            self.write_feeds,
            self._mark_drops,
            self._trim_journal,
            self._held.keep,
            self._remove_feeds,
        ):
            try:
                await step()
            except (OSError, TailraceError) as error:
                failures.append(error)
        for failure in sorted(failures, key=lambda error: not isinstance(error, NoSpace)):
            raise failure

    async def _remove_segments(self) -> None:
        """Removes segments that have left their chain, and that have no reader any more."""
        free = self._pins.take_free()
        if not free:
            return
        left: list[Segment] = []
        failures: list[OSError] = []

        def remove() -> None:
            for segment in free:
                segment.close()
                try:
                    if self._host.disk.exists(segment.path):
                        self._host.disk.remove_large(segment.path)
                except OSError as error:
                    left.append(segment)
                    failures.append(error)

        # After a crash any of them may be back: the start removes segments that no manifest names.
        await self._host.workers.in_thread(remove)
        self._pins.removed(free)
        self._pins.retire(left)  # they are tried again
        for failure in failures:
            raise failure

    async def write_feeds(self) -> None:
        """Writes the FEED of created feeds, so that the journal need not keep the record of the creation."""
        async with self._writing_feeds:  # a replica calls this too, for each snapshot and rollback
            created = list(self._catalog.creations.items())
            for begin in range(0, len(created), FEEDS_TOGETHER):
                await self._write_feeds(created[begin : begin + FEEDS_TOGETHER])

    async def _write_feeds(self, created: Sequence[tuple[bytes, int]]) -> None:
        """Writes the FEED of these feeds, each with the place of its creation in the journal."""
        # A crash may still undo the creation, and the drop of a feed of the same name before it.
        durable = [feed_id for feed_id, place in created if place <= self._journal.synced]
        # Others were dropped while those before them were written.
        feeds = [self._catalog.of_id(feed_id) for feed_id in durable if feed_id in self._catalog]
        if not feeds:
            return
        files = [FeedFile(feed.info, feed.first_branch) for feed in feeds]
        await self._host.workers.in_thread(functools.partial(self._store.write_feeds, files))
        for feed in feeds:
            self._catalog.creations.pop(feed.info.feed_id, None)

    async def _mark_drops(self) -> None:
        """Marks the directories of dropped feeds, once the drop is durable and the last read of them has ended."""
        await self._for_each_drop(self._mark_drop)

    async def _remove_feeds(self) -> None:
        """Removes the files of the dropped feeds whose directories are marked."""
        await self._for_each_drop(self._remove_feed)

    async def _for_each_drop(self, step: Callable[[bytes, Drop], Awaitable[None]]) -> None:
        failures: list[OSError | TailraceError] = []
        for feed_id, drop in list(self._catalog.drops.items()):
            try:
                await step(feed_id, drop)
            except (OSError, TailraceError) as error:
                failures.append(error)
        for failure in failures:
            raise failure

    async def _mark_drop(self, feed_id: bytes, drop: Drop) -> None:
        if drop.is_marked:
            return
        if drop.place is None:
            drop = self._catalog.tell_drop(feed_id, self._journal)
            await self._host.workers.in_thread(self._journal.sync)
        # The feed's streams have ended; a thread may still be reading for one of them.
        if drop.place is None or self._journal.synced < drop.place or self._pins.reads_feed(feed_id):
            return
        for partition in drop.partitions:
            await self._installer.forget(partition)
        async with self._writing_feeds:  # its FEED may be among those that a replica's task is writing
            await self._host.workers.in_thread(functools.partial(self._store.begin_drop, feed_id))
        self._catalog.begun_drop(feed_id)

    async def _remove_feed(self, feed_id: bytes, drop: Drop) -> None:
        """Removes the files, beside other tasks that write feeds: they write none that is dropped."""
        if not drop.is_marked or self._pins.reads_feed(feed_id):
            return
        segments = [segment for partition in drop.partitions for segment in partition.chain.segments]

        def remove() -> None:
            for segment in segments:
                segment.close()  # an open file would give its space back at once
            self._store.drop_feed(feed_id)

        await self._host.workers.in_thread(remove)
        self._pins.retire(segments)
        self._catalog.removed(feed_id)

    async def _trim_journal(self) -> None:
        """Removes the journal files whose records are all durable elsewhere."""
        if len(self._journal.file_numbers) == 1:
            return
        needed = self._journal.end[0]
        for number, partition in enumerate(list(self._catalog.partitions()), 1):
            if number % LOOKS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
            oldest = partition.journal_references.oldest
            if oldest is not None and oldest < needed and partition.journal_references.waits_for_manifest_only:
                with contextlib.suppress(UnknownFeed):  # dropped while another manifest was written
                    await self._installer.write(partition)
                oldest = partition.journal_references.oldest
            if oldest is not None:
                needed = min(needed, oldest)
        # Until the directory of a dropped feed is marked, a start may find it, and needs the feed's blocks then: all of
        # them if the drop is lost, otherwise those up to the drop.
        if not all(drop.is_marked for drop in self._catalog.drops.values()):
            return
        # Without its creation a listed feed counts as lost, unless the journal still has the row that lists the feed.
        if self._catalog.returning or any(self._journal.synced < place for place in self._catalog.creations.values()):
            return
        for place in self._catalog.creations.values():
            needed = min(needed, self._journal.file_of(place))
        if needed > self._journal.oldest_number:
            await self._host.workers.in_thread(lambda: self._journal.trim(needed))
