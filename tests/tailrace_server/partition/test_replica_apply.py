"""A follower's partition: what it takes of its leader, and what it shows of that."""

import pytest
from tests.tailrace_server.stored import FakeJournal

from tailrace.block import encode_block
from tailrace.block.encode import Stamps
from tailrace.errors import BadBlock, Forbidden
from tailrace.model import Level
from tailrace.model.failover import FailoverEntry, FailoverLog
from tailrace.model.hashing import partition_range
from tailrace_server.blocks import cut_above
from tailrace_server.feeds.feed import system_feed
from tailrace_server.journal import RecordKind
from tailrace_server.journal.controls import LogRecord, RollbackRecord
from tailrace_server.partition.partition import Partition
from tailrace_server.partition.replica_apply import OtherHistory, apply_block, apply_producers, follow_log
from tailrace_server.partition.writing import write_block
from tailrace_server.state.memory import MemoryAccount

FEED = b"f" * 16
U, V, W = (FailoverEntry(name * 16, term, base) for name, term, base in ((b"u", 1, 0), (b"v", 2, 4), (b"w", 3, 2)))


class Journal(FakeJournal):
    def __init__(self):
        super().__init__()
        self.controls = []

    def append(self, kind, feed_id, partition, payload):
        self.controls.append((kind, payload))
        return len(self.controls)


def block_of(first_seq, rows, *, partition=0, timestamp=1_000, seqs=None, producer=(0, 0)):
    keys = [b"k%d" % row for row in range(rows)]
    if seqs is not None:
        stamps = Stamps(seqs, [timestamp] * rows)
        return encode_block(keys, keys, partition=partition, stamps=stamps, compress=False)
    block = encode_block(
        keys, keys, partition=partition, producer_id=producer[0], producer_seq=producer[1], compress=False
    )
    return block.stamped(first_seq, timestamp)


class Made:
    def __init__(self):
        self.partition = Partition(FEED, 0, *partition_range(0, 1))
        self.partition.state = "follower"
        self.journal = Journal()
        follow_log(self.partition, FailoverLog([U]), self.journal)

    def take(self, block):
        apply_block(self.partition, block, self.journal, 0.0)

    def sync(self):
        self.partition.durable_through(self.partition.high_seq)


@pytest.fixture
def made():
    return Made()


def test_a_block_keeps_the_seqs_and_the_stamp_that_it_has(made):
    made.take(block_of(1, 3, producer=(7, 1)))
    [(branch, block)] = made.journal.blocks
    assert (branch, block.header.first_seq, block.header.timestamp) == (U.branch, 1, 1_000)
    assert (made.partition.high_seq, made.partition.last_timestamp) == (3, 1_000)
    [entry], _ = made.partition.producers.snapshot(0.0)
    assert (entry.producer_id, entry.last_number, entry.results[0][1].last_seq) == (7, 1, 3)
    made.partition.check()


@pytest.mark.parametrize(
    "block",
    [
        block_of(1, 3),
        block_of(3, 2),
        block_of(5, 1),
        block_of(4, 1, partition=1),
        block_of(4, 1, timestamp=999),
        block_of(4, 2, seqs=[4, 6]),
    ],
    ids=["again", "overlapping", "behind a gap", "of another partition", "of an earlier time", "with a gap"],
)
def test_what_does_not_fit_is_refused_and_leaves_nothing(made, block):
    made.take(block_of(1, 3))
    with pytest.raises(BadBlock):
        made.take(block)
    assert (made.partition.high_seq, len(made.journal.blocks)) == (3, 1)
    made.partition.check()


def test_a_key_of_another_partition_is_refused():
    partition = Partition(FEED, 0, *partition_range(0, 64))
    follow_log(partition, FailoverLog([U]), Journal())
    with pytest.raises(BadBlock, match="outside of partition"):
        apply_block(partition, block_of(1, 20), Journal(), 0.0)


def test_nothing_is_taken_before_a_log_is_known():
    with pytest.raises(BadBlock, match="has no failover log yet"):
        apply_block(Partition(FEED, 0, *partition_range(0, 1)), block_of(1, 1), Journal(), 0.0)


def test_an_entry_is_taken_over_when_its_base_is_reached(made):
    made.take(block_of(1, 3))
    log = FailoverLog([V, U])
    assert not follow_log(made.partition, log, made.journal)
    assert made.partition.log == FailoverLog([U])
    made.take(block_of(4, 1))
    assert made.partition.log == log
    assert [kind for kind, _ in made.journal.controls] == [RecordKind.FAILOVER_ENTRY] * 2
    assert LogRecord.decode(made.journal.controls[-1][1]) == LogRecord(log, 0)
    made.take(block_of(5, 1))
    assert [branch for branch, _ in made.journal.blocks] == [U.branch, U.branch, V.branch]


