"""Bugs of published batches: how they are written, remembered, replicated and rolled back."""

from __future__ import annotations

from unittest import mock

from tailrace_server.partition import published as appending
from tailrace_server.publishing.publisher import Publisher
from tailrace_server.publishing.stage_directory import StageDirectory
from tailrace_server.replication.leadership import Leadership
from tailrace_server.state import last_batches
from tailrace_server.state.last_batches import LastBatches
from tailrace_server.state.published_batches import PublishedBatch, PublishedBatches
from tailrace_server.stream.replication_stream import ReplicationStream

from .bug import Bug

_write = Publisher._write
_encode_sinks = ReplicationStream._encode_sinks
_write_last = last_batches._write_last
_append_batch = appending.append_batch
_seal = StageDirectory.seal


def _tell_nothing_of_sinks(stream, seq):
    """Tells followers no last batch: they get the rows of a publish only."""
    return []


async def _write_where_none_is_there(publisher, feed, request, shares, term, step):
    """Takes a batch for published if one partition has it."""
    if any(publisher._has(partition, request) for partition in feed.partitions):
        return True
    return await _write(publisher, feed, request, shares, term, step)


def _tell_nothing_of_parts(stream, seq):
    """Tells followers the last batch, and not that they have a part of it only."""
    with mock.patch.object(last_batches, "_write_last", _write_without_parts):
        return _encode_sinks(stream, seq)


def _write_without_parts(last):
    return _write_last(last._replace(parts=()))


def _forget_nothing(last_batches, seq):
    """Keeps the last batch when a rollback takes its rows."""


def _go_on(leadership, term):
    """Requires that the node leads, in any term."""
    leadership.require_leader()


def _forget_the_batch(partition, blocks, sinks, journal):
    """Writes the rows of a publish, and not the number of the batch."""
    return _append_batch(partition, blocks, {}, journal)


def _leave_out_the_batches(self, seq):
    """Leaves the last batches out of the manifest; their records in the journal are trimmed later."""
    return {}


def _write_apart(partition, blocks, sinks, journal):
    """Writes a record for each block of a publish; the last one names the batch."""
    first_seq = partition.high_seq + 1
    for block in blocks[:-1]:
        _append_batch(partition, [block], {}, journal)
    versions = _append_batch(partition, blocks[-1:], sinks, journal)._replace(first_seq=first_seq)
    partition.published.drop_above(first_seq - 1)
    partition.published.add(PublishedBatch(first_seq - 1, versions.last_seq, len(blocks)))
    return versions


def _remember_no_run(self, run):
    """Forgets the bounds of a publish, so that a snapshot may end inside it."""


def _seal_without_sync(self, stage):
    """Seals a stage before its content is durable."""
    stage.file.sync = lambda: None
    return _seal(self, stage)


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
    "a publish that forgets its batch": Bug([(appending, "append_batch", _forget_the_batch)], seed=5),
    "a manifest without the last batches": Bug([(LastBatches, "as_of", _leave_out_the_batches)], seed=3),
    "a publish that is journaled block by block": Bug([(appending, "append_batch", _write_apart)], seed=58),
    "a publish that anybody may stand inside of": Bug([(PublishedBatches, "add", _remember_no_run)], seed=6),
    "a stage that is sealed before it is durable": Bug([(StageDirectory, "seal", _seal_without_sync)], seed=8),
}
