"""Gives parked rows to the indexes again: those that are still the newest of their keys are written once more."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

from tailrace.errors import VersionConflict, VersionLost
from tailrace.indexes.parking import ParkedRow
from tailrace.model import Item
from tailrace.requests.feed_core import FeedCore
from tailrace.requests.plan import Plan


class Replayed(NamedTuple):
    """The rows that `Feed.replay_parked` took out of a feed ``NAME.parked``.

    Attributes:
        replayed: The number of rows that were written again.
        replaced: The number of rows that a later write had replaced.
    """

    replayed: int
    replaced: int


class Replay:
    """The rows of one call, which counts them."""

    def __init__(self, source: FeedCore) -> None:
        """Takes the feed whose rows were parked."""
        self._source = source.plain()
        self._parked = source.parked()
        self.result = Replayed(0, 0)

    def row(self, item: Item) -> Plan[None]:
        """Writes the row of ``item`` again, if it is still the newest, and takes it out of the parked ones.

        Raises ProtocolError if ``item`` is no parked row.
        """
        replayed, replaced = self.result
        if (yield from self._is_written(ParkedRow.parse(item.key, item.value))):
            replayed += 1
        else:
            replaced += 1
        with contextlib.suppress(VersionConflict):  # it was parked again meanwhile, and stays
            yield from self._parked.delete(item.key, None, item.version)
        self.result = Replayed(replayed, replaced)

    def _is_written(self, row: ParkedRow) -> Plan[bool]:
        """Writes the row's present value again. Returns False if a later write has replaced the row."""
        current = yield from self._source.get(row.key, "disk", None)
        try:
            if current is None:
                if row.value is not None:
                    return False
                yield from self._source.delete_absent(row.key)  # a later deletion of the key would be the same
                return True
            if current.version != row.version:
                return False
            yield from self._source.put(row.key, current.value, None, row.version, False)
        except (VersionConflict, VersionLost):
            return False
        return True


async def replay_all(
    items: AsyncIterator[Item], replay: Replay, run: Callable[[Plan[None]], Awaitable[None]]
) -> Replayed:
    """Replays parked rows, by a shell's function that carries out a plan."""
    async for item in items:
        await run(replay.row(item))
    return replay.result
