"""Writes blocks to a partition that leads: checks a producer's block, assigns its seqs, journals and appends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tailrace.block.row import stamped_row
from tailrace.errors import Forbidden, UnknownFeed
from tailrace.model import Version, VersionRange
from tailrace.wire.messages import WriteFlag
from tailrace_server.partition.conditions import CONDITIONS, holds
from tailrace_server.partition.newest_row import newest_row
from tailrace_server.partition.validation import validate_block
from tailrace_server.segment import Read, SegmentFile
from tailrace_server.state.producers import ResendVerdict, result_of_resend

if TYPE_CHECKING:
    from tailrace.block import Block, BlockHeader
    from tailrace_server.journal import Journal
    from tailrace_server.partition.partition import Partition

# As globals: an attribute of an Enum is slow to read, and each write needs them.
_ACCEPT = ResendVerdict.ACCEPT


class WriteResult(NamedTuple):
    """The versions of a block; ``fresh`` if it was written now, False if an earlier send was."""

    versions: VersionRange
    fresh: bool


def write_block(
    partition: Partition,
    block: Block,
    journal: Journal,
    *,
    now_us: int,
    now: float,
    flags: int = 0,
    if_version: Version | None = None,
    read: Read = SegmentFile.read,
    begins_sync: bool = False,
) -> WriteResult:
    """Checks a producer's block and appends it, or returns the versions that an earlier send of it got.

    With a condition in ``flags``, ``Partition.index_keys`` has to have returned True before; the check and the append
    are one step. An error changes nothing.

    Args:
        partition: The partition, whose leader this node is.
        block: As the producer sent it, without seqs.
        journal: The node's.
        now_us: Wall clock, microseconds since 1970: the timestamp of the rows, unless the partition's last is later.
        now: Monotonic clock, seconds.
        flags: Of the WRITE.
        if_version: The version that the writer expects, for IF_VERSION.
        read: Reads bytes of a segment, for a condition.
        begins_sync: The caller will sync soon, so the disk begins while the rest is done here.

    Raises:
        BadBlock, TooLarge: The block is not valid.
        OutOfOrder, OutcomeUnknown: Its number does not follow the producer's last one.
        VersionConflict, VersionLost: The condition does not hold.
        NotCached: ``read`` would have to wait for the disk.
        NoSpace, NotDurable: The journal takes nothing.
        Forbidden, UnknownFeed, SegmentDamaged: The partition takes no writes.
    """
    if partition.damage is not None:
        raise partition.damage.with_traceback(None)
    if partition.is_dropped:  # while a condition waited for the index by key
        raise UnknownFeed(f"feed {partition.feed_id.hex()} was dropped")
    if not partition.takes_writes:
        raise Forbidden("_feeds lists the feeds: it is written by creating and dropping them")
    header = block.header
    decision = partition.producers.decide(
        header.producer_id, header.producer_seq, resend=flags & WriteFlag.RESEND != 0, now=now
    )
    if decision.verdict is not _ACCEPT:
        return WriteResult(result_of_resend(decision, header, partition.id), fresh=False)
    validate_block(block, partition.hash_first, partition.hash_last)
    if flags & CONDITIONS and not _condition_holds(partition, block, flags, if_version, read):
        return WriteResult(VersionRange(partition.id, partition.log.branch, 0, 0), fresh=False)
    # NamedTuple's own constructor takes twice as long.
    versions = append_block(partition, block, journal, now_us=now_us, now=now, begins_sync=begins_sync)
    return tuple.__new__(WriteResult, (versions, True))


def write_row(
    partition: Partition,
    header: BlockHeader,
    head: bytes,
    body: bytes,
    journal: Journal,
    *,
    now_us: int,
    now: float,
    begins_sync: bool = False,
) -> VersionRange | None:
    """Does the same as `write_block` for a producer's usual row that was checked, without flags.

    Returns None if ``write_block`` would raise, or answers a resend; nothing has changed then.

    Raises:
        NoSpace, NotDurable: The journal takes nothing. Nothing has changed.
    """
    if partition.damage is not None or partition.is_dropped or not partition.takes_writes:
        return None
    if not partition.hash_first <= header.least_hash <= partition.hash_last:
        return None
    decision = partition.producers.decide(header.producer_id, header.producer_seq, resend=False, now=now)
    if decision.verdict is not _ACCEPT:
        return None
    seq = partition.high_seq + 1
    timestamp = now_us if now_us > partition.last_timestamp else partition.last_timestamp
    return _append(partition, stamped_row(header, head, body, seq, timestamp), journal, now, begins_sync=begins_sync)


def append_block(
    partition: Partition, block: Block, journal: Journal, *, now_us: int, now: float, begins_sync: bool = False
) -> VersionRange:
    """Assigns seqs to a valid block, journals it, and appends it to the tree.

    NoSpace, NotDurable: nothing has changed.
    """
    # A timestamp never falls within a partition, even if the wall clock does.
    timestamp = now_us if now_us > partition.last_timestamp else partition.last_timestamp
    stamped = block.stamped(partition.high_seq + 1, timestamp)
    return _append(partition, stamped, journal, now, begins_sync=begins_sync)


def _append(
    partition: Partition, stamped: Block, journal: Journal, now: float, *, begins_sync: bool = False
) -> VersionRange:
    branch = partition.log.branch
    place = journal.append_block(partition.feed_id, partition.id, branch, stamped)
    if begins_sync:
        journal.begin_sync()
    return partition.append(stamped, branch, journal.file_of(place), now)


def _condition_holds(partition: Partition, block: Block, flags: int, if_version: Version | None, read: Read) -> bool:
    key = block.open_columns().keys()[0]
    found = newest_row(partition, key, read=read)
    current = None if found is None or found.value is None else partition.version_of(found.seq)
    return holds(key, current, partition.log, flags, if_version)
