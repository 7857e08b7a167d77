"""Bugs in what a set remembers of the batches that it has taken."""

from __future__ import annotations

from unittest import mock

from tailrace_server.publishing.publisher import Publisher
from tailrace_server.replication.leadership import Leadership
from tailrace_server.state import last_batches
from tailrace_server.state.last_batches import LastBatches
from tailrace_server.stream.replication_stream import ReplicationStream

from .bug import Bug

_write = Publisher._write


def _tell_nothing_of_sinks(stream, seq):
    """Followers have the rows of a publish, and not which batch they are."""
    return []


async def _write_where_none_is_there(publisher, feed, request, shares, term, step):
    """A batch that one partition has is taken for done."""
    if any(publisher._has(partition, request) for partition in feed.partitions):
        return True
    return await _write(publisher, feed, request, shares, term, step)


_encode_sinks = ReplicationStream._encode_sinks


def _tell_nothing_of_parts(stream, seq):
    """Followers are told of a batch, and not that they have a part of it."""
    with mock.patch.object(last_batches, "_write_last", _write_without_parts):
        return _encode_sinks(stream, seq)


_write_last = last_batches._write_last


def _write_without_parts(last):
    return _write_last(last._replace(parts=()))


def _forget_nothing(last_batches, seq):
    """A rollback takes the rows of a publish, and not what is said of it."""


def _go_on(leadership, term):
    """Who leads again goes on with what it had begun."""
    leadership.require_leader()


BUGS = {
    "last batches that followers are not told": Bug(
        [(ReplicationStream, "_encode_sinks", _tell_nothing_of_sinks)], {"restless_leaders": 0}
    ),
    "parts of a batch that followers are not told": Bug(
        [(ReplicationStream, "_encode_sinks", _tell_nothing_of_parts)], {"interrupted_parts": 0}
    ),
    "a batch that is remembered by feed": Bug(
        [(Publisher, "_write", _write_where_none_is_there)], {"interrupted_publishes": 0}
    ),
    "a last batch that outlives a rollback": Bug([(LastBatches, "forget_above", _forget_nothing)], {"lost_publish": 0}),
    "a publish that goes on in another term": Bug([(Leadership, "require_term", _go_on)], {"deposed_publisher": 3}),
}
