"""Bugs of pushed segments: of the leader that keeps and offers them, and of the follower that takes them."""

from __future__ import annotations

import errno

from tailrace.block.arrays import arrays_of, encode_arrays, take
from tailrace.errors import NoSpace
from tailrace.model.hashing import key_hash
from tailrace.wire.push_messages import SegmentAck
from tailrace_server.chain.link import ChainLink
from tailrace_server.chain.receiving import Receiver
from tailrace_server.partition.chain import Pins
from tailrace_server.replication import pushed_segments
from tailrace_server.replication.member import Member
from tailrace_server.replication.pushed_partitions import PushedPartitions
from tailrace_server.replication.pushed_segments import PushedSegments
from tailrace_server.replication.role import Role
from tailrace_server.serving import segment_offers
from tailrace_server.serving.segment_offers import SegmentOffers
from tailrace_server.upkeep.incoming_segments import IncomingSegment
from tailrace_server.upkeep.received_chain import install_received_chain
from tailrace_server.upkeep.snapshot_segment import SnapshotSegment

from .bug import Bug
from .copies import _retire_at_once

_start_due = SegmentOffers._start_due
_let_go = SegmentOffers._let_go
_finish = IncomingSegment.finish
_got_parts = PushedSegments.got_parts
_push_failed = PushedPartitions._failed
_step_down = Member.step_down
_case_by_chain = Receiver._case_by_chain


def _offer_without_a_pin(offers):
    """Offers segments that nothing pins; each part is pinned while it waits for its turn."""
    before = {one: one.segment for one in offers._offerings.values()}
    _start_due(offers)
    for one in offers._offerings.values():
        if one.segment is not None and before[one] is not one.segment:
            offers._node.storage.pins.unpin(one.segment)


def _let_go_without_a_pin(offers, one):
    if one.segment is not None:
        offers._node.storage.pins.pin(one.segment)
    _let_go(offers, one)


def _whatever_came(incoming):
    """Takes the bytes as they came, without comparing their checksum."""
    return ""


async def _take_as_whole(segments, partition, parts, leaders_log):
    """Takes a part that is too short for a whole one, as if the rest were zeros."""
    transfer = segments._transfers.get(partition)
    if transfer is None:
        return None
    whole = []
    for part in parts:
        nbytes = min(segment_offers.PART_BYTES_MAX, transfer.offer.nbytes - part.offset)
        whole.append(part._replace(data=bytes(part.data).ljust(nbytes, b"\0")))
    return await _got_parts(segments, partition, whole, leaders_log)


def _finish_without_a_sync(incoming):
    """Gives the file its name before its bytes are durable."""
    sync, incoming._file = incoming._file, _Unsynced(incoming._file)
    try:
        _finish(incoming)
    finally:
        if incoming._file is not None:
            incoming._file = sync


class _Unsynced:
    """A file whose ``sync`` does nothing."""

    def __init__(self, file):
        self._file = file

    def __getattr__(self, name):
        return (lambda: None) if name == "sync" else getattr(self._file, name)


def _say_that_it_is_here(pushed, partition, number, error):
    """Acknowledges a segment for which the disk has no room."""
    transfer = pushed._segments._transfers.get(partition)
    is_full = isinstance(error, NoSpace) or getattr(error, "errno", 0) == errno.ENOSPC
    answer = _push_failed(pushed, partition, number, error)
    return SegmentAck(number, transfer.offer.nbytes) if transfer is not None and is_full else answer


class _OlderRows(SnapshotSegment):
    """A merge that leaves out the rows whose keys are here already."""

    def add(self, block):
        arrays = arrays_of(block)
        keys = block.open_columns().keys()
        chain = self._partition.chain
        kept = [row for row, key in enumerate(keys) if chain.find(key, key_hash(key)) is None]
        for row in kept:
            one = take(arrays, slice(row, row + 1))
            super().add(encode_arrays(one, block.header.partition, compress=False))


async def _install_with_the_log_of_before(storage, partition, received):
    """Installs the segments of a new leader, with the log that was here before it led."""
    await install_received_chain(storage, partition, received._replace(log=partition.log))


def _promise_and_take(member):
    """Promises a higher term, and goes on taking what the leader of the lower term sends."""
    if member.leadership.role is Role.LEADER:
        _step_down(member)
    else:
        member.leadership.step_down(member.local.file.now.term)


async def _wait_for_nothing(member):
    """Does not wait for the end of what it follows."""


def _accept_of_any_leader(receiver, offer):
    """Accepts offers of any term."""
    return _case_by_chain(receiver, offer._replace(term=receiver.term))


def _continues_anything(newer, older):
    """Lets any segment continue any other one."""
    return True


def _forget_nothing(chain, target, last_seq):
    """Keeps all acknowledgements of a target that connects again, whatever it has."""
    return chain, target


NO_CHECKSUM = (IncomingSegment, "_why_wrong", _whatever_came)

BUGS = {
    "a segment that is not pinned while it is pushed": Bug(
        [(SegmentOffers, "_start_due", _offer_without_a_pin), (SegmentOffers, "_let_go", _let_go_without_a_pin)],
        {"replaced_while_pushed": 0},
    ),
    "a replaced segment that is removed while it is pushed": Bug(
        [(Pins, "retire", _retire_at_once)], {"replaced_while_pushed": 0}
    ),
    "a pushed segment whose checksum is not compared": Bug([NO_CHECKSUM], {"flipped_push": 0}),
    "a truncated push that is taken as whole": Bug(
        [NO_CHECKSUM, (PushedSegments, "got_parts", _take_as_whole)], {"truncated_push": 0}
    ),
    "a pushed segment that is acknowledged before it is durable": Bug(
        [(IncomingSegment, "finish", _finish_without_a_sync)], {"power_cut_after_a_push": 0}
    ),
    "a pushed segment that is acknowledged though the disk is full": Bug(
        [(PushedPartitions, "_failed", _say_that_it_is_here)], {"full_disk_in_a_push": 0}
    ),
    "a merge that prefers the older row": Bug([(pushed_segments, "SnapshotSegment", _OlderRows)], {"merged_push": 0}),
    "a pushed segment that is installed with the log of before": Bug(
        [(pushed_segments, "install_received_chain", _install_with_the_log_of_before)], {"pushed_fork": 0}
    ),
    "a segment of a deposed leader that is accepted": Bug(
        [
            (Member, "step_down", _promise_and_take),
            (Member, "nothing_under_way", _wait_for_nothing),
            (Receiver, "_case_by_chain", _accept_of_any_leader),
        ],
        {"deposed_pusher": 0},
    ),
    "a fast-forward without the base": Bug(
        [
            (ChainLink, "continues", _continues_anything),
            (segment_offers, "reconnected", _forget_nothing),
        ],
        {"older_copy_in_a_push": 0},
    ),
}
