"""The rows of consumers in ``_feeds``: what is written is read, in any order of changes."""

from hypothesis import given
from hypothesis import strategies as st

from tailrace.model.failover import FailoverLog
from tailrace.model.position import Position
from tailrace.wire.consumer_messages import ConsumerId
from tailrace_server.feeds.consumer_rows import ConsumerRows, OwnedPartition, row_key, row_value

LOG = FailoverLog([(b"b" * 16, 3, 90), (b"a" * 16, 1, 0)])
CONSUMERS = st.builds(
    ConsumerId,
    st.sampled_from([bytes(16), b"consumer/" + bytes(7)]),
    st.sampled_from(["name", "group"]),
    st.sampled_from(["a", "ab", "\N{SNOWMAN}", "n" * 100]),
)
POSITIONS = st.one_of(
    st.none(),
    st.just(Position.at(FailoverLog(), 0)),
    st.builds(Position.at, st.just(LOG), st.integers(90, 100)),
    st.just(Position.at(LOG, 95, 91, 99, 97)),
)
OWNED = st.builds(OwnedPartition, st.integers(1, 2**62), st.sampled_from([b"", bytes(16)]), POSITIONS, st.integers(0))
CHANGES = st.lists(st.tuples(CONSUMERS, st.integers(0, 4095), st.one_of(st.none(), OWNED)), max_size=30)


@given(CHANGES)
def test_the_newest_row_of_each_partition_counts(changes):
    rows, model = ConsumerRows(), {}
    for consumer, partition, owned in changes:
        rows.take(row_key(consumer, partition), None if owned is None else row_value(owned))
        model[consumer, partition] = owned
    left = {key: owned for key, owned in model.items() if owned is not None}
    assert {(each, p): owned for each in rows for p, owned in rows.of(each).items()} == left
    assert rows.partition_count == len(left)
    assert set(rows) == {consumer for consumer, _ in left}


def test_rows_of_later_kinds_are_left_alone():
    rows = ConsumerRows()
    rows.take(b"consumer/x" + bytes(20) + b"name", b"no JSON")
    rows.take(b"consumer/n", b"no JSON")
    assert list(rows) == []
