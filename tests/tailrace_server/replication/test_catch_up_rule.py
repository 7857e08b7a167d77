"""Whether a follower copies segments first: every row of the table."""

import pytest

from tailrace.errors import ProtocolError
from tailrace.model.failover import FailoverEntry, FailoverLog
from tailrace_server.replication.catch_up_rule import ADVANTAGE, CatchUpCase, LeaderPartition, choose

U, V, W = FailoverEntry(b"u" * 16, 1, 0), FailoverEntry(b"v" * 16, 2, 100), FailoverEntry(b"w" * 16, 2, 90)
MIN = 1_000
FAR = LeaderPartition("leader", 1_000, FailoverLog([V, U]), 1_000, 0, 0, 100_000)
OLD = LeaderPartition("leader", 1_000, FailoverLog([V, U]))
LOG = FailoverLog([U])


@pytest.mark.parametrize(
    ("case", "high_seq", "log", "leader"),
    [
        (CatchUpCase.OLD_NODE, 0, FailoverLog(), OLD),
        (CatchUpCase.OLD_NODE, 50, LOG, OLD),
        (CatchUpCase.OTHER_STATE, 50, LOG, FAR._replace(state="follower")),
        (CatchUpCase.OTHER_STATE, 150, FailoverLog([V, U]), FAR._replace(log=LOG)),  # a deposed leader
        (CatchUpCase.OTHER_STATE, 150, FailoverLog([V, U]), FAR._replace(log=FailoverLog([W, U]))),
        (CatchUpCase.OTHER_STATE, 0, FailoverLog(), FAR._replace(log=FailoverLog(), high_seq=0, flushed_seq=0)),
        (CatchUpCase.NOTHING_FLUSHED, 0, FailoverLog(), FAR._replace(flushed_seq=0, segment_bytes=0)),
        (CatchUpCase.NOTHING_FLUSHED, 80, LOG, FAR._replace(flushed_seq=80)),
        (CatchUpCase.NOTHING_FLUSHED, 990, FailoverLog([V, U]), FAR._replace(flushed_seq=500)),  # a stale checkpoint
        (CatchUpCase.BEGINS_AT_0, 50, LOG, FAR._replace(purge_seq=60, segment_bytes=1)),
        (CatchUpCase.BEGINS_AT_0, 50, LOG, FAR._replace(trim_seq=60, segment_bytes=1)),
        (CatchUpCase.FAR_BEHIND, 60, LOG, FAR._replace(purge_seq=60)),
        (CatchUpCase.FEW_BYTES, 0, FailoverLog(), FAR._replace(segment_bytes=MIN - 1, purge_seq=60)),
        (CatchUpCase.FAR_BEHIND, 0, FailoverLog(), FAR._replace(segment_bytes=MIN)),
        (CatchUpCase.FAR_BEHIND, 0, LOG, FAR),  # it has a log, and no row yet
        (CatchUpCase.FEW_BYTES, 999, FailoverLog([V, U]), FAR),
        (CatchUpCase.SMALL_SHARE, 900, FailoverLog([V, U]), FAR),
        (CatchUpCase.FAR_BEHIND, 100, LOG, FAR),
        (CatchUpCase.FAR_BEHIND, 950, LOG, FAR),  # all above 100 is a dead tail
    ],
)
def test_each_case(case, high_seq, log, leader):
    assert choose(high_seq, log, leader, MIN, "leader") is case
    assert choose(high_seq, log, leader, None, "leader") is CatchUpCase.TURNED_OFF


def test_segments_are_copied_in_three_cases_only():
    found = {case for case in CatchUpCase if case.by_segments}
    assert found == {CatchUpCase.DAMAGED, CatchUpCase.BEGINS_AT_0, CatchUpCase.FAR_BEHIND}


def test_the_share_from_which_files_are_cheaper():
    lacked = {seq: choose(seq, FailoverLog([V, U]), FAR, MIN, "leader") for seq in range(100, 980)}
    last_far = max(seq for seq, case in lacked.items() if case is CatchUpCase.FAR_BEHIND)
    assert last_far == 1_000 * (ADVANTAGE - 1) // ADVANTAGE
    assert {lacked[seq] for seq in range(100, last_far + 1)} == {CatchUpCase.FAR_BEHIND}


def test_a_partition_map_of_an_older_node_is_read():
    value = {"state": "leader", "high_seq": 5, "log": FAR.log.to_json()}
    assert LeaderPartition.from_json(value) == LeaderPartition("leader", 5, FAR.log)
    seqs = {"flushed_seq": 4, "purge_seq": 3, "trim_seq": 2, "segment_bytes": 1}
    assert LeaderPartition.from_json(value | seqs) == LeaderPartition("leader", 5, FAR.log, 4, 3, 2, 1)
    for wrong in ({"purge_seq": -1}, {"trim_seq": "x"}, {"segment_bytes": None}, {"log": 7}):
        with pytest.raises(ProtocolError):
            LeaderPartition.from_json(value | seqs | wrong)
    with pytest.raises(ProtocolError):
        LeaderPartition.from_json([])
