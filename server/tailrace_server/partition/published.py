"""How a partition gets a share of a batch: its blocks and whose batch it is, by one record of the journal, as one run.

A reader of the journal finds all of it or nothing, and so does a reader of the partition (state/published_runs.py). All
functions are synchronous, and run on the node's loop.
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
    """Writes good blocks of a producer as one run, together with the batch that they are of, by one record.

    That the batch is not here yet is known (`last_batches.decide`). If the blocks are a part of the batch, ``before``
    is the batch with the parts that are here, if any, and ``through`` the key hash up to which it is here then.
    NoSpace, NotDurable: nothing is kept.
    """
    timestamp = max(now_us, partition.last_timestamp)
    stamped = []
    seq = partition.high_seq
    for block in blocks:
        stamped.append(block.numbered(0, 0).stamped(seq + 1, timestamp))
        seq = stamped[-1].header.last_seq
    last = LastBatch(batch, origin, seq, digest)
    return append_run(
        partition, stamped, {sink: last if through is None else with_part(last, before, through)}, journal
    )


def with_part(last: LastBatch, before: LastBatch | None, through: int) -> LastBatch:
    """Returns ``last``, which has one part more than ``before``: the one up to key hash ``through``."""
    earlier = () if before is None else before.parts
    digest = before.digest if last.digest is None and before is not None else last.digest
    return last._replace(digest=digest, parts=(*earlier, PartMark(last.seq, through)))


def append_run(
    partition: Partition, blocks: Sequence[Block], sinks: Mapping[str, LastBatch], journal: Journal
) -> VersionRange:
    """Journals stamped blocks that belong together and the last batches that go with them, and hangs them."""
    covered, bodies = encode_published(sinks, blocks)
    branch = partition.log.branch_at(blocks[-1].header.last_seq)
    place = journal.append_published(partition.feed_id, partition.id, branch, covered, bodies)
    return partition.hang_run(blocks, sinks, branch, journal.file_of(place))


def recover_run(partition: Partition, blocks: Sequence[Block], sinks: Mapping[str, LastBatch], file: int) -> None:
    """Hangs what ``append_run`` had written to the journal's file of this number."""
    partition.hang_run(blocks, sinks, partition.log.branch_at(blocks[-1].header.last_seq), file)


def recover_sinks(partition: Partition, sinks: Mapping[str, LastBatch], through: int, file: int) -> None:
    """Takes over what ``note_sinks`` had written to the journal's file of this number.

    Rows above ``through`` were lost since, so what was said of them is void. A manifest may be newer than the record:
    a later batch of a sink stays.
    """
    told = {}
    for sink, last in sinks.items():
        known, noted = partition.sinks.find(sink), last.as_of(through)
        if noted is not None and (known is None or known.seq <= noted.seq):
            told[sink] = noted
    _note_sinks(partition, told, file)


def note_sinks(partition: Partition, sinks: Mapping[str, LastBatch], journal: Journal) -> None:
    """Journals last batches that have come without their blocks, which are there."""
    covered, _ = encode_published(sinks, ())
    place = journal.append_published(partition.feed_id, partition.id, bytes(16), covered, ())
    _note_sinks(partition, sinks, journal.file_of(place))


def _note_sinks(partition: Partition, sinks: Mapping[str, LastBatch], file: int) -> None:
    partition.sinks.tell(sinks)
    if sinks:
        partition.keep_record(file, partition.high_seq)
