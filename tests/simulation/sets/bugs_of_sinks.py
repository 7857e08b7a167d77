"""Bugs in what a set remembers of the batches that it has taken."""

from __future__ import annotations

from tailrace_server.publishing.last_batches import LastBatches
from tailrace_server.publishing.publisher import Publisher
from tailrace_server.replication.leadership import Leadership
from tailrace_server.stream.replica_stream import ReplicaStream

_write = Publisher._write


def _tell_nothing_of_sinks(stream, seq):
    """Followers have the rows of a publish, and not which batch they are."""
    return []


async def _write_where_none_is_there(publisher, feed, request, shares, term):
    """A batch that one partition has is taken for done."""
    if any(publisher._has(partition, request) for partition in feed.partitions):
        return [], {}
    return await _write(publisher, feed, request, shares, term)


def _forget_nothing(last_batches, seq):
    """A rollback takes the rows of a publish, and not what is said of it."""


def _go_on(leadership, term):
    """Who leads again goes on with what it had begun."""
    leadership.require_leader()


BUGS = {
    "last batches that followers are not told": [(ReplicaStream, "_encode_sinks", _tell_nothing_of_sinks)],
    "a batch that is remembered by feed": [(Publisher, "_write", _write_where_none_is_there)],
    "a last batch that outlives a rollback": [(LastBatches, "forget_above", _forget_nothing)],
    "a publish that goes on in another term": [(Leadership, "require_term", _go_on)],
}
