from hypothesis import given
from hypothesis import strategies as st

from tailrace.errors import NotLeader, UnknownFeed
from tailrace.model import Level
from tailrace.model.failover import FailoverEntry
from tailrace_server.partition.partition import Partition
from tailrace_server.replication.waiting import WaitingAnswers

QUORUM = Level.QUORUM
ERROR = NotLeader("no more")


def made_partition(id=0, seqs=100):
    """It has so many seqs on its own disk, whatever they are."""
    partition = Partition(b"f" * 16, id, 0, 2**64 - 1)
    partition.log = partition.log.with_entry(FailoverEntry(b"u" * 16, 1, 0))
    partition.high_seq = partition.durable_seq = seqs
    return partition


def test_what_is_there_is_told_at_once():
    waiting, partition, told = WaitingAnswers(), made_partition(), []
    partition.set_quorum_seq(5)
    assert waiting.wait(QUORUM, [(partition, 5)], told.append) is None
    assert told == [None]


def test_an_answer_needs_every_partition():
    waiting, told = WaitingAnswers(), []
    first, second = made_partition(0), made_partition(1)
    waiting.wait(QUORUM, [(first, 5), (second, 7)], told.append)
    first.set_quorum_seq(9)
    second.set_quorum_seq(6)
    assert told == []
    second.set_quorum_seq(7)
    assert (told, len(waiting)) == ([None], 0)


def test_a_majority_counts_only_with_the_leaders_own_disk():
    waiting, partition, told = WaitingAnswers(), made_partition(seqs=3), []
    partition.high_seq = 5
    waiting.wait(QUORUM, [(partition, 5)], told.append)
    partition.set_quorum_seq(5)
    assert told == []
    partition.durable_through(5)
    assert told == [None]


def test_one_that_is_sent_again_waits_behind_those_before_it():
    waiting, partition, told = WaitingAnswers(), made_partition(), []
    waiting.wait(QUORUM, [(partition, 9)], lambda error: told.append(9))
    waiting.wait(QUORUM, [(partition, 4)], lambda error: told.append(4))
    partition.set_quorum_seq(8)
    assert told == []
    partition.set_quorum_seq(9)
    assert told == [9, 4]


def test_a_failure_of_one_partition_looks_at_no_other():
    """A feed of 4,096 partitions that is dropped would look at 4,096 queues for each of them."""

    class Queues(dict):
        def __iter__(self):
            raise AssertionError("all queues are walked through")

        keys = values = items = __iter__

    waiting, told = WaitingAnswers(), []
    first, second = made_partition(0), made_partition(1)
    for partition in (first, second):
        waiting.wait(QUORUM, [(partition, 5)], told.append)
    waiting._queues = Queues(waiting._queues)
    waiting.fail(ERROR, first)
    assert told == [ERROR]


def test_a_failure_of_one_partition_leaves_the_others():
    waiting, told = WaitingAnswers(), []
    first, second = made_partition(0), made_partition(1)
    waiting.wait(QUORUM, [(first, 5), (second, 5)], lambda error: told.append(("both", error)))
    waiting.wait(QUORUM, [(second, 5)], lambda error: told.append(("second", error)))
    waiting.fail(ERROR, first)
    second.set_quorum_seq(5)
    assert told == [("both", ERROR), ("second", None)]


def test_nobody_waits_for_a_feed_that_was_dropped():
    waiting, partition, told = WaitingAnswers(), made_partition(), []
    partition.drop()
    waiting.wait(QUORUM, [(partition, 5)], told.append)
    assert ([type(error) for error in told], len(waiting)) == ([UnknownFeed], 0)


def test_what_is_cancelled_does_not_pile_up():
    """A majority is away, and a client comes again and again."""
    waiting, partition, told = WaitingAnswers(), made_partition(), []
    waiting.wait(QUORUM, [(partition, 1)], told.append)
    for _ in range(1_000):
        waiting.wait(QUORUM, [(partition, 5)], told.append)()
        assert len(waiting) <= 4
    partition.set_quorum_seq(5)
    assert told == [None]


steps = st.one_of(
    st.tuples(st.just("wait"), st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), max_size=3)),
    st.tuples(st.just("quorum"), st.tuples(st.integers(0, 2), st.integers(1, 9))),
    st.tuples(st.just("cancel"), st.integers(0, 20)),
    st.tuples(st.just("fail"), st.one_of(st.none(), st.integers(0, 2))),
)


@given(st.lists(steps, max_size=40))
def test_each_is_told_once_and_not_early(made):
    """Against a plain list of what each needs."""
    waiting, partitions = WaitingAnswers(), [made_partition(id) for id in range(3)]
    needs, told, cancels = {}, {}, {}

    def reached(number):
        return all(partitions[id].quorum_seq >= seq for id, seq in needs[number])

    for number, (step, value) in enumerate(made):
        match step:
            case "wait":
                needs[number] = value

                def tell(error, number=number):
                    assert number not in told, "told twice"
                    told[number] = error
                    assert error is ERROR or reached(number), "told early"

                cancels[number] = waiting.wait(QUORUM, [(partitions[id], seq) for id, seq in value], tell)
            case "quorum":
                partitions[value[0]].set_quorum_seq(value[1])
            case "cancel" if cancels.get(value) is not None and value not in told:
                cancels.pop(value)()
                told[value] = "cancelled"
            case "fail":
                open_now = {number for number in needs if number not in told}
                waiting.fail(ERROR, None if value is None else partitions[value])
                for other in open_now:
                    if any(value in (None, id) and partitions[id].quorum_seq < seq for id, seq in needs[other]):
                        assert told.get(other) is ERROR
    for partition in partitions:
        partition.set_quorum_seq(9)
    assert told.keys() == needs.keys()
    assert len(waiting) == 0


def test_the_partitions_that_answers_wait_for():
    waiting, told = WaitingAnswers(), []
    first, second, third = map(made_partition, range(3))
    waiting.wait(QUORUM, [(first, 5), (second, 7)], told.append)
    cancel = waiting.wait(QUORUM, [(third, 5)], told.append)
    waiting.wait(Level.DISK, [(third, 101)], told.append)
    assert list(waiting.awaited(QUORUM)) == [first, second, third]
    cancel()
    second.set_quorum_seq(7)
    assert list(waiting.awaited(QUORUM)) == [first]
    assert list(waiting.awaited(Level.DISK)) == [third]
