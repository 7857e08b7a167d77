"""Applies a leader's stream to a follower's partition: blocks with their seqs, the log, producers, last batches.

    high seq     80 ─── apply 81..90 ─── apply 91..100 ───────────── apply 101..110
    log          [u]                            [u] ── adopt ──> [v 100, u]

A follower adopts an entry of the leader's log when its high seq reaches the entry's base. So the entry stands in the
journal behind the blocks up to its base, and no durable entry names a branch without the rows before it. All functions
are synchronous. Each raises NoSpace and NotDurable if it journals; nothing has changed then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tailrace.errors import BadBlock, TailraceError, UnknownFeed
from tailrace.model.failover import SEQ_MAX, FailoverLog, common_seq
from tailrace_server.journal.controls import LogRecord, ProducersRecord, RollbackRecord
from tailrace_server.journal.format import RecordKind
from tailrace_server.manifest.producers import producers_from_json, producers_to_json
from tailrace_server.partition import published
from tailrace_server.state import last_batches
from tailrace_server.state.expected import Expected

if TYPE_CHECKING:
    from tailrace.block import Block
    from tailrace_server.journal import Journal
    from tailrace_server.partition.partition import Partition
    from tailrace_server.state.producers import ProducerTable


class OtherHistory(TailraceError):
    """The follower's rows are not the beginning of the leader's: it has to be rolled back first."""


def check_replica(partition: Partition, block: Block, after_seq: int) -> None:
    """Raises BadBlock if a block that has its seqs does not fit into ``partition`` above ``after_seq``."""
    header = block.header
    if header.partition != partition.id:
        raise BadBlock(f"a block of partition {header.partition} for partition {partition.id}")
    if header.first_seq <= after_seq:
        raise BadBlock(f"seqs {header.first_seq} to {header.last_seq} are not above {after_seq}: cut the rows up to it")
    if header.least_hash < partition.hash_first or header.greatest_hash > partition.hash_last:
        raise BadBlock(
            f"the block's key hashes {header.least_hash} to {header.greatest_hash} are outside of partition "
            f"{partition.id}, which owns {partition.hash_first} to {partition.hash_last}"
        )
    block.check_columns()


def apply_block(partition: Partition, block: Block, journal: Journal, now: float) -> None:
    """Applies a block of the leader's whose seqs follow the high seq.

    Adopts the entries of the leader's log (`follow_log`) whose bases the block reaches. Raises BadBlock, UnknownFeed.
    """
    _check_takes(partition)
    _check_next(partition, block, partition.high_seq, partition.held_timestamp)
    branch = partition.log.branch_at(block.header.last_seq)
    place = journal.append_block(partition.feed_id, partition.id, branch, block)
    partition.append(block, branch, journal.file_of(place), now)
    _adopt_reached(partition, journal, now)


def apply_batch(partition: Partition, blocks: Sequence[Block], journal: Journal, now: float) -> None:
    """Applies a published batch of the leader's, all of its blocks, as ``apply_block`` applies one.

    ``apply_sinks`` came before. One record holds the batch, so that a follower has all of a publish or nothing of it.
    """
    _check_takes(partition)
    if not blocks:
        raise BadBlock(f"a published batch of partition {partition.id} without a block")
    seq, timestamp = partition.high_seq, partition.held_timestamp
    for block in blocks:
        _check_next(partition, block, seq, timestamp)
        seq, timestamp = block.header.last_seq, block.header.timestamp
    sinks = partition.expected.sinks_at(seq)
    partition.expect(partition.expected._replace(sinks=None))
    published.append_batch(partition, blocks, sinks, journal)
    partition.adopt_expected()
    _adopt_reached(partition, journal, now)


def _check_takes(partition: Partition) -> None:
    if partition.damage is not None:
        raise partition.damage.with_traceback(None)
    if partition.is_dropped:
        raise UnknownFeed(f"feed {partition.feed_id.hex()} was dropped")
    if not partition.log:
        raise BadBlock(f"partition {partition.id} has no failover log yet: the leader has to send it before a block")


def _check_next(partition: Partition, block: Block, seq: int, timestamp: int) -> None:
    """Raises BadBlock if ``block`` does not follow ``seq``, whose row has this timestamp."""
    header = block.header
    if header.first_seq != seq + 1 or header.last_seq - header.first_seq + 1 != header.rows:
        raise BadBlock(f"{header.rows} rows of seqs {header.first_seq} to {header.last_seq} do not follow seq {seq}")
    if header.timestamp < timestamp:
        raise BadBlock(f"timestamp {header.timestamp} comes before {timestamp}, of seq {seq}")
    check_replica(partition, block, seq)


def follow_log(partition: Partition, log: FailoverLog, journal: Journal, now: float = 0.0) -> bool:
    """Adopts the entries of the leader's ``log`` up to the high seq; True if the partition's log changed.

    The entries above follow as blocks reach them. Raises OtherHistory if the rows that are held are not the log's.
    """
    common = common_seq(partition.log, partition.high_seq, log, SEQ_MAX)
    if partition.high_seq and (common is None or common < partition.high_seq):
        raise OtherHistory(
            f"partition {partition.id} stands at seq {partition.high_seq}, and has seq {common or 0} in common with "
            "the leader's log: it has to be rolled back"
        )
    partition.expect_log(log)
    return _adopt_reached(partition, journal, now)


def entries_through(log: FailoverLog, seq: int) -> FailoverLog:
    """Returns the entries of ``log`` that a copy at ``seq`` has: those with a base up to ``seq``, and the oldest one.

    The oldest one stands for all entries before it that were dropped.
    """
    held = [entry for entry in log if entry.base <= seq]
    return FailoverLog(held or log[-1:])


def _adopt_reached(partition: Partition, journal: Journal, now: float) -> bool:
    """Adopts the entries of the leader's log up to the high seq; True if the partition's log changed."""
    log = partition.leader_log
    if not log or log.branch == partition.log.branch:
        return False
    held = entries_through(log, partition.high_seq)
    if held.branch == partition.log.branch:
        return False
    rollbacks = partition.rollbacks
    if held.term > partition.log.term:
        record, payload = RecordKind.FAILOVER_ENTRY, LogRecord(held, rollbacks).encode()
    else:  # an entry goes of which the partition holds no row
        rollbacks += 1
        producers = producers_to_json(partition.producers, partition.high_seq, now)
        record = RecordKind.ROLLED_BACK
        payload = RollbackRecord(partition.high_seq, held, rollbacks, producers).encode()
    place = journal.append(record, partition.feed_id, partition.id, payload)
    partition.adopt_log(held, journal.file_of(place), rollbacks=rollbacks)
    return True


def apply_producers(partition: Partition, value: dict[str, Any], seq: int, journal: Journal, now: float) -> None:
    """Applies the leader's producers (`producers_to_json`) as of ``seq``: the high seq, or one that blocks will reach.

    Raises BadBlock.
    """
    table = _table_of(partition, value, seq, now)
    payload = ProducersRecord(seq, value).encode()
    place = journal.append(RecordKind.PRODUCERS_TOLD, partition.feed_id, partition.id, payload)
    partition.adopt_producers(table, seq, journal.file_of(place))


def expect_producers(partition: Partition, value: dict[str, Any], seq: int, now: float) -> None:
    """Keeps the leader's producers as of ``seq``, the end of a published batch that is on its way. Raises BadBlock."""
    partition.expect(partition.expected._replace(producers=(seq, _table_of(partition, value, seq, now))))


