"""The part of an iterator of items that all shells share: what is read next, and what is kept of it. Pure."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any, Protocol

from tailrace.block.lazy import pyarrow
from tailrace.consuming.events import Mutations, Rollback
from tailrace.consuming.latest_items import LatestItems
from tailrace.consuming.subscription import Subscription
from tailrace.model.position import Positions
from tailrace.wire.filters import StreamFilter

if TYPE_CHECKING:
    from tailrace.codec import Codec
    from tailrace.consuming.events import Event
    from tailrace.requests.replies import PartitionMap


class Latest(Protocol):
    """The newest row of each key of the partition that is being read."""

    def note(self, event: Mutations) -> None: ...
    def clear(self) -> None: ...
    def take(self) -> Any: ...


class ItemsCore:
    """The state of a read of all items: the partitions that are left, and the rows of the present one."""

    def __init__(
        self, feed: str, key_prefix: bytes, latest: Latest | None = None, *, codec: Codec | None = None
    ) -> None:
        """Takes what makes typed items; None: they are bytes. Raises ValueError if the prefix is longer than a key."""
        self._codec = codec
        self._feed = feed
        self._key_prefix = key_prefix
        self._filter = StreamFilter(key_prefix)
        self._filter.check()
        self._map: PartitionMap | None = None
        self._left: collections.deque[int] = collections.deque()
        self._latest = LatestItems() if latest is None else latest  # of the present partition, up to ``_since``
        self._since: str | Positions = "beginning"

    @property
    def has_begun(self) -> bool:
        """Whether the partition map is known."""
        return self._map is not None

    def begin(self, at: PartitionMap) -> None:
        """Notes the partition map: each partition is read up to its seq there, or later."""
        self._map = at
        self._left.extend(sorted(at.high_seqs))

    def subscription(self) -> Subscription | None:
        """Returns how the next partition is read, from the rows on that have come; None at the end.

        If the seq of the map was lost, the read ends at the last seq that both histories share.
        """
        if not self._left:
            return None
        assert self._map is not None, "the map is known"
        id, at = self._left[0], self._map
        return Subscription(
            self._feed,
            self._since,
            {id: at.high_seqs[id]},
            frozenset([id]),
            on_rollback="restart",
            stored=(self._since,) if isinstance(self._since, Positions) else (),
            ring_rows=0,
            filter=self._filter,
            until_logs=at.logs,
            feed_id=at.feed_id,
            catch_up="auto",
        )

    def note(self, event: Event, positions: Positions) -> None:
        """Notes an event. ``positions``: those behind it, from which a read that breaks off goes on."""
        if isinstance(event, Mutations):
            self._latest.note(event)
        elif isinstance(event, Rollback):
            self._latest.clear()  # the node sends the partition again
        self._since = positions

    def take(self) -> Any:
        """Returns the rows of the partition, all of which has come; the next one follows."""
        self._since = "beginning"
        self._left.popleft()
        taken = self._latest.take()
        return taken if self._codec is None else map(self._codec.item, taken)  # an item that raises ends no iteration

    def by_columns(self) -> ItemsCore:
        """Returns the state of another read of the same items, whose partitions are Arrow tables."""
        pyarrow()
        from tailrace.consuming.arrow_items import ArrowLatest

        return ItemsCore(self._feed, self._key_prefix, ArrowLatest())


class ItemsReader(Protocol):
    """The call of all shells that reads the items as a table."""

    def to_arrow(self) -> Any:
        """Reads the items into an Arrow table, which is in memory as a whole. No object is made for an item.

        It reads all items, also if the iterator has given some. The columns are those of `tailrace.Mutations.to_arrow`,
        and ``deleted`` is False in each row. Rows come by partition, and in the order of their seqs.

        Returns:
            A ``pyarrow.Table``.

        Raises:
            ImportError: pyarrow is not installed; ``pip install 'tailrace[arrow]'`` installs it.
            TailraceError: As in the iterator.
        """
        ...