def test_an_entry_that_holds_nothing_is_given_up_by_a_rollback_to_where_it_stands(made):
    made.take(block_of(1, 4))
    follow_log(made.partition, FailoverLog([V, U]), made.journal)
    assert follow_log(made.partition, FailoverLog([U]), made.journal)
    kind, payload = made.journal.controls[-1]
    record = RollbackRecord.decode(payload)
    assert (kind, record.seq, record.rollbacks, record.log) == (RecordKind.ROLLED_BACK, 4, 1, FailoverLog([U]))
    assert (made.partition.rollbacks, made.partition.high_seq) == (1, 4)


def test_a_log_of_another_history_is_refused(made):
    made.take(block_of(1, 3))
    with pytest.raises(OtherHistory):
        follow_log(made.partition, FailoverLog([W, U]), made.journal)
    assert made.partition.log == FailoverLog([U])


def test_streams_end_before_another_log_is_there(made):
    seen = []
    made.take(block_of(1, 4))
    made.partition.on_history_changed = lambda: seen.append(made.partition.log)
    follow_log(made.partition, FailoverLog([V, U]), made.journal)
    assert seen == [FailoverLog([U])]


def test_what_is_shown_is_durable_here_and_there_and_the_end_of_a_block(made):
    partition, shown = made.partition, []
    for first_seq in (1, 4, 7):
        made.take(block_of(first_seq, 3))
    partition.watchers.watch(Level.QUORUM, lambda: shown.append(partition.visible_seq(Level.QUORUM)))
    assert [partition.visible_seq(level) for level in Level] == [9, 0, 0]
    made.sync()
    assert [partition.visible_seq(level) for level in Level] == [9, 0, 0]
    partition.set_leader_seqs(8, 5)
    assert [partition.visible_seq(level) for level in Level] == [9, 6, 3]
    assert (partition.safe_seq, partition.stable_seq) == (8, 8)
    partition.needs_quorum = True
    assert partition.stable_seq == 5
    partition.set_leader_seqs(7, 4)
    assert (partition.leader_durable_seq, partition.quorum_seq) == (8, 5), "neither falls"
    partition.set_leader_seqs(9, 9)
    assert shown == [3, 9]


def test_what_was_told_of_another_branch_is_forgotten(made):
    made.take(block_of(1, 3))
    made.sync()
    made.partition.set_leader_seqs(10, 10)
    follow_log(made.partition, FailoverLog([V, U]), made.journal)
    assert (made.partition.leader_durable_seq, made.partition.quorum_seq) == (4, 4)


def test_an_entry_counts_for_where_it_stands_from_its_base_on(made):
    made.take(block_of(1, 4))
    follow_log(made.partition, FailoverLog([V, U]), made.journal)
    assert made.partition.standing() == (1, 0)
    made.sync()
    assert made.partition.standing() == (2, 4)


def test_the_rows_above_a_seq_are_a_block_of_their_own():
    block = block_of(5, 4, producer=(7, 1))
    rest = cut_above(block, 6)
    assert (rest.header.first_seq, rest.header.last_seq, rest.header.producer_id) == (7, 8, 0)
    assert rest.columns().keys() == [b"k2", b"k3"]
    assert cut_above(block, 4) is block
    with pytest.raises(ValueError, match="at least one row"):
        cut_above(block, 8)


def test_producers_that_were_told_are_those_of_the_leader(made):
    made.take(block_of(1, 3))
    value = {
        "evicted_age_s": None,
        "branches": [U.branch.hex()],
        "entries": [["0000000000000007", 2, 1.0, [[1, 0, 1, 2], [2, 0, 3, 3]]]],
    }
    apply_producers(made.partition, value, 3, made.journal, 0.0)
    [entry], _ = made.partition.producers.snapshot(0.0)
    assert (entry.producer_id, entry.last_number) == (7, 2)
    assert made.journal.controls[-1][0] is RecordKind.PRODUCERS_TOLD
    with pytest.raises(BadBlock):
        apply_producers(made.partition, value, 2, made.journal, 0.0)
    with pytest.raises(BadBlock):
        apply_producers(made.partition, {"entries": []}, 3, made.journal, 0.0)


def test_clients_do_not_write_the_list_of_feeds():
    [partition] = system_feed(MemoryAccount()).partitions
    block = encode_block([b"k"], [b"v"], partition=0, producer_id=1, producer_seq=1)
    with pytest.raises(Forbidden):
        write_block(partition, block, Journal(), now_us=1, now=0.0)
