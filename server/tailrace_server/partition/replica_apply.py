"""How a follower's partition takes what its leader has: blocks with their seqs, the log, the producers.

    high seq     80 ─── take 81..90 ─── take 91..100 ───────────── take 101..110
    log          [u]                          [u] ── adopt ──> [v 100, u]

An entry of the leader's log is taken over when its base is reached, so that in the journal it stands behind the blocks
up to its base: none is ever durable that names a branch of which nothing could be there. All functions are synchronous.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tailrace.errors import BadBlock, TailraceError, UnknownFeed
from tailrace.model.failover import SEQ_MAX, FailoverLog, common_seq
from tailrace_server.journal.controls import LogRecord, ProducersRecord, RollbackRecord
from tailrace_server.journal.format import RecordKind
from tailrace_server.manifest.producers import producers_from_json, producers_to_json
from tailrace_server.partition import published as appending
from tailrace_server.state import last_batches

if TYPE_CHECKING:
    from tailrace.block import Block
    from tailrace_server.journal import Journal
    from tailrace_server.partition.partition import Partition
    from tailrace_server.state.producers import ProducerTable


class OtherHistory(TailraceError):
    """What is held is not the beginning of what the leader has: it has to be rolled back first."""


def check_replica(partition: Partition, block: Block, after_seq: int) -> None:
    """BadBlock where a block that has its seqs does not fit into ``partition`` above ``after_seq``."""
    header = block.header
    if header.partition != partition.id:
        raise BadBlock(f"a block of partition {header.partition} for partition {partition.id}")
    if header.first_seq <= after_seq:
        raise BadBlock(f"seqs {header.first_seq} to {header.last_seq} are not above {after_seq}: cut what is there")
    if header.least_hash < partition.hash_first or header.greatest_hash > partition.hash_last:
        raise BadBlock(
            f"the block's key hashes {header.least_hash} to {header.greatest_hash} are outside of partition "
            f"{partition.id}, which owns {partition.hash_first} to {partition.hash_last}"
        )
    block.open_columns()


def take_replica(partition: Partition, block: Block, journal: Journal, now: float) -> None:
    """Takes a block of the leader's, with its seqs, right above the high seq; journals it and hangs it.

    What `adopt_log` was given is taken over as far as the block reaches. Raises BadBlock for what does not fit,
    UnknownFeed, NoSpace, NotDurable; nothing is kept then.
    """
    _check_takes(partition)
    _check_next(partition, block, partition.high_seq, partition.held_timestamp)
    branch = partition.log.branch_at(block.header.last_seq)
    place = journal.append_block(partition.feed_id, partition.id, branch, block)
    partition.homes.block(journal.file_of(place), block.header.last_seq)
    partition.hang(block, branch, now)
    _reach(partition, journal, now)


def take_run(partition: Partition, blocks: Sequence[Block], journal: Journal, now: float) -> None:
    """Takes a run of the leader's, all of its blocks, as ``take_replica`` takes one; `tell_sinks` came before.

    One record has it all, so that a follower has the whole of a publish or nothing of it.
    """
    _check_takes(partition)
    if not blocks:
        raise BadBlock(f"a run of partition {partition.id} without a block")
    seq, timestamp = partition.high_seq, partition.held_timestamp
    for block in blocks:
        _check_next(partition, block, seq, timestamp)
        seq, timestamp = block.header.last_seq, block.header.timestamp
    told, partition.run_sinks = partition.run_sinks, None
    appending.append_run(partition, blocks, told[1] if told is not None and told[0] == seq else {}, journal)
    if partition.run_producers is not None and partition.run_producers[0] == seq:
        partition.producers = partition.run_producers[1]
    partition.run_producers = None
    _reach(partition, journal, now)


def _check_takes(partition: Partition) -> None:
    if partition.damage is not None:
        raise partition.damage.with_traceback(None)
    if partition.is_dropped:
        raise UnknownFeed(f"feed {partition.feed_id.hex()} was dropped")
    if not partition.log:
        raise BadBlock(f"partition {partition.id} knows no branch yet: its leader's log comes first")


def _check_next(partition: Partition, block: Block, seq: int, timestamp: int) -> None:
    """BadBlock where ``block`` does not follow ``seq``, whose row has this timestamp."""
    header = block.header
    if header.first_seq != seq + 1 or header.last_seq - header.first_seq + 1 != header.rows:
        raise BadBlock(f"{header.rows} rows of seqs {header.first_seq} to {header.last_seq} do not follow seq {seq}")
    if header.timestamp < timestamp:
        raise BadBlock(f"timestamp {header.timestamp} comes before {timestamp}, of seq {seq}")
    check_replica(partition, block, seq)


def adopt_log(partition: Partition, log: FailoverLog, journal: Journal, now: float = 0.0) -> bool:
    """Takes over the entries of the leader's ``log`` up to the high seq; True where the log changed.

    Those above follow as they are reached. Raises OtherHistory where what is held is not the log's, NoSpace,
    NotDurable.
    """
    common = common_seq(partition.log, partition.high_seq, log, SEQ_MAX)
    if partition.high_seq and (common is None or common < partition.high_seq):
        raise OtherHistory(
            f"partition {partition.id} stands at seq {partition.high_seq}, and has seq {common or 0} in common with "
            "the leader's log: it has to be rolled back"
        )
    known = partition.log if partition.leader_log is None else partition.leader_log
    begun = [entry.base for entry in log if entry not in known]
    if begun:  # what was said of seqs above was of another branch
        partition.forget_above(min(begun))
    partition.leader_log = log
    return _reach(partition, journal, now)


def entries_through(log: FailoverLog, seq: int) -> FailoverLog:
    """What a copy that stands at ``seq`` has of ``log``: the entries up to there, but always the oldest one.

    That one stands for all that came before it, where older ones were dropped.
    """
    held = [entry for entry in log if entry.base <= seq]
    return FailoverLog(held or log[-1:])


def _reach(partition: Partition, journal: Journal, now: float) -> bool:
    """Takes over what the leader's log has up to the high seq; whether that was anything."""
    log = partition.leader_log
    if not log or log.branch == partition.log.branch:
        return False
    held = entries_through(log, partition.high_seq)
    if held.branch == partition.log.branch:
        return False
    if held.term > partition.log.term:
        record, payload = RecordKind.FAILOVER_ENTRY, LogRecord(held, partition.rollbacks).encode()
    else:  # an entry goes of which nothing is held
        producers = producers_to_json(partition.producers, partition.high_seq, now)
        record = RecordKind.ROLLED_BACK
        payload = RollbackRecord(partition.high_seq, held, partition.rollbacks + 1, producers).encode()
    place = journal.append(record, partition.feed_id, partition.id, payload)
    partition.homes.control(journal.file_of(place))
    partition.rollbacks += record is RecordKind.ROLLED_BACK
    partition.change_log(held)
    return True


