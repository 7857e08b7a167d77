"""The segment of a run that a follower gets, and what it says of rows that the run lacks."""

from tailrace.block import encode_block
from tailrace.block.encode import Stamps
from tailrace_server.upkeep.snapshot_segment import SnapshotSegment


async def test_a_run_that_is_announced_again_has_the_later_purge_seq_in_its_segment(engine):
    """Another node that gets this segment later has only its identity to tell which deletions are missing."""
    partition = engine.create()
    run = SnapshotSegment(engine.node.storage, partition, 0, 4, 0)
    run.add(encode_block([b"a", b"b"], [b"1", b"2"], partition=0, stamps=Stamps([1, 3], [1_000, 1_000])))
    await run.flow()
    run.extend(9, 6)  # some deletions up to 6 are gone since it began
    run.add(encode_block([b"c"], [b"9"], partition=0, stamps=Stamps([9], [1_000])))
    await run.finish(partition.log)
    [segment] = partition.chain.segments
    assert (partition.high_seq, partition.purge_seq) == (9, 6)
    assert (segment.identity.last_seq, segment.identity.purge_seq) == (9, 6)
