"""Which queues are flushed, and why."""

from hypothesis import given
from hypothesis import strategies as st

from tailrace_server.upkeep.policy import HALVING_PARTITIONS, REPLAY_SHARE_MIN, Cause, FlushLimits, WriteQueue, choose

LIMITS = FlushLimits(segment_bytes=100, age_s=60.0, memory_bytes=1_000, journal_bytes=10_000, journal_replay_s=2.0)


def chosen(queues, memory_used=0, journal_bytes=0, journal_replay_s=0.0, journal_oldest=1, partitions=0):
    is_long = LIMITS.is_journal_long(journal_bytes, journal_replay_s, partitions)
    due = choose(queues, LIMITS, memory_used=memory_used, journal_is_long=is_long, journal_oldest=journal_oldest)
    return [(d.partition, d.cause) for d in due]


def test_nothing_is_due_where_all_is_small_and_young():
    assert chosen([WriteQueue("a", 99, 59.9, 1), WriteQueue("b", 1, 0.0, None)]) == []


def test_a_queue_of_a_segments_size_is_due():
    assert chosen([WriteQueue("a", 99, 0.0, 1), WriteQueue("b", 100, 0.0, 1)]) == [("b", Cause.SIZE)]


def test_an_old_queue_is_due_however_small():
    assert chosen([WriteQueue("a", 1, 60.0, 1)]) == [("a", Cause.AGE)]


def test_what_is_not_durable_yet_is_never_due():
    assert chosen([WriteQueue("a", 0, 1e9, 1)], memory_used=5_000, journal_bytes=1 << 40) == []


def test_under_pressure_the_largest_go_until_half_is_free():
    queues = [WriteQueue("a", 20, 0.0, 1), WriteQueue("b", 90, 0.0, 1), WriteQueue("c", 50, 0.0, 1)]
    assert chosen(queues, memory_used=600) == [("b", Cause.MEMORY), ("c", Cause.MEMORY)]


def test_a_long_journal_flushes_what_its_oldest_file_waits_for():
    queues = [WriteQueue("a", 20, 0.0, 7), WriteQueue("b", 90, 0.0, 8), WriteQueue("c", 50, 0.0, None)]
    assert chosen(queues, journal_bytes=10_001, journal_oldest=7) == [("a", Cause.JOURNAL)]


def test_a_journal_of_many_records_is_long_however_few_bytes_it_has():
    queues = [WriteQueue("a", 20, 0.0, 7), WriteQueue("b", 90, 0.0, 8)]
    assert chosen(queues, journal_bytes=10_000, journal_replay_s=2.0, journal_oldest=7) == []
    assert chosen(queues, journal_bytes=1, journal_replay_s=2.1, journal_oldest=7) == [("a", Cause.JOURNAL)]


@given(
    st.lists(st.tuples(st.integers(0, 200), st.floats(0, 100), st.integers(1, 3)), max_size=20),
    st.integers(0, 3_000),
)
def test_after_a_pass_the_memory_is_below_half_wherever_that_can_be(rows, others):
    queues = [WriteQueue(number, *row) for number, row in enumerate(rows)]
    used = sum(queue.stable_bytes for queue in queues) + others
    due = chosen(queues, memory_used=used)
    assert len({partition for partition, _ in due}) == len(due)
    left = used - sum(queues[partition].stable_bytes for partition, _ in due)
    assert left <= LIMITS.memory_bytes // 2 or left == others


def test_with_many_partitions_the_journal_may_cost_a_start_less():
    assert LIMITS.replay_bound_s(0) == 2.0
    assert LIMITS.replay_bound_s(HALVING_PARTITIONS) == 1.0
    assert LIMITS.replay_bound_s(10**6) == 2.0 * REPLAY_SHARE_MIN
    queues = [WriteQueue("a", 10, 0.0, 7)]
    due = {"journal_replay_s": 1.5, "journal_oldest": 7}
    assert chosen(queues, partitions=1, **due) == []
    assert chosen(queues, partitions=HALVING_PARTITIONS, **due) == [("a", Cause.JOURNAL)]


def test_a_queue_that_followers_get_by_segments_is_due_sooner():
    limits = LIMITS._replace(pushed_age_s=5.0)
    queues = [WriteQueue("a", 1, 5.0, 1), WriteQueue("b", 1, 5.0, 1, is_pushed=True), WriteQueue("c", 1, 4.9, 1, True)]
    due = choose(queues, limits, memory_used=0, journal_is_long=False, journal_oldest=1)
    assert due == [("b", Cause.AGE)]
    assert limits.age_bound_s(is_pushed=True) == 5.0
    assert limits._replace(age_s=1.0).age_bound_s(is_pushed=True) == 1.0
