"""Bugs in what a set remembers of the batches that it has taken."""

from __future__ import annotations

from tailrace_server.publishing.publisher import Publisher
from tailrace_server.stream.replica_stream import ReplicaStream

_write = Publisher._write


def _tell_nothing_of_sinks(stream, seq):
    """Followers have the rows of a publish, and not which batch they are."""
    return []


async def _write_where_none_is_there(publisher, feed, request, shares):
    """A batch that one partition has is taken for done."""
    if any(publisher._has(partition, request) for partition in feed.partitions):
        return []
    return await _write(publisher, feed, request, shares)


BUGS = {
    "last batches that followers are not told": [(ReplicaStream, "_encode_sinks", _tell_nothing_of_sinks)],
    "a batch that is remembered by feed": [(Publisher, "_write", _write_where_none_is_there)],
}