def _table_of(partition: Partition, value: dict[str, Any], seq: int, now: float) -> ProducerTable:
    if seq < partition.high_seq:
        raise BadBlock(f"producers as of seq {seq}, and partition {partition.id} stands at {partition.high_seq}")
    try:
        table = producers_from_json(value, partition.id, now)
    except ValueError as error:
        raise BadBlock(f"producers of partition {partition.id}: {error}") from None
    table.set_leader_seq(seq)
    return table


def settle_producers(partition: Partition, journal: Journal, now: float) -> None:
    """Forgets the results of blocks above the high seq that a leader sent, because another history begins there.

    The same holds for the last batches: a run of that history may end at the seq as of which they were sent.
    """
    seq, table = partition.high_seq, partition.producers
    partition.expect(Expected())
    if table.leader_seq <= seq:
        return
    payload = ProducersRecord(seq, producers_to_json(table, seq, now)).encode()
    place = journal.append(RecordKind.PRODUCERS_TOLD, partition.feed_id, partition.id, payload)
    partition.drop_producers_above(journal.file_of(place))


def apply_sinks(partition: Partition, value: dict[str, Any], seq: int, journal: Journal) -> None:
    """Applies the leader's last batches (`last_batches.to_json`) as of ``seq``.

    ``seq`` is the high seq, or the end of a published batch that is on its way. Raises BadBlock.
    """
    if seq < partition.high_seq:
        raise BadBlock(f"last batches as of seq {seq}, and partition {partition.id} stands at {partition.high_seq}")
    try:
        table = last_batches.from_json(value)
    except ValueError as error:
        raise BadBlock(f"last batches of partition {partition.id}: {error}") from None
    if any(last.seq > seq for last in table.values()):
        raise BadBlock(f"a last batch of partition {partition.id} is above seq {seq}, as of which it was told")
    if seq > partition.high_seq:
        partition.expect(partition.expected._replace(sinks=(seq, table)))
    elif any(partition.sinks.find(sink) != last for sink, last in table.items()):
        published.note_sinks(partition, table, journal)
