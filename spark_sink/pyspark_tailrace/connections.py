"""Connections that outlive tasks.

Spark's Python workers live on from task to task. So does the connection, and with it the writer's producer: were it a
new one for each task, the node would soon have to forget some, and could no longer tell what was sent twice. A
connection that the node has ended meanwhile, because it was silent, is made again by the next task.

Between two tasks a feed can be dropped and made again, and another node, which began anew, can come to the same
address. So each task asks for the feed; where it is another one the connection is given up, and with it its producer.
"""

from __future__ import annotations

import collections
import contextlib
import os
from collections.abc import Iterator

from pyspark_tailrace.options import SinkOptions
from tailrace import blocking
from tailrace.errors import UnknownFeed

# A task's; several run on one machine.
IN_FLIGHT_BYTES = 8 * 1024 * 1024
# Of a feed that the sink creates, unless it is told otherwise.
PARTITIONS = 16
# A worker serves every query of its session in turn: so many feeds keep their connection.
CONNECTIONS_MAX = 16


class _Connection:
    """``writer`` is made when it is first asked for."""

    def __init__(self, client: blocking.Client, feed: blocking.Feed, level: str) -> None:
        self.client = client
        self._level = level
        self.feed = feed
        self._writer: blocking.Writer | None = None
        self._identity = self._ask()

    def _ask(self) -> tuple[bytes, bytes]:
        return self.feed.resolve().feed_id, self.client.cluster_id

    def is_same(self) -> bool:
        """Whether the feed is still the one that it was. One round trip; Unreachable, Forbidden."""
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


# By process, since a process that was forked must not speak on its parent's connection; least recently used first.
_connections: collections.OrderedDict[tuple[int, SinkOptions], _Connection] = collections.OrderedDict()


@contextlib.contextmanager
def cached_writer(options: SinkOptions) -> Iterator[tuple[blocking.Feed, blocking.Writer]]:
    """A feed and a writer to it, kept for the next task of this process if the body succeeds, else closed.

    Raises UnknownFeed, ValueError where the feed has other partitions than the options say, Unreachable, Forbidden.
    """
    with _connection_for(options) as connection:
        yield connection.feed, connection.writer


@contextlib.contextmanager
def cached_feed(options: SinkOptions) -> Iterator[blocking.Feed]:
    """A feed, as ``cached_writer``, for stages and publishes."""
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
    """What an earlier task has left, where its feed is still there; else it is closed."""
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
    if other is not None:  # of a task that ran beside this one
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
                name="spark sink",
                connect_timeout=options.retry_for_s,
                retry_for=options.retry_for_s,
            )
        )
        feed = _found_or_created(client, options)
        connection = _Connection(client, feed, options.level)
        on_error.pop_all()
    return connection


def _found_or_created(client: blocking.Client, options: SinkOptions) -> blocking.Feed:
    feed = client.feed(options.feed)
    try:
        found = feed.resolve()
    except UnknownFeed as error:
        if not options.create_feed:
            raise UnknownFeed(f"{error}; or let the sink create it, by .option('create_feed', 'true')") from None
        # Another task may do the same at this moment: the feed is made once.
        feed = client.create_feed(options.feed, partitions=options.partitions or PARTITIONS)
        found = feed.resolve()
    if options.partitions not in (None, found.partitions):
        raise ValueError(
            f"feed {options.feed!r} has {found.partitions} partitions, and option 'partitions' says "
            f"{options.partitions}: correct it, in partition_of() as well, or leave it out"
        )
    return feed
