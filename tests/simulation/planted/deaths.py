"""Bugs of transfers of segments in which a node dies, or its disk fails."""

from __future__ import annotations

import contextlib

from tailrace.wire.push_messages import SegmentAck
from tailrace_server.replication.pushed_segments import PushedSegments
from tailrace_server.upkeep.incoming_segments import IncomingSegment
from tailrace_server.upkeep.installer import Installer
from tailrace_server.upkeep.received_files import ReceivedSegment

from .bug import Bug

_finish_received = ReceivedSegment._finish
_finish_incoming = IncomingSegment.finish
_install_chain_held = Installer.install_chain_held
_complete = PushedSegments._complete


class _Careless:
    """A file that does not tell of an fsync that has failed."""

    def __init__(self, file):
        self._file = file

    def __getattr__(self, name):
        return getattr(self._file, name)

    def sync(self):
        with contextlib.suppress(OSError):
            self._file.sync()


def _take_after_a_failed_sync(received, file):
    """Gives a copied file its name though its fsync has failed."""
    _finish_received(received, _Careless(file))


def _finish_after_a_failed_sync(incoming):
    """Gives a pushed file its name though its fsync has failed."""
    incoming._file = _Careless(incoming._file)
    _finish_incoming(incoming)


async def _remove_first(installer, partition, chain, end):
    """Removes the segments that the received chain does not have before the manifest names that chain."""
    for segment in partition.chain.segments:
        if segment not in chain.segments:
            with contextlib.suppress(FileNotFoundError):
                installer._host.disk.remove(segment.path)
    await _install_chain_held(installer, partition, chain, end)


async def _say_that_it_is_here(segments, partition, transfer, *received):
    """Acknowledges a segment that the disk did not let it install."""
    try:
        return await _complete(segments, partition, transfer, *received)
    except OSError:
        return SegmentAck(transfer.offer.number, transfer.offer.nbytes)


BUGS = {
    "replaced segments that are removed before the manifest of a received chain": Bug(
        [(Installer, "install_chain_held", _remove_first)],
        {"installing_a_pull_ends_at_the_follower": 0},
    ),
    "a pulled segment that is installed though its fsync has failed": Bug(
        [(ReceivedSegment, "_finish", _take_after_a_failed_sync)], {"verifying_a_pull_ends_at_the_follower": 0}
    ),
    "a pushed segment that is installed though its fsync has failed": Bug(
        [(IncomingSegment, "finish", _finish_after_a_failed_sync)], {"finishing_a_push_ends_at_the_follower": 0}
    ),
    "a pushed segment that is acknowledged though it was not installed": Bug(
        [(PushedSegments, "_complete", _say_that_it_is_here)], {"installing_a_push_ends_at_the_follower": 0}
    ),
}
