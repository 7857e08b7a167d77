"""Bugs of fetched copies: of the node that keeps and sends the files, and of the program that installs them."""

from __future__ import annotations

import contextlib

from tailrace.copies import chain, fetch
from tailrace.copies.compare import Action, Comparison, compare, copy_of
from tailrace.copies.directory import CopyDirectory
from tailrace.copies.fetch import OnDisk
from tailrace.copies.receiver import SegmentReceiver
from tailrace.segment.newest import superseded_rows
from tailrace_server.compaction import worker
from tailrace_server.partition.chain import Pins
from tailrace_server.serving import segment_requests
from tailrace_server.upkeep.checkpoints import Checkpoints

from .bug import Bug
from .streams import purge_in_silence

_take_checkpoint = Checkpoints.take
_describe = Checkpoints._describe
_take_copy = fetch._PartitionFetch._take
_open_partition = CopyDirectory.open_partition
_install = CopyDirectory.install


def _retire_at_once(pins, segments):
    """Frees replaced segments though they are pinned."""
    pins._free.extend(segments)


def _whatever_came(receiver):
    """Takes the bytes as they came, without comparing their checksum."""
    return ""


async def _log_of_before(checkpoints, partition, level, **options):
    """Tells the log of the checkpoint before: the chain is that of a later moment."""
    taken = await _take_checkpoint(checkpoints, partition, level, **options)
    logs = checkpoints.__dict__.setdefault("_logs", {})
    log, logs[partition] = logs.get(partition, taken.log), taken.log
    return taken._replace(log=log)


async def _keep_first(checkpoints, partition, level, *, flush=False, with_state=False, **asked):
    """Keeps the segments first, and then flushes: the seq is that of a later moment."""
    kept = checkpoints._keep(partition.feed_id, partition.chain.segments)
    if flush:
        await checkpoints._flush(partition)
    return await checkpoints._describe(partition, kept, with_state=with_state)


def _require_no_term(node, partition, term, checkpoint_id):
    """Answers though this node has stepped down meanwhile."""


async def _wait_for_nothing(node, partition, level):
    """Takes the checkpoint at once."""


def _take_from_any_leader(held, told):
    """Takes a checkpoint of a leader of an earlier term, too."""
    found = compare(held, told)
    return Comparison(Action.TAKE, found.common_seq) if found.action is Action.KEEP else found


def _install_first(partition_fetch, told):
    """Installs the list of segments, and then fetches them."""
    yield OnDisk(lambda: _install_list(partition_fetch, copy_of(told)))
    return (yield from _take_copy(partition_fetch, told))


def _install_list(partition_fetch, copy):
    partition_fetch._directory.open_partition(partition_fetch._feed_id, copy.partition)
    partition_fetch._directory.install(partition_fetch._feed_id, copy)


def _sizes_in_blocks(directory, feed_id, partition):
    """Counts half files by whole blocks of 512 bytes, so that a fetch goes on behind their end."""
    held = _open_partition(directory, feed_id, partition)
    sizes = {name: -(-size // 512) * 512 if name.endswith(".new") else size for name, size in held.sizes.items()}
    return held._replace(sizes=sizes)


async def _without_purge_seq(checkpoints, partition, kept, *, with_state):
    """Says of a checkpoint that nothing was purged."""
    return (await _describe(checkpoints, partition, kept, with_state=with_state))._replace(purge_seq=0)


def _older_rows(rows):
    """Prefers the older of two rows of a key."""
    gone = superseded_rows(rows)
    return ~gone if gone.any() else gone


def _remove_first(directory, feed_id, copy):
    """Removes the segments that the new list does not name before the new list is there."""
    with contextlib.suppress(FileNotFoundError):
        directory.remove_surplus(copy)
    _install(directory, feed_id, copy)


ONE_NODE, SET = 1, 3

BUGS = {
    "a segment of a checkpoint that is not kept": Bug([(Pins, "retire", _retire_at_once)], copies=(ONE_NODE, 0)),
    "a file whose checksum is not compared": Bug(
        [(SegmentReceiver, "_why_wrong", _whatever_came)], copies=(ONE_NODE, 0)
    ),
    "a checkpoint with the log of an earlier moment": Bug([(Checkpoints, "take", _log_of_before)], copies=(SET, 0)),
    "segments that are kept before the flush": Bug([(Checkpoints, "take", _keep_first)], copies=(ONE_NODE, 0)),
    "a checkpoint that does not wait for a majority": Bug(
        [(segment_requests, "_wait_for_majority", _wait_for_nothing)], copies=(SET, 180)
    ),
    "a checkpoint of a leader that has stepped down": Bug(
        [(segment_requests, "_require_term", _require_no_term)], {"step_down_in_a_fetch": 0}
    ),
    "a checkpoint of a leader of an earlier term that is taken": Bug(
        [(fetch, "compare", _take_from_any_leader)], copies=(SET, 32)
    ),
    "a list that is installed before its segments": Bug(
        [(fetch._PartitionFetch, "_take", _install_first)], copies=(ONE_NODE, 0)
    ),
    "segments that are removed before the new list": Bug(
        [(CopyDirectory, "install", _remove_first)], copies=(ONE_NODE, 19)
    ),
    "a half file that goes on behind its end": Bug(
        [(CopyDirectory, "open_partition", _sizes_in_blocks)], copies=(ONE_NODE, 0)
    ),
    "a checkpoint without its purge seq": Bug([(Checkpoints, "_describe", _without_purge_seq)], copies=(ONE_NODE, 0)),
    "a compaction that purges, and copies that do not hear of it": Bug(
        [(worker, "identity_of", purge_in_silence)], copies=(ONE_NODE, 0)
    ),
    "a reader that prefers the older row": Bug([(chain, "superseded_rows", _older_rows)], copies=(ONE_NODE, 0)),
}
