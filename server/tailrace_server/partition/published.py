"""Writes a publish's rows to a partition: its blocks and the sink's last batch, by one record of the journal.

A reader of the journal finds all of the record or nothing, and so does a reader of the partition
(state/published_batches.py). All functions are synchronous, and run on the node's loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tailrace_server.journal.published_record import encode_published
from tailrace_server.state.last_batches import LastBatch, PartMark

if TYPE_CHECKING:
    from tailrace.block import Block
    from tailrace.model import VersionRange
    from tailrace_server.journal import Journal
    from tailrace_server.partition.partition import Partition


def publish(
    partition: Partition,
    blocks: Sequence[Block],
    sink: str,
    batch: int,
    origin: str,
    journal: Journal,
    *,
    now_us: int,
    digest: int | None = None,
    before: LastBatch | None = None,
    through: int | None = None,
) -> VersionRange:
    """Writes a producer's blocks in one step, together with the batch that they belong to, by one record.

    NoSpace, NotDurable: nothing has changed.

    Args:
        partition: The partition, which does not have the batch yet (`last_batches.decide`).
        blocks: Valid blocks of the producer.
        sink: The id of the sink.
        batch: The number of the batch.
        origin: Who numbers the sink's batches.
        journal: The node's.
        now_us: Wall clock, microseconds since 1970.
        digest: The digest of all rows of the batch; None if it is not known.
        before: The batch with the parts that the partition has; None if it has no part.
        through: The key hash up to which the partition has the batch then; None if the blocks are all of it.
    """
    timestamp = max(now_us, partition.last_timestamp)
    stamped = []
    seq = partition.high_seq
    for block in blocks:
        stamped.append(block.numbered(0, 0).stamped(seq + 1, timestamp))
        seq = stamped[-1].header.last_seq
    last = LastBatch(batch, origin, seq, digest)
    return append_batch(
        partition, stamped, {sink: last if through is None else with_part(last, before, through)}, journal
    )


def with_part(last: LastBatch, before: LastBatch | None, through: int) -> LastBatch:
    """Returns ``last``, which has one part more than ``before``: the one up to key hash ``through``."""
    earlier = () if before is None else before.parts
    digest = before.digest if last.digest is None and before is not None else last.digest
    return last._replace(digest=digest, parts=(*earlier, PartMark(last.seq, through)))


def append_batch(
    partition: Partition, blocks: Sequence[Block], sinks: Mapping[str, LastBatch], journal: Journal
) -> VersionRange:
    """Journals stamped blocks and the last batches that go with them by one record, and appends the blocks."""
    covered, bodies = encode_published(sinks, blocks)
    branch = partition.log.branch_at(blocks[-1].header.last_seq)
    place = journal.append_published(partition.feed_id, partition.id, branch, covered, bodies)
    return partition.append_batch(blocks, sinks, branch, journal.file_of(place))


def recover_batch(partition: Partition, blocks: Sequence[Block], sinks: Mapping[str, LastBatch], file: int) -> None:
    """Appends the blocks that ``append_batch`` had written to the journal's file of this number."""
    partition.append_batch(blocks, sinks, partition.log.branch_at(blocks[-1].header.last_seq), file)


def recover_sinks(partition: Partition, sinks: Mapping[str, LastBatch], through: int, file: int) -> None:
    """Takes over the last batches that ``note_sinks`` had written to the journal's file of this number.

    Rows above ``through`` were lost since, so batches of these rows do not count. A manifest may be newer than the
    record: then the later batch of a sink stays.
    """
    found = {}
    for sink, last in sinks.items():
        known, noted = partition.sinks.find(sink), last.as_of(through)
        if noted is not None and (known is None or known.seq <= noted.seq):
            found[sink] = noted
    partition.note_sinks(found, file)


def note_sinks(partition: Partition, sinks: Mapping[str, LastBatch], journal: Journal) -> None:
    """Journals last batches that have come without their blocks, which the partition has."""
    covered, _ = encode_published(sinks, ())
    place = journal.append_published(partition.feed_id, partition.id, bytes(16), covered, ())
    partition.note_sinks(sinks, journal.file_of(place))
