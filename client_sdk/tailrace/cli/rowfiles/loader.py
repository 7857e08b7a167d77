"""Loads batches into a feed, each of them once: stages one while the one before it is published.

    read (thread) ──> stage ──> seal ──> publish as batch N of the import

The feed remembers the last batch of each import. So an import that was interrupted goes on with the first batch that
may not be whole, and a batch that comes again is skipped by each partition that has it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import trio

from tailrace.cli.rowfiles.batches import Batch
from tailrace.errors import BatchBehind, UnknownStage
from tailrace.model import Delete, Put
from tailrace.requests.staging import Published, SealedStage
from tailrace.trio.feed import Feed

# A stage is lost with its leader. After so many losses of the same batch something else is wrong.
STAGE_TRIES = 5
# Batches that are read, staged or published at a time: bounds the memory of an import to three of them.
BATCHES_AHEAD = 1


class Progress(NamedTuple):
    """What an import has done: rows that are in the feed, by this run and by earlier ones."""

    written: int = 0
    present: int = 0
    deletions: int = 0


class Loader:
    """Loads one import. ``progress`` is up to date when a batch has been published."""

    def __init__(self, feed: Feed, sink: str, told: Callable[[Progress], None]) -> None:
        """``sink``: the name of the import in the feed. ``told`` is called after each batch."""
        self._feed = feed
        self._sink = sink
        self._told = told
        self.progress = Progress()

    async def first_batch(self) -> int:
        """Returns the number of the first batch that may not be whole in the feed; 0 if there is none yet."""
        try:
            await self._feed.publish(self._sink, 0, ())
        except BatchBehind as error:
            return max(error.first_batch - 1, 0)
        return 0

    async def load(self, batches: Iterator[Batch]) -> None:
        """Loads all batches. Raises the errors of ``batches`` and of the feed; what was published stays."""
        first = await self.first_batch()
        send, receive = trio.open_memory_channel[tuple[Batch, SealedStage]](BATCHES_AHEAD)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._stage_all, batches, first, send)
            with receive:  # without a checkpoint, at which an error of `_stage_all` could take the place of this one
                async for batch, stage in receive:
                    await self._publish(batch, stage)

    async def _stage_all(
        self, batches: Iterator[Batch], first: int, send: trio.MemorySendChannel[tuple[Batch, SealedStage]]
    ) -> None:
        # The receiver has gone with the error of a publish, which counts.
        with send, contextlib.suppress(trio.BrokenResourceError):
            while True:
                # In a thread: a pipe may be silent for long.
                batch = await trio.to_thread.run_sync(next, batches, None, abandon_on_cancel=True)
                if batch is None:
                    return
                if batch.number < first:
                    self._note(batch, written=0)
                else:
                    await send.send((batch, await stage_changes(self._feed, batch.changes)))

    async def _publish(self, batch: Batch, stage: SealedStage) -> None:
        published = await publish_staged(self._feed, self._sink, batch.number, batch.changes, stage)
        self._note(batch, sum(versions.last_seq - versions.first_seq + 1 for versions in published.written.values()))

    def _note(self, batch: Batch, written: int) -> None:
        rows = len(batch.changes)
        deletions = sum(not isinstance(change, Put) for change in batch.changes)
        done = self.progress
        self.progress = Progress(done.written + written, done.present + rows - written, done.deletions + deletions)
        self._told(self.progress)


async def stage_changes(feed: Feed, changes: Iterable[Put | Delete]) -> SealedStage:
    """Returns a sealed stage with these changes. Raises as `Feed.stage`."""
    async with feed.stage() as stage:
        for change in changes:
            if isinstance(change, Put):
                await stage.put(change.key, change.value)
            else:
                await stage.delete(change.key)
        return await stage.seal()
    raise AssertionError("a stage swallows no error")


async def publish_staged(
    feed: Feed, sink: str, number: int, changes: Iterable[Put | Delete], stage: SealedStage
) -> Published:
    """Publishes a stage as a numbered batch. Stages its changes again if the stage was lost with its leader.

    Raises as `Feed.publish`.
    """
    for _ in range(STAGE_TRIES - 1):
        try:
            return await feed.publish(sink, number, (stage,))
        except UnknownStage:
            stage = await stage_changes(feed, changes)
    return await feed.publish(sink, number, (stage,))
