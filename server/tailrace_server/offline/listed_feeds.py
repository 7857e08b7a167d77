"""Reads the feeds that ``_feeds`` lists from the directory of a stopped node.

A start refuses a directory that lacks a listed feed (feeds/wholeness.py), so the offline tools check the same.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, NamedTuple

from tailrace.block import Block
from tailrace.model import FEED_ID_BYTES
from tailrace_server.feeds.feed import SYSTEM_FEED_ID
from tailrace_server.feeds.feed_rows import FeedRow
from tailrace_server.offline.salvage import read_segment

if TYPE_CHECKING:
    from tailrace_server.host.disk import Disk
    from tailrace_server.offline.findings import FeedFindings


class MissingFeed(NamedTuple):
    """A feed that ``_feeds`` lists, without a FEED and without a creation in the journal."""

    feed_id: bytes
    name: str
    partitions: int
    why: str


class ListedFeeds:
    """Gathers the rows of ``_feeds``: from its segments by ``read_segments``, from the journal by ``add``."""

    def __init__(self) -> None:
        self._rows: dict[bytes, FeedRow] = {}
        self._journal_from: int | None = None

    def read_segments(self, disk: Disk, feeds: Iterable[FeedFindings]) -> None:
        """Adds the rows of the segments of ``_feeds``, as far as they can be read."""
        for feed in feeds:
            for partition in feed.partitions if feed.feed_id == SYSTEM_FEED_ID else ():
                for segment in partition.segments:
                    identity = segment.identity
                    if identity is not None and identity.feed_id == SYSTEM_FEED_ID:
                        with contextlib.suppress(OSError):
                            for item in read_segment(disk, segment.path, 0):
                                if isinstance(item, Block):
                                    self._take(item)

    def add(self, feed_id: bytes, blocks: Iterable[Block]) -> None:
        """Adds the rows of a record of the journal, if its feed is ``_feeds``."""
        for block in blocks if feed_id == SYSTEM_FEED_ID else ():
            first_seq = block.seqs[0]
            self._journal_from = first_seq if self._journal_from is None else min(self._journal_from, first_seq)
            self._take(block)

    def _take(self, block: Block) -> None:
        columns = block.open_columns()
        for key, value, seq in zip(columns.keys(), columns.values(), columns.seqs(), strict=True):
            if len(key) == FEED_ID_BYTES and (key not in self._rows or self._rows[key].seq <= seq):
                self._rows[key] = FeedRow(seq, value)

    def name_of(self, feed_id: bytes) -> str | None:
        """Returns the listed name of a feed; None if it is not listed, or was dropped."""
        row = self._rows.get(feed_id)
        return None if row is None or row.creation is None else _missing(feed_id, row.creation).name

    def missing(self, known: Collection[bytes]) -> list[MissingFeed]:
        """Returns the listed feeds that are not among ``known``, without those just being created at the stop."""
        return [
            _missing(feed_id, row.creation)
            for feed_id, row in self._rows.items()
            if row.creation is not None
            and feed_id not in known
            and (self._journal_from is None or row.seq < self._journal_from)
        ]


def _missing(feed_id: bytes, creation: bytes) -> MissingFeed:
    try:
        feed = json.loads(creation)["feed"]
        name, partitions = str(feed["name"]), int(feed["partitions"])
    except (ValueError, KeyError, TypeError):
        name, partitions = "?", 0
    why = f"_feeds lists feed {name!r}, and the journal no longer has its creation"
    return MissingFeed(feed_id, name, partitions, why)
