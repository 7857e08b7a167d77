import json

import pytest

from tailrace.block import encode_block
from tailrace.model.failover import FailoverEntry, FailoverLog
from tailrace_server.journal import RecordKind
from tailrace_server.journal.format import NO_BRANCH, RecordHeader, lsn
from tailrace_server.journal.reader import RawRecord
from tailrace_server.offline.dry_replay import BadControl, DryReplay, Fate, PartitionStart, RollbackNote

FEED = b"f" * 16
U, V, W = (name * 16 for name in (b"u", b"v", b"w"))


def control(kind, payload=b"", partition=0):
    return RawRecord(RecordHeader(1, 1, 64, 64, len(payload), 0, kind, partition, FEED, NO_BRANCH, 0, 0), payload, None)


def created(partitions=1):
    info = {
        "name": "orders",
        "feed_id": FEED.hex(),
        "partitions": partitions,
        "keyspace": "hash",
        "retention": "compact",
        "history_age_s": None,
        "history_bytes": None,
        "tombstone_age_s": 1,
        "replication": "stream",
    }
    return control(RecordKind.FEED_CREATED, json.dumps({"feed": info, "branch": U.hex()}).encode())


def written(first_seq, rows=1, branch=U, partition=0, name=b"k"):
    block = encode_block([name] * rows, [b"v"] * rows, partition=partition).stamped(first_seq, 1)
    header = RecordHeader(1, 1, 64, 64, block.nbytes, 96, RecordKind.BLOCK, partition, FEED, branch, 0, 0)
    return RawRecord(header, block.tobytes(), block)


def log_of(*entries):
    return FailoverLog([FailoverEntry(*entry) for entry in entries])


def test_blocks_in_order_are_next_and_duplicates_are_held():
    replay = DryReplay({}, {})
    fates = [replay.replay(record) for record in (created(), written(1, 3), written(4), written(1, 3), written(5))]
    assert fates == [Fate.CONTROL, Fate.NEXT, Fate.NEXT, Fate.HELD, Fate.NEXT]
    assert replay.end_seqs() == {(FEED, 0): 5}


def test_what_segments_have_is_flushed_and_what_is_behind_a_gap_stays_there():
    replay = DryReplay({FEED: 1}, {(FEED, 0): PartitionStart(5, log_of((U, 1, 0)))})
    assert [replay.replay(written(seq)) for seq in (4, 5, 6, 8, 9)] == [
        Fate.FLUSHED,
        Fate.FLUSHED,
        Fate.NEXT,
        Fate.GAP,
        Fate.GAP,
    ]
    assert replay.end_seq((FEED, 0)) == 6


def test_another_block_of_the_same_seqs_is_no_duplicate():
    replay = DryReplay({FEED: 1}, {})
    assert [replay.replay(written(1)), replay.replay(written(1, name=b"other"))] == [Fate.NEXT, Fate.GAP]


def test_feeds_that_are_not_known_or_dropped():
    replay = DryReplay({}, {})
    assert replay.replay(written(1)) is Fate.UNKNOWN
    replay.replay(created())
    assert replay.replay(written(1, partition=1)) is Fate.UNKNOWN
    assert replay.replay(control(RecordKind.FEED_DROPPED)) is Fate.CONTROL
    assert replay.replay(written(1)) is Fate.DROPPED
    assert replay.end_seqs() == {}


def test_failover_entries_change_the_log_unless_the_manifest_has_a_later_one():
    replay = DryReplay({FEED: 1}, {(FEED, 0): PartitionStart(0, log_of((V, 3, 0)))})
    old, new = log_of((U, 2, 0)), log_of((W, 4, 0))
    for log in (old, new):
        replay.replay(control(RecordKind.FAILOVER_ENTRY, json.dumps(log.to_json()).encode()))
    assert replay.log_of((FEED, 0)) == new


@pytest.mark.parametrize(
    "record",
    [
        control(RecordKind.FEED_CREATED, b"{}"),
        control(RecordKind.FAILOVER_ENTRY, b"[["),
        control(RecordKind.ROLLED_BACK),
    ],
)
def test_a_control_record_that_a_start_cannot_use_is_told(record):
    with pytest.raises(BadControl):
        DryReplay({FEED: 1}, {}).replay(record)


def test_a_branch_of_which_a_lost_record_told_is_put_back():
    replay = DryReplay({FEED: 1}, {(FEED, 0): PartitionStart(5, log_of((U, 1, 0)))})
    assert not replay.branch_is_missing(written(6))
    assert replay.branch_is_missing(written(6, branch=V))
    assert replay.add_branch((FEED, 0), V) == log_of((V, 2, 5), (U, 1, 0))
    assert not replay.branch_is_missing(written(6, branch=V))
    assert not replay.branch_is_missing(written(8, branch=W)), "behind a gap nobody knows where it began"


def test_a_branch_that_ended_with_a_rollback_is_not_put_back():
    """The records of before a rollback are in the journal until they are trimmed, and the manifest is of after it."""
    starts, undone = {(FEED, 0): PartitionStart(5, log_of((W, 3, 5), (U, 1, 0)), rollbacks=1)}, {(FEED, 0): []}
    before = written(6, 2, branch=V)
    assert DryReplay({FEED: 1}, starts, undone).branch_is_missing(before)
    undone[FEED, 0].append(RollbackNote(lsn(before.header.file_number, before.header.end) + 1, 5, 1))
    assert not DryReplay({FEED: 1}, starts, undone).branch_is_missing(before)


def test_a_history_under_a_new_name_hears_of_no_older_one():
    replay = DryReplay({FEED: 1}, {(FEED, 0): PartitionStart(5, log_of((W, 2, 5)), renamed=True)})
    entry = control(RecordKind.FAILOVER_ENTRY, json.dumps(log_of((V, 9, 4), (U, 1, 0)).to_json()).encode())
    assert replay.is_superseded(entry)
    replay.replay(entry)
    assert replay.log_of((FEED, 0)) == log_of((W, 2, 5))
    assert not replay.branch_is_missing(written(6, branch=V))