def tell_producers(partition: Partition, value: dict[str, Any], seq: int, journal: Journal, now: float) -> None:
    """The leader's producers (`producers_to_json`) as of ``seq``, the high seq or one that the next blocks reach.

    Raises BadBlock, NoSpace, NotDurable; nothing is kept then.
    """
    table = _told(partition, value, seq, now)
    payload = ProducersRecord(seq, value).encode()
    place = journal.append(RecordKind.PRODUCERS_TOLD, partition.feed_id, partition.id, payload)
    partition.keep_record(journal.file_of(place), seq)
    partition.producers = table


def expect_producers(partition: Partition, value: dict[str, Any], seq: int, now: float) -> None:
    """The leader's producers as of ``seq``, the end of a run that is on its way and will have them. BadBlock."""
    partition.run_producers = seq, _told(partition, value, seq, now)


def _told(partition: Partition, value: dict[str, Any], seq: int, now: float) -> ProducerTable:
    if seq < partition.high_seq:
        raise BadBlock(f"producers as of seq {seq}, and partition {partition.id} stands at {partition.high_seq}")
    try:
        table = producers_from_json(value, partition.id, now)
    except ValueError as error:
        raise BadBlock(f"producers of partition {partition.id}: {error}") from None
    table.drop_above(seq)
    table.told_through = seq
    return table


def settle_producers(partition: Partition, journal: Journal, now: float) -> None:
    """What was told of producers above the high seq, where another history goes on now, is forgotten, and journaled.

    NoSpace, NotDurable.
    """
    seq, table = partition.high_seq, partition.producers
    partition.run_producers = None
    if table.told_through <= seq:
        return
    payload = ProducersRecord(seq, producers_to_json(table, seq, now)).encode()
    place = journal.append(RecordKind.PRODUCERS_TOLD, partition.feed_id, partition.id, payload)
    table.drop_above(seq)
    partition.homes.cut(seq, partition.flushed_seq)
    partition.homes.control(journal.file_of(place))


def tell_sinks(partition: Partition, value: dict[str, Any], seq: int, journal: Journal) -> None:
    """The leader's last batches (`last_batches.to_json`) as of ``seq``: the high seq, or the end of a coming run.

    Raises BadBlock, NoSpace, NotDurable; nothing is kept then.
    """
    if seq < partition.high_seq:
        raise BadBlock(f"last batches as of seq {seq}, and partition {partition.id} stands at {partition.high_seq}")
    try:
        table = last_batches.from_json(value)
    except ValueError as error:
        raise BadBlock(f"last batches of partition {partition.id}: {error}") from None
    if any(last.seq > seq for last in table.values()):
        raise BadBlock(f"a last batch of partition {partition.id} is above seq {seq}, as of which it was told")
    if seq > partition.high_seq:  # of the run that is on its way, which will have them
        partition.run_sinks = seq, table
    elif any(partition.sinks.find(sink) != last for sink, last in table.items()):
        appending.note_sinks(partition, table, journal)
