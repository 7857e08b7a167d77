"""The call of `Feed.fetch`: checks its arguments, and loads the rest when a program fetches. Pure."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from tailrace.model import Level
from tailrace.requests.client_core import ClientCore
from tailrace.requests.feed_core import FeedCore

if TYPE_CHECKING:
    from tailrace.copies.fetch import FeedFetch


def fetch_plan(
    client: ClientCore,
    feed: FeedCore,
    directory: str | os.PathLike[str],
    partitions: Iterable[int] | None,
    visibility: str,
    progress: Callable[[int, int], None] | None,
) -> FeedFetch:
    """Makes a directory a copy of the feed, of the node's segments as files. Run it again to bring the copy up to date.

    A later fetch takes over the files that the directory has, and removes those that the node has compacted since. The
    copy of a partition is replaced in one step: a reader finds the old one or the new one. A fetch that was interrupted
    goes on behind the last byte that it has. Each partition has all that was acknowledged before the call, in a set at
    level quorum.

    Args:
        directory: The directory. It is made if it is not there. It must be empty, or a copy of the same feed.
        partitions: Only these partitions. Default: all. Others that the directory has stay as they are.
        visibility: "disk" or "quorum": the level that mutations must have reached.
        progress: Called now and then with the bytes that were received, and those that are to be received.

    Returns:
        The fetched partitions, and how many bytes have come.

    Raises:
        BadCopy: The directory is not empty and no copy, or of another feed or history, or another fetch works on it.
        BadSegment: A file has come damaged twice.
        UnknownCheckpoint: The node does not keep the files for long enough, three times in a row.
        UnknownFeed: The feed does not exist.
        ValueError: The level or a partition does not exist, or the directory has no name.
        Retryable: No node has answered in time. The files that came stay for the next fetch.
        OSError: The disk of this machine is full, or refuses something.
    """
    from tailrace.copies.fetch import FeedFetch  # most programs fetch nothing

    level = feed.level(visibility)
    if level == Level.MEMORY:
        raise ValueError('segments have visibility "disk" or "quorum", not "memory"')
    path = os.fspath(directory)
    if not path:
        raise ValueError("directory is '': name the directory of the copy")
    return FeedFetch(client, feed, path, partitions, level, progress)
