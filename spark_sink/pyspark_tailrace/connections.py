"""Caches connections, so that the tasks of a Spark worker share them.

A Python worker of Spark runs many tasks. The cached connection keeps the writer's producer from task to task. With a
new producer for each task, the node would soon forget some of them, and could no longer recognise a block that is sent
twice. If the node has closed an idle connection, the next task connects again.

Between two tasks a feed can be dropped and created again, or an empty node can take over the address. So each task asks
for the feed's id, and drops the connection with its producer if the id has changed.
"""

from __future__ import annotations

import collections
import contextlib
import os
from collections.abc import Iterator
from typing import cast

from pyspark_tailrace.options import SinkOptions, context_of
from tailrace import blocking
from tailrace.errors import UnknownFeed
from tailrace.model import LevelName

# For each task; several tasks run on one machine.
IN_FLIGHT_BYTES = 8 * 1024 * 1024
# The partitions of a feed that the sink creates, unless option 'partitions' says otherwise.
PARTITIONS = 16
# A worker serves every query of its session in turn. Connections beyond these are closed, the oldest first.
CONNECTIONS_MAX = 16


class _Connection:
    """A client, its feed, and a writer that is opened on first use."""

    def __init__(self, client: blocking.Client, feed: blocking.Feed, level: LevelName | None) -> None:
        self.client = client
        self._level = level
        self.feed = feed
        self._writer: blocking.Writer | None = None
        self._identity = self._ask()

    def _ask(self) -> tuple[bytes, bytes]:
        return self.feed.resolve().feed_id, self.client.cluster_id

    def is_same(self) -> bool:
        """Returns whether the feed and its cluster still have the same ids. One round trip.

        Raises Unreachable, Forbidden.
        """
        self.feed.forget()
        try:
            return self._ask() == self._identity
        except UnknownFeed:
            return False

    @property
    def writer(self) -> blocking.Writer:
        if self._writer is None:
            self._writer = self.feed.writer(level=self._level, in_flight_bytes=IN_FLIGHT_BYTES)
        return self._writer


# By process, because a forked process must not use its parent's connection. The least recently used comes first.
_connections: collections.OrderedDict[tuple[int, SinkOptions], _Connection] = collections.OrderedDict()


@contextlib.contextmanager
def cached_writer(options: SinkOptions) -> Iterator[tuple[blocking.Feed, blocking.Writer]]:
    """Yields a feed and a writer to it. They stay open for the next task of this process if the body succeeds.

    Raises UnknownFeed, ValueError if the feed has another number of partitions than the options say, Unreachable,
    Forbidden.
    """
    with _connection_for(options) as connection:
        yield connection.feed, connection.writer


@contextlib.contextmanager
def cached_feed(options: SinkOptions) -> Iterator[blocking.Feed]:
    """Yields a feed, for stages and publishes. See ``cached_writer``."""
    with _connection_for(options) as connection:
        yield connection.feed


@contextlib.contextmanager
def _connection_for(options: SinkOptions) -> Iterator[_Connection]:
    key = (os.getpid(), options)
    connection = _reused(key) or _open(options)
    try:
        yield connection
    except BaseException:
        connection.client.close()
        raise
    _keep(key, connection)


def _reused(key: tuple[int, SinkOptions]) -> _Connection | None:
    """Returns the connection of an earlier task if its feed is the same; otherwise closes it and returns None."""
    connection = _connections.pop(key, None)
    if connection is None:
        return None
    with contextlib.ExitStack() as unless_same:
        unless_same.callback(connection.client.close)
        if connection.is_same():
            unless_same.pop_all()
            return connection
    return None


def _keep(key: tuple[int, SinkOptions], connection: _Connection) -> None:
    other = _connections.pop(key, None)
    if other is not None:  # a task that ran at the same time has left it
        other.client.close()
    _connections[key] = connection
    if len(_connections) > CONNECTIONS_MAX:
        _, oldest = _connections.popitem(last=False)
        oldest.client.close()


def _open(options: SinkOptions) -> _Connection:
    with contextlib.ExitStack() as on_error:
        client = on_error.enter_context(
            blocking.connect(
                options.url,
                token=options.token,
                tls=context_of(options.url, options.tls),
                name="spark sink",
                connect_timeout=options.retry_for_s,
                retry_for=options.retry_for_s,
            )
        )
        feed = _found_or_created(client, options)
        connection = _Connection(client, feed, cast(LevelName | None, options.level))
        on_error.pop_all()
    return connection


def _found_or_created(client: blocking.Client, options: SinkOptions) -> blocking.Feed:
    feed = client.feed(options.feed)
    try:
        found = feed.resolve()
    except UnknownFeed as error:
        if not options.create_feed:
            raise UnknownFeed(f"{error}; or let the sink create it, by .option('create_feed', 'true')") from None
        # Other tasks may do the same now; create_feed() creates it once.
        feed = client.create_feed(options.feed, partitions=options.partitions or PARTITIONS)
        found = feed.resolve()
    if options.partitions not in (None, found.partitions):
        raise ValueError(
            f"feed {options.feed!r} has {found.partitions} partitions, and option 'partitions' says "
            f"{options.partitions}: correct it, in partition_of() as well, or leave it out"
        )
    return feed
