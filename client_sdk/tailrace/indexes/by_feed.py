"""Several feeds into one index: ``{feed}`` in the name of its table or directory stands for the name of each feed.

Each feed has a table of its own, with its own positions and rings, so that keys of two feeds never meet, and a rollback
or a new begin of one feed leaves the others alone.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

PATTERN = "{feed}"

T = TypeVar("T")


class ByFeed(Generic[T]):
    """The indexes of the feeds, which are made when they are asked for. Any thread may ask."""

    def __init__(self, make: Callable[[str], T]) -> None:
        """Takes what makes the index of a feed."""
        self._make = make
        self._made: dict[str, T] = {}

    def of(self, feed: str) -> T:
        """Returns the index of a feed, the same one each time. ValueError if its name makes no usable name."""
        if feed not in self._made:
            self._made.setdefault(feed, self._make(feed))
        return self._made[feed]


def table_of(pattern: str, feed: str) -> str:
    """Returns the name of the table of a feed: characters but letters, digits and underscores become underscores."""
    name = pattern.replace(PATTERN, re.sub(r"[^A-Za-z0-9_]", "_", feed))
    return f"_{name}" if name[:1].isdigit() else name


def require_feed(pattern: object, by_feed: object) -> None:
    """Raises ValueError if an index for several feeds is used as if it were the one of a feed."""
    if by_feed is not None:
        raise ValueError(
            f"the index {pattern} is one for each feed: follow it by feed.follow, or take the one of a feed by "
            "of_feed(name)"
        )
