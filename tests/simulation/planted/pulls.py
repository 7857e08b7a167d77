"""Bugs of segments that a follower copies: of the leader that keeps them, and of the follower that installs them."""

from __future__ import annotations

from tailrace.consuming.events import Rollback
from tailrace.model.failover import FailoverLog
from tailrace.wire.segment_messages import SegmentFetch
from tailrace_server.manifest import invariants
from tailrace_server.partition.chain import Pins
from tailrace_server.replication import ahead_stream
from tailrace_server.replication.ahead_stream import AheadStream
from tailrace_server.upkeep import received_files
from tailrace_server.upkeep.ahead_files import AheadFiles
from tailrace_server.upkeep.checkpoints import Checkpoints
from tailrace_server.upkeep.received_files import ReceivedSegment

from .bug import Bug
from .copies import _retire_at_once

_keep = Checkpoints._keep
_take = Checkpoints.take
_release = Checkpoints.release
_take_ahead = AheadStream._take
_finish = ReceivedSegment._finish


def _keep_without_pins(checkpoints, *what):
    """Keeps a checkpoint whose segments nothing pins."""
    kept = _keep(checkpoints, *what)
    for segment in kept.segments.values():
        checkpoints._pins.unpin(segment)
    return kept


def _release_without_pins(checkpoints, checkpoint_id):
    kept = checkpoints._kept.get(checkpoint_id)
    for segment in () if kept is None else kept.segments.values():
        checkpoints._pins.pin(segment)
    _release(checkpoints, checkpoint_id)


def _whatever_came(*what):
    """Takes the bytes as they came, without comparing their checksum."""
    return ""


def _take_as_whole(fetch, frame):
    """Takes a part that is too short for a whole one, as if the rest were zeros."""
    return memoryview(bytes(frame.body).ljust(fetch.nbytes, b"\0"))


def _finish_without_a_sync(received, file):
    """Gives the file its name before its bytes are durable."""
    _finish(received, _Unsynced(file))


class _Unsynced:
    """A file whose ``sync`` does nothing."""

    def __init__(self, file):
        self._file = file

    def __getattr__(self, name):
        return (lambda: None) if name == "sync" else getattr(self._file, name)


async def _log_without_the_newest_branch(checkpoints, partition, level, **options):
    """Tells the log that the partition had before this node led."""
    told = await _take(checkpoints, partition, level, **options)
    return told._replace(log=FailoverLog(told.log[1:] or told.log))


async def _settle_nothing(files, partition, log, high_seq=0):
    """Keeps all rows that came ahead, of any history."""
    return files.find(partition)


async def _keep_on_rollback(stream, connection, file, event):
    """Keeps rows that came ahead though the leader does not have them, and ends their stream."""
    return not isinstance(event, Rollback) and await _take_ahead(stream, connection, file, event)


NO_CHECKSUM = (received_files, "why_wrong", _whatever_came)

BUGS = {
    "a segment that is not pinned while it is pulled": Bug(
        [(Checkpoints, "_keep", _keep_without_pins), (Checkpoints, "release", _release_without_pins)],
        {"replaced_while_pulled": 0},
    ),
    "a replaced segment that is removed while it is pulled": Bug(
        [(Pins, "retire", _retire_at_once)], {"replaced_while_pulled": 0}
    ),
    "a pulled segment whose checksum is not compared": Bug([NO_CHECKSUM], {"flipped_pull": 0}),
    "a truncated pull that is taken as whole": Bug(
        [NO_CHECKSUM, (SegmentFetch, "decode_answer", _take_as_whole)], {"truncated_pull": 0}
    ),
    "a pulled segment that is installed before it is durable": Bug(
        [(ReceivedSegment, "_finish", _finish_without_a_sync)], {"power_cut_after_a_pull": 0}
    ),
    "a checkpoint that is pulled with the log of before": Bug(
        [
            (Checkpoints, "take", _log_without_the_newest_branch),
            (invariants, "_order", lambda manifest: []),
        ],
        {"pulled_fork": 0},
    ),
    "rows ahead that are kept over another history": Bug(
        [
            (AheadFiles, "settle", _settle_nothing),
            (AheadStream, "_take", _keep_on_rollback),
            (ahead_stream, "_why_not", lambda partition, file, log: ""),
        ],
        {"rows_ahead_of_a_deposed_leader": 0},
    ),
}
